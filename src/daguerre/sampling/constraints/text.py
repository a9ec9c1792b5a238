"""Small languages that other modules are made of, and JSON as the automata write it."""

from __future__ import annotations

import json
from collections.abc import Iterable

from daguerre.errors import InputError, shown
from daguerre.sampling.constraints.automata import new_nfa
from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.dfa import Dfa
from daguerre.sampling.constraints.utf8 import ANY


def compact(value: object) -> str:
    """JSON without spaces, as the automata write it."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"the schema holds a value that JSON does not have: {error}; remove it") from error


def escaped(key: str) -> str:
    """A key as a part of a JSON pointer. InputError for a key that is no string."""
    if not isinstance(key, str):
        raise InputError(f"the schema has the key {shown(key)}: in JSON every key is a string")
    return key.replace("~", "~0").replace("/", "~1")


def lengths(least: int, most: int | None, budget: Budget) -> Dfa:
    """Strings of some numbers of characters."""
    nfa = new_nfa(budget)
    entry = nfa.state()
    last = nfa.repeat(entry, lambda state: nfa.chars(state, ANY), least, most)
    return nfa.determinize(entry, last)


def literals(texts: Iterable[str | bytes], budget: Budget) -> Dfa:
    """The language of any number of texts."""
    nfa = new_nfa(budget)
    entry, last = nfa.state(), nfa.state()
    for text in texts:
        nfa.link(nfa.literal(entry, text if isinstance(text, bytes) else text.encode()), last)
    return nfa.determinize(entry, last)
