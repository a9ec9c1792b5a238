"""Small languages that other modules are made of, and JSON as the automata write it."""

from __future__ import annotations

import json
from collections.abc import Iterable

import numpy as np

from daguerre.errors import InputError
from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.dfa import DEAD, Dfa, minimize
from daguerre.sampling.constraints.nfa import Nfa, determinize
from daguerre.sampling.constraints.utf8 import ANY


def compact(value: object) -> str:
    """JSON without spaces, as the automata write it."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"the schema holds a value that JSON does not have: {error}; remove it") from error


def escaped(key: str) -> str:
    """A key as a part of a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")


def lengths(least: int, most: int | None, budget: Budget) -> Dfa:
    """Strings of some numbers of characters."""
    nfa = Nfa(budget)
    entry = nfa.state()
    last = nfa.repeat(entry, lambda state: nfa.chars(state, ANY), least, most)
    return determinize(nfa, entry, last)


def literals(texts: Iterable[str | bytes], budget: Budget) -> Dfa:
    """The language of any number of texts."""
    words = sorted({text if isinstance(text, bytes) else text.encode() for text in texts})
    arcs, accept = _words(words, budget)
    used = sorted({byte for _, byte, _ in arcs})
    class_of_byte = np.full(256, len(used), dtype=np.uint8)
    class_of_byte[used] = np.arange(len(used))
    delta_QK = np.full((len(accept), len(used) + (len(used) < 256)), DEAD, dtype=np.int32)
    for source, byte, target in arcs:
        delta_QK[source, class_of_byte[byte]] = target
    return minimize(Dfa(delta_QK, class_of_byte, np.array(accept)))


def _words(words: list[bytes], budget: Budget) -> tuple[list[tuple[int, int, int]], list[bool]]:
    """(arcs, whether each state accepts) of sorted words, with equal endings joined as they come (Daciuk et al. 2000).

    A state is numbered when nothing can be added below it any more; state 0 is the start.
    """
    known: dict[tuple[bool, tuple[tuple[int, int], ...]], int] = {}
    arcs: list[tuple[int, int, int]] = []
    accept: list[bool] = [False]
    path: list[tuple[list[tuple[int, int]], bool]] = [([], False)]  # what is known of each state of the last word
    last = b""

    def close(depth: int) -> None:
        while len(path) > depth + 1:
            after, ends = path.pop()
            key = ends, tuple(after)
            if key not in known:
                known[key] = len(accept)
                accept.append(ends)
                arcs.extend((known[key], byte, target) for byte, target in after)
                if len(accept) % 1024 == 0:
                    budget.states(len(accept))
            path[-1][0].append((last[len(path) - 1], known[key]))

    for word in words:
        shared = 0
        while shared < min(len(word), len(last)) and word[shared] == last[shared]:
            shared += 1
        close(shared)
        path += [([], False) for _ in range(len(word) - shared)]
        path[-1] = path[-1][0], True
        last = word
    close(0)
    accept[0] = path[0][1]
    return arcs + [(0, byte, target) for byte, target in path[0][0]], accept
