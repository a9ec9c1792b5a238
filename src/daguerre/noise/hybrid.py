"""The hybrid process: some tokens turn into the mask, others into random tokens (GIDD, arXiv 2503.04482)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from daguerre.errors import InputError
from daguerre.noise.replacing import Marginals, Replacing


@dataclass(frozen=True)
class Hybrid(Replacing):
    """alpha = (1-t)/C, t/C on the mask, c/C on noise_ids; C = 1 + c, c = B (t(1-t))^(gamma/2), B = 2^gamma p/(1-p).

    p_uniform  p, the share of random tokens at t = 1/2, where it is greatest; at t = 0 and 1 there are none. With
               p_uniform towards 0 it is `Absorbing` on the linear schedule
    gamma      above 0 and at most 2: how the share falls towards the ends
    """

    mask_id: int
    p_uniform: float = 0.1
    gamma: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.p_uniform < 1:
            raise InputError(f"p_uniform must be a share between 0 and 1, not {self.p_uniform}")
        if not 0 < self.gamma <= 2:
            raise InputError(f"gamma must be above 0 and at most 2, not {self.gamma}")

    def prior_from(self, u: Tensor) -> Tensor:
        """All masks; `u` is not used."""
        return torch.full_like(u, self.mask_id, dtype=torch.int64)

    def level(self, t: Tensor) -> Marginals:
        """The three shares of the class, that of random tokens over N."""
        c = self._odds(t)
        return Marginals((1 - t) / (1 + c), c / (1 + c) / self.num_noise, t / (1 + c))

    def arrival(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """(c + (1-t)c') / (C N (1-t)) for each and 1/(C(1-t)) for the mask, c' = gamma/2 (1-2t)/(t(1-t)) c."""
        c = self._odds(t)
        mask = 1 / ((1 + c) * (1 - t))
        return mask * c * (1 - self.gamma + self.gamma / (2 * t)) / self.num_noise, mask

    def dynamic_loss(self, logits_BLV: Tensor, x0_BL: Tensor, xt_BL: Tensor, t_B: Tensor) -> Tensor:
        """The NELBO's integrand with its weight times 2t(1-t), at most 2: GIDD's "dynamic" weights, float64 (B, L).

        With gamma = 1 masks weigh 2, wrong tokens 1, right ones about B/N (t/(1-t))^(1/2). For training: no bound.
        """
        t = t_B.double()[:, None]
        weight = (2 * t * (1 - t) * self.weight(x0_BL, xt_BL, t_B)).clamp_max(2.0)
        return weight * self.divergence(logits_BLV, x0_BL, xt_BL, t_B)

    def _odds(self, t: Tensor) -> Tensor:
        """c(t)."""
        scale: float = 2**self.gamma * self.p_uniform / (1 - self.p_uniform)
        return scale * (t * (1 - t)) ** (self.gamma / 2)
