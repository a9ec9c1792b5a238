"""A request laid out: a canvas, its rules and its spans; all that is known before a forward."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from daguerre.canvas import Canvas, Run
from daguerre.models.config import ModelConfig
from daguerre.models.denoiser import Counts
from daguerre.sampling.constrained import Constraint
from daguerre.sampling.decode import Decode
from daguerre.sampling.draft import Draft
from daguerre.sampling.healing import Healing
from daguerre.sampling.rules import EndOfText, Never, Nulls, Rule


@dataclass(frozen=True)
class Slot:
    """One gap of a request: what `healing` took back at its left edge, and how many new tokens it may and must get."""

    healing: Healing
    max_tokens: int
    min_tokens: int

    @property
    def start(self) -> int:
        """Where the gap begins, with what was taken back."""
        return self.healing.start

    def open_run(self, canvas: Canvas) -> Run:
        """From the first position that healing leaves to the end of the budget; `canvas` is healed."""
        return self.healing.where(canvas)[0], self.healing.end(canvas)

    def floor(self, canvas: Canvas) -> int:
        """The first position at which the gap may have ended, behind its pins; `canvas` is healed."""
        end = self.healing.end(canvas)
        pins = canvas.pins[(canvas.pins >= self.start) & (canvas.pins < end)]
        return max([end - self.max_tokens + self.min_tokens, *(pins + 1).tolist()])


@dataclass(frozen=True)
class Search:
    """What a search found: `scores` of its candidate `lengths`, in tokens; and what it took, forwards and seconds.

    A score is in nats a token: the mean log-probability of the most likely tokens, less what is usual at that length.
    """

    lengths: tuple[int, ...]
    scores: tuple[float, ...]
    counts: Counts
    seconds: float

    @property
    def best(self) -> int:
        """The length with the highest score, the shortest of equals."""
        return self.lengths[int(np.argmax(self.scores))]


@dataclass(frozen=True)
class Plan:
    """One request, laid out: a slot for each gap of the canvas.

    `around` is that of the request. `original` is the text that is edited. One `constraint` holds for each gap by
    itself. `other` are the tokens that guidance puts in place of those before the first gap, int64; None without
    guidance. `draft` is of the only gap. `searched` is how the length of the gap was found, where it was.
    """

    config: ModelConfig
    decode: Decode
    canvas: Canvas
    slots: tuple[Slot, ...]
    num_prompt: int
    infilling: bool
    around: tuple[str, ...] | None = None
    original: str | None = None
    constraint: Constraint | None = None
    other: np.ndarray | None = None
    draft: Draft | None = None
    searched: Search | None = None

    @property
    def max_tokens(self) -> int:
        """New tokens of all gaps together, at most."""
        return sum(slot.max_tokens for slot in self.slots)

    @property
    def ending(self) -> int | None:
        """The token that ends the text: <null> in a gap, <eos> in a completion."""
        return self.config.null_id if self.infilling else self.config.eos_id

    def healed(self, canvas: Canvas) -> bool:
        """True when every slot has again the text that was taken back."""
        return not any(slot.healing.where(canvas)[1] for slot in self.slots)

    def rules(self, canvas: Canvas) -> list[Rule]:
        """What the healed canvas is denoised under."""
        never = self.config.eos_id if self.infilling else self.config.null_id
        rules: list[Rule] = [] if never is None else [Never((never,))]
        if not self.infilling:
            rules.append(EndOfText(self.config.eos_id, self.slots[0].floor(canvas)))
        elif self.config.null_id is not None:
            floors = tuple((gap, slot.floor(canvas)) for gap, slot in zip(canvas.gaps, self.slots, strict=True))
            rules.append(Nulls(self.config.null_id, floors))
        return rules

    def spans(self, canvas: Canvas) -> list[Run]:
        """The spans of the healed canvas, in the order they are denoised; gaps that are one span see each other."""
        runs = [slot.open_run(canvas) for slot in self.slots]
        runs = [(start, end) for start, end in runs if start < end]
        if self.infilling and self._span_size >= self.max_tokens:
            return [(runs[0][0], runs[-1][1])] if runs else []
        grid = self.config.block_size if self.config.context == "block" else None
        size = self._span_size
        out = []
        for start, end in runs:
            while start < end:
                stop = min(end, start + size if grid is None else (start // grid + 1) * grid)
                out.append((start, stop))
                start = stop
        return out

    def revisable(self, canvas: Canvas) -> np.ndarray:
        """Committed positions of the active span that may still change, int64: no end, nothing healed or given."""
        assert canvas.span is not None
        inside = np.zeros(len(canvas), dtype=bool)
        for slot in self.slots:
            start, end = slot.open_run(canvas)
            inside[max(start, canvas.span[0]) : min(end, canvas.span[1])] = True
        return np.flatnonzero(inside & canvas.drawn & ~np.isin(canvas.tokens, self.config.ends))

    def opened(self, canvas: Canvas) -> np.ndarray:
        """Open positions within the budget, int64, ascending."""
        runs = [(slot.start, slot.healing.end(canvas)) for slot in self.slots]
        return np.concatenate([start + np.flatnonzero(canvas.open[start:end]) for start, end in runs])

    def num_opened(self, canvas: Canvas) -> int:
        """How many positions `opened` has."""
        ends = [(slot.start, slot.healing.end(canvas)) for slot in self.slots]
        return sum(int(np.count_nonzero(canvas.open[start:end])) for start, end in ends)

    def drafted(self, canvas: Canvas) -> tuple[int, np.ndarray]:
        """Where the draft begins on the healed canvas, and its tokens, int64; none without a draft."""
        (slot, *_), table = self.slots, self.slots[0].healing.table
        start = slot.healing.where(canvas)[0]
        if self.draft is None:
            return start, np.zeros(0, dtype=np.int64)
        written = b"".join(table.of[token] for token in canvas.tokens[slot.start : start].tolist())
        return start, self.draft.tokens(written[len(slot.healing.text) :])

    def finished(self, canvas: Canvas) -> bool:
        """True when nothing within the budget is open."""
        return self.healed(canvas) and not self.opened(canvas).size

    def widened(self, canvas: Canvas, span: Run, least: int) -> Run:
        """The span, with what is behind it until it has `least` open positions. Blocks of a grid stay as they are."""
        opened = self.opened(canvas)
        opened = opened[opened >= span[0]]
        if self.config.context == "block" or (opened < span[1]).sum() >= min(least, len(opened)):
            return span
        return span[0], int(opened[min(least, len(opened)) - 1]) + 1

    @property
    def _span_size(self) -> int:
        return self.decode.span_size(self.config, self.max_tokens, self.infilling)

    @property
    def bound(self) -> int:
        """The most forwards that this request can take: a search's, healing's, and each span's by its policy."""
        size = min(self._span_size, self.max_tokens)
        num_spans = sum(-(-slot.max_tokens // size) for slot in self.slots) + int(self.config.context == "block")
        if self.decode.mode == "ancestral":
            return self.decode.steps or self.max_tokens
        if self.decode.mode == "beam":  # a forward for each token, and at most one for each filling
            return self.slots[0].healing.slots + self.max_tokens + 1 + self.decode.num_beams
        by_policy = num_spans * self.decode.rule_of_commit.bound(size)
        healing = sum(slot.healing.slots for slot in self.slots)
        readings = self._readings(num_spans, self.max_tokens) + num_spans * int(self.draft is not None)
        return self._searching + self._questions * (healing + min(by_policy, self.max_tokens) + readings)

    def _readings(self, num_spans: int, num_tokens: int) -> int:
        """Forwards that reading finished spans again takes, at most."""
        return self.decode.revise * (num_tokens if self.decode.revise_reading == "masked" else num_spans)

    def bound_from(self, canvas: Canvas, forwards: int) -> int:
        """The same once a request that has taken so many forwards has been changed to `canvas`: the policy's on what is
        open there, beside those.
        """
        num_open = [int(canvas.open[start:end].sum()) for start, end in self.spans(canvas)]
        by_policy = sum(self.decode.rule_of_commit.bound(num) for num in num_open if num)
        readings = self._readings(len(num_open), sum(end - start for start, end in self.spans(canvas)))
        return self._searching + forwards + self._questions * (by_policy + readings)

    @property
    def _searching(self) -> int:
        return 0 if self.searched is None else self.searched.counts.forwards

    @property
    def _questions(self) -> int:
        """Forwards that an answer takes, at most: guidance asks twice."""
        return 1 if self.other is None else 2
