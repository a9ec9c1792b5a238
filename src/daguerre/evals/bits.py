"""Bits per byte of text under a model, one figure for each layout.

A document is cut into consecutive windows that do not overlap: `<bos>` and as many tokens as the model's context
holds. `<eos>` at a document's end is scored as a token of no bytes. Nats are summed over windows and divided by ln 2
and by the UTF-8 bytes of the windows' text.

The exact score (`ar`) is cheap and computed for all windows. Bounds take a forward for every draw of masks and are
computed for some of the windows, evenly spread. Chains, the likelihood of spans revealed left to right, take a forward
for every token of a span and are computed for every eighth of those. Such a figure is still for all windows: it is
estimated by regression on what is known of all of them, the exact score and the number of tokens (Cochran 1977,
chapter 7; least squares without a constant). The estimate is the regression's sum over all windows plus the sum of the
residuals scaled up. It is valid however well the regression fits; a good fit makes its error small, and windows that
are hard to predict in one layout are hard in every layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from daguerre.errors import DataError, InputError
from daguerre.evals.statistics import ratio_stderr
from daguerre.evals.workers import Progress, no_progress
from daguerre.heldout import Document
from daguerre.models.core.config import ModelConfig
from daguerre.models.forward import Backend
from daguerre.models.tokenizer import Tokenizer
from daguerre.scoring.likelihood import SpanLayout, TokenScores, check_layout, score_tokens

NUM_BUCKETS = 8
MIN_FITTED = 10
BOUND_WINDOWS = 128
BLOCK_SAMPLES, FULL_SAMPLES = 2, 4
BOUNDS_PER_CHAIN = 8
CHAIN = "chain "
"""Prefix of the name of a layout whose spans are revealed left to right: "chain 16"."""


@dataclass(frozen=True)
class BitsWindow:
    """Part of a document: its tokens, `<bos>` first, and the UTF-8 bytes of each token but `<bos>`."""

    document: int
    tokens: np.ndarray
    num_bytes: np.ndarray


@dataclass(frozen=True)
class Bits:
    """Bits per byte of a layout.

    value        for the text of all `num_windows` windows
    exact        whether it is a likelihood, not a bound on one
    stderr       of `value` for exactly these windows: from random masks and, where only `num_scored` of them were
                 scored, from the choice of windows
    text_stderr  of `value` for all text like this, `stderr` not included: how documents differ; None for one document
    direct       bits per byte over the scored windows alone; equal to `value` where all were scored
    by_position  `value` for eighths of the context, left to right; None where no window is that long
    ratio        `value` over that of the exact score; None where there is no exact score
    samples      draws of masks in each window; 1 where exact
    """

    layout: str
    exact: bool
    value: float
    stderr: float
    text_stderr: float | None
    direct: float
    by_position: tuple[float | None, ...]
    ratio: float | None
    num_windows: int
    num_scored: int
    num_bytes: int
    num_tokens: int
    samples: int


def make_windows(documents: Sequence[Document], tokenizer: Tokenizer, context: int) -> list[BitsWindow]:
    """All windows of the documents, in order. DataError when there is no text."""
    sizes = np.array([len(tokenizer.token_bytes(token)) for token in range(tokenizer.vocab_size)])
    out = []
    for index, document in enumerate(documents):
        ids = np.array([*tokenizer.encode(document.text), tokenizer.eos_id])
        for start in range(0, len(ids), context - 1):
            body = ids[start : start + context - 1]
            out.append(BitsWindow(index, np.concatenate([[tokenizer.start_id], body]), sizes[body]))
    if not any(window.num_bytes.any() for window in out):
        raise DataError("there is no text to score: give files that are not empty")
    return out


def spread(num: int, limit: int | None) -> np.ndarray:
    """Indices of at most `limit` of `num` things, evenly spread; all of them for None."""
    if limit is None or limit >= num:
        return np.arange(num)
    if limit < 2:
        raise InputError(f"{limit} windows are too few: a standard error needs 2 or more")
    return evenly(num, limit)


def evenly(num: int, limit: int) -> np.ndarray:
    """Indices of `limit` of `num` things, `num` or fewer, evenly spread."""
    return np.floor((np.arange(limit) + 0.5) * num / limit).astype(np.int64)


def default_layouts(config: ModelConfig) -> tuple[int | str, ...]:
    """The layouts that are scored by default: all that the model's context can decode."""
    if config.is_ordered and config.mask_id is None:
        return ("ar",)
    if config.is_ordered:
        return ("ar", 4, 16, 64, "full", f"{CHAIN}4", f"{CHAIN}16")
    return ("full",) if config.context == "full" else (config.block_size or 1, f"{CHAIN}{config.block_size}")


