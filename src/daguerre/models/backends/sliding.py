"""Attention of rows a few at a time, over the run of keys that these see, so that neither masks nor scores of a long
text are ever whole in memory, and sliding layers cost what their windows hold.

Letters: R rows, C keys, N heads, H head width.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from daguerre.models.forward import Layout

ROWS = 512
"""How many rows are computed at a time."""


def attend(q: Tensor, k: Tensor, v: Tensor, layout: Layout, scale: float | None = None) -> Tensor:
    """Attention of q (1, N, R, H) over k and v (1, kv heads, C, H): (1, N, R, H). The layout has no mask. `scale` is
    what scores are multiplied by; None: 1/sqrt(H).
    """
    assert layout.mask is None
    begin = np.zeros_like(layout.end) if layout.begin is None else layout.begin
    parts, grouped = list[Tensor](), q.shape[1] != k.shape[1]
    for start, stop in few_rows(layout):
        lower, upper = begin[start:stop], layout.end[start:stop]
        keys = slice(int(lower.min()), int(upper.max()))
        mask = None if lower.max() == keys.start and upper.min() == keys.stop else _mask(lower, upper, keys, q.device)
        given = q[:, :, start:stop], k[:, :, keys], v[:, :, keys]
        parts.append(F.scaled_dot_product_attention(*given, attn_mask=mask, scale=scale, enable_gqa=grouped))
    return torch.cat(parts, dim=2)


def few_rows(layout: Layout) -> list[tuple[int, int]]:
    """Runs [start, stop) of at most ROWS rows, each of clean rows or of noisy ones."""
    edges = (0, layout.num_clean, len(layout.position))
    return [(at, min(at + ROWS, stop)) for start, stop in pairwise(edges) for at in range(start, stop, ROWS)]


def _mask(lower: np.ndarray, upper: np.ndarray, keys: slice, device: torch.device) -> Tensor:
    """Bool (1, 1, R, C): which of these keys each row sees."""
    place = torch.arange(keys.start, keys.stop, device=device)
    first, last = (torch.from_numpy(edge).to(device)[:, None] for edge in (lower, upper))
    return ((place >= first) & (place < last))[None, None]
