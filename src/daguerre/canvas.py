"""The canvas and the decisions that fill it: both are replaced, never edited in place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from daguerre.errors import InputError, shown
from daguerre.kinds import Pairs

Span = tuple[int, int]
Ints = np.ndarray


NUMBERS = {np.int64: "iuf", np.bool_: "biuf", np.float64: "iuf"}
"""The kinds of NumPy's numbers that are read as each type; floats that are whole as whole numbers."""


def _frozen(name: str, values: Ints | Sequence[int], dtype: type) -> np.ndarray:
    """A copy that nothing changes. InputError for what is no row of such numbers."""
    try:
        array: np.ndarray = np.array(values)
        wrong = array.ndim != 1 or (array.size > 0 and array.dtype.kind not in NUMBERS[dtype])
        if not wrong and array.dtype.kind == "f" and dtype is np.int64:
            wrong = not (np.abs(array) < 2**53).all() or (array != np.floor(array)).any()
        array = array if wrong else array.astype(dtype, copy=False)
    except (TypeError, ValueError, OverflowError):
        wrong = True
    if wrong:
        raise InputError(f"{name} must be a row of numbers, {dtype.__name__} each, not {shown(values)}")
    array.setflags(write=False)
    return array


NO_POSITIONS = _frozen("positions", [], np.int64)
NO_OTHERS = dict.fromkeys(("reopen", "replace", "pin", "unpin"), NO_POSITIONS)


def _no_positions() -> Ints:
    return NO_POSITIONS


