"""Cases of detection: spans of held-out or training files behind their prefixes, labels, masks, and hidden states.

A file is labeled whole (`daguerre.concepts.labels`) before it is cut. Only files that parse have cases: in the others
nothing is certified. A case is a span of SPAN tokens behind the file's up to PREFIX tokens before it.

Reading: one forward in the model's own context. The clean rows of the prefix come first; the noisy rows of the span see
the prefix and one another, both ways. In a model with a shift these are the rows s-1 to e-2 of a span [s, e), and row
i-1 predicts token i. With a share of the span masked, the rows that predict the masked positions are scored; with none
masked, all rows are.

Forecasting: the clean stream alone, in which row i-1 has seen the tokens up to i-1 and never token i.

The visible tokens of a case are those that its forward reads: the prefix, and of the span what is not masked and has a
row. The last token of a span has none in a model with a shift, so no control sees it either.

Letters: T tokens of a file, R scored rows, D width, N concepts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from daguerre.canvas import Canvas
from daguerre.concepts.labels import TokenLabels, label, of_tokens
from daguerre.concepts.taxonomy import taxonomy
from daguerre.evals.workers import ItemProgress
from daguerre.models.core.config import ModelConfig
from daguerre.models.forward import Backend, Forward, Hidden, Layout
from daguerre.models.rows import plan_rows
from daguerre.models.session import Asking, compute, together
from daguerre.models.tokenizer import Tokenizer

OURS = "concept head"
"""What detects concepts beside the controls."""
GROUPS = ("all", "lexical", "structural")
"""Of the concepts that are detected."""
SPAN, PREFIX = 64, 192
AT_ONCE = 16
"""Cases whose forwards are computed together."""


@dataclass(frozen=True)
class Condition:
    """What of a span is masked, and how it is read. `share` is 0, or the share of the span that is masked."""

    name: str
    share: float = 0.0
    forecast: bool = False


CONDITIONS = (
    Condition("reading, clean"),
    Condition("reading, half masked", 0.5),
    Condition("reading, nine tenths masked", 0.9),
    Condition("forecasting", forecast=True),
)


@dataclass(frozen=True, eq=False)
class Labeled:
    """A file: its number, its tokens int64 (T,) without <bos>, and their labels."""

    file: int
    tokens: np.ndarray
    labels: TokenLabels


@dataclass(frozen=True, eq=False)
class ConceptCase:
    """The span [start, start + SPAN) of a file; `seed` determines what is masked."""

    text: Labeled
    start: int
    num_concepts: int
    seed: int = 0

    @property
    def prefix(self) -> np.ndarray:
        """The tokens before the span, at most PREFIX."""
        return self.text.tokens[max(0, self.start - PREFIX) : self.start]

    @property
    def span(self) -> np.ndarray:
        """The tokens of the span, int64 (SPAN,)."""
        return self.text.tokens[self.start : self.start + SPAN]

    @property
    def concepts(self) -> np.ndarray:
        """The concepts of the span's tokens, bool (SPAN, N)."""
        return self.text.labels.matrix(self.start, self.start + SPAN, self.num_concepts)

    def masked(self, share: float) -> np.ndarray:
        """Which positions of the span are masked, bool (SPAN,): the nearest number to that share, drawn from the seed,
        the file, the place and the share.
        """
        keys = (self.seed, self.text.file, self.start, round(1000 * share))
        out = np.zeros(SPAN, dtype=bool)
        out[np.random.default_rng(keys).permutation(SPAN)[: round(share * SPAN)]] = True
        return out

    def scored(self, condition: Condition) -> np.ndarray:
        """The positions of the span whose rows are scored, int64 (R,): the masked ones, or all where none is."""
        masked = self.masked(condition.share)
        return np.flatnonzero(masked if condition.share else ~masked)

    def positives(self, condition: Condition) -> np.ndarray:
        """Which concepts a scored token has, bool (N,)."""
        found: np.ndarray = self.concepts[self.scored(condition)].any(axis=0)
        return found

    def visible(self, condition: Condition, config: ModelConfig) -> tuple[np.ndarray, np.ndarray]:
        """The visible tokens of the prefix and those of the span; see the module."""
        seen = ~self.masked(condition.share)
        if config.shift:
            seen[-1] = False
        return self.prefix, self.span[seen]

    def canvas(self, condition: Condition, config: ModelConfig) -> Canvas:
        """The canvas that a model reads: <bos>, if it has one, the prefix, and the span."""
        first = np.array(config.first, dtype=np.int64)
        tokens = np.concatenate([first, self.prefix, self.span])
        gap = len(tokens) - SPAN, len(tokens)
        masked = np.zeros(len(tokens), dtype=bool)
        masked[gap[0] :] = self.masked(condition.share)
        return Canvas(np.where(masked, config.placeholder, tokens), masked, (gap,), gap)


