"""Who may attend to whom.

A forward computes rows. Each row has a rotary position and a few labels, and one rule over labels (`allowed`)
says which keys a query sees; a dense mask is built from it only where a backend needs one. Keys that come
from a cache carry the same labels, so cached and uncached forwards share the rule.

Letters: B requests, R rows of this forward, C rows already cached.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from daguerre.models.config import Context

SETTLED = -1
PADDING = -2
NO_HORIZON = 1 << 30
NO_SPAN = -1
EVERY_SPAN = -2


@dataclass(frozen=True)
class Rows:
    """Labels of rows, int64 (B, R) each.

    position  place on the canvas, for the rotary embedding
    span      SETTLED, PADDING (seen by none), or the number of the open span; rows of one span see each other
    document  rows of different documents never see each other
    segment   settled rows see only their own segment; open rows see every segment of their document
    horizon   an open row sees settled rows at positions below this (its span's seed position); NO_HORIZON: all
    gap       the open span from which this settled row is hidden (it holds that span's answer), EVERY_SPAN or NO_SPAN
    """

    position: Tensor
    span: Tensor
    document: Tensor
    segment: Tensor
    horizon: Tensor
    gap: Tensor

    @classmethod
    def make(cls, position: Tensor, span: Tensor | int = SETTLED, **labels: Tensor | int) -> Rows:
        """Rows at `position` (B, R); every other label is a tensor of that shape or one number for all."""
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

    @classmethod
    def of_numpy(
        cls,
        position: np.ndarray,
        span: np.ndarray,
        segment: np.ndarray,
        horizon: np.ndarray,
        device: torch.device | str = "cpu",
    ) -> Rows:
        """Rows of one request, of int64 labels (R,); the others are as in `make`. One tensor holds them all."""
        labels = np.zeros((6, 1, len(position)), dtype=np.int64)
        labels[0], labels[1], labels[3], labels[4], labels[5] = position, span, segment, horizon, NO_SPAN
        return cls(*torch.from_numpy(labels).to(device).unbind(0))

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

    Settled sees settled: same document and segment, and earlier (`causal`), in an earlier or the same block
    (`block`), or anywhere (`full`). Open sees open: same span. Open sees settled: same document, before its
    horizon, and not hidden from its span. Settled never sees open.
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
        earlier = torch.ones_like(k_pos <= q_pos)
    q_settled, k_settled = q_span == SETTLED, k_span == SETTLED
    settled_sees = q_settled & k_settled & (q_seg == k_seg) & earlier
    open_sees_settled = (q_span >= 0) & k_settled & (k_pos < queries.horizon[:, :, None])
    hidden_from = keys.gap[:, None, :]
    open_sees_settled &= (hidden_from != q_span) & (hidden_from != EVERY_SPAN)
    same_span = (q_span != SETTLED) & (q_span == k_span)  # padding sees padding: a row of no keys has no softmax
    return (settled_sees | open_sees_settled | same_span) & (q_doc == k_doc)


@dataclass(frozen=True)
class Layout:
    """The rows of one forward. Settled rows come first: they never look at the open rows behind them.

    `num_settled` is the same for every request of the batch. Two flags let an executor skip a mask. `plain`: the
    settled rows, those of a cache included, are one causal run each (one document, one segment, positions in order).
    `open_sees_all`: every open row sees every row, those of a cache included.

    `seen` is a boolean (B, R, R) mask of the pairs of this forward's rows that may be seen, where not all that the rule
    allows may be; only for a forward without a cache.

    The last `alone` settled rows attend one at a time, each over every key up to its own, so that a row has the bits
    that it has in a forward of its own. As with `plain`, the caller knows that no other rule hides a key from them.

    `among` is a boolean (R', R') mask that says what these and the open rows see of one another, for a caller who knows
    it: every other row, those of a cache included, is seen by all of them. It says no more than the rule, and saves
    asking it; it may say less.
    """

    rows: Rows
    num_settled: int
    context: Context = "causal"
    block_size: int | None = None
    plain: bool = False
    open_sees_all: bool = False
    seen: Tensor | None = None
    alone: int = 0
    among: Tensor | None = None

    @classmethod
    def causal(cls, num_rows: int, *, start: int = 0, batch: int = 1, device: torch.device | str = "cpu") -> Layout:
        """Settled rows at positions start .. start+num_rows-1: an autoregressive forward."""
        position = torch.arange(start, start + num_rows, device=device).expand(batch, -1)
        return cls(Rows.make(position), num_settled=num_rows, plain=start == 0)

    def blocks(self, cached: Rows | None) -> list[tuple[slice, int, Tensor | None]]:
        """(query rows, number of keys, mask): the products that attention has to make.

        Keys are the cached rows followed by this forward's rows, cut to the given number. A mask is boolean
        (B, 1, rows, keys); None stands for the plain causal triangle.
        """
        past = 0 if cached is None else cached.num_rows
        keys = self.rows if cached is None else Rows.cat([cached, self.rows])
        out: list[tuple[slice, int, Tensor | None]] = []
        together, end = self.num_settled - self.alone, self.num_settled
        single = [(row, row + 1) for row in range(together, end)]
        for start, stop in ((0, together), *single, (end, self.rows.num_rows)):
            if stop == start:
                continue
            num_keys = past + stop
            if together <= start < end:
                out.append(
                    (slice(start, stop), num_keys, self.rows.span.new_ones((1, 1, 1, num_keys), dtype=torch.bool))
                )
                continue
            if self.plain and stop == self.num_settled and past == 0 and self.context == "causal":
                out.append((slice(start, stop), num_keys, None))
                continue
            mask = allowed(self.rows[start:stop], keys[:num_keys], self.context, self.block_size)
            if self.seen is not None:
                assert past == 0
                mask = mask & self.seen[:, start:stop, :num_keys]
            if self.among is not None and start >= end:
                mask[:, :, past + together :] &= self.among[end - together :]
            out.append((slice(start, stop), num_keys, mask[:, None]))
        return out
