"""From shards to batches: windows of text, cut at tokens or at characters, masked as a mixture of objectives.

Every micro-batch is a function of (seed, index, length) alone, so a resumed run sees exactly what it would have seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from daguerre.errors import DataError, InputError
from daguerre.models.tokenizer import NUM_SPECIALS, Tokenizer
from daguerre.train.batch import Batch, collate
from daguerre.train.concept_labels import CorpusLabels
from daguerre.train.examples import WHOLE_TEXT, make_example
from daguerre.train.noising import Ints, Source
from daguerre.train.objectives import Objective
from daguerre.train.shards import Shard
from daguerre.train.stage import MIN_WINDOW, Stage

GOLDEN = 0.6180339887498949
MAX_GAP = 48
EMPTY_SHARE = 0.06
TOKENS_PER_CUT = 32
TOKENS_PER_GAP, MAX_GAPS = 64, 8
CHARACTERS_PER_GAP = 3 * TOKENS_PER_GAP


@dataclass(frozen=True)
class TextWindow:
    """Part of a document, after <bos>.

    tokens    int64 (T,)
    given     how many of them are <bos> and the prompt of a text that a model has written
    document  its number
    first     how many of its tokens, its own <bos> included, come before
    """

    tokens: Ints
    given: int
    document: int
    first: int


@dataclass(frozen=True)
class TextWindows:
    """Windows of a shard. Each begins with <bos> and lies within one document; short documents give short windows.

    A window lies around its token, so both ends of a document are seen as often, half as often as its middle.
    """

    shard: Shard
    bos_id: int

    def draw(self, length: int, rng: np.random.Generator) -> Ints:
        """A window of at most `length` tokens around a uniformly drawn token, int64."""
        return self.place(length, rng).tokens

    def place(self, length: int, rng: np.random.Generator, document: int | None = None) -> TextWindow:
        """A window, of any document or of this one."""
        if document is None:
            at = int(rng.integers(self.shard.num_tokens))
            document = int(np.searchsorted(self.shard.starts, at, side="right")) - 1
            start, end = self.bounds(document)
        else:
            start, end = self.bounds(document)
            at = int(rng.integers(start, end))
        first = max(start + 1, min(at - int(rng.integers(length - 1)), end - (length - 1)))
        body = np.asarray(self.shard.tokens[first : min(end, first + length - 1)], dtype=np.int64)
        given = 0 if self.shard.given is None else int(self.shard.given[document]) - (first - start - 1)
        return TextWindow(np.concatenate([[self.bos_id], body]), 1 + max(0, given), document, first - start)

    def bounds(self, document: int) -> tuple[int, int]:
        """Where a document's tokens begin and end."""
        return int(self.shard.starts[document]), int(self.shard.starts[document + 1])


class LabeledWindows:
    """Windows of the documents that have labels of concepts, and the labels of their tokens.

    Letters: T tokens of a window, N concepts.
    """

    def __init__(self, windows: TextWindows, labels: CorpusLabels, tokenizer: Tokenizer) -> None:
        self.windows, self.labels = windows, labels
        starts = windows.shard.starts
        long_enough = np.diff(starts) >= MIN_WINDOW
        self._documents = labels.documents[long_enough[labels.documents]]
        if not self._documents.size:
            raise DataError("no document of the corpus parses: concepts are learned from Python files that do")
        self._edges = np.cumsum(np.diff(starts)[self._documents])
        self._sizes = np.array([len(tokenizer.token_bytes(token)) for token in range(tokenizer.vocab_size)])

    def place(self, length: int, rng: np.random.Generator) -> TextWindow:
        """A window around a uniformly drawn token of a labeled document."""
        drawn = int(np.searchsorted(self._edges, rng.integers(self._edges[-1]), side="right"))
        return self.windows.place(length, rng, int(self._documents[drawn]))

    def concepts(self, window: TextWindow, tokens: Ints) -> np.ndarray:
        """The concepts, bool (T, N), of a window's tokens, however its text is cut into them."""
        start = self.windows.bounds(window.document)[0]
        before = self.windows.shard.tokens[start : start + window.first]
        ends = int(self._sizes[before].sum()) + np.cumsum(self._sizes[tokens])
        return self.labels.of_tokens(window.document, ends - self._sizes[tokens], ends)


