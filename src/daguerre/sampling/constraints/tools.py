"""Calls of functions: text, or one or more calls, as one language.

A function is given as {"name": ..., "parameters": schema}, or as OpenAI's clients do, {"type": "function", "function":
{...}}. A call is `opening`, then {"name":...,"arguments":...} as compact JSON, then `closing`. Text is any text in
which `opening` does not occur, so a reader can tell the two apart.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

from daguerre.errors import InputError, unknown
from daguerre.sampling.constraints.automata import new_nfa
from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.dfa import Dfa, empty, subtract
from daguerre.sampling.constraints.keywords import read_schema
from daguerre.sampling.constraints.regex import regex_dfa
from daguerre.sampling.constraints.schema import Schema
from daguerre.sampling.constraints.text import compact
from daguerre.sampling.constraints.wording import holding
from daguerre.sampling.constraints.writing import Writer

ANY_DEPTH, TEXT_DEPTH = 1, 2
"""How deep values nest where the parameters, or the schema of the text, constrain nothing."""
OPENING, CLOSING = "<tool_call>", "</tool_call>"
AUTO, NONE, REQUIRED = "auto", "none", "required"
NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "additionalProperties": False}


def function_of(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a tool says of its function, in either shape. InputError for a tool of another type."""
    if "function" not in tool and tool.get("type", "function") == "function":
        return tool
    function = tool.get("function")
    if tool.get("type", "function") != "function" or not isinstance(function, Mapping):
        raise InputError(f'a tool must be {{"type": "function", "function": {{"name": ...}}}}, not {dict(tool)!r:.60}')
    return function


def tools_dfa(
    tools: Sequence[Mapping[str, Any]],
    choice: str,
    marks: tuple[str, str],
    depth: int,
    budget: Budget,
    parallel: bool = True,
    text: object = None,
    reading: Mapping[str, Any] | None = None,
) -> tuple[Dfa, tuple[str, ...]]:
    """(the automaton, what was ignored) of calls of functions.

    `choice`: "auto" for text or calls, "none" for text, "required" for calls, a function's name for exactly one call of
    it. `parallel`: there may be several calls. `text`: a schema that the text is JSON of; None: any text. `reading`:
    options of `read_schema`.
    """
    how = dict(reading or {})
    ignored: list[str] = []
    calls: dict[str, Dfa] = {}
    for tool in map(function_of, tools):
        name = tool_name(tool, calls)
        schema, calls[name] = _arguments(tool, name, depth, budget, how)
        ignored += [f"{what} of {name}" for what in schema.ignored]
    if not calls or not all(marks):
        raise InputError("there is nothing to call, or a mark around calls is empty: give both")
    if choice not in (AUTO, NONE, REQUIRED):
        if choice not in calls:
            raise unknown("function", choice, calls)
        calls = {choice: calls[choice]}
    said = None
    if choice in (AUTO, NONE):
        said, of_text = _text(text, marks, depth, budget, how)
        ignored = [*of_text, *ignored]
    if choice == NONE:
        return said or empty(), tuple(ignored)
    return _language(calls, said, marks, budget, parallel and choice in (AUTO, REQUIRED)), tuple(ignored)


def tool_name(tool: Mapping[str, Any], others: Container[str]) -> str:
    """A function's name. InputError if another function has it, or if it is a word of `tool_choice`."""
    name = tool.get("name")
    if not isinstance(name, str) or name in others or name in (AUTO, NONE, REQUIRED):
        raise InputError(f"each function needs a different name, other than auto, none and required, not {name!r:.40}")
    return name


def _arguments(
    tool: Mapping[str, Any], name: str, depth: int, budget: Budget, how: dict[str, Any]
) -> tuple[Schema, Dfa]:
    """The parameters of a function, and the automaton of its arguments."""
    parameters = tool.get("parameters")
    try:
        schema = read_schema(NO_PARAMETERS if parameters is None else parameters, budget, **how)
        return schema, Writer(schema, depth, budget).dfa(schema.root, ANY_DEPTH)
    except InputError as error:
        raise type(error)(f"in the parameters of the function {name!r}: {error}") from error


def _text(
    schema: object, marks: tuple[str, str], depth: int, budget: Budget, how: dict[str, Any]
) -> tuple[Dfa, tuple[str, ...]]:
    """(the automaton, what was ignored) of the text: any in which no call begins, or JSON of a schema."""
    if schema is None:
        return subtract(regex_dfa("[^]*", budget), holding(marks[0].encode(), budget), budget), ()
    held = read_schema(schema, budget, **how)
    return Writer(held, depth, budget).dfa(held.root, TEXT_DEPTH), tuple(held.ignored)


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
