"""Answers in a model's own format as one language: what is thought, then text, then calls that are valid.

    auto       thought? text? calls?        none       thought? text?
    required   thought? calls               a name     thought? one call of it

Marks that are special tokens are written as those tokens and as nothing else: in the automaton over bytes each has a
code that no text has (`coded`). Text has no marks of calls, so that a reader can tell the two apart.

Without a model's format, calls stand between two marks as {"name":...,"arguments":...} in compact JSON (`tools_dfa`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from daguerre.errors import InputError, unknown
from daguerre.models.chat_format.calls_reader import openings
from daguerre.models.chat_format.description import Calls, Envelope, Format, JsonArguments, Slot
from daguerre.sampling.constraints.automata import new_nfa
from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.call_arguments import ArgumentLanguage
from daguerre.sampling.constraints.dfa import Dfa, subtract
from daguerre.sampling.constraints.keywords import read_schema
from daguerre.sampling.constraints.nfa import Nfa
from daguerre.sampling.constraints.regex import regex_dfa
from daguerre.sampling.constraints.text import compact
from daguerre.sampling.constraints.tools import AUTO, NO_PARAMETERS, NONE, REQUIRED, function_of, tool_name
from daguerre.sampling.constraints.wording import holding
from daguerre.sampling.constraints.writing import Writer

ID = "[a-zA-Z0-9]{9}"
"""The ids of calls that models write: nine letters and digits suit all templates."""
NUMBER = "0|[1-9][0-9]?"
CODE = b"\xff"
"""Begins the code of a special token. No text has this byte."""
TEXT_DEPTH = 2
"""How deep values nest where the schema of the text constrains nothing."""


def code_of(token: int) -> bytes:
    """The bytes that stand for a special token."""
    return CODE + token.to_bytes(4, "big")


def coded(text: str, special: Mapping[str, int]) -> bytes:
    """The bytes of a literal, in which special tokens have their codes."""
    if not special:
        return text.encode()
    names = "|".join(re.escape(name) for name in sorted(special, key=lambda name: -len(name)))
    pieces = re.split(f"({names})", text)
    return b"".join(code_of(special[piece]) if piece in special else piece.encode() for piece in pieces)


class AnswerLanguage:
    """Builds the automaton of answers.

    tools    (name, language of its arguments) of each function that may be called
    special  ids of special tokens, by their texts
    eos      the one that ends every text, and so no part of any
    """

    def __init__(
        self,
        form: Format,
        tools: Mapping[str, ArgumentLanguage],
        special: Mapping[str, int],
        budget: Budget,
        eos: int | None = None,
    ) -> None:
        assert form.calls is not None
        self._form, self._calls, self._tools = form, form.calls, tools
        self._special, self._budget, self._eos = special, budget, eos
        self._nfa: Nfa = new_nfa(budget)

    def dfa(self, text: Dfa | None, called: str, thinks: str | None, parallel: bool) -> Dfa:
        """The automaton. text: of texts, None: there are none; called: "may", "must" or "never"; thinks: as in
        `models.chat_format.reader`, None: it does not.
        """
        nfa = self._nfa
        entry, last = nfa.state(), nfa.state()
        start = self._thought(entry, thinks)
        said = [] if text is None else [self._text(start, text)]
        for state in said:
            nfa.link(state, last)
        if called != "never":
            states = [start]
            if said and self._form.text_beside_calls:
                states.append(self._literal(said[0], self._form.glue if self._form.glue.strip() else ""))
            done = self._section(states, parallel)
            nfa.link(done, last)
            for end in self._own_ends():
                nfa.link(self._literal(done, end), last)
        return nfa.determinize(entry, last)

    def _own_ends(self) -> list[str]:
        """Marks that end an answer with calls, if the model writes them as a part of it."""
        return [end for end in self._form.ends[1:] if self._special.get(end, self._eos) != self._eos]

    def _literal(self, entry: int, text: str) -> int:
        return self._nfa.literal(entry, coded(text, self._special)) if text else entry

    def _free(self, without: Sequence[str]) -> Dfa:
        """Any text in which some others do not occur."""
        return free_text([one for one in without if one and one not in self._special], self._budget)

    def _thought(self, entry: int, thinks: str | None) -> int:
        """A thought, which there may be."""
        thinking, nfa = self._form.thinking, self._nfa
        if thinking is None or thinks is None or not thinking.close:
            return entry
        after = nfa.state()
        nfa.link(entry, after)
        opened = entry if thinks == "does" else self._literal(entry, f"{thinking.open}\n") if thinking.open else None
        if opened is not None:
            marks = [thinking.close, *openings(self._calls)]
            thought = nfa.embed(opened, self._free(marks))
            nfa.link(self._literal(thought, thinking.close + thinking.after), after)
        return after

    def _text(self, entry: int, text: Dfa) -> int:
        opened, closed = self._form.text
        inside = self._literal(entry, opened if opened.strip() else "")
        return self._literal(self._nfa.embed(inside, text), closed if opened.strip() else "")

    # calls

    def _section(self, entries: Sequence[int], parallel: bool) -> int:
        nfa, calls = self._nfa, self._calls
        begun, again = nfa.state(), nfa.state()
        for entry in entries:
            nfa.link(self._literal(entry, calls.begin), begun)
        nfa.link(begun, again)
        done = nfa.state()
        for name, arguments in self._tools.items():
            with _named(name):
                nfa.link(self._call(again, name, arguments), done)
        if parallel and calls.several:
            nfa.link(self._literal(done, calls.separator), again)
        return self._literal(done, calls.end)

    def _call(self, entry: int, name: str, arguments: ArgumentLanguage) -> int:
        nfa = self._nfa
        write = arguments.write(nfa, self._calls.arguments)
        for part in self._calls.parts:
            if isinstance(part, str):
                entry = self._literal(entry, part)
            elif part is Slot.NAME:
                in_json = self._calls.envelope is not None
                entry = nfa.literal(entry, (compact(name)[1:-1] if in_json else name).encode())
            elif part is Slot.ARGUMENTS:
                entry = write(entry)
            else:
                entry = nfa.embed(entry, regex_dfa(ID if part is Slot.ID else NUMBER, self._budget))
        return entry


@contextmanager
def _named(function: str) -> Iterator[None]:
    """An error in the parameters of a function says its name."""
    try:
        yield
    except InputError as error:
        raise type(error)(f"in the parameters of the function {function!r}: {error}") from error


def free_text(without: Sequence[str], budget: Budget) -> Dfa:
    """Any text in which some others do not occur."""
    text = regex_dfa("[^]*", budget)
    for one in without:
        text = subtract(text, holding(one.encode(), budget), budget)
    return text


def text_of(form: Format, special: Mapping[str, int], budget: Budget) -> Dfa:
    """Any text that no reader takes for calls."""
    assert form.calls is not None
    marks = [mark for mark in openings(form.calls) if not any(one in mark for one in special)]
    text = free_text(marks, budget)
    if form.calls.bare:
        text = subtract(text, regex_dfa(r"[ \t\r\n\[]*\{[^]*", budget), budget)
    if _named_first(form.calls):
        text = subtract(text, regex_dfa(r"[^]*>>>[^]*", budget), budget) if form.glue == ">>>" else text
    return text


def _named_first(calls: Calls) -> bool:
    return not calls.opening and calls.parts[0] is Slot.NAME


def answer_dfa(
    form: Format,
    tools: Mapping[str, ArgumentLanguage],
    choice: str,
    special: Mapping[str, int],
    budget: Budget,
    *,
    parallel: bool = True,
    thinks: str | None = None,
    text: Dfa | None = None,
    eos: int | None = None,
) -> Dfa:
    """The automaton of answers with calls of functions. text: what texts may be; None: any in which no call begins;
    eos: the token that ends every text, and so no part of any.
    InputError where there is nothing to call.
    """
    forced = choice not in (AUTO, NONE, REQUIRED)
    if forced and choice not in tools:
        raise unknown("function", choice, tools)
    if not tools:
        raise InputError("there is nothing to call: give tools")
    said = None
    if choice in (AUTO, NONE):
        said = text_of(form, special, budget) if text is None else text
    called = {AUTO: "may", NONE: "never"}.get(choice, "must")
    language = AnswerLanguage(form, {choice: tools[choice]} if forced else tools, special, budget, eos)
    return language.dfa(said, called, thinks, parallel and not forced)


def functions_dfa(
    form: Format,
    special: Mapping[str, int],
    tools: Sequence[Mapping[str, Any]],
    choice: str,
    depth: int,
    budget: Budget,
    *,
    text: object = None,
    reading: Mapping[str, Any] | None = None,
    free: Dfa | None = None,
    **more: Any,
) -> tuple[Dfa, tuple[str, ...]]:
    """(the automaton of answers, what was ignored) of functions as they are given to `compile_tools`.

    text: a schema that texts are JSON of; None: they are `free`; reading: options of `read_schema`; more: of
    `answer_dfa`.
    """
    how, said, held = dict(reading or {}), free, None
    if text is not None and choice in (AUTO, NONE):
        held = read_schema(text, budget, **how)
        said = Writer(held, depth, budget).dfa(held.root, TEXT_DEPTH)
    languages: dict[str, ArgumentLanguage] = {}
    for tool in map(function_of, tools):
        name, parameters = tool_name(tool, languages), tool.get("parameters")
        with _named(name):
            given = NO_PARAMETERS if parameters is None else parameters
            languages[name] = ArgumentLanguage(given, depth, budget, how, partial(coded, special=special))
    dfa = answer_dfa(form, languages, choice, special, budget, text=said, **more)
    ignored = [] if held is None else list(held.ignored)
    return dfa, (*ignored, *(f"{what} of {name}" for name, one in languages.items() for what in one.ignored))


def tools_dfa(
    tools: Sequence[Mapping[str, Any]],
    choice: str,
    marks: tuple[str, str],
    depth: int,
    budget: Budget,
    **more: Any,
) -> tuple[Dfa, tuple[str, ...]]:
    """`functions_dfa` of text, or calls between marks: text is any text in which the first mark does not occur."""
    parts = (f'{marks[0]}{{"name":"', Slot.NAME, '","arguments":', Slot.ARGUMENTS, f"}}{marks[1]}")
    calls = Calls("", parts, "", "", JsonArguments(), Envelope("name", "arguments"), *marks)
    form = Format("marks", calls, text_beside_calls=False)
    return functions_dfa(form, {}, tools, choice, depth, budget, free=free_text([marks[0]], budget), **more)
