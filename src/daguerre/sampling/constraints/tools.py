"""Calls of functions: text, or one or more calls, as one language.

A call is `opening`, then {"name":...,"arguments":...} as compact JSON, then `closing`. Text is any text in which
`opening` does not occur, so a reader can tell the two apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from daguerre.errors import InputError, unknown
from daguerre.sampling.constraints.automata import new_nfa
from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.dfa import Dfa, subtract
from daguerre.sampling.constraints.keywords import read_schema
from daguerre.sampling.constraints.regex import regex_dfa
from daguerre.sampling.constraints.text import compact
from daguerre.sampling.constraints.writing import Writer

ANY_DEPTH, TEXT_DEPTH = 1, 2
"""How deep values nest where the parameters, or the schema of the text, constrain nothing."""
OPENING, CLOSING = "<tool_call>", "</tool_call>"
AUTO, REQUIRED = "auto", "required"
NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "additionalProperties": False}


def tools_dfa(
    tools: Sequence[Mapping[str, Any]],
    choice: str,
    marks: tuple[str, str],
    depth: int,
    lenient: bool,
    budget: Budget,
    parallel: bool = True,
    text: object = None,
) -> tuple[Dfa, tuple[str, ...]]:
    """(the automaton, what was ignored) of calls of functions, each given as {"name": ..., "parameters": schema}.

    `choice`: "auto" for text or calls, "required" for calls, a function's name for exactly one call of it. `parallel`:
    there may be several calls. `text`: a schema that the text is JSON of; None: any text.
    """
    ignored: list[str] = []
    calls: dict[str, Dfa] = {}
    for tool in tools:
        name = tool.get("name")
        if not isinstance(name, str) or name in calls or name in (AUTO, REQUIRED):
            raise InputError(f"each function needs a different name, other than auto and required, not {name!r:.40}")
        try:
            schema = read_schema(tool.get("parameters", NO_PARAMETERS), budget, lenient)
            calls[name] = Writer(schema, depth, ANY_DEPTH, budget).dfa(schema.root)
        except InputError as error:
            raise type(error)(f"in the parameters of the function {name!r}: {error}") from error
        ignored += [f"{what} of {name}" for what in schema.ignored]
    if not calls or not all(marks):
        raise InputError("there is nothing to call, or a mark around calls is empty: give both")
    if choice not in (AUTO, REQUIRED):
        if choice not in calls:
            raise unknown("function", choice, calls)
        calls = {choice: calls[choice]}
    if choice != AUTO:
        said = None
    elif text is None:
        said = subtract(regex_dfa("[^]*", budget), _holding(marks[0], budget), budget)
    else:
        held = read_schema(text, budget, lenient)
        said, ignored = Writer(held, depth, TEXT_DEPTH, budget).dfa(held.root), [*held.ignored, *ignored]
    return _language(calls, said, marks, budget, parallel and choice in (AUTO, REQUIRED)), tuple(ignored)


def _language(
    calls: Mapping[str, Dfa], text: Dfa | None, marks: tuple[str, str], budget: Budget, parallel: bool
) -> Dfa:
    """One call or, if they may be `parallel`, several; or a text. JSON does not begin as a mark does."""
    nfa = new_nfa(budget)
    entry, last, again = nfa.state(), nfa.state(), nfa.state()
    nfa.link(entry, again)
    opened = nfa.literal(nfa.literal(again, marks[0].encode()), b'{"name":')
    closed = nfa.state()
    for name, arguments in calls.items():
        named = nfa.literal(opened, compact(name).encode() + b',"arguments":')
        nfa.link(nfa.embed(named, arguments), closed)
    done = nfa.literal(closed, b"}" + marks[1].encode())
    nfa.link(done, last)
    if parallel:
        nfa.link(done, again)
    if text is not None:
        nfa.link(nfa.embed(entry, text), last)
    return nfa.determinize(entry, last)


def _holding(mark: str, budget: Budget) -> Dfa:
    """The texts in which a mark occurs."""
    escaped = "".join(char if char.isalnum() and char.isascii() else f"\\u{{{ord(char):x}}}" for char in mark)
    return regex_dfa(escaped, budget, search=True)