class Cutter:
    """Chooses where spans begin and gaps lie: half of them at token bounds, half at characters.

    A cut at a character encodes what is before and behind it apart, as happens when a user's cursor is there.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def source(self, window: Ints, layout: str, rng: np.random.Generator, given: int = 1) -> Source:
        """The window as a Source for that layout; never longer than the window, whose first `given` tokens are not a
        model's.
        """
        if layout == "groups":
            return self._plain(window, given=given)
        by_character = rng.random() < 0.5
        text = self._text(window) if by_character else None
        if layout == "infill":
            return self._infill(window, text, rng)
        if text is None or layout in ("canvas", "next_token", "full", "bd3") or len(text) < 8:
            return self._plain(window)
        num_cuts = 1 if layout in ("suffix", "full_suffix", "full_gap") else max(6, len(window) // TOKENS_PER_CUT)
        cuts = np.unique(rng.integers(1, len(text), size=num_cuts))
        tokens, bounds = self._encode(text, [int(c) for c in cuts], window)
        starts = tuple(b for b in bounds if 1 <= b < len(tokens) - 1)
        return self._plain(tokens, starts=starts)

    def _plain(self, tokens: Ints, **cuts: Any) -> Source:
        ordinary = (NUM_SPECIALS, self.tokenizer.vocab_size)
        return Source(tokens, self.tokenizer.mask_id, self.tokenizer.null_id, ordinary, **cuts)

    def _text(self, window: Ints) -> str | None:
        """The window's text, or None where it holds half a character."""
        raw = self.tokenizer.decode_bytes(window.tolist())
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return None

    def _encode(self, text: str, cuts: list[int], window: Ints) -> tuple[Ints, list[int]]:
        """Tokens of the pieces between cuts, no more than the window has, and the offset of each later piece."""
        bounds = [0, *cuts, len(text)]
        pieces = [self.tokenizer.encode(text[a:b]) for a, b in zip(bounds, bounds[1:], strict=False)]
        if window[-1] == self.tokenizer.eos_id:
            pieces[-1].append(self.tokenizer.eos_id)
        offsets = np.cumsum([1] + [len(p) for p in pieces])
        tokens = np.concatenate([[window[0]], *[np.asarray(p, dtype=np.int64) for p in pieces]])[: len(window)]
        return tokens.astype(np.int64), [int(o) for o in offsets[1:-1]]

    def _infill(self, window: Ints, text: str | None, rng: np.random.Generator) -> Source:
        if text is None or len(text) < 16:
            return self._plain(window, gaps=self._token_gaps(len(window), rng))
        pairs = line_gaps(text, rng) if rng.random() < 0.8 else character_gaps(text, rng)
        if not pairs:
            return self._plain(window, gaps=self._token_gaps(len(window), rng))
        tokens, bounds = self._encode(text, [c for pair in pairs for c in pair], window)
        gaps = [(bounds[i], bounds[i + 1]) for i in range(0, len(bounds), 2)]
        kept = tuple((a, b) for a, b in gaps if b < len(tokens) and b - a <= MAX_GAP)
        return self._plain(tokens, gaps=kept or self._token_gaps(len(tokens), rng))

    def _token_gaps(self, length: int, rng: np.random.Generator) -> tuple[tuple[int, int], ...]:
        """Gaps apart by at least two tokens: a few of them empty, the others of log-uniform length."""
        longest = max(1, min(MAX_GAP, (length - 2) // 4))
        gaps: list[tuple[int, int]] = []
        for _ in range(_num_gaps(length / TOKENS_PER_GAP, rng)):
            size = int(np.exp(rng.uniform(0, np.log(longest + 1)))) if rng.random() >= EMPTY_SHARE else 0
            start = int(rng.integers(1, max(2, length - size)))
            _add_apart(gaps, start, min(start + size, length - 1), 2)
        return tuple(sorted(gaps)) or ((1, 2),)


def _num_gaps(room: float, rng: np.random.Generator) -> int:
    """How many gaps to try: 1 to as many as there is room for, each number as likely."""
    return int(rng.integers(1, max(1, min(MAX_GAPS, int(room))) + 1))


def _add_apart(gaps: list[tuple[int, int]], start: int, end: int, distance: int) -> None:
    """Add the gap unless it comes closer than `distance` to one that is there."""
    if all(start >= b + distance or end <= a - distance for a, b in gaps):
        gaps.append((start, end))


def line_gaps(text: str, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Gaps of one to three whole lines, up to the last one's line break, in order and apart.

    Half of them begin with the line break before, as a healed gap does; a quarter begin inside the first line.
    """
    ends = [i for i, c in enumerate(text) if c == "\n"]
    gaps: list[tuple[int, int]] = []
    for _ in range(_num_gaps(len(text) / CHARACTERS_PER_GAP, rng) if len(ends) > 1 else 0):
        first = int(rng.integers(len(ends) - 1))
        last = min(len(ends) - 1, first + int(rng.choice([1, 1, 1, 1, 1, 1, 2, 3])))
        start, end = ends[first] + 1, ends[last]
        kind = rng.random()
        if kind < 0.5:
            start -= 1
        elif kind < 0.75 and end > start + 1:
            start = int(rng.integers(start, end))
        if end > start > 0:
            _add_apart(gaps, start, end, 4)
    return sorted(gaps)


def character_gaps(text: str, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Gaps of log-uniform length between 2 and 96 characters, in order and apart."""
    gaps: list[tuple[int, int]] = []
    for _ in range(_num_gaps(len(text) / CHARACTERS_PER_GAP, rng)):
        size = int(np.exp(rng.uniform(np.log(2), np.log(min(96, len(text) // 3) + 1))))
        start = int(rng.integers(1, len(text) - size))
        _add_apart(gaps, start, start + size, 4)
    return sorted(gaps)


@dataclass(frozen=True)
class ObjectiveMixture:
    """Objectives and their shares of the sequences. Shares are made to add up to one."""

    objectives: Mapping[str, Objective]
    shares: Mapping[str, float]

    def __post_init__(self) -> None:
        if set(self.objectives) != set(self.shares):
            raise InputError("every objective of the mixture needs a share, and every share an objective")
        if not self.shares or min(self.shares.values()) < 0 or sum(self.shares.values()) <= 0:
            raise InputError("the shares of a mixture must be positive")

    def pick(self, index: int) -> Objective:
        """The objective of micro-batch `index`: a low-discrepancy sequence, so shares hold over short runs too."""
        place = (index * GOLDEN) % 1.0 * sum(self.shares.values())
        for name, share in self.shares.items():
            if place < share:
                return self.objectives[name]
            place -= share
        return self.objectives[name]


@dataclass(frozen=True)
class MicroBatches:
    """Micro-batch number `index` of a run: `sequences` windows of `length` tokens under one objective of the mixture.

    A sequence has at most half as many noisy rows as clean ones, or 256 (the layouts of a whole text need all of them).
    """

    windows: TextWindows
    cutter: Cutter
    mixture: ObjectiveMixture
    seed: int
    labeled: LabeledWindows | None = None

    def draw(self, index: int, stage: Stage) -> Batch:
        """Micro-batch number `index` of a run, in this stage."""
        return self.make(index, stage.sequences, stage.length)

    def make(self, index: int, sequences: int, length: int) -> Batch:
        if self.windows.shard.num_tokens < 2:
            raise DataError("the corpus has no token: make it again with `daguerre data python`")
        rng = np.random.default_rng([self.seed, index])
        objective = self.mixture.pick(index)
        budget = length if objective.layout in WHOLE_TEXT else min(length, max(256, length // 2))
        offset = rng.random()
        examples, concepts = [], list[np.ndarray]()
        for b in range(sequences):
            window = (self.labeled or self.windows).place(length, rng)
            tokens = window.tokens
            while len(tokens) < MIN_WINDOW:  # a text of a few tokens: another follows it
                tokens = np.concatenate([tokens, self.windows.draw(length, rng)[1:]])[:length]
            source = self.cutter.source(tokens, objective.layout, rng, window.given)
            examples.append(make_example(source, objective, (offset + b / sequences) % 1.0, rng, budget))
            if self.labeled is not None:
                concepts.append(self.labeled.concepts(window, source.tokens))
        batch = collate(examples, objective, self.cutter.tokenizer.pad_id)
        if concepts:
            batch = replace(batch, concepts=_stacked(concepts))
        return replace(batch, seed=int(rng.integers(2**63))) if objective.num_drafted or concepts else batch


def _stacked(parts: Sequence[np.ndarray]) -> Tensor:
    """Matrices (T, N) one above the other, (B, T, N), with rows of False where one is shorter."""
    out = np.zeros((len(parts), max(map(len, parts)), parts[0].shape[1]), dtype=bool)
    for row, part in zip(out, parts, strict=True):
        row[: len(part)] = part
    return torch.from_numpy(out)
