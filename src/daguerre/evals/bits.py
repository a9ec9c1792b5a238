"""Bits per byte of text under a model, one figure for each layout.

A document is cut into consecutive windows that do not overlap: `<bos>` and as many tokens as the model's context
holds. `<eos>` at a document's end is scored as a token of no bytes. Nats are summed over windows and divided by ln 2
and by the UTF-8 bytes of the windows' text.

The exact score (`ar`) is cheap and made on all windows; bounds cost a forward for every draw, and are made on some of
them. A bound's figure is still for all windows: its ratio to the exact score where it was made, times the exact score
everywhere (the ratio estimator, Cochran 1977, section 6.1). Windows that are hard to guess are hard in every layout, so
the ratio varies far less than the bits do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np

from daguerre.errors import DataError, InputError
from daguerre.evals.frozen import Document
from daguerre.evals.statistics import ratio_stderr
from daguerre.likelihood import Score, check_layout, score_tokens
from daguerre.models.backbone import Backbone
from daguerre.models.config import ModelConfig
from daguerre.models.tokenizer import Tokenizer

NUM_BUCKETS = 8
BOUND_WINDOWS = 128
BLOCK_SAMPLES, FULL_SAMPLES = 2, 4
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Window:
    """Part of a document: tokens after `<bos>` included, and the UTF-8 bytes of each token but `<bos>`."""

    document: int
    tokens: np.ndarray
    num_bytes: np.ndarray


@dataclass(frozen=True)
class Bits:
    """Bits per byte of a layout.

    value        for the text of all `num_windows` windows
    stderr       of `value` as the figure of those windows: random masks and, where the bound was made on some of them
                 only (`num_scored`), which
    text_stderr  of `value` as the figure of all text like it, `stderr` not included: how documents differ; None for one
    by_position  `value` for eighths of the context, left to right; None where no window reaches
    ratio        to the exact score; None where the model has none
    samples      draws of masks in each window; 1 for an exact score
    """

    layout: str
    exact: bool
    value: float
    stderr: float
    text_stderr: float | None
    by_position: tuple[float | None, ...]
    ratio: float | None
    num_windows: int
    num_scored: int
    num_bytes: int
    num_tokens: int
    samples: int


def make_windows(documents: Sequence[Document], tokenizer: Tokenizer, context: int) -> list[Window]:
    """All windows of the documents, in order. DataError when there is no text."""
    sizes = np.array([len(tokenizer.token_bytes(token)) for token in range(tokenizer.vocab_size)])
    out = []
    for index, document in enumerate(documents):
        ids = np.array([*tokenizer.encode(document.text), tokenizer.eos_id])
        for start in range(0, len(ids), context - 1):
            body = ids[start : start + context - 1]
            out.append(Window(index, np.concatenate([[tokenizer.bos_id], body]), sizes[body]))
    if not any(window.num_bytes.any() for window in out):
        raise DataError("there is no text to score: give files that are not empty")
    return out


def spread(num: int, limit: int | None) -> np.ndarray:
    """Indices of at most `limit` of `num` things, evenly spread; all of them for None."""
    if limit is None or limit >= num:
        return np.arange(num)
    if limit < 2:
        raise InputError(f"{limit} windows are too few: a standard error needs 2 or more")
    return np.floor((np.arange(limit) + 0.5) * num / limit).astype(np.int64)


def default_layouts(config: ModelConfig) -> tuple[int | str, ...]:
    """What a model is scored on unless told: every layout that its context can decode."""
    if config.context == "causal":
        return ("ar", 4, 16, 64, "full")
    return ("full",) if config.context == "full" else (config.block_size or 1,)


def bits_per_byte(
    backbone: Backbone,
    tokenizer: Tokenizer,
    documents: Sequence[Document],
    *,
    layouts: Sequence[int | str] | None = None,
    exact_windows: int | None = None,
    bound_windows: int | None = BOUND_WINDOWS,
    samples: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[Bits]:
    """Score documents under each layout: "ar", a number of tokens in a span, or "full".

    exact_windows, bound_windows  how many windows, evenly spread, get the exact score, and of those a bound; None: all
    samples                       draws of masks in each window; None: 2 for spans, 4 for "full"
    progress                      called as progress(layout, windows done, windows to do)

    UnsupportedError for a layout that the model's context cannot honor.
    """
    wanted = list(default_layouts(backbone.config) if layouts is None else layouts)
    for layout in wanted:
        check_layout(backbone.config, "ar" if layout == "ar" else "elbo", None if layout == "ar" else layout)  # type: ignore[arg-type]
    context = backbone.config.max_positions
    windows = make_windows(documents, tokenizer, context)
    population = [windows[i] for i in spread(len(windows), exact_windows if "ar" in wanted else None)]
    some = spread(len(population), bound_windows)
    scorer = _Scorer(backbone, context, seed, progress or (lambda layout, done, total: None))
    exact = scorer.score(population, "ar", 1) if "ar" in wanted else None
    out = []
    for layout in wanted:
        if layout == "ar":
            assert exact is not None
            out.append(_figure("ar", exact, exact, None, 1))
            continue
        draws = samples or (FULL_SAMPLES if layout == "full" else BLOCK_SAMPLES)
        bound = scorer.score([population[i] for i in some], layout, draws)
        if exact is None:
            out.append(_figure(str(layout), bound, bound, None, draws))
        else:
            out.append(_figure(str(layout), bound, exact, exact.take(some), draws))
    return out


@dataclass(frozen=True)
class _Sums:
    """Sums over the tokens of windows W, by eighth of the context and, in the last column, in all.

    bits, num_bytes  float64 (W, NUM_BUCKETS + 1)
    document         (W,): the number of the window's document
    num_tokens       (W,)
    mask_variance    (W,): variance of the window's bits from its random masks
    """

    bits: np.ndarray
    num_bytes: np.ndarray
    document: np.ndarray
    num_tokens: np.ndarray
    mask_variance: np.ndarray

    def take(self, index: np.ndarray) -> _Sums:
        """The same for some of the windows."""
        return _Sums(**{f.name: getattr(self, f.name)[index] for f in fields(self)})


@dataclass(frozen=True)
class _Scorer:
    backbone: Backbone
    context: int
    seed: int
    progress: Progress

    def score(self, windows: Sequence[Window], layout: int | str, samples: int) -> _Sums:
        """Score windows. The masks of a window depend on the seed and its number alone."""
        rows = []
        for index, window in enumerate(windows):
            self.progress(str(layout), index, len(windows))
            score = self._score(window, layout, samples, index)
            rows.append(
                (
                    self._buckets(score.by_token / np.log(2)),
                    self._buckets(window.num_bytes),
                    window.document,
                    score.num_tokens,
                    (score.stderr / np.log(2)) ** 2,
                )
            )
        self.progress(str(layout), len(windows), len(windows))
        return _Sums(*(np.array(column) for column in zip(*rows, strict=True)))

    def _score(self, window: Window, layout: int | str, samples: int, index: int) -> Score:
        tokens = window.tokens.tolist()
        if layout == "ar":
            return score_tokens(self.backbone, tokens)
        return score_tokens(
            self.backbone,
            tokens,
            kind="elbo",
            layout=layout,  # type: ignore[arg-type]  # checked before
            samples=samples,
            seed=(self.seed, index),
        )

    def _buckets(self, values: np.ndarray) -> np.ndarray:
        eighth = np.arange(len(values)) * NUM_BUCKETS // (self.context - 1)
        return np.append(np.bincount(eighth, values, minlength=NUM_BUCKETS), values.sum())


def _figure(layout: str, own: _Sums, whole: _Sums, same: _Sums | None, samples: int) -> Bits:
    """The figure of the windows of `whole` from the scores `own`, made on some of them.

    With the exact scores `same` of the windows of `own`, by the ratio to those. The variance is then (1-f) times that
    of the ratio over windows, random masks included, plus f times that of the masks alone, f being the share of windows
    scored: the correction for a finite population, on the part that it is true of.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        values = whole.bits.sum(0) / whole.num_bytes.sum(0)
        if same is not None:
            values = values * (own.bits.sum(0) / same.bits.sum(0))
    text_stderr = ratio_stderr(whole.bits[:, -1], whole.num_bytes[:, -1], whole.document)
    variance = float(own.mask_variance.sum() / own.num_bytes[:, -1].sum() ** 2)
    ratio = 1.0 if layout == "ar" else None
    if same is not None:
        ratio = float(own.bits[:, -1].sum() / same.bits[:, -1].sum())
        text_stderr *= ratio
        each = np.arange(len(own.document))  # windows were chosen, not documents
        left_out = 1 - len(own.document) / len(whole.document)
        by_window = float(values[-1]) / ratio * ratio_stderr(own.bits[:, -1], same.bits[:, -1], each)
        variance = left_out * by_window**2 + (1 - left_out) * variance if left_out else variance
    return Bits(
        layout=layout,
        exact=layout == "ar",
        value=float(values[-1]),
        stderr=variance**0.5,
        text_stderr=None if np.isnan(text_stderr) else text_stderr,
        by_position=tuple(float(v) if np.isfinite(v) else None for v in values[:-1]),
        ratio=ratio,
        num_windows=len(whole.document),
        num_scored=len(own.document),
        num_bytes=int(whole.num_bytes[:, -1].sum()),
        num_tokens=int(whole.num_tokens.sum()),
        samples=samples,
    )