def kind_of(layout: int | str) -> tuple[str, SpanLayout | None]:
    """The `kind` and `layout` arguments of `score_tokens` for a layout."""
    if layout == "ar":
        return "ar", None
    if isinstance(layout, str) and layout.startswith(CHAIN):
        size = layout.removeprefix(CHAIN)
        return "chain", int(size) if size.isdecimal() else size  # type: ignore[return-value]  # checked by its user
    return "elbo", layout  # type: ignore[return-value]  # likewise


def bits_per_byte(
    backend: Backend,
    tokenizer: Tokenizer,
    documents: Sequence[Document],
    *,
    layouts: Sequence[int | str] | None = None,
    exact_windows: int | None = None,
    bound_windows: int | None = BOUND_WINDOWS,
    samples: int | None = None,
    seed: int = 0,
    positions: int | None = None,
    progress: Progress = no_progress,
) -> list[Bits]:
    """Score documents under each layout: "ar"; a bound by its number of tokens in a span, or "full"; "chain 16".

    exact_windows, bound_windows  how many windows, evenly spread, get the exact score, and how many of those a bound;
                                  None: all
    samples                       draws of masks in each window; None: 2 for spans, 4 for "full"
    positions                     of a window; None: all that the model has
    progress                      called as progress(layout, windows done, windows to do)

    UnsupportedError for a layout that the model's context cannot honor.
    """
    chosen = list(default_layouts(backend.config) if layouts is None else layouts)
    for layout in chosen:
        check_layout(backend.config, *kind_of(layout))
    windows = make_windows(documents, tokenizer, positions or backend.config.max_positions)
    windows = [windows[i] for i in spread(len(windows), exact_windows if "ar" in chosen else None)]
    scorer = _Scorer(backend, seed, progress)
    exact = scorer.score(windows, "ar", 1) if "ar" in chosen else None
    out = []
    for layout in chosen:
        if layout == "ar":
            assert exact is not None
            out.append(_figure("ar", exact, exact, exact.bits.sum(0), 0.0, 1.0, 1))
            continue
        some, draws = _windows_and_draws(layout, spread(len(windows), bound_windows), samples)
        scored = scorer.score([windows[i] for i in some], layout, draws)
        same = None if exact is None else exact.take(some)
        out.append(_estimated_figure(str(layout), scored, exact, same, draws))
    return out


