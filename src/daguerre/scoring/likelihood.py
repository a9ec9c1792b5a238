"""The likelihood of a text under a model, in nats: exact scores and upper bounds, for each layout.

`<bos>` is given, and more of the text's beginning where the caller says so; every other token is scored. The layout is
the way in which the model would have written the text:

    ar          one token after the other. Exact:  -log p(x) = sum_i -log p(x_i | x_<i).
    elbo, K     spans of K consecutive tokens, from the first scored one; each span sees the clean tokens before it.
    elbo, full  all scored tokens are one span.
    chain       the same spans, each revealed in one fixed order, one position a forward. Exact for that order.

Within a span of n tokens x the model reveals one position at a time, in a uniformly random order; p(x) is the mean over
the orders of the products of its predictions. By Jensen's inequality -log p(x) is at most the mean over the orders of
the sums of -log predictions. Grouped by the number k of tokens that are still masked, that mean gives

    -log p(x | clean)  <=  E_{k ~ U{1..n}} E_{M: |M| = k} [ (n/k) sum_{i in M} -log p(x_i | x without M, clean) ]

(exact-k: autoregressive diffusion, Hoogeboom et al. 2022; LLaDA). It is the NELBO of masked diffusion (MDLM, eq. 10,
whose 1/t is n/k here) without the noise of the number of masks, and the bounds of the spans add up. With spans of one
token it equals `ar`. It is a proper bound on the text's probability under that layout: nothing is clipped, reweighted
or left out.

The chain rule along one order needs no mean: it gives the probability that a sampler with that order draws the text, in
as many forwards as the longest span has tokens (DUEL). The bound is the mean of the chains of all orders, so chains
show how loose the bound is. For a process that replaces tokens by others, `elbo` is the bound of that process: the mean
of its integrand at random times.

The rows are those of decoding (`models/rows.py`). In reordered context those of a span's revealed tokens come before
those of its masks. In a shifted model a span [s, e) has the rows s-1 .. e-2, so its last
token has no row: once it is revealed, the other tokens of its span do not see it. They are predicted from less, and the
bound is that of a sampler that does the same. The clean stream is computed once; the noisy rows of every draw read its
cache.

Letters: S draws, L tokens, R noisy rows, V vocabulary.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from daguerre.decoding.modes.block import DEFAULT_BLOCK
from daguerre.errors import InputError, UnsupportedError, unknown
from daguerre.models.core.config import ModelConfig
from daguerre.models.forward import Backend, Forward, Hidden, KeyCache, Layout, Logits, LogProbs
from daguerre.models.session import Asking, compute
from daguerre.noise.bound import NoisyBound
from daguerre.noise.reverse import ReverseSteps, reverse_of
from daguerre.scoring.embedding import clean_layout

SpanLayout = int | Literal["full"]
Order = Literal["left", "random"] | Sequence[int]
KINDS = ("ar", "elbo", "chain")
ORDERS = ("left", "random")
ROWS_AT_ONCE = 2048


@dataclass(frozen=True)
class TokenScores:
    """Negative log-likelihood of `num_tokens` tokens, or an upper bound on it.

    value     in nats, the sum over the tokens
    stderr    standard error of `value` from the random masks; 0 where the score is exact
    by_token  float64 (num_tokens,): the part of each token in `value`
    num_windows  in which the text was scored: more than one where it is longer than the model's positions
    """

    value: float
    stderr: float
    num_tokens: int
    by_token: np.ndarray = field(repr=False, compare=False)
    num_windows: int = 1


def score_tokens(
    backend: Backend,
    tokens: Sequence[int],
    *,
    given: int = 1,
    kind: str = "ar",
    layout: SpanLayout | None = None,
    order: Order | None = None,
    samples: int = 128,
    seed: int | Sequence[int] = 0,
) -> TokenScores:
    """Score `tokens`, which begin with `<bos>` if the model has one: exactly (`ar`, `chain`), or by the bound of a
    layout (`elbo`).

    given    how many tokens at the beginning, `<bos>` the first of them, are seen and not scored; 1 or more
    layout   for `elbo` and `chain`: tokens in a span, or "full". None: the model's own block size, "full" where its
             context is, else DEFAULT_BLOCK
    order    for `chain`: "left" (None), "random" (drawn from `seed`), or a permutation of the numbers of the tokens
             scored, from 0; each span reveals its tokens in that order
    samples  for `elbo`: draws of masks, 2 or more; the number of masks is stratified over them

    InputError for tokens that cannot be scored; UnsupportedError for a layout that the model's context does not have.
    """
    config = backend.config
    ids = _checked(config, tokens, given)
    check_layout(config, kind, layout)
    if order is not None and kind != "chain":
        raise InputError(f"order={order!r} belongs to kind='chain': leave it out, or ask for the chain")
    rng = np.random.default_rng(seed)
    if kind == "ar" and config.shift:
        return compute(_exact(ids, given), backend)
    size = 1 if kind == "ar" else default_layout(config) if layout is None else layout
    spans = _spans(config, given, len(ids), size)
    if kind != "elbo":
        place = _place(order, len(ids) - given, rng)
        return compute(_chain(backend, ids, spans, place), backend)
    if samples < 2:
        raise InputError(f"samples={samples}: a bound with its standard error needs 2 draws or more")
    if config.process != "absorbing":
        if given != 1:
            raise UnsupportedError(
                f"given={given}: a process that replaces tokens is scored from its first token; leave given out"
            )
        return compute(_bound_over_time(config, ids, samples, rng), backend)
    return compute(_bound(backend, ids, spans, _draw(spans, samples, rng)), backend)


def default_layout(config: ModelConfig) -> SpanLayout:
    """The layout of spans that `layout=None` means."""
    return "full" if config.context == "full" else config.block_size or DEFAULT_BLOCK


def check_layout(config: ModelConfig, kind: str, layout: SpanLayout | None) -> None:
    """Raise what `score_tokens` would for this kind and layout, before any work."""
    if kind not in KINDS:
        raise unknown("kind", kind, KINDS)
    if config.process != "absorbing" and config.context != "full":
        raise UnsupportedError(
            "this model is told no noise level, so neither its likelihood nor a bound on it is known: score the text "
            "with another model"
        )
    if kind == "ar":
        if layout is not None:
            raise InputError(
                f"layout={layout!r} belongs to kind='elbo' or 'chain': leave it out, or ask for one of them"
            )
        if config.context == "full" or (config.context == "block" and config.block_size != 1):
            raise UnsupportedError(
                f"a model with {config.context} context has no autoregressive likelihood: ask for kind='elbo'"
            )
    elif config.process == "absorbing" and config.mask_id is None:
        raise UnsupportedError(f"a model without masks has no likelihood of kind={kind!r}: ask for kind='ar'")
    elif layout is not None:
        _spans(config, 1, 2, layout)


def _checked(config: ModelConfig, tokens: Sequence[int], given: int) -> np.ndarray:
    ids = np.asarray(tokens, dtype=np.int64)
    if ids.ndim != 1 or len(ids) < 2 or ids[:1].tolist() != (config.first or ids[:1].tolist()):
        start = "<bos> and at least one token" if config.first else "at least two tokens, the first of which is given"
        raise InputError(f"a text to score is {start}")
    if not 1 <= given < len(ids):
        raise InputError(f"given={given}: of {len(ids)} tokens, 1 to {len(ids) - 1} can be given")
    if len(ids) > config.max_positions:
        raise InputError(
            f"the text has {len(ids)} tokens and the model {config.max_positions} positions: score it in windows, as "
            "Model.nll does"
        )
    if ids.min() < 0 or ids.max() >= config.vocab_size:
        raise InputError(f"a token id is outside the vocabulary: ids are 0 to {config.vocab_size - 1}")
    if np.isin(ids[given:], config.unpredictable_ids).any():
        raise InputError("the text has a special token that the model never predicts: its probability is zero")
    return ids


def _spans(config: ModelConfig, given: int, length: int, layout: SpanLayout) -> np.ndarray:
    """Bounds [s, e) of the spans, int64 (spans, 2), covering positions given .. length-1.

    A block model's spans lie on its absolute grid, so the first of them may be shorter: position 0 is `<bos>`.
    """
    if layout != "full" and (not isinstance(layout, int) or isinstance(layout, bool) or layout < 1):
        raise InputError(f"layout={layout!r}: give a number of tokens in a span, or 'full'")
    if config.context == "full" and layout != "full":
        raise UnsupportedError(f"layout={layout!r}: a model with full context has one span; ask for 'full'")
    if config.context == "block" and layout != config.block_size:
        raise UnsupportedError(f"layout={layout!r}: this model's blocks have {config.block_size} tokens; ask for that")
    size = length if layout == "full" else min(int(layout), length)
    starts = np.arange(0 if config.context == "block" else given, length, size)
    spans = np.stack([np.maximum(starts, given), np.minimum(starts + size, length)], axis=1)[starts + size > given]
    if config.anchor == "clean" or config.masks_in_place:  # a block's first position is a span of its own
        begins = (spans[:, 0] % size == 0) | config.masks_in_place
        edges = np.union1d(spans, spans[begins, 0] + 1)
        spans = np.stack([edges[:-1], edges[1:]], axis=1)
    return spans


@dataclass(frozen=True)
class _Masks:
    """Draws of masks: `masked` bool (S, L), `weight` float64 (S, spans) is n/k."""

    masked: np.ndarray
    weight: np.ndarray


def _draw(spans: np.ndarray, samples: int, rng: np.random.Generator) -> _Masks:
    """Draw j of S takes k = 1 + floor(n (j + U) / S) of a span's n positions, each k-subset as likely as the others.

    Spans and draws are independent of each other; k is uniform on {1..n} over the draws together.
    """
    lengths = spans[:, 1] - spans[:, 0]
    stratum = (np.arange(samples)[:, None] + rng.random((samples, len(spans)))) / samples
    num_masked = np.minimum(1 + np.floor(stratum * lengths).astype(np.int64), lengths)
    keys = rng.random((samples, int(spans[-1, 1])))
    masked = np.zeros(keys.shape, dtype=bool)
    for index, (start, end) in enumerate(spans):
        rank = keys[:, start:end].argsort(axis=1).argsort(axis=1)
        masked[:, start:end] = rank < num_masked[:, index, None]
    return _Masks(masked, lengths / num_masked)


def _place(order: Order | None, num: int, rng: np.random.Generator) -> np.ndarray:
    """The place of each of `num` tokens in the order, int64 (num,)."""
    if order is None or isinstance(order, str):
        if order not in (None, *ORDERS):
            raise unknown("order", order, ORDERS)
        return rng.permutation(num) if order == "random" else np.arange(num)
    given = np.asarray(order)
    if given.shape != (num,) or not np.array_equal(np.sort(given), np.arange(num)):
        raise InputError(f"the order must have each of the numbers 0 to {num - 1} once, for the text's {num} tokens")
    return given.argsort()


def collapsed_variance(draws_SN: np.ndarray) -> float:
    """Estimated variance of the sum over N of the means over S, for independent draws, one from each of S strata.

    One draw says nothing about the variance within its stratum, so strata are collapsed into adjacent pairs (the last
    three together if S is odd) and the variance is taken within those (Cochran 1977, section 5A.12). Its expectation is
    the true variance plus what the two strata's means differ: never too small, and the closer the more strata.
    """
    num = len(draws_SN)
    edges = [*range(0, num - 1, 2), num]
    parts = [draws_SN[a:b] for a, b in itertools.pairwise(edges)]
    return float(sum(len(part) * part.var(axis=0, ddof=1).sum() for part in parts)) / num**2


def _exact(ids: np.ndarray, given: int) -> Asking[TokenScores]:
    """By the chain rule, in one forward."""
    num = len(ids) - 1
    layout = Layout(np.arange(num), np.arange(1, num + 1, dtype=np.int32), num)
    wanted = np.arange(given - 1, num, dtype=np.int32)
    (answer,) = yield [Forward(ids[:-1], layout, None, wanted, LogProbs(ids[given:]))]
    assert answer.log_probs is not None
    return TokenScores(float(-answer.log_probs.sum()), 0.0, len(wanted), -answer.log_probs)


def _chain(backend: Backend, ids: np.ndarray, spans: np.ndarray, place: np.ndarray) -> Asking[TokenScores]:
    """Step j masks in each span the tokens that the order reveals j-th or later, and scores the j-th."""
    given = int(spans[0, 0])
    rank = np.full(len(ids), -1)
    for start, end in spans:
        rank[start:end] = place[start - given : end - given].argsort().argsort()
    step = np.arange(rank.max() + 1)[:, None]
    noisy = _NoisyRows.plan(backend.config, spans, len(ids))
    ce_SL = yield from _cross_entropies(backend, ids, noisy, rank >= step, rank == step)
    by_token = ce_SL.sum(axis=0)
    return TokenScores(float(by_token.sum()), 0.0, len(place), by_token[given:])


def _bound(backend: Backend, ids: np.ndarray, spans: np.ndarray, masks: _Masks) -> Asking[TokenScores]:
    given = int(spans[0, 0])
    noisy = _NoisyRows.plan(backend.config, spans, len(ids))
    values = yield from _cross_entropies(backend, ids, noisy, masks.masked, masks.masked)
    values = values[:, given:] * np.repeat(masks.weight, spans[:, 1] - spans[:, 0], axis=1)
    by_token = values.mean(axis=0)
    by_span = np.add.reduceat(values, spans[:, 0] - given, axis=1)
    return TokenScores(float(by_token.sum()), collapsed_variance(by_span) ** 0.5, len(by_token), by_token)


def _bound_over_time(
    config: ModelConfig, ids: np.ndarray, samples: int, rng: np.random.Generator
) -> Asking[TokenScores]:
    """The NELBO of a process that replaces tokens: its integrand at stratified times, draw j of S in (j, j+1)/S.

    At t = 1 the text is all noise and at t = 0 it is clean, so the integral is the whole bound.
    """
    process, num = reverse_of(config), len(ids)
    assert isinstance(process, ReverseSteps)
    bound, x0 = NoisyBound(process), np.tile(ids, (samples, 1))
    times = (np.arange(samples) + rng.uniform(1e-9, 1 - 1e-9, samples)) / samples
    xt = bound.corrupt(x0, times, int(rng.integers(2**63)))
    xt[:, 0] = ids[0]
    layout, wanted = Layout(np.arange(num), np.full(num, num, dtype=np.int32), 0), np.arange(1, num, dtype=np.int32)
    parts, size = [], max(1, ROWS_AT_ONCE // num)
    for start in range(0, samples, size):
        part = slice(start, start + size)
        given = zip(xt[part], times[part].tolist(), strict=True)
        answers = yield [Forward(noisy, layout, None, wanted, Logits(), t) for noisy, t in given]
        logits = np.stack([answer.logits for answer in answers if answer.logits is not None])
        parts.append(bound.nelbo(logits, x0[part, 1:], xt[part, 1:], times[part]))
    values = np.concatenate(parts)
    by_token = values.mean(axis=0)
    variance = collapsed_variance(values.sum(axis=1)[:, None])
    return TokenScores(float(by_token.sum()), variance**0.5, len(by_token), by_token)


@dataclass(frozen=True, eq=False)
class _NoisyRows:
    """The noisy rows of all spans of one draw, int64 (R,) each.

    inside     bool: the position of the row belongs to its span (an anchor's does not: it is never masked)
    row_of     int64 (L,): the row that predicts each position; position 0 has none
    num_clean  clean rows, at positions 0 .. num_clean-1: all that some noisy row sees, and the rest of their blocks
    layout     a noisy row sees the clean rows before its span, and the rows of its span
    """

    position: np.ndarray
    inside: np.ndarray
    row_of: np.ndarray
    num_clean: int
    layout: Layout

    @classmethod
    def plan(cls, config: ModelConfig, spans: np.ndarray, length: int) -> _NoisyRows:
        offset, ahead = int(config.shift), np.zeros(len(spans), dtype=np.int64)
        if config.context == "full":
            first, last, num_clean = np.zeros(1, dtype=np.int64), np.array([length]), 0
        elif config.context == "block":
            assert config.block_size is not None
            size = config.block_size
            grid = spans[:, 0] // size * size
            if config.anchor == "clean":
                grid -= size * (spans[:, 0] == grid)  # read by the last row of the block before, which is clean
                first, last = grid, np.minimum(grid + size, config.max_positions)
            else:
                first, last = np.maximum(grid - offset, 0), np.minimum(grid + size, config.max_positions) - offset
            num_clean = int(grid.max())
        else:
            if config.masks_in_place:  # but for a span of one position, which is read by the row before it
                ahead = (spans[:, 1] - spans[:, 0] > 1).astype(np.int64)
            first, last = spans[:, 0] - offset, spans[:, 1] - offset + ahead
            num_clean = int(first.max())
        num_rows = last - first
        span = np.repeat(np.arange(len(spans)), num_rows)
        before = np.cumsum(num_rows) - num_rows
        position = np.arange(len(span)) + (first - before)[span]
        row_of = np.full(length, -1)
        for index, (start, end) in enumerate(spans):
            row_of[start:end] = before[index] - first[index] - offset + ahead[index] + np.arange(start, end)
        inside = (position >= spans[span, 0]) & (position < spans[span, 1])
        layout = Layout(position, first[span].astype(np.int32), 0, None, span[:, None] == span)
        return cls(position, inside, row_of, num_clean, layout)

    def reordered(self, hides: np.ndarray) -> Layout:
        """The layout in reordered context, where the rows `hides`, bool (R,), are masked: of its span a row sees the
        revealed ones up to it, and a masked one all revealed ones and the masked ones up to it.
        """
        assert self.layout.mask is not None
        index, shown = np.arange(len(hides)), ~hides
        sees = np.where(hides[:, None] == hides, index <= index[:, None], shown)
        return replace(self.layout, mask=self.layout.mask & sees)


def _cross_entropies(
    backend: Backend, ids: np.ndarray, noisy: _NoisyRows, masked_SL: np.ndarray, scored_SL: np.ndarray
) -> Asking[np.ndarray]:
    """The cross-entropy, float64 (S, L), of the scored tokens of each draw, which are masked; 0 for the others."""
    config, out = backend.config, np.zeros(masked_SL.shape)
    beyond = max(0, int(noisy.position.max()) + 1 - len(ids))  # the rest of the last block
    whole = np.concatenate([ids, np.full(beyond, config.placeholder)])
    cache = yield from _clean_cache(backend, ids[: noisy.num_clean])
    at_once = max(1, ROWS_AT_ONCE // len(noisy.position))
    for start in range(0, len(masked_SL), at_once):
        batch, places = [], []
        for draw in range(start, min(start + at_once, len(masked_SL))):
            masked, position = masked_SL[draw], np.flatnonzero(scored_SL[draw])
            hides = np.pad(masked, (0, beyond))[noisy.position] & noisy.inside
            tokens = np.where(hides, config.placeholder, whole[noisy.position])
            level = float(hides.sum() / noisy.inside.sum()) if config.time_input else None
            wanted = noisy.row_of[position].astype(np.int32)
            layout = noisy.reordered(hides) if config.context == "reordered" else noisy.layout
            batch.append(Forward(tokens, layout, cache, wanted, LogProbs(ids[position]), level))
            places.append((draw, position))
        answers = yield list(batch)
        for (draw, position), answer in zip(places, answers, strict=True):
            assert answer.log_probs is not None
            out[draw, position] = -answer.log_probs
    return out


def _clean_cache(backend: Backend, ids: np.ndarray) -> Asking[KeyCache | None]:
    """A cache of the clean stream; None where no row sees a clean one."""
    num, config = len(ids), backend.config
    if num == 0:
        return None
    cache = backend.cache(num)
    yield [Forward(ids, clean_layout(config, num), cache, np.array([num - 1], dtype=np.int32), Hidden())]
    return cache
