"""From a constraint to a token automaton: the functions that users of this package call.

Each takes a tokenizer, a budget, and a folder in which to keep what was compiled, or None; a kept automaton is found by
a hash of the constraint and the tokenizer.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from daguerre.errors import InputError, UnsupportedError
from daguerre.kinds import Instance, Kind, NamedWords, OneOf, PathName, Several, Switch, Whole, Words, checks
from daguerre.models.chat_format import Thinks
from daguerre.models.tokenizer import Tokenizer
from daguerre.sampling.constraints.answers import code_of, functions_dfa, tools_dfa
from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.dfa import Dfa
from daguerre.sampling.constraints.keywords import read_schema
from daguerre.sampling.constraints.limits import DEFAULT, Limits, contradiction
from daguerre.sampling.constraints.regex import grammar_dfa, regex_dfa
from daguerre.sampling.constraints.schema import Schema
from daguerre.sampling.constraints.store import kept
from daguerre.sampling.constraints.text import literals
from daguerre.sampling.constraints.tokens import TokenAutomaton, VocabularyBytes, lift
from daguerre.sampling.constraints.tools import AUTO, CLOSING, OPENING
from daguerre.sampling.constraints.writing import Writer

if TYPE_CHECKING:  # which would bring Jinja
    from daguerre.models.chat_format.tokens import TokenFormat

DEPTH = 3
DEEP = Whole(low=1, high=32)
KINDS: dict[str, Kind] = {
    "pattern": Words(),
    "choices": Several(one=Words(), what="a list of texts"),
    "rules": NamedWords(),
    "start": Words(empty=False),
    "tools": Several(one=Instance(of=(Mapping,), what="functions, each a dict"), what="a list of functions"),
    "marks": Several(one=Words(empty=False), what="two texts, before and behind a call", count=2),
    "tokenizer": Instance(of=(Tokenizer,), what="a tokenizer"),
    "depth": DEEP,
    "any_depth": replace(DEEP, none=True),
    "lenient": Switch(),
    "strict": Switch(),
    "parallel": Switch(),
    "choice": Words(),
    "chat_format": OneOf(known=get_args(Thinks), none=True),
    "limits": Instance(of=(Limits,), what="Limits"),
    "budget": Instance(of=(Budget,), what="a Budget", none=True),
    "folder": PathName(none=True),
}
"""What the arguments of this module's functions are."""
ANY_DEPTHS, MOST_STATES = (2, 3, 4), 4_000
"""How deep values nest where nothing is asked for: as deep as the automaton stays that small."""
Made = tuple[Dfa, tuple[str, ...]]
"""An automaton over bytes, and what was ignored."""


@checks(KINDS)
def compile_regex(
    pattern: str, tokenizer: Tokenizer, *, budget: Budget | None = None, folder: Path | None = None
) -> TokenAutomaton:
    """The texts that match a pattern of the dialect of `regex` as a whole."""
    return _compiled(lambda b: (regex_dfa(pattern, b), ()), ["regex", pattern], tokenizer, budget, folder)


@checks(KINDS)
def compile_choices(
    choices: Sequence[str], tokenizer: Tokenizer, *, budget: Budget | None = None, folder: Path | None = None
) -> TokenAutomaton:
    """Any one of the texts. InputError when there are none."""
    if not choices:
        raise InputError("there are no choices: give at least one text")
    return _compiled(lambda b: (literals(choices, b), ()), ["choices", *choices], tokenizer, budget, folder)


@checks(KINDS)
def compile_grammar(
    rules: Mapping[str, str],
    start: str,
    tokenizer: Tokenizer,
    *,
    depth: int = DEPTH,
    budget: Budget | None = None,
    folder: Path | None = None,
) -> TokenAutomaton:
    """The texts of a grammar, named patterns that call one another with `(?&name)`, each within itself at most `depth`
    times.
    """
    what = ["grammar", dict(rules), start, depth]
    return _compiled(lambda b: (grammar_dfa(rules, start, depth, b), ()), what, tokenizer, budget, folder)


@checks(KINDS)
def compile_schema(
    schema: Mapping[str, object] | bool,
    tokenizer: Tokenizer,
    *,
    lenient: bool = False,
    strict: bool = False,
    depth: int = DEPTH,
    any_depth: int | None = None,
    limits: Limits = DEFAULT,
    budget: Budget | None = None,
    folder: Path | None = None,
) -> TokenAutomaton:
    """The JSON texts that a schema accepts, compact and with members in the order of the schema.

    A schema that contains itself does so at most `depth` times, and values nest `any_depth` deep where it constrains
    nothing; None: 2 to 4 deep, as far as the automaton stays small, and everything 1 deep where it would be too large.
    A member whose name the schema does not mention may come twice.
    Keywords and formats of no draft are ignored, and the automaton's `ignored` lists them; with `strict` they are an
    UnsupportedError. What is known and not supported is an UnsupportedError with its place; with `lenient` it is
    ignored and listed, too. `limits`: how much is written out.
    """
    what = ["schema", schema, lenient, strict, repr(limits), depth, any_depth]
    made = partial(schema_dfa, schema, lenient=lenient, strict=strict, depth=depth, any_depth=any_depth, limits=limits)
    return _compiled(made, what, tokenizer, budget, folder)