def labeled(texts: Iterable[tuple[int, str]], tokenizer: Tokenizer) -> Iterator[Labeled]:
    """The files, with their numbers, that parse."""
    num = taxonomy().num_ids
    for number, text in texts:
        found = label(text)
        if found.certain:
            ids = tokenizer.encode(text)
            pieces = [tokenizer.token_bytes(token) for token in ids]
            if b"".join(pieces) == text.encode():
                yield Labeled(number, np.array(ids, dtype=np.int64), of_tokens(found, text, pieces, num))


def cases_of(text: Labeled, first: int, seed: int = 0) -> list[ConceptCase]:
    """The spans of a file, one after the other; with `first` 1 the first token is not of a span, as in a model with a
    shift and no <bos>, where nothing predicts it.
    """
    num = taxonomy().num_ids
    return [ConceptCase(text, start, num, seed) for start in range(first, len(text.tokens) - SPAN + 1, SPAN)]


def read_case(config: ModelConfig, backend: Backend, case: ConceptCase) -> Asking[list[np.ndarray]]:
    """The hidden states of the scored rows, float32 (R, D), in each of CONDITIONS.

    The clean stream is computed once: as far as the rows of a span do not need the clean keys of it, these leave the
    cache before the span is read.
    """
    out: list[np.ndarray] = []
    canvas = case.canvas(CONDITIONS[0], config)
    start, end = canvas.gaps[0]
    cache = backend.cache(len(canvas))
    rows = np.arange(end - 1)
    layout = Layout(rows, (rows + 1).astype(np.int32), len(rows))
    (clean,) = yield [Forward(canvas.tokens[:-1], layout, cache, rows[start - 1 :].astype(np.int32), Hidden())]
    for condition in CONDITIONS:
        if condition.forecast:
            assert clean.hidden is not None
            out.append(clean.hidden)
            continue
        canvas = case.canvas(condition, config)
        plan = plan_rows(config, canvas)
        cache.truncate(plan.num_clean)
        wanted = plan.rows_of(start + case.scored(condition), plan.num_clean)
        noisy, layout = plan.noisy_tokens(config, canvas), plan.layout(config, plan.num_clean)
        (answer,) = yield [Forward(noisy, layout, cache, wanted, Hidden())]
        assert answer.hidden is not None
        out.append(answer.hidden)
    cache.free()
    return out


def read_cases(
    config: ModelConfig,
    backend: Backend,
    cases: Sequence[ConceptCase],
    keep: Callable[[int, ConceptCase, list[np.ndarray]], None],
    progress: ItemProgress,
) -> None:
    """Call keep(number, case, hidden states of each condition) for every case."""
    for first in range(0, len(cases), AT_ONCE):
        some = cases[first : first + AT_ONCE]
        progress(first, len(cases))
        for number, found in enumerate(
            compute(together(*(read_case(config, backend, case) for case in some)), backend)
        ):
            keep(first + number, some[number], found)
    progress(len(cases), len(cases))
