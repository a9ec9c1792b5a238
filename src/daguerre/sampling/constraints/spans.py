"""A span of positions: which states an automaton may have there, its paths, and the positions that are forced.

The compiled library (native/spans.h) holds the states of each position; without it, `reference.paths` does.

Letters: P positions, Q states, B bundles.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from daguerre.sampling.constraints import compiled
from daguerre.sampling.constraints.compiled import Handle, LimitedCalls, TransitionsStruct, address
from daguerre.sampling.constraints.reference.paths import SlowPaths, SlowSpan
from daguerre.sampling.constraints.tokens import TokenAutomaton


@lru_cache(maxsize=128)
def span(automaton: TokenAutomaton, state: int, length: int, last: bytes) -> CompiledSpan | SlowSpan:
    """`length` positions from `state` on; `last`, a boolean (Q,), marks the states that may follow them."""
    made = compiled.library()
    if made is None:
        return SlowSpan(automaton.pairs, state, length, last)
    return CompiledSpan(LimitedCalls(made), automaton, state, length, last)


def paths(
    held: CompiledSpan | SlowSpan,
    first: int,
    state: int,
    weight_PB: np.ndarray,
    score: Callable[[], np.ndarray],
    best_PB: np.ndarray | None = None,
) -> CompiledPaths | SlowPaths | None:
    """Paths from a state before position `first`, with weights and, where these underflow, their logarithms from
    `score`; `best_PB`, if given, are other scores, by which the best path is chosen. None where the state leads
    nowhere.
    """
    if not held.has(first, state):
        return None
    if isinstance(held, SlowSpan):
        return SlowPaths(held, first, state, score(), best_PB)
    return CompiledPaths(held, first, state, weight_PB, score, best_PB)


def transitions(automaton: TokenAutomaton) -> TransitionsStruct:
    """What the library reads of an automaton, which must outlive it."""
    pairs = automaton.pairs
    return TransitionsStruct(
        *map(address, (pairs.first, pairs.dst, pairs.bundle)), automaton.num_states, pairs.num_bundles
    )


class CompiledSpan:
    """A span that the library keeps."""

    def __init__(self, call: LimitedCalls, automaton: TokenAutomaton, state: int, length: int, last: bytes) -> None:
        self.call, self.automaton, self.length = call, automaton, length
        on = ctypes.byref(transitions(automaton))
        self._handle = Handle(call.made, call("span_new", on, state, length, last), "span_free")
        self.pointer = self._handle.pointer

    def has(self, position: int, state: int) -> bool:
        return bool(self.call.made.span_has(self.pointer, position, state))

    def forced(self, allowed_PB: np.ndarray, only_2B: np.ndarray, kind: np.ndarray) -> np.ndarray | None:
        """(P,): the token that every text has at a position, -1 where they differ; None where no text fits.

        allowed_PB uint8: the bundles that a position may take; only_2B[kind] int64: the only token of each bundle.
        """
        tokens = np.empty(self.length, dtype=np.int64)
        arrays = map(address, (allowed_PB, only_2B, kind, tokens))
        return tokens if self.call("span_forced", self.pointer, *arrays) else None


class CompiledPaths:
    """Paths through a span from a state before a position on, each bundle with a weight at each position, which the
    library sums.
    """

    def __init__(
        self,
        held: CompiledSpan,
        first: int,
        state: int,
        weight_PB: np.ndarray,
        score: Callable[[], np.ndarray],
        best_PB: np.ndarray | None,
    ) -> None:
        self.span, self.first, self.state = held, first, state
        self.weight_PB, self.score, self.best_PB = weight_PB, score, best_PB

    def _sums(self, weight_PB: np.ndarray, logs: bool) -> Handle:
        weights, call = np.ascontiguousarray(weight_PB, dtype=np.float64), self.span.call
        pointer = call("paths_new", self.span.pointer, self.first, self.state, address(weights), logs)
        return Handle(call.made, pointer, "paths_free")

    @cached_property
    def _plain(self) -> Handle:
        return self._sums(self.weight_PB, logs=False)

    @cached_property
    def is_exact(self) -> bool:
        """Whether float64 could not hold the weights, so that logarithms were used."""
        return not self._made.paths_possible(self._plain.pointer)

    @property
    def _made(self) -> Any:
        return self.span.call.made

    @cached_property
    def _held(self) -> int:
        return (self.exact if self.is_exact else self._plain).pointer

    @cached_property
    def exact(self) -> Handle:
        """The sums, all in logarithms."""
        return self._sums(self.score(), logs=True)

    @property
    def possible(self) -> bool:
        """Whether any path has a weight."""
        return not self.is_exact or bool(self._made.paths_possible(self.exact.pointer))

    def best(self) -> np.ndarray:
        """The bundles (P,) of the most likely path; of several, an arbitrary but fixed one."""
        score_PB = np.ascontiguousarray(self.score() if self.best_PB is None else self.best_PB, dtype=np.float64)
        bundles = np.empty(self.span.length - self.first, dtype=np.int64)
        ends = self.first, self.state, address(score_PB), address(bundles)
        found = self.span.call("span_best", self.span.pointer, *ends)
        assert found or not len(bundles)
        return bundles

    def draw(self, u_P: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(the bundles of a path (P,), the unused part of u_P): drawn exactly, position by position, u in [0, 1)."""
        bundles, rest = np.empty(len(u_P), dtype=np.int64), np.empty(len(u_P))
        u = np.ascontiguousarray(u_P, dtype=np.float64)
        self.span.call("paths_draw", self._held, *map(address, (u, bundles, rest)))
        return bundles, rest

    def shares(self) -> np.ndarray:
        """(P, B): the probability that a path takes each bundle at each position."""
        out_PB = np.zeros(self.weight_PB.shape)
        self.span.call("paths_shares", self._held, address(out_PB))
        return out_PB


Paths = CompiledPaths | SlowPaths