def _windows_and_draws(layout: int | str, bounded: np.ndarray, samples: int | None) -> tuple[np.ndarray, int]:
    """Which of the windows with a bound are scored in a layout other than "ar", and the draws of masks in each."""
    if kind_of(layout)[0] == "chain":
        return bounded[spread(len(bounded), max(2, len(bounded) // BOUNDS_PER_CHAIN))], 1
    return bounded, samples or (FULL_SAMPLES if layout == "full" else BLOCK_SAMPLES)


@dataclass(frozen=True)
class _Sums:
    """Sums over the tokens of windows W, by eighth of the context and, in the last column, in all.

    bits, num_bytes, num_tokens  float64 (W, NUM_BUCKETS + 1)
    document                     (W,): the number of the window's document
    mask_variance                (W,): variance of the window's bits from its random masks
    """

    bits: np.ndarray
    num_bytes: np.ndarray
    num_tokens: np.ndarray
    document: np.ndarray
    mask_variance: np.ndarray

    def take(self, index: np.ndarray) -> _Sums:
        """The sums of some of the windows."""
        return _Sums(**{f.name: getattr(self, f.name)[index] for f in fields(self)})


@dataclass(frozen=True)
class _Scorer:
    backend: Backend
    seed: int
    progress: Progress

    def score(self, windows: Sequence[BitsWindow], layout: int | str, samples: int) -> _Sums:
        """Score windows. The masks of a window depend on the seed and on its number alone."""
        rows = []
        for index, window in enumerate(windows):
            self.progress(str(layout), index, len(windows))
            score = self._score(window, layout, samples, index)
            rows.append(
                (
                    self._buckets(score.by_token / np.log(2)),
                    self._buckets(window.num_bytes),
                    self._buckets(np.ones(score.num_tokens)),
                    window.document,
                    (score.stderr / np.log(2)) ** 2,
                )
            )
        self.progress(str(layout), len(windows), len(windows))
        return _Sums(*(np.array(column) for column in zip(*rows, strict=True)))

    def _score(self, window: BitsWindow, layout: int | str, samples: int, index: int) -> TokenScores:
        kind, spans = kind_of(layout)
        seed = (self.seed, index)
        return score_tokens(self.backend, window.tokens.tolist(), kind=kind, layout=spans, samples=samples, seed=seed)

    def _buckets(self, values: np.ndarray) -> np.ndarray:
        eighth = np.arange(len(values)) * NUM_BUCKETS // (self.backend.config.max_positions - 1)
        return np.append(np.bincount(eighth, values, minlength=NUM_BUCKETS), values.sum())


def _estimated_figure(layout: str, bound: _Sums, exact: _Sums | None, same: _Sums | None, samples: int) -> Bits:
    """The figure of all windows, those of `exact`; `same` has the exact scores of the windows of `bound`. Without exact
    scores it is the figure of the windows of `bound`.

    One fit serves all columns, so eighths add up to the whole. With f the share of windows scored, the variance is
    (1-f) times that of the residuals, random masks included, plus f times that of the masks alone: the correction for
    a finite population applies to the choice of windows only.
    """
    if exact is None or same is None:
        return _figure(layout, bound, bound, bound.bits.sum(0), float(bound.mask_variance.sum()), None, samples)
    num, num_all = len(bound.document), len(exact.document)
    known, known_all = (np.stack([sums.bits, sums.num_tokens]) for sums in (same, exact))  # (2, W, NUM_BUCKETS + 1)
    weights = np.array([bound.bits[:, -1].sum() / same.bits[:, -1].sum(), 0.0])
    if num >= MIN_FITTED:
        weights = np.linalg.lstsq(known[:, :, -1].T, bound.bits[:, -1], rcond=None)[0]
    residual = bound.bits - np.tensordot(weights, known, 1)
    bits = weights @ known_all.sum(1) + residual.sum(0) * num_all / num
    by_window = num_all**2 / num * residual[:, -1].var(ddof=1 + (num >= MIN_FITTED)) if num > 1 else np.inf
    by_mask = min(float(bound.mask_variance.sum()) * (num_all / num) ** 2, by_window)
    left_out = 1 - num / num_all
    variance = (left_out * by_window if left_out else 0.0) + (1 - left_out) * by_mask
    return _figure(layout, bound, exact, bits, variance, float(bits[-1] / exact.bits[:, -1].sum()), samples)


def _figure(
    layout: str, scored: _Sums, whole: _Sums, bits: np.ndarray, variance: float, ratio: float | None, samples: int
) -> Bits:
    """`bits` are of the windows of `whole`, by column; `variance` is of their last column; `scored` what was scored."""
    num_bytes = whole.num_bytes.sum(0)
    text_stderr = ratio_stderr(whole.bits[:, -1], whole.num_bytes[:, -1], whole.document) * (ratio or 1.0)
    return Bits(
        layout=layout,
        exact=kind_of(layout)[0] != "elbo",
        value=float(bits[-1] / num_bytes[-1]),
        stderr=float(variance**0.5 / num_bytes[-1]),
        text_stderr=None if np.isnan(text_stderr) else text_stderr,
        direct=float(scored.bits[:, -1].sum() / scored.num_bytes[:, -1].sum()),
        by_position=tuple(float(b / n) if n else None for b, n in zip(bits[:-1], num_bytes[:-1], strict=True)),
        ratio=ratio,
        num_windows=len(whole.document),
        num_scored=len(scored.document),
        num_bytes=int(num_bytes[-1]),
        num_tokens=int(whole.num_tokens[:, -1].sum()),
        samples=samples,
    )
