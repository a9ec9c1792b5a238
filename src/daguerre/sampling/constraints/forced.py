"""Forced positions: open positions at which all texts of a language that agree with the fixed tokens have one token.

No logits are needed: the result depends on the fixed tokens alone.

Letters: P positions, B bundles.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from daguerre.sampling.constraints.indices import NONE
from daguerre.sampling.constraints.reference.paths import SlowSpan
from daguerre.sampling.constraints.spans import CompiledSpan
from daguerre.sampling.constraints.tokens import TokenAutomaton

NOTHING, SEVERAL = -1, -2


@lru_cache(maxsize=128)
def forced(
    automaton: TokenAutomaton, span: CompiledSpan | SlowSpan, fixed: bytes, filler: int, floor: int
) -> tuple[tuple[int, int], ...] | None:
    """(position, token) of each open position at which every text has that token; None where no text fits.

    `fixed` has the classes (P,) of fixed tokens, NONE where open; open positions below `floor` do not take the class
    `filler`.
    """
    classes = np.frombuffer(fixed, dtype=automaton.class_of_token.dtype)
    only_2B = np.stack([_only_tokens(automaton, NONE), _only_tokens(automaton, filler)])
    kind = (np.arange(len(classes)) < floor).astype(np.uint8)
    takers = [_takers(automaton, cls, only_2B[k]) for cls, k in zip(classes.tolist(), kind.tolist(), strict=True)]
    allowed_PB = np.array(takers, dtype=np.uint8).reshape(len(classes), automaton.pairs.num_bundles)
    tokens = span.forced(allowed_PB, only_2B, kind)
    if tokens is None:
        return None
    positions = np.flatnonzero((classes == NONE) & (tokens >= 0))
    return tuple(zip(positions.tolist(), tokens[positions].tolist(), strict=True))


@lru_cache(maxsize=128)
def _only_tokens(automaton: TokenAutomaton, without: int) -> np.ndarray:
    """(B,): the only token of each bundle, one class left out; NOTHING or SEVERAL where there is not exactly one."""
    pairs, sizes_C = automaton.pairs, np.diff(automaton.first_token)
    if without != NONE:
        sizes_C[without] = 0
    tokens_C = np.where(sizes_C == 1, automaton.order[automaton.first_token[:-1]], 0)
    size_B, token_B = (np.add.reduceat(each.take(pairs.classes), pairs.starts[:-1]) for each in (sizes_C, tokens_C))
    return np.where(size_B == 1, token_B, np.where(size_B == 0, NOTHING, SEVERAL))


def _takers(automaton: TokenAutomaton, cls: int, only_B: np.ndarray) -> np.ndarray:
    """(B,): the bundles that a position may take that is open (NONE) or fixed to a class."""
    if cls == NONE:
        return np.asarray(only_B != NOTHING)
    return automaton.pairs.taking(cls)
