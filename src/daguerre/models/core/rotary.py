"""Rotary positions (`models.core.frequencies`) in PyTorch.

Letters: R rows, N heads, H head width, W rotated width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from daguerre.models.core import frequencies as numbers
from daguerre.models.core.config import ModelConfig
from daguerre.models.core.frequencies import own_positions as own_positions


def frequencies(
    config: ModelConfig, device: torch.device | str = "cpu", *, sliding: bool = False
) -> tuple[Tensor, float]:
    """`models.core.frequencies.frequencies` on a device."""
    turns, scale = numbers.frequencies(config, sliding=sliding)
    return torch.from_numpy(turns).to(device), scale


Rotary = tuple[Tensor, Tensor, Tensor | None]
"""Cosines and sines of the rows of a forward, and the scale of their queries."""


def rotary_tables(
    config: ModelConfig, position: Tensor, dtype: torch.dtype, *, sliding: bool = False
) -> tuple[Tensor, Tensor]:
    """Cosines and sines (..., R, 1, W/2) of the angles at positions (..., R), computed in float32; `sliding`: those of
    sliding layers.
    """
    turns, scale = frequencies(config, position.device, sliding=sliding)
    angle = position[..., None, None].float() * turns
    return (angle.cos() * scale).to(dtype), (angle.sin() * scale).to(dtype)


def query_scale(config: ModelConfig, position: Tensor, dtype: torch.dtype) -> Tensor | None:
    """What queries are multiplied by, (..., R, 1, 1), so that attention stays sharp over many keys (as in Llama 4):
    1 + beta ln(1 + floor(position / original positions)), computed in float32; None: they stay as they are.
    """
    scaling = config.rope_scaling
    if scaling is None or not scaling.query_beta:
        return None
    times = torch.floor(position[..., None, None].float() / scaling.original_positions)
    return (1 + scaling.query_beta * torch.log1p(times)).to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the two halves of the first W numbers of each head, x (..., R, N, H), by its row's angles."""
    width = 2 * cos.shape[-1]
    a, b = x[..., :width].chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin, x[..., width:]], dim=-1)