@dataclass(frozen=True, eq=False)
class Decision:
    """What one step of a policy commits, and which earlier commits it takes back.

    positions      int64 (k,), ascending, each open or in `replace`
    tokens         int64 (k,), what they become
    probabilities  float64 (k,), of each token under the model at temperature 1; of one that a constraint committed
                   without asking the model 1 where it left no other, 1/V where time was up
    confidence     float64 (k,), what the policy ranked by
    reopen         int64 (r,), positions committed earlier that become open again
    replace        int64 (p,), those of `positions` that were committed earlier and change their token
    pin            int64 (q,), those of `positions` that nothing may change from now on; by the caller, not a policy
    unpin          int64 (u,), pinned positions that become open again; likewise
    """

    positions: Ints
    tokens: Ints
    probabilities: np.ndarray
    confidence: np.ndarray
    reopen: Ints = field(default_factory=_no_positions)
    replace: Ints = field(default_factory=_no_positions)
    pin: Ints = field(default_factory=_no_positions)
    unpin: Ints = field(default_factory=_no_positions)

    def __post_init__(self) -> None:
        for name in ("positions", "tokens", "reopen", "replace", "pin", "unpin"):
            if getattr(self, name) is not NO_POSITIONS:
                object.__setattr__(self, name, _frozen(name, getattr(self, name), np.int64))
        for name in ("probabilities", "confidence"):
            object.__setattr__(self, name, _frozen(name, getattr(self, name), np.float64))
        lengths = {len(self.positions), len(self.tokens), len(self.probabilities), len(self.confidence)}
        if len(lengths) != 1 or (self.positions[1:] <= self.positions[:-1]).any():
            raise InputError("a decision needs ascending positions, and one token and probability for each")
        if self.replace.size and not np.isin(self.replace, self.positions).all():
            raise InputError("a decision replaces only what it has a token for: list the position in `positions` too")
        if self.pin.size and not np.isin(self.pin, self.positions).all():
            raise InputError("a decision pins only what it has a token for: list the position in `positions` too")

    def __len__(self) -> int:
        return len(self.positions)

    @classmethod
    def plain(cls, positions: Ints, tokens: Ints, probabilities: np.ndarray, confidence: np.ndarray) -> Decision:
        """What a policy commits, of arrays that are right by construction: nothing is checked or copied."""
        made = object.__new__(cls)
        values = {"positions": positions, "tokens": tokens, "probabilities": probabilities, "confidence": confidence}
        made.__dict__.update(NO_OTHERS, **values)
        return made

    @staticmethod
    def join(parts: Sequence[Decision]) -> Decision:
        """All commits of `parts`, one after the other; none of them reopens."""
        if len(parts) == 1:
            return parts[0]
        names = ("positions", "tokens", "probabilities", "confidence")
        return Decision(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def extended(self, positions: Ints, token: int, like: int) -> Decision:
        """Also commit `token` at `positions`, as sure as the commit at index `like`."""
        num = len(positions)
        order = np.argsort(np.concatenate([self.positions, positions]), kind="stable")

        def joined(values: np.ndarray, more: object) -> np.ndarray:
            return np.concatenate([values, np.full(num, more)])[order]

        return Decision(
            np.concatenate([self.positions, positions])[order],
            joined(self.tokens, token),
            joined(self.probabilities, self.probabilities[like]),
            joined(self.confidence, self.confidence[like]),
            self.reopen,
            self.replace,
        )

    def keep(self, kept: np.ndarray) -> Decision:
        """Only the commits where the boolean `kept` (k,) is True."""
        return replace(
            self,
            positions=self.positions[kept],
            tokens=self.tokens[kept],
            probabilities=self.probabilities[kept],
            confidence=self.confidence[kept],
            replace=np.intersect1d(self.replace, self.positions[kept]),
        )


@dataclass(frozen=True, eq=False)
class Canvas:
    """A row of L positions, some fixed, the rest open. What is open is `open`, never a token's value.

    tokens  int64 (L,); at an open position a placeholder that nothing reads
    open    bool (L,)
    gaps    runs [start, end) that were open at the start, ascending and apart; all else is given and never changes
    span    the run [start, end) whose open positions are decoded now; None before the first
    pins    int64 (q,), positions in the gaps, ascending, that are given too, as long as they are pinned
    """

    tokens: Ints
    open: np.ndarray
    gaps: tuple[Span, ...]
    span: Span | None = None
    pins: Ints = field(default_factory=_no_positions)

    def __post_init__(self) -> None:
        for name, dtype in (("pins", np.int64), ("tokens", np.int64), ("open", np.bool_)):
            object.__setattr__(self, name, _frozen(name, getattr(self, name), dtype))
        object.__setattr__(self, "gaps", tuple(Pairs()("gaps", self.gaps)))
        if self.span is not None:
            object.__setattr__(self, "span", Pairs()("span", [self.span])[0])
        if self.tokens.shape != self.open.shape:
            raise InputError("a canvas needs one token and one open flag for each position: tokens and open differ")
        edges = [0, *(edge for gap in self.gaps for edge in gap), len(self.tokens)]
        if any(a > b for a, b in pairwise(edges)) or any(a >= b for a, b in self.gaps):
            raise InputError(f"gaps must be ascending runs inside the canvas, not {self.gaps}")
        if np.any(self.open & ~self.in_gap):
            raise InputError("an open position must lie in a gap")
        if self.pins.size and not (self.pins.min() >= 0 and self.pins.max() < len(self)):
            raise InputError("pins are positions of the canvas: one is outside it")
        if self.pins.size and not (self.in_gap & ~self.open)[self.pins].all():
            raise InputError("a pin must lie in a gap and not be open")

    @classmethod
    def lay_out(cls, segments: Sequence[Sequence[int]], lengths: Sequence[int], placeholder: int) -> Canvas:
        """Fixed segments with gaps of `lengths` between them: segment, gap, segment, gap, ... (one more or as many)."""
        tokens: list[int] = []
        gaps: list[Span] = []
        for index, segment in enumerate(segments):
            tokens.extend(segment)
            if index < len(lengths):
                gaps.append((len(tokens), len(tokens) + lengths[index]))
                tokens.extend([placeholder] * lengths[index])
        if any(length < 1 for length in lengths):
            raise InputError(f"gaps have a position or more, not {shown(lengths)}")
        opened = np.zeros(len(tokens), dtype=bool)
        for start, end in gaps:
            opened[start:end] = True
        ids = np.array(tokens, dtype=np.int64)
        return _EMPTY._changed(ids, opened, gaps=tuple(gaps))  # right by construction

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def in_gap(self) -> np.ndarray:
        """Bool (L,): True in the gaps, whether open still or committed."""
        inside = np.zeros(len(self.tokens), dtype=bool)
        for start, end in self.gaps:
            inside[start:end] = True
        return inside

    @property
    def drawn(self) -> np.ndarray:
        """Bool (L,): True where a gap has a token that may be replaced or reopened: committed, and not pinned."""
        drawn = self.in_gap & ~self.open
        drawn[self.pins] = False
        return drawn

    @property
    def segments(self) -> tuple[Span, ...]:
        """The given runs between the gaps, left to right; an empty one where gaps touch or reach an end."""
        edges = [0, *(edge for gap in self.gaps for edge in gap), len(self)]
        return tuple(zip(edges[::2], edges[1::2], strict=True))

    @cached_property
    def continues(self) -> bool:
        """True when there is no given text to the right of a gap: one gap, at the end."""
        return len(self.gaps) == 1 and self.gaps[0][1] == len(self.tokens)

    def active_positions(self) -> Ints:
        """Open positions of the active span, ascending, int64."""
        start, end = self.span or (0, 0)
        return start + self.open[start:end].nonzero()[0]

    def at(self, span: Span) -> Canvas:
        """A copy of the canvas in which another span is active."""
        try:
            start, end = span
            inside = 0 <= start < end <= len(self.tokens)
        except (TypeError, ValueError):
            inside = False
        if not inside:
            raise InputError(f"the span {shown(span)} is not a run of this canvas of {len(self)} positions")
        changed = object.__new__(Canvas)  # all else is right already
        changed.__dict__.update(self.__dict__, span=(start, end))
        return changed

    def apply(self, decision: Decision) -> Canvas:
        """The canvas after `decision`. InputError when it overwrites what is not open without replacing it, or
        touches what was given.
        """
        if not (decision.reopen is decision.replace is decision.pin is decision.unpin is NO_POSITIONS):
            return self._apply_all(decision)
        positions, where = decision.positions, decision.positions.tolist()
        if where and not (where[0] >= 0 and where[-1] < len(self.tokens)):
            raise InputError(f"a decision reaches outside the canvas of {len(self)} positions")
        if False in self.open[positions].tolist():  # of few positions faster than all()
            raise InputError("a decision would overwrite a position that is not open")
        tokens, opened = self.tokens.copy(), self.open.copy()
        tokens[positions] = decision.tokens
        opened[positions] = False
        return self._changed(tokens, opened)

    def _apply_all(self, decision: Decision) -> Canvas:
        """`apply` where something is taken back, replaced or pinned."""
        touched = np.concatenate([decision.positions, decision.reopen, decision.unpin])
        if touched.size and not (touched.min() >= 0 and touched.max() < len(self)):
            raise InputError(f"a decision reaches outside the canvas of {len(self)} positions")
        free = self.open
        if decision.replace.size:
            if not self.drawn[decision.replace].all():
                raise InputError("a decision would replace a position that was not committed")
            free = self.open.copy()
            free[decision.replace] = True
        if not free[decision.positions].all():
            raise InputError("a decision would overwrite a position that is not open")
        if decision.reopen.size and not self.drawn[decision.reopen].all():
            raise InputError("a decision would reopen a position that was not committed")
        if decision.unpin.size and not np.isin(decision.unpin, self.pins).all():
            raise InputError("a decision would unpin a position that is not pinned")
        tokens, opened = self.tokens.copy(), self.open.copy()
        tokens[decision.positions] = decision.tokens
        opened[decision.positions] = False
        opened[decision.reopen] = True
        opened[decision.unpin] = True
        if not (decision.pin.size or decision.unpin.size):
            return self._changed(tokens, opened)
        pins = _frozen("pins", np.union1d(np.setdiff1d(self.pins, decision.unpin), decision.pin), np.int64)
        return self._changed(tokens, opened, pins=pins)

    def _changed(self, tokens: Ints, opened: np.ndarray, **others: Any) -> Canvas:
        """With other values, which are right by construction: nothing is checked or copied again."""
        tokens.setflags(write=False)
        opened.setflags(write=False)
        changed = object.__new__(Canvas)
        changed.__dict__.update(self.__dict__, tokens=tokens, open=opened, **others)
        return changed

    def gap_of(self, positions: Ints) -> Iterator[tuple[Span, Ints]]:
        """The gaps that hold any of `positions`, each with the indices of those it holds."""
        for start, end in self.gaps:
            held = np.flatnonzero((positions >= start) & (positions < end))
            if held.size:
                yield (start, end), held

    def filled(self, gap: Span) -> Ints:
        """Committed tokens of `gap` from its left edge to its first open position, int64."""
        start, end = gap
        still = self.open[start:end]
        first = int(still.argmax())
        return self.tokens[start : start + first if still[first] else end]


_EMPTY = Canvas(NO_POSITIONS, np.zeros(0, dtype=bool), ())
"""Of no positions."""
