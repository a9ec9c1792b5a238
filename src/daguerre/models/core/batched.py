"""Attention masks of a batch of training examples, defined by labels of rows.

Each row of a forward has a position and a few labels, and a single rule over labels (`allowed`) decides which keys a
query sees. Cached keys have the same labels. Decoding describes one request by runs of keys instead
(`models.forward.Layout`); tests check that the two agree.

Letters: B examples, R rows of this forward, C rows already cached, N heads, H head width.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from daguerre.errors import UnsupportedError
from daguerre.models.core.attention import Block, attend, prepare
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.cache import KeyValueCache
from daguerre.models.core.config import Context, ModelConfig

CLEAN = -1
PADDING = -2
NO_HORIZON = 1 << 30
NO_SPAN = -1
EVERY_SPAN = -2


@dataclass(frozen=True)
class Rows:
    """Labels of rows, int64 (B, R) each.

    position  position on the canvas
    span      CLEAN, PADDING (seen by none), or the number of the noisy span; rows of one span see each other
    document  rows of different documents never see each other
    segment   clean rows see only their own segment; noisy rows see every segment of their document
    horizon   a noisy row sees clean rows at positions below this (that of its span's anchor row); NO_HORIZON: all
    gap       the noisy span from which this clean row is hidden (it holds that span's answer), EVERY_SPAN or NO_SPAN
    """

    position: Tensor
    span: Tensor
    document: Tensor
    segment: Tensor
    horizon: Tensor
    gap: Tensor

    @classmethod
    def make(cls, position: Tensor, span: Tensor | int = CLEAN, **labels: Tensor | int) -> Rows:
        """Rows at `position` (B, R); every other label is a tensor of that shape or one number for all rows."""
        values: dict[str, Any] = {
            "document": 0,
            "segment": 0,
            "horizon": NO_HORIZON,
            "gap": NO_SPAN,
            "span": span,
            **labels,
        }
        full = {
            name: value if isinstance(value, Tensor) else torch.full_like(position, value)
            for name, value in values.items()
        }
        return cls(position=position, **full)

    @property
    def num_rows(self) -> int:
        return self.position.shape[1]

    def __getitem__(self, index: slice) -> Rows:
        return Rows(**{name: label[:, index] for name, label in self.__dict__.items()})

    def to(self, device: torch.device | str) -> Rows:
        return Rows(**{name: label.to(device) for name, label in self.__dict__.items()})

    @staticmethod
    def cat(parts: list[Rows]) -> Rows:
        return Rows(**{f.name: torch.cat([getattr(p, f.name) for p in parts], dim=1) for f in fields(Rows)})


def allowed(queries: Rows, keys: Rows, context: Context, block_size: int | None = None) -> Tensor:
    """The attention rule as a boolean (B, Rq, Rk) mask: True where the query sees the key.

    Clean sees clean: same document and segment, and earlier (`causal`), in an earlier or the same block (`block`), or
    anywhere (`full`). Noisy sees noisy: same span. Noisy sees clean: same document, before its horizon, and not hidden
    from its span. Clean never sees noisy.
    """

    def pair(name: str) -> tuple[Tensor, Tensor]:
        return getattr(queries, name)[:, :, None], getattr(keys, name)[:, None, :]

    q_span, k_span = pair("span")
    q_pos, k_pos = pair("position")
    q_seg, k_seg = pair("segment")
    q_doc, k_doc = pair("document")
    if context == "causal":
        earlier = k_pos <= q_pos
    elif context == "block":
        assert block_size is not None
        earlier = k_pos // block_size <= q_pos // block_size
    else:
        assert context == "full"
        earlier = torch.ones_like(k_pos <= q_pos)
    q_clean, k_clean = q_span == CLEAN, k_span == CLEAN
    clean_sees = q_clean & k_clean & (q_seg == k_seg) & earlier
    noisy_sees_clean = (q_span >= 0) & k_clean & (k_pos < queries.horizon[:, :, None])
    hidden_from = keys.gap[:, None, :]
    noisy_sees_clean &= (hidden_from != q_span) & (hidden_from != EVERY_SPAN)
    same_span = (q_span != CLEAN) & (q_span == k_span)  # padding sees padding: softmax over zero keys is undefined
    return (clean_sees | noisy_sees_clean | same_span) & (q_doc == k_doc)


@dataclass(frozen=True)
class BatchLayout:
    """The rows of one forward; clean rows come first, `num_clean` in every example.

    `plain`: the clean rows of each example are one causal run (one document, one segment, positions in order), so no
    mask is needed. `seen` is a boolean (B or 1, R, R) mask that further restricts the pairs that the rule allows; only
    for a forward without a cache. `in_order`: a noisy row sees those of its span before it alone.
    """

    rows: Rows
    num_clean: int
    context: Context = "causal"
    block_size: int | None = None
    plain: bool = False
    seen: Tensor | None = None
    in_order: bool = False

    @classmethod
    def causal(
        cls, num_rows: int, *, start: int = 0, batch: int = 1, device: torch.device | str = "cpu"
    ) -> BatchLayout:
        """Clean rows at positions start .. start+num_rows-1: an autoregressive forward."""
        position = torch.arange(start, start + num_rows, device=device).expand(batch, -1)
        return cls(Rows.make(position), num_clean=num_rows, plain=start == 0)

    def blocks(self, cached: Rows | None, window: int | None = None) -> list[Block]:
        """The attention products of the forward, in layers with a window or in others. Keys are cached rows followed
        by those of this forward.
        """
        past = 0 if cached is None else cached.num_rows
        keys = self.rows if cached is None else Rows.cat([cached, self.rows])
        out: list[Block] = []
        for start, stop in ((0, self.num_clean), (self.num_clean, self.rows.num_rows)):
            if stop == start:
                continue
            num_keys = past + stop
            far = window is not None and window < num_keys
            if self.plain and start == 0 and past == 0 and self.context == "causal" and not far:
                out.append((slice(start, stop), slice(0, num_keys), None))
                continue
            mask = allowed(self.rows[start:stop], keys[:num_keys], self.context, self.block_size)
            if window is not None:
                mask = mask & (keys.position[:, None, :num_keys] > self.rows.position[:, start:stop, None] - window)
            if self.in_order:
                mask = mask & (keys.position[:, None, :num_keys] <= self.rows.position[:, start:stop, None])
            if self.seen is not None:
                assert past == 0
                mask = mask & self.seen[:, start:stop, :num_keys]
            out.append((slice(start, stop), slice(0, num_keys), mask[:, None]))
        return out


class BatchCache(KeyValueCache):
    """A cache of `batch` examples of equal length, and the labels of their rows."""

    def __init__(
        self, config: ModelConfig, capacity: int, batch: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(config, capacity, batch=batch, dtype=dtype, device=device)
        self._rows: list[Rows] = []

    @property
    def rows(self) -> Rows | None:
        """Labels of the `length` rows; None while there are none."""
        if len(self._rows) > 1:
            self._rows = [Rows.cat(self._rows)]
        return self._rows[0] if self._rows else None

    def label(self, rows: Rows) -> None:
        """Make the clean rows that the last forward wrote part of the cache, with these labels."""
        self._rows.append(rows)
        self.commit(rows.num_rows)

    def truncate(self, length: int) -> None:
        """Discard all rows after the first `length`."""
        super().truncate(length)
        rows = self.rows
        self._rows = [] if rows is None or not length else [rows[:length]]


def run_batch(
    model: Backbone,
    tokens_BR: Tensor,
    layout: BatchLayout,
    cache: BatchCache | None = None,
    attn_impl: str = "sdpa",
    *,
    time_BR: Tensor | None = None,
    drafting: bool = False,
) -> Tensor:
    """Hidden states (B, R, D) of a batch. With a cache, reads its rows as keys and stores this forward's clean rows.

    Gradients pass through a forward with a cache if it has no clean rows, but not into the cached rows. With
    `drafting`, low-rank weights act on the noisy rows, in a model that has them.
    """
    if model.config.gemma is not None:
        raise UnsupportedError("DiffusionGemma cannot be trained here: train a model of another family")
    rows, weight = layout.rows, model.embedding.weight
    autocast = torch.is_autocast_enabled(weight.device.type)
    compute = torch.get_autocast_dtype(weight.device.type) if autocast else weight.dtype
    windows, past = model.config.windows, None if cache is None else cache.rows
    blocks = prepare(layout.blocks(past), compute, attn_impl, weight.device)
    within = blocks
    if windows is not None:
        within = prepare(layout.blocks(past, windows.size), compute, attn_impl, weight.device)

    def attention(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        if cache is not None and layout.num_clean:
            k, v = cache.extend(layer, k, v, layout.num_clean)
        elif cache is not None:
            k, v = (torch.cat([past, new], dim=2) for past, new in zip(cache.read(layer), (k, v), strict=True))
        return attend(q, k, v, within if model.config.is_sliding(layer) else blocks, attn_impl).transpose(1, 2)

    drafts = rows.span >= 0 if drafting else None
    hidden: Tensor = model(tokens_BR, rows.position, attention, time=time_BR, drafting=drafts)
    if cache is not None and layout.num_clean:
        cache.label(rows[: layout.num_clean])
    return hidden
