"""How likely a model finds a text, in nats: exact scores and upper bounds, one for each layout.

`<bos>` is given, more of the text's beginning if asked, and every other token is scored. The layout is how the model
would have written the text:

    ar          one token after the other. Exact:  -log p(x) = sum_i -log p(x_i | x_<i).
    elbo, K     spans of K consecutive tokens, from the first one scored; each span sees what is settled before it.
    elbo, full  all that is scored is one span.
    chain       the same spans, each revealed in one fixed order, one position a forward. Exact for that order.

Within a span of n tokens x the model reveals one position at a time, in an order that is uniformly random; p(x) is the
mean over the orders of the products of its predictions. By Jensen's inequality -log p(x) is at most the mean over the
orders of the sums of -log predictions, and grouping that mean by the number k of tokens still masked gives

    -log p(x | settled)  <=  E_{k ~ U{1..n}} E_{M: |M| = k} [ (n/k) sum_{i in M} -log p(x_i | x without M, settled) ]

(exact-k: autoregressive diffusion, Hoogeboom et al. 2022; LLaDA). It is the NELBO of masked diffusion (MDLM, eq. 10,
whose 1/t is n/k here) without the noise of the number of masks, and the bounds of the spans add up. With spans of one
it is `ar`. It is a proper bound on the text's probability under that layout: nothing is clipped, weighted anew or left
out.

Along one order there is nothing to average: the chain rule gives the probability that a sampler with that order draws
the text, in as many forwards as the longest span has tokens (DUEL). It is no bound, so it says what a bound's looseness
is worth; and the bound is the mean of the chains of all orders.
For a process that replaces tokens by others the bound is that process's: its integrand at random times.

The rows are those of decoding (`models/denoiser.py`). In a shifted model a span [s, e) has rows s-1 .. e-2, so its last
token has no row of its own: once revealed, the others of its span do not see it. They predict from less, and the bound
is that of a sampler which does the same. The settled stream is computed once; every draw's noisy rows read its cache.

Letters: S draws, L tokens, B draws in one forward, R noisy rows, V vocabulary.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from daguerre.errors import InputError, UnsupportedError, unknown
from daguerre.models.backbone import Backbone
from daguerre.models.cache import Cache
from daguerre.models.config import ModelConfig
from daguerre.models.layout import Layout, Rows
from daguerre.models.tokenizer import Tokenizer
from daguerre.noise.process import process_of
from daguerre.sampling.decode import DEFAULT_BLOCK

SpanLayout = int | Literal["full"]
Order = Literal["left", "random"] | Sequence[int]
KINDS = ("ar", "elbo", "chain")
ORDERS = ("left", "random")
ROWS_AT_ONCE = 2048
LOGITS_AT_ONCE = 1 << 23


@dataclass(frozen=True)
class Score:
    """Negative log-likelihood of `num_tokens` tokens, or an upper bound on it.

    value     nats, the sum over the tokens
    stderr    standard error of `value` from the random masks; 0 where the score is exact
    by_token  float64 (num_tokens,): what each token adds to `value`
    """

    value: float
    stderr: float
    num_tokens: int
    by_token: np.ndarray = field(repr=False, compare=False)


def nll(
    backbone: Backbone,
    tokenizer: Tokenizer,
    text: str,
    *,
    kind: str = "ar",
    layout: SpanLayout | None = None,
    order: Order | None = None,
    samples: int = 128,
    seed: int | Sequence[int] = 0,
) -> Score:
    """Score `text` after `<bos>`; see `score_tokens` for the options."""
    tokens = [tokenizer.bos_id, *tokenizer.encode(text)]
    return score_tokens(backbone, tokens, kind=kind, layout=layout, order=order, samples=samples, seed=seed)


@torch.inference_mode()
def score_tokens(
    backbone: Backbone,
    tokens: Sequence[int],
    *,
    given: int = 1,
    kind: str = "ar",
    layout: SpanLayout | None = None,
    order: Order | None = None,
    samples: int = 128,
    seed: int | Sequence[int] = 0,
    backend: str = "sdpa",
) -> Score:
    """Score `tokens`, which begin with `<bos>`: exactly (`ar`, `chain`), or by the bound of a layout (`elbo`).

    given    how many tokens at the beginning, `<bos>` the first of them, are seen and not scored
    layout   for `elbo` and `chain`: tokens in a span, or "full". None: the model's own block size, "full" where its
             context is, else DEFAULT_BLOCK
    order    for `chain`: "left" (None), "random" (drawn from `seed`), or a permutation of the numbers of the tokens
             scored, from 0; each span reveals its own in that order
    samples  for `elbo`: draws of masks, 2 or more; the number of masks is stratified over them

    InputError for tokens that cannot be scored; UnsupportedError for a layout that the model's context cannot honor.
    """
    config = backbone.config
    ids = _checked(config, tokens, given)
    check_layout(config, kind, layout)
    if order is not None and kind != "chain":
        raise InputError(f"order={order!r} belongs to kind='chain': leave it out, or ask for the chain")
    if kind == "ar":
        return _exact(backbone, ids, given, backend)
    spans = _spans(config, given, len(ids), default_layout(config) if layout is None else layout)
    rng = np.random.default_rng(seed)
    if kind == "chain":
        return _chain(backbone, ids, spans, _place(order, len(ids) - given, rng), backend)
    if samples < 2:
        raise InputError(f"samples={samples}: a bound with its standard error needs 2 draws or more")
    if config.process != "absorbing":
        if given != 1:
            raise UnsupportedError(f"given={given}: a process that replaces tokens is scored from the first token on")
        return _bound_over_time(backbone, ids, samples, rng, backend)
    return _bound(backbone, ids, spans, _draw(spans, samples, rng), backend)


def default_layout(config: ModelConfig) -> SpanLayout:
    """The span layout that `layout=None` stands for."""
    return "full" if config.context == "full" else config.block_size or DEFAULT_BLOCK


def check_layout(config: ModelConfig, kind: str, layout: SpanLayout | None) -> None:
    """Raise what `score_tokens` would for this kind and layout, before any work."""
    if kind not in KINDS:
        raise unknown("kind", kind, KINDS)
    if kind == "ar":
        if layout is not None:
            raise InputError(
                f"layout={layout!r} belongs to kind='elbo' or 'chain': leave it out, or ask for one of them"
            )
        if config.context == "full" or (config.context == "block" and config.block_size != 1):
            raise UnsupportedError(
                f"a model with {config.context} context has no autoregressive likelihood: ask for kind='elbo'"
            )
    elif layout is not None:
        _spans(config, 1, 2, layout)


def _checked(config: ModelConfig, tokens: Sequence[int], given: int) -> np.ndarray:
    ids = np.asarray(tokens, dtype=np.int64)
    if ids.ndim != 1 or len(ids) < 2 or ids[0] != config.bos_id:
        raise InputError("a text to score is <bos> and at least one token")
    if not 1 <= given < len(ids):
        raise InputError(f"given={given}: of {len(ids)} tokens, 1 to {len(ids) - 1} can be given")
    if len(ids) > config.max_positions:
        raise InputError(
            f"the text has {len(ids)} tokens and the model {config.max_positions} positions: score it in windows"
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
        raise UnsupportedError(f"layout={layout!r}: in a model with full context nothing settles; ask for 'full'")
    if config.context == "block" and layout != config.block_size:
        raise UnsupportedError(f"layout={layout!r}: this model's blocks have {config.block_size} tokens; ask for that")
    if config.context == "block" and config.shift:
        raise UnsupportedError("a model with block context and a shift cannot be scored: only unshifted ones can")
    size = length if layout == "full" else int(layout)
    starts = np.arange(0 if config.context == "block" else given, length, size)
    return np.stack([np.maximum(starts, given), np.minimum(starts + size, length)], axis=1)[starts + size > given]


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
    """When each of `num` tokens is revealed, int64 (num,): its place in the order."""
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


def _exact(backbone: Backbone, ids: np.ndarray, given: int, backend: str) -> Score:
    if not backbone.config.shift:
        spans = _spans(backbone.config, given, len(ids), 1)
        return _chain(backbone, ids, spans, np.arange(len(ids) - given), backend)
    device = backbone.embedding.weight.device
    tokens = torch.from_numpy(ids)[None].to(device)
    hidden = backbone(tokens[:, :-1], Layout.causal(len(ids) - 1, device=device), backend=backend)
    by_token = _cross_entropy(backbone, hidden[0, given - 1 :], tokens[0, given:])
    return Score(float(by_token.sum()), 0.0, len(by_token), by_token)


def _chain(backbone: Backbone, ids: np.ndarray, spans: np.ndarray, place: np.ndarray, backend: str) -> Score:
    """Step j masks in each span what the order reveals j-th or later, and asks for the j-th."""
    given = int(spans[0, 0])
    rank = np.full(len(ids), -1)
    for start, end in spans:
        rank[start:end] = place[start - given : end - given].argsort().argsort()
    step = np.arange(rank.max() + 1)[:, None]
    by_token = np.zeros(len(ids))
    noisy = _NoisyRows.plan(backbone.config, spans, len(ids))
    for _, ce_BL in _cross_entropies(backbone, ids, noisy, rank >= step, rank == step, backend):
        by_token += ce_BL.sum(axis=0)
    return Score(float(by_token.sum()), 0.0, len(place), by_token[given:])


def _bound(backbone: Backbone, ids: np.ndarray, spans: np.ndarray, masks: _Masks, backend: str) -> Score:
    given = int(spans[0, 0])
    noisy = _NoisyRows.plan(backbone.config, spans, len(ids))
    values = np.zeros(masks.masked.shape)
    for part, ce_BL in _cross_entropies(backbone, ids, noisy, masks.masked, masks.masked, backend):
        values[part] = ce_BL
    values = values[:, given:] * np.repeat(masks.weight, spans[:, 1] - spans[:, 0], axis=1)
    by_token = values.mean(axis=0)
    by_span = np.add.reduceat(values, spans[:, 0] - given, axis=1)
    return Score(float(by_token.sum()), collapsed_variance(by_span) ** 0.5, len(by_token), by_token)


def _bound_over_time(
    backbone: Backbone, ids: np.ndarray, samples: int, rng: np.random.Generator, backend: str
) -> Score:
    """The NELBO of a process that replaces tokens: its integrand at stratified times, draw j of S in (j, j+1)/S.

    At t = 1 nothing is left of the text and at t = 0 all is there, so the integral is the whole bound.
    """
    process, device = process_of(backbone.config), backbone.embedding.weight.device
    times = torch.from_numpy((np.arange(samples) + rng.uniform(1e-9, 1 - 1e-9, samples)) / samples)
    generator = torch.Generator().manual_seed(int(rng.integers(2**63)))
    x0 = torch.from_numpy(ids).expand(samples, -1)
    xt = process.corrupt(x0, times, generator)
    xt[:, 0] = x0[:, 0]
    parts = []
    for part in torch.arange(samples).split(max(1, ROWS_AT_ONCE // len(ids))):
        rows = Rows.make(torch.arange(len(ids)).expand(len(part), -1), span=0).to(device)
        layout = Layout(rows, num_settled=0, context=backbone.config.context)
        noisy, t = xt[part].to(device), times[part].to(device)
        hidden = backbone(noisy, layout, None, backend, t.float()[:, None].expand(-1, len(ids)))
        clean = x0[part, 1:].to(device)
        parts.append(process.nelbo(backbone.logits(hidden[:, 1:]), clean, noisy[:, 1:], t).cpu())
    values = torch.cat(parts).numpy()
    by_token = values.mean(axis=0)
    variance = collapsed_variance(values.sum(axis=1)[:, None])
    return Score(float(by_token.sum()), variance**0.5, len(by_token), by_token)


@dataclass(frozen=True)
class _NoisyRows:
    """The noisy rows of all spans of one draw, int64 (R,) each.

    inside   bool: the row's own position belongs to its span (a seed's does not: it is never masked)
    row_of   int64 (L,): the row that predicts each position; position 0 has none
    settled  clean rows that some noisy row sees: positions 0 .. settled-1
    """

    position: np.ndarray
    span: np.ndarray
    horizon: np.ndarray
    inside: np.ndarray
    row_of: np.ndarray
    settled: int

    @classmethod
    def plan(cls, config: ModelConfig, spans: np.ndarray, length: int) -> _NoisyRows:
        offset = int(config.shift)
        if config.context == "full":
            first, last = np.zeros(1, dtype=np.int64), np.array([length])
        elif config.context == "block":
            assert config.block_size is not None
            first, last = spans[:, 0] // config.block_size * config.block_size, spans[:, 1]
        else:
            first, last = spans[:, 0] - offset, spans[:, 1] - offset
        num_rows = last - first
        span = np.repeat(np.arange(len(spans)), num_rows)
        before = np.cumsum(num_rows) - num_rows
        position = np.arange(len(span)) + (first - before)[span]
        row_of = np.full(length, -1)
        for index, (start, end) in enumerate(spans):
            row_of[start:end] = before[index] - first[index] - offset + np.arange(start, end)
        inside = (position >= spans[span, 0]) & (position < spans[span, 1])
        return cls(position, span, first[span], inside, row_of, int(first.max()))

    def layout(self, config: ModelConfig, batch: int, device: torch.device) -> Layout:
        labels = (torch.from_numpy(x).expand(batch, -1).to(device) for x in (self.position, self.span, self.horizon))
        position, span, horizon = labels
        rows = Rows.make(position, span, horizon=horizon)
        return Layout(rows, num_settled=0, context=config.context, block_size=config.block_size)


def _cross_entropies(
    backbone: Backbone, ids: np.ndarray, noisy: _NoisyRows, masked_SL: np.ndarray, asked_SL: np.ndarray, backend: str
) -> Iterator[tuple[slice, np.ndarray]]:
    """Draws, a part at a time, and the cross-entropy (B, L) of the tokens asked, masked ones; 0 for the others."""
    device = backbone.embedding.weight.device
    at_once = max(1, ROWS_AT_ONCE // len(noisy.position))
    cache, size = None, 0
    for start in range(0, len(masked_SL), at_once):
        masked = masked_SL[start : start + at_once]
        if len(masked) != size:
            size = len(masked)
            cache = _settle(backbone, ids[: noisy.settled], size, backend)
        hides = masked[:, noisy.position] & noisy.inside
        tokens = torch.from_numpy(np.where(hides, backbone.config.mask_id, ids[noisy.position])).to(device)
        share = torch.from_numpy(masked[:, 1:].mean(1)).float().to(device)
        time = share[:, None].expand(tokens.shape) if backbone.config.time_input else None
        hidden = backbone(tokens, noisy.layout(backbone.config, size, device), cache, backend, time)
        draw, position = np.nonzero(asked_SL[start : start + at_once])
        asked = hidden[torch.from_numpy(draw).to(device), torch.from_numpy(noisy.row_of[position]).to(device)]
        ce = np.zeros(masked.shape)
        ce[draw, position] = _cross_entropy(backbone, asked, torch.from_numpy(ids[position]).to(device))
        yield slice(start, start + size), ce


def _settle(backbone: Backbone, ids: np.ndarray, batch: int, backend: str) -> Cache | None:
    """The clean stream's cache, the same for each of `batch` draws; None where no row sees a settled one."""
    num = len(ids)
    if num == 0:
        return None
    weight, config = backbone.embedding.weight, backbone.config
    cache = Cache(config, num, batch=batch, dtype=weight.dtype, device=weight.device)
    rows = Layout.causal(num, batch=batch, device=weight.device).rows
    layout = Layout(rows, num, context=config.context, block_size=config.block_size, plain=config.context == "causal")
    backbone(torch.from_numpy(ids).expand(batch, -1).to(weight.device), layout, cache, backend)
    return cache


def _cross_entropy(backbone: Backbone, hidden: Tensor, target: Tensor) -> np.ndarray:
    """Cross-entropy, float64 (rows,), of hidden states (rows, D), with at most LOGITS_AT_ONCE logits in memory."""
    step = max(1, LOGITS_AT_ONCE // backbone.config.vocab_size)
    parts = [
        F.cross_entropy(backbone.logits(h), t, reduction="none")
        for h, t in zip(hidden.split(step), target.split(step), strict=True)
    ]
    return torch.cat(parts).double().cpu().numpy()
