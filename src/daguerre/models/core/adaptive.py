"""Adaptive layer norms (adaLN; DiT, arXiv 2212.09748, section 3.2; as in SEDD, MDLM, BD3-LM and Duo).

A noise level becomes a vector. In each layer a linear map of it gives, for attention and for the MLP, a shift and a
scale of what they read and a gate on what they add; one more map gives the shift and scale of the final norm:

    x + gate * f(norm(x) * (1 + scale) + shift)

The published models are given sigma, the total noise of the log-linear schedule, sigma = -log(1 - t): t is the share of
tokens that are noise. They were trained up to t = MOST_NOISE. A model without `time_input` is given sigma = 0 always.

Letters: D width, C width of the vector.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from daguerre.models.core.parameters import FINAL_PARTS as FINAL_PARTS
from daguerre.models.core.parameters import MOST_NOISE as MOST_NOISE
from daguerre.models.core.parameters import NUM_WAVES
from daguerre.models.core.parameters import PARTS as PARTS


def total_noise(level: Tensor) -> Tensor:
    """sigma = -log(1 - t) of noise levels t in [0, 1], float32; above MOST_NOISE it is that of MOST_NOISE."""
    return -torch.log1p(-level.float().clamp_max(MOST_NOISE))


class LevelEmbedding(nn.Module):
    """Sines and cosines of sigma, then a two-layer MLP, and SiLU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(NUM_WAVES, width)
        self.second = nn.Linear(width, width)

    def forward(self, level: Tensor) -> Tensor:
        """Vectors (..., C) of levels (...)."""
        half = NUM_WAVES // 2
        exponent = torch.arange(half, device=level.device, dtype=torch.float32) / half
        angle = total_noise(level)[..., None] * torch.exp(-math.log(10_000.0) * exponent)
        waves = torch.cat([angle.cos(), angle.sin()], dim=-1).to(self.first.weight.dtype)
        return F.silu(self.second(F.silu(self.first(waves))))


def shifted(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """A normalized x (..., D), scaled and shifted."""
    return x * (1 + scale) + shift