@checks(KINDS)
def compile_tools(
    tools: Sequence[Mapping[str, object]],
    tokenizer: Tokenizer,
    *,
    choice: str = AUTO,
    parallel: bool = True,
    text: object = None,
    marks: tuple[str, str] = (OPENING, CLOSING),
    chat_format: str | None = None,
    lenient: bool = False,
    strict: bool = False,
    depth: int = DEPTH,
    limits: Limits = DEFAULT,
    budget: Budget | None = None,
    folder: Path | None = None,
) -> TokenAutomaton:
    """Text, or one or more calls of functions, each given as {"name": ..., "parameters": schema}, or in OpenAI's shape
    {"type": "function", "function": {...}}; see `tools`.

    `choice`: "auto", "none" for text alone, "required" for calls alone, or the name of the one function to call, once.
    `parallel`: there may be several calls. `text`: a schema that the text is JSON of; None: any text. `lenient`,
    `strict`, `limits`: as in `compile_schema`. `chat_format`: calls, and a thought before the answer, are written as
    the tokenizer's chat template has them (`answers`), in which case `marks` are not used; "may": the answer may begin
    with a thought, "does": the prompt has begun one.
    """
    reading = {"lenient": lenient, "strict": strict, "limits": limits}
    how: dict[str, Any] = {"parallel": parallel, "text": text, "reading": reading}
    what = ["tools", list(tools), choice, parallel, text, marks, lenient, strict, repr(limits), depth]
    if chat_format is not None:
        found = _format(tokenizer)
        codes = tuple((token, code_of(token)) for token in sorted(found.special.values()))
        eos = tokenizer.eos_id
        what += [chat_format, repr(found.form), eos]
        given = found.form, found.special, tools, choice, depth
        made = partial(functions_dfa, *given, thinks=chat_format, eos=eos, **how)
        return _compiled(made, what, tokenizer, budget, folder, VocabularyBytes.coded(tokenizer, codes))
    return _compiled(partial(tools_dfa, tools, choice, marks, depth, **how), what, tokenizer, budget, folder)


def _format(tokenizer: Tokenizer) -> TokenFormat:
    from daguerre.models.chat_format.tokens import format_of  # which brings Jinja

    found = format_of(tokenizer)
    if found is None:
        raise InputError("chat_format needs a tokenizer whose chat template writes calls: leave it out")
    return found


def schema_dfa(
    schema: object,
    budget: Budget,
    lenient: bool = False,
    depth: int = DEPTH,
    any_depth: int | None = None,
    *,
    strict: bool = False,
    limits: Limits = DEFAULT,
) -> Made:
    """(the automaton over bytes, what was ignored) of a schema. InputError where it has no values."""
    held = read_schema(schema, budget, lenient, strict, limits)
    dfa = written_dfa(held, depth, any_depth, budget)
    if dfa.is_empty:
        raise contradiction(held.capped, limits)
    return dfa, tuple(held.ignored)


def written_dfa(schema: Schema, depth: int, any_depth: int | None, budget: Budget) -> Dfa:
    """The automaton of a schema; with any_depth None, values nest as deep as fits."""
    writer = Writer(schema, depth, budget)
    if any_depth is not None:
        return writer.dfa(schema.root, any_depth)
    try:
        return writer.deepest(schema.root, ANY_DEPTHS, MOST_STATES)
    except UnsupportedError:
        raise
    except InputError:
        return Writer(schema, 1, budget).dfa(schema.root, 1)  # what was too large may fit; out of time, this raises


def _compiled(
    make: Callable[[Budget], Made],
    what: Sequence[object],
    tokenizer: Tokenizer,
    budget: Budget | None,
    folder: Path | None,
    vocabulary: VocabularyBytes | None = None,
) -> TokenAutomaton:
    def compiled() -> TokenAutomaton:
        allowed = budget or Budget()
        try:
            dfa, ignored = make(allowed)
        except (RecursionError, ctypes.ArgumentError) as error:  # ctypes wraps one that befalls it
            if not isinstance(error, RecursionError) and "RecursionError" not in str(error):
                raise
            most = f"{sys.getrecursionlimit():,} calls inside one another"
            raise InputError(f"the constraint is nested too deep for Python, which allows {most}: flatten it") from None
        except UnicodeEncodeError as error:
            raise InputError(f"the constraint holds a lone surrogate, {error.object!r:.40}: remove it") from error
        if dfa.is_empty:
            raise InputError("the constraint allows no text at all: it contradicts itself; loosen it")
        return lift(dfa, vocabulary or VocabularyBytes.make(tokenizer), allowed, ignored)

    return kept(None if folder is None else Path(folder), what, tokenizer, compiled)
