"""One call of the native library: its input, and the memory for its answers."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from daguerre.models.backends import library as interface
from daguerre.models.backends.edits import check_edit
from daguerre.models.contention import CONTENTION, num_threads
from daguerre.models.core.config import ModelConfig
from daguerre.models.forward import (
    Answer,
    Cycle,
    Draws,
    Edit,
    Forward,
    Hidden,
    Logits,
    LogProbs,
    Refinement,
    Rules,
    SequentialDraws,
)

HIDDEN, LOGITS, LOG_PROBABILITIES, DRAWS, SEQUENTIAL, CYCLE, REFINEMENT = range(7)
KINDS: dict[type, int] = {Hidden: HIDDEN, Logits: LOGITS, LogProbs: LOG_PROBABILITIES, Draws: DRAWS}
KINDS |= {SequentialDraws: SEQUENTIAL, Cycle: CYCLE, Refinement: REFINEMENT}
Details = tuple[tuple[int, int, int, int, int, int], tuple[float, float]]
NO_LIMITS = 0.0, 0.0
NO_DETAILS: Details = (0, 0, 0, 0, 0, 0), NO_LIMITS


class NativeCall:
    """The input of one call, and the memory for its answers.

    The input of all requests is joined into one string of bytes, and all draws are written to one array: every further
    object takes a noticeable part of a small model's forward.

    level        a function from a noise level to the vector that it adds to every row, float32 (D,)
    edits        makes a `NativeEdit` of an edit of so many rows
    only_hidden  answer with hidden states only
    given        `interface.BATCH`, an `interface.PART` for each request, and the arrays that these refer to
    made         the arguments after `given`: its size, and the addresses that the call writes to
    """

    def __init__(
        self,
        config: ModelConfig,
        level: Callable[[float], np.ndarray],
        edits: Callable[[Edit, int], NativeEdit],
        batch: Sequence[Forward],
        only_hidden: bool,
    ) -> None:
        self._config, self._level, self._edits, self._only_hidden = config, level, edits, only_hidden
        self._held: list[Any] = []
        self._longs, self._ints = _JoinedArrays(), _JoinedArrays()
        self._parts, self._written = list[bytes](), list[tuple[int, int, int, int]]()
        self._num_kept, self._num_best = {LOGITS: 0, REFINEMENT: 0}, 0
        row = place = 0
        for one in batch:
            self._add(one, row, place)
            row, place = row + len(one.tokens), place + len(one.wanted)
        self.rows, self.threads = row, CONTENTION.threads(num_threads())
        totals = len(batch), row, place, self._num_best, self.threads, self._longs.num, self._ints.num
        self.given = b"".join(
            [
                interface.BATCH.pack(*totals),
                *self._parts,
                *(one.tokens.tobytes() for one in batch),
                *(one.layout.position.tobytes() for one in batch),
                *self._longs.parts,
                *(one.layout.end.tobytes() for one in batch),
                *(one.wanted.tobytes() for one in batch),
                *self._ints.parts,
            ]
        )
        self._make_room(batch, place)
        self._answers, self._unfinished = list[Answer](), list[tuple[int, int]]()
        for index, (one, (kind, first, end, first_kept)) in enumerate(zip(batch, self._written, strict=True)):
            if kind in (SEQUENTIAL, CYCLE):
                self._unfinished.append((index, first))
            answer = self._answer(kind, one.ask, first, end, first_kept)
            if one.explain and not only_hidden:
                assert self._hidden is not None and kind != HIDDEN
                read = len(answer.tokens) if kind == CYCLE and answer.tokens is not None else end - first
                answer.evidence = self._hidden[first : first + read]
            self._answers.append(answer)

    def _add(self, one: Forward, row: int, place: int) -> None:
        """Pack a request, whose first row and first wanted row have these numbers among all."""
        layout, ask, num, num_wanted, config = one.layout, one.ask, len(one.tokens), len(one.wanted), self._config
        kind = HIDDEN if self._only_hidden else KINDS[type(ask)]
        cache = past = mask = mask_width = begin = added = told = best = edit = 0
        if one.cache is not None:
            cache, past = one.cache.address(layout.num_clean), one.cache.length  # type: ignore[attr-defined]
        if layout.mask is not None:
            assert config.gemma is None, "the rows of a canvas see one another"
            mask, mask_width = self._address(layout.mask, bool), layout.mask.shape[1]
        if layout.begin is not None:
            begin = self._address(layout.begin, np.int32)
        if config.time_input:
            added = self._address(self._level(one.level or 0.0), np.float32)
        if one.conditioning is not None and config.gemma is not None:
            assert one.conditioning.shape == (num - layout.num_clean, config.width)
            told = self._address(one.conditioning, np.float32)
        if one.edit is not None and not self._only_hidden:
            made = self._edits(one.edit, num_wanted)
            edit = made.address
            self._held.append(made)
        details, limits = NO_DETAILS if kind <= LOGITS else self._details(kind, ask)
        if kind in (DRAWS, REFINEMENT):
            best = 1 if kind == REFINEMENT else ask.num_best  # type: ignore[union-attr]
            self._num_best = max(self._num_best, best)
        first_kept = self._num_kept.get(kind, 0)
        if kind in self._num_kept:
            self._num_kept[kind] += num_wanted
        self._written.append((kind, place, place + num_wanted, first_kept))
        sizes = row, num, layout.num_clean, past, place, num_wanted, mask_width, kind, best, first_kept
        pointers = cache, mask, begin, added, told, details[0], edit
        self._parts.append(interface.PART.pack(*pointers, *details[1:], one.drafting, *limits, *sizes))

    def _make_room(self, batch: Sequence[Forward], num_wanted: int) -> None:
        """Make the arrays of all answers, and `made`."""
        kinds, width = {kind for kind, *_ in self._written}, self._config.width
        says = HIDDEN in kinds or (not self._only_hidden and any(one.explain for one in batch))
        logits, refined = self._num_kept[LOGITS], self._num_kept[REFINEMENT]
        self._hidden = np.empty((num_wanted, width), dtype=np.float32) if says else None
        shape = logits, self._config.vocab_size
        self._logits = np.empty(shape, dtype=np.float32) if LOGITS in kinds else None
        self._conditioning = np.empty((refined, width), dtype=np.float32) if REFINEMENT in kinds else None
        self._best = np.zeros((2, num_wanted, self._num_best)) if self._num_best else None
        self._drawn, self._num_drawn = np.empty((3, num_wanted)), (ctypes.c_int32 * len(batch))()
        self._tokens = self._drawn[0].view(np.int64)
        written_to = self._hidden, self._logits, self._conditioning, self._drawn, self._best
        out = (None if x is None else x.ctypes.data for x in written_to)
        self.made = len(self.given), *out, self._num_drawn

    def _details(self, kind: int, ask: Any) -> Details:
        """Fields of `Part` from `rules` to `entropy`: the rules' address; offsets of the given tokens, positions and
        groups; the length of the draft; whether entropies are wanted. And its fields `worth` and `threshold`.
        """
        if kind == LOG_PROBABILITIES:
            return (0, self._longs.add(ask.tokens.astype(np.int64, copy=False)), 0, 0, 0, 0), NO_LIMITS
        rules, positions = _rules(ask.rules), self._longs.add(ask.positions)
        self._held.append(rules)
        if kind in (DRAWS, REFINEMENT):
            return (rules.address, 0, positions, 0, 0, kind == REFINEMENT or ask.entropy), NO_LIMITS
        if kind == SEQUENTIAL:
            return (rules.address, self._longs.add(NO_TOKEN), positions, 0, 0, 0), (0.0, ask.threshold)
        given, groups = self._longs.add(ask.draft), self._ints.add(ask.groups)
        return (rules.address, given, positions, groups, len(ask.draft), 0), (ask.worth, 0.0)

    def _address(self, x: np.ndarray, kind: type) -> int:
        x = np.ascontiguousarray(x, dtype=kind)
        self._held.append(x)
        return x.ctypes.data

    def answers(self) -> list[Answer]:
        """The answer for each forward, after the call has returned."""
        for index, first in self._unfinished:
            answer, made = self._answers[index], self._num_drawn[index]
            if answer.draft is not None and answer.acceptance is not None:
                answer.draft, answer.acceptance = answer.draft[:made], answer.acceptance[:made]
            else:
                answer.tokens = self._tokens[first : first + made]
                answer.probabilities = self._drawn[1, first : first + made]
                answer.evidence = None if answer.evidence is None else answer.evidence[:made]
        return self._answers

    def _answer(self, kind: int, ask: Any, first: int, end: int, first_kept: int) -> Answer:
        """An answer whose arrays the call will fill. Made before the call: after it the processor's caches are full
        of the model's weights, and the same lines take several times as long.
        """
        if kind in (DRAWS, REFINEMENT):
            answer = Answer(tokens=self._tokens[first:end], probabilities=self._drawn[1, first:end])
            num_best = 1 if kind == REFINEMENT else ask.num_best
            if kind == REFINEMENT or ask.entropy:
                answer.entropies = self._drawn[2, first:end]
            if num_best:
                assert self._best is not None
                answer.best_tokens = self._best[0, first:end, :num_best].view(np.int64)
                answer.best_probabilities = self._best[1, first:end, :num_best]
            if kind == REFINEMENT:
                assert self._conditioning is not None
                answer.conditioning = self._conditioning[first_kept : first_kept + end - first]
            return answer
        if kind == CYCLE:
            read = first + len(ask.draft) + 1
            drawn, drafted = slice(first, read), slice(read, end)
            answer = Answer(tokens=self._tokens[drawn], probabilities=self._drawn[1, drawn])
            answer.draft, answer.acceptance = self._tokens[drafted], self._drawn[2, drafted]
            return answer
        if kind == HIDDEN:
            assert self._hidden is not None
            return Answer(hidden=self._hidden[first:end])
        if kind == LOGITS:
            assert self._logits is not None
            return Answer(logits=self._logits[first_kept : first_kept + end - first])
        return Answer(log_probs=self._drawn[1, first:end]) if kind == LOG_PROBABILITIES else Answer()


NO_TOKEN = np.zeros(1, dtype=np.int64)


@dataclass
class _JoinedArrays:
    """Arrays of one type, joined end to end."""

    parts: list[bytes] = field(default_factory=list)
    num: int = 0

    def add(self, part: np.ndarray) -> int:
        """Append an array; returns the index of its first element."""
        start = self.num
        self.parts.append(part.tobytes())
        self.num += len(part)
        return start


class NativeEdit:
    """An `Edit` as a C struct, and the arrays that it points to."""

    def __init__(self, config: ModelConfig, edit: Edit, num_rows: int) -> None:
        check_edit(config, edit, num_rows)
        numbers = (None if x is None else np.ascontiguousarray(x, np.float32) for x in (edit.write, edit.mask))
        amounts = (np.ascontiguousarray(x, np.float32) for x in (edit.shift, edit.scale, edit.ban))
        self._held = np.ascontiguousarray(edit.concepts, np.int32), *numbers, *amounts
        self._struct = interface.EditStruct(
            *(None if x is None else x.ctypes.data for x in self._held), len(edit.concepts)
        )
        self.address = ctypes.addressof(self._struct)


class _Rules:
    """`Rules` as a C struct, and the arrays that it points to."""

    def __init__(self, rules: Rules) -> None:
        bias = rules.logit_bias
        tokens, values = np.array([*bias], dtype=np.int32), np.array([*bias.values()], dtype=np.float64)
        bans = np.ascontiguousarray(rules.bans, dtype=np.int64)
        kept = np.zeros(0, dtype=np.int32) if rules.allowed is None else np.ascontiguousarray(rules.allowed, np.int32)
        self._held = (tokens, values, bans, kept)
        self._struct = interface.RulesStruct(
            *(rules.temperature, rules.top_p, rules.min_p),
            *(x.ctypes.data for x in self._held),
            -1 if rules.allowed_at is None else rules.allowed_at,
            *((0, 0) if rules.rng is None else (rules.rng.seed, rules.rng.sample)),
            *(rules.purpose, rules.step, rules.top_k or 0, len(tokens), len(bans), len(kept)),
        )
        self.address = ctypes.addressof(self._struct)


_rules = lru_cache(maxsize=1024)(_Rules)  # many forwards of a request have the same rules
