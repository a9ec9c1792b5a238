"""The rows of a batch of forwards, concatenated, each of which attends to the keys of its own request.

On a device that starts kernels slowly beside how it computes, forwards of one shape are multiplied together: a copy of
their keys costs less than a product each.

Letters: R rows of all requests, B forwards, N heads, C keys of a request, H head width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import cast

import torch
from torch import Tensor

from daguerre.models.core.cache import KeyValueCache, LayeredCache
from daguerre.models.forward import Forward

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""From the number of a forward, its queries (B, N, rows, H), and keys and values (B, kv heads, C, H), to (B, N, rows,
H); further forwards have its layout.
"""


class PackedRows:
    """The rows of a batch; `edges` are where those of each forward begin, and the end.

    together  whether neighbours of one layout and with as many cached rows are computed together
    """

    def __init__(self, batch: Sequence[Forward], edges: Sequence[int], together: bool = False) -> None:
        shapes = [_shape(one) if together else number for number, one in enumerate(batch)]
        self._runs, first = list[tuple[int, slice, list[KeyValueCache | LayeredCache | None]]](), 0
        for _, run in groupby(shapes):
            stop = first + sum(1 for _ in run)
            caches = [cast(KeyValueCache | LayeredCache | None, one.cache) for one in batch[first:stop]]
            self._runs.append((first, slice(edges[first], edges[stop]), caches))
            first = stop
        self._batch = batch

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, function: Attend) -> Tensor:
        """Attention (R, N, H) of queries over keys and values, (R, heads, H), and those in the caches, where the clean
        ones of these are stored.
        """
        out = torch.empty_like(q)
        for first, rows, caches in self._runs:
            query, keys, values = (x[rows].unflatten(0, (len(caches), -1)).transpose(1, 2) for x in (q, k, v))
            if caches[0] is not None:
                keys, values = _extended(layer, caches, keys, values, self._batch[first].layout.num_clean)
            out[rows] = function(first, query, keys, values).transpose(1, 2).flatten(0, 1)
        return out


def _extended(
    layer: int, caches: Sequence[KeyValueCache | LayeredCache | None], keys: Tensor, values: Tensor, num_clean: int
) -> tuple[Tensor, Tensor]:
    """Keys and values of each forward, those in its cache before them, where its clean ones are stored."""
    alike = not num_clean and all(isinstance(cache, KeyValueCache) and cache.scales is None for cache in caches)
    if alike and len(caches) > 1:
        past = zip(*(cast(KeyValueCache, cache).read(layer) for cache in caches), strict=True)
        both = [torch.cat([torch.cat(each), new], dim=2) for each, new in zip(past, (keys, values), strict=True)]
        return both[0], both[1]
    parts = [
        cache.extend(layer, keys[one : one + 1], values[one : one + 1], num_clean)
        for one, cache in enumerate(caches)
        if cache is not None
    ]
    if len(parts) == 1:
        return parts[0]
    each_keys, each_values = zip(*parts, strict=True)
    return torch.cat(each_keys), torch.cat(each_values)


def _shape(one: Forward) -> tuple[object, ...]:
    """What forwards that are computed together have in common."""
    layout = one.layout
    arrays = (layout.end, layout.begin, layout.mask)
    cached = None if one.cache is None else one.cache.length
    return len(one.tokens), layout.num_clean, cached, *(None if x is None else (x.shape, x.tobytes()) for x in arrays)
