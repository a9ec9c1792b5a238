"""The rows of a batch of forwards, concatenated, each of which attends to the keys of its own request.

Letters: R rows of all requests, N heads, C keys of a request, H head width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor

from daguerre.models.core.cache import KeyValueCache, LayeredCache
from daguerre.models.forward import Forward

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""From the number of a forward, its queries (1, N, rows, H), and keys and values (1, kv heads, C, H), to (1, N, rows,
H).
"""


@dataclass(frozen=True, eq=False)
class PackedRows:
    """The rows of a batch; `edges` are where those of each forward begin, and the end."""

    batch: Sequence[Forward]
    edges: Sequence[int]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, function: Attend) -> Tensor:
        """Attention (R, N, H) of queries over keys and values, (R, heads, H), and those in the caches, where the clean
        ones of these are stored.
        """
        out = torch.empty_like(q)
        for number, (one, edges) in enumerate(zip(self.batch, pairwise(self.edges), strict=True)):
            rows = slice(*edges)
            query, keys, values = (x[rows].transpose(0, 1)[None] for x in (q, k, v))
            if one.cache is not None:
                cache = cast(KeyValueCache | LayeredCache, one.cache)
                keys, values = cache.extend(layer, keys, values, one.layout.num_clean)
            out[rows] = function(number, query, keys, values)[0].transpose(0, 1)
        return out
