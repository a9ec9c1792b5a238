"""The reference backend: a backbone's PyTorch modules, on any device.

A batch is packed without padding: products run over the rows of all requests together, attention over the keys of each
request.

Letters: R rows of all requests, N heads, H head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor

from daguerre.models.backends import sliding
from daguerre.models.backends.answering import Answering
from daguerre.models.backends.packed import PackedRows
from daguerre.models.core.attention import sdpa
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.cache import KeyValueCache, LayeredCache, refuse_to_move, shifted_keys
from daguerre.models.core.config import ModelConfig
from daguerre.models.core.gemma import CanvasRows, GemmaBackbone
from daguerre.models.forward import Answer, DraftStep, Forward, Head, KeyCache, Layout


class TorchCache(KeyValueCache):
    """A `KeyValueCache` of one request whose rows can be copied to other positions."""

    def moved(self, by: np.ndarray) -> TorchCache:
        """A copy whose rows are moved right by `by`, int64 (length,), positions; see `KeyCache`."""
        refuse_to_move(self.config)
        assert self.scales is None
        out = TorchCache(self.config, self.capacity, dtype=self.keys.dtype, device=self.keys.device)
        out.reserve(self.length, self.length)
        rows = slice(self.length)
        turn = torch.from_numpy(by).to(self.keys.device)
        out.keys[:, :, :, rows] = shifted_keys(self.config, self.keys[:, :, :, rows], turn)
        out.values[:, :, :, rows] = self.values[:, :, :, rows]
        out.length = self.length
        return out


class TorchBackend:
    """Runs a backbone as it is; each forward uses the current weights."""

    def __init__(self, backbone: Backbone, head: Head | None = None) -> None:
        self.config, self.backbone = backbone.config, backbone
        self._answering = Answering(backbone, head)

    @torch.inference_mode()
    def forward(self, batch: Sequence[Forward | DraftStep]) -> list[Answer]:
        """An answer to each request of the batch; see `Backend`."""
        forwards = [one for one in batch if isinstance(one, Forward)]
        hidden = iter(self.hidden(forwards))
        return [
            self._answering.answer(one, next(hidden)) if isinstance(one, Forward) else self._answering.step(one)
            for one in batch
        ]

    def hidden(self, batch: Sequence[Forward]) -> list[Tensor]:
        """Hidden states (A, D) of the wanted rows of each forward."""
        if not batch:
            return []
        device = self.backbone.embedding.weight.device
        edges = np.cumsum([0, *(len(one.tokens) for one in batch)]).tolist()
        tokens = torch.from_numpy(np.concatenate([one.tokens for one in batch])).to(device)
        position = torch.from_numpy(np.concatenate([one.layout.position for one in batch])).to(device)
        time = None
        if self.config.time_input:
            levels = np.repeat([one.level or 0.0 for one in batch], np.diff(edges))
            time = torch.from_numpy(levels).float().to(device)
        drafting = None
        if any(one.drafting for one in batch):
            noisy = [(np.arange(len(one.tokens)) >= one.layout.num_clean) & one.drafting for one in batch]
            drafting = torch.from_numpy(np.concatenate(noisy)).to(device)
        if isinstance(self.backbone, GemmaBackbone):
            attend = _Packed(self.config, batch, edges, device, scale=1.0)
            out = self.backbone(tokens, position, attend, canvas=self._canvas(batch))
        else:
            attend = _Packed(self.config, batch, edges, device)
            out = self.backbone(tokens, position, attend, time=time, drafting=drafting)
        for one in batch:
            if one.cache is not None:
                cast(KeyValueCache, one.cache).commit(one.layout.num_clean)
        wanted = np.concatenate([one.wanted + first for one, first in zip(batch, edges, strict=False)])
        sizes = [len(one.wanted) for one in batch]
        return list(out[torch.from_numpy(wanted).long().to(device)].split(sizes))

    def _canvas(self, batch: Sequence[Forward]) -> CanvasRows:
        """The noisy rows of a batch, and their conditioning."""
        weight = self.backbone.embedding.weight
        noisy = [np.arange(len(one.tokens)) >= one.layout.num_clean for one in batch]
        conditioning = [
            weight.new_zeros(int(rows.sum()), self.config.width) if one.conditioning is None else one.conditioning
            for one, rows in zip(batch, noisy, strict=True)
        ]
        return CanvasRows(torch.from_numpy(np.concatenate(noisy)).to(weight.device), torch.cat(conditioning))

    def cache(self, capacity: int, *, int8: bool = False) -> KeyCache:
        """An empty cache for one request; see `Backend`."""
        weight = self.backbone.embedding.weight
        if self.config.gemma is not None:
            return LayeredCache(self.config, capacity, dtype=weight.dtype, device=weight.device, int8=int8)
        made = TorchCache(self.config, capacity, dtype=weight.dtype, device=weight.device, int8=int8)
        return cast(KeyCache, made)


Masks = list[Tensor | Layout | None]


class _Packed:
    """Attention over a batch of forwards whose rows are concatenated, each over the keys of its request.

    edges  where the rows of each forward begin, and the end
    scale  what scores are multiplied by; None: 1/sqrt(H)
    """

    def __init__(
        self,
        config: ModelConfig,
        batch: Sequence[Forward],
        edges: Sequence[int],
        device: torch.device,
        scale: float | None = None,
    ) -> None:
        self._config, self._scale = config, scale
        self._rows = PackedRows(batch, edges, together=device.type != "cpu")
        everywhere, within = config.windows is None or config.layers_by_kind[1], config.windows
        self._masks = _masks(batch, None, device, scale) if everywhere else []
        self._in_windows = [] if within is None else _masks(batch, within.size, device, scale)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        masks = self._in_windows if self._config.is_sliding(layer) else self._masks

        def attend(one: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            mask = masks[one]
            return sliding.attend(q, k, v, mask, self._scale) if isinstance(mask, Layout) else sdpa(q, k, v, mask)

        return self._rows.attend(layer, q, k, v, attend)


def _masks(batch: Sequence[Forward], window: int | None, device: torch.device, scale: float | None) -> Masks:
    """A mask for each forward, in layers with a window or in others; forwards with one layout share one."""
    made: dict[tuple[int, int], Tensor | Layout | None] = {}
    for one in batch:
        length = 0 if one.cache is None else one.cache.length
        if (id(one.layout), length) not in made:
            layout = one.layout if window is None else one.layout.within(window, length)
            made[id(one.layout), length] = layout if scale is not None else _mask(layout, length, device)
    return [made[id(one.layout), 0 if one.cache is None else one.cache.length] for one in batch]


def _mask(layout: Layout, num_cached: int, device: torch.device) -> Tensor | Layout | None:
    """The layout as a boolean mask for SDPA, (1, 1, R, C); None for a causal triangle; the layout itself for rows that
    see all keys, which need no mask, and for many rows, whose mask would be larger than all else.
    """
    plain, rows = layout.mask is None and layout.begin is None, len(layout.position)
    if plain and not num_cached and np.array_equal(layout.end, np.arange(1, rows + 1)):
        return None
    if layout.mask is None and (rows > sliding.ROWS or (plain and (layout.end == num_cached + rows).all())):
        return layout
    return torch.from_numpy(layout.dense(num_cached))[None, None].to(device)
