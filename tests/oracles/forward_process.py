"""The forward process as a table: q(x_t given x_0), and the rate at which tokens turn into others.

Letters: B sequences, L positions, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from daguerre.noise.process import Absorbing, Process
from daguerre.noise.replacing import Replacing


def marginal(process: Process, probs_BLV: Tensor, t_B: Tensor) -> Tensor:
    """q(x_t given x_0 ~ probs), float64 (B, L, V): alpha probs + noise."""
    t, ids = t_B.double(), torch.arange(probs_BLV.shape[-1])
    if isinstance(process, Absorbing):
        alpha = process.schedule.alpha(t)
        noise_BV = torch.where(ids == process.mask_id, 1 - alpha[:, None], 0.0)
    else:
        assert isinstance(process, Replacing)
        level = process.level(t)
        alpha, noise_BV = level.alpha, process.spread(ids, level.each[:, None], level.mask[:, None])
    return alpha[:, None, None] * probs_BLV.double() + noise_BV[:, None]


def jump_rate(process: Process, xt_BL: Tensor, t_B: Tensor) -> Tensor:
    """Rate at which any other token turns into x_t, float64 (B, L); -alpha'/alpha for the mask of `Absorbing`."""
    if isinstance(process, Replacing):
        return process.jump_rate(xt_BL, t_B)
    assert isinstance(process, Absorbing)
    t = t_B.double()
    rate = -process.schedule.alpha_prime(t) / process.schedule.alpha(t)
    return torch.where(xt_BL == process.mask_id, rate[:, None], 0.0)
