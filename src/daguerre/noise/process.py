"""Forward corruption of tokens on a schedule, its posterior, and the weight it puts on a loss.

Letters: B sequences, L positions, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from daguerre.errors import InputError
from daguerre.noise.schedule import Linear, Schedule


@dataclass(frozen=True)
class Absorbing:
    """Every token turns into the mask on its own, and stays one (D3PM absorbing; MDLM, section 3)."""

    mask_id: int
    schedule: Schedule = Linear()

    def prior(self, shape: tuple[int, ...]) -> Tensor:
        """x_1: all masks."""
        return torch.full(shape, self.mask_id)

    def corrupt(self, x0_BL: Tensor, t_B: Tensor, generator: torch.Generator) -> Tensor:
        """A draw from q(x_t given x_0): each token is masked with probability 1 - alpha(t)."""
        keep = self.schedule.alpha(t_B)[:, None]
        uniform = torch.rand(x0_BL.shape, generator=generator, dtype=torch.float64)
        return torch.where(uniform < keep, x0_BL, self.mask_id)

    def posterior(self, xt_BL: Tensor, probs_BLV: Tensor, t: float, s: float) -> Tensor:
        """q(x_s given x_t, x_0 ~ probs) for s < t, (B, L, V). `probs` gives no mass to the mask.

        Tokens stay what they are, a mask stays one with probability (1-alpha_s)/(1-alpha_t) (MDLM, eq. 7).
        """
        if not 0 <= s < t <= 1:
            raise InputError(f"the posterior goes from t to an earlier s: 0 <= s < t <= 1, not s={s}, t={t}")
        times = torch.tensor([s, t], dtype=torch.float64)
        alpha_s, alpha_t = self.schedule.alpha(times).tolist()
        stay = (1 - alpha_s) / (1 - alpha_t)
        masked = probs_BLV * (1 - stay)
        masked[..., self.mask_id] = stay
        fixed = torch.zeros_like(probs_BLV).scatter_(-1, xt_BL[..., None], 1.0)
        return torch.where((xt_BL == self.mask_id)[..., None], masked, fixed)

    def loss_weight(self, t: Tensor) -> Tensor:
        """What a masked token's cross-entropy weighs in the NELBO; 1/t on the linear schedule."""
        return self.schedule.weight(t)
