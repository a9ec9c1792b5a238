"""Rotary positions (RoFormer, arXiv 2104.09864): attention scores depend on the distance of query and key.

Letters: R rows, N heads, H head width, W rotated width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from daguerre.models.core.config import ModelConfig, RopeScaling


def frequencies(
    config: ModelConfig, device: torch.device | str = "cpu", *, sliding: bool = False
) -> tuple[Tensor, float]:
    """Radians by which each pair of numbers of a head is rotated from one position to the next, float32 (W/2,):
    theta^(-2i/W) (RoFormer, eq. 15), or modified by `rope_scaling`; and the scale of all cosines and sines. With
    `sliding`, those of sliding layers, if they have positions of their own (`own_positions`).
    """
    width = config.rotary_width
    exponent = torch.arange(0, width, 2, device=device, dtype=torch.float32) / width
    if sliding and own_positions(config):
        assert config.windows is not None and config.windows.rope_theta is not None
        return config.windows.rope_theta**-exponent, 1.0
    turns = config.rope_theta**-exponent
    scaling = config.rope_scaling
    if scaling is None:
        return turns, 1.0
    if scaling.kind == "linear":
        return turns / scaling.factor, 1.0
    if scaling.kind == "llama3":
        return _llama3(turns, scaling), 1.0
    if scaling.kind == "longrope":
        return _longrope(turns, scaling, config.max_positions)
    return _yarn(turns, scaling, width, config.rope_theta)


def own_positions(config: ModelConfig) -> bool:
    """Whether sliding layers have rotary positions of their own."""
    return config.windows is not None and config.windows.rope_theta is not None


def _longrope(turns: Tensor, scaling: RopeScaling, max_positions: int) -> tuple[Tensor, float]:
    """Each frequency is divided by its own number. Of the two lists of these a model has one for all texts, whatever
    their lengths, so that no cached key is out of date.
    """
    original, factor = scaling.original_positions, scaling.attention_factor
    divisors = scaling.long if max_positions > original else scaling.short
    if factor is None:
        factor = math.sqrt(1 + math.log(scaling.factor) / math.log(original)) if scaling.factor > 1 else 1.0
    return turns / torch.tensor(divisors, device=turns.device), factor


def _llama3(turns: Tensor, scaling: RopeScaling) -> Tensor:
    """Frequencies with wavelengths above original/low are divided by the factor, those below original/high are kept,
    and those between are interpolated linearly in 1/wavelength.
    """
    length = 2 * math.pi / turns
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    share = ((scaling.original_positions / length - low) / (high - low)).clamp(0, 1)
    return (1 - share) * turns / scaling.factor + share * turns


def _yarn(turns: Tensor, scaling: RopeScaling, width: int, theta: float) -> tuple[Tensor, float]:
    """Pairs that turn more than beta_fast times within the original positions are kept, those that turn less than
    beta_slow times are divided by the factor, with a linear ramp over the pair's index between (YaRN, section 3.2).
    """

    def pair(rotations: float) -> float:
        return width * math.log(scaling.original_positions / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    first = max(math.floor(pair(scaling.beta_fast)), 0)
    last = min(math.ceil(pair(scaling.beta_slow)), width - 1)
    number = torch.arange(len(turns), device=turns.device, dtype=torch.float32)
    kept = 1 - ((number - first) / max(last - first, 1e-3)).clamp(0, 1)
    factor = scaling.attention_factor
    scale = factor if factor is not None else 0.1 * math.log(scaling.factor) + 1 if scaling.factor > 1 else 1.0
    return turns / scaling.factor * (1 - kept) + turns * kept, scale


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
