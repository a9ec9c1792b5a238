"""The absorbing process: tokens turn into the mask (D3PM absorbing; MDLM, arXiv 2406.07524, section 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from daguerre.noise.checks import check_inside, check_step
from daguerre.noise.schedule import Linear, Schedule


@dataclass(frozen=True)
class Absorbing:
    """Every token turns into the mask independently, and stays one (D3PM absorbing; MDLM, section 3).

    A clean text holds no mask. A denoiser does not need the time: its best answer does not depend on it (RADD).
    """

    mask_id: int
    schedule: Schedule = Linear()
    needs_time: ClassVar[bool] = False

    def prior_from(self, u: Tensor) -> Tensor:
        """x_1 of the shape of `u`, whose values do not matter."""
        return torch.full_like(u, self.mask_id, dtype=torch.int64)

    def corrupt(self, x0_BL: Tensor, t_B: Tensor, generator: torch.Generator) -> Tensor:
        """A draw from q(x_t given x_0): each token is masked with probability 1 - alpha(t)."""
        keep = self.schedule.alpha(t_B)[:, None]
        uniform = torch.rand(x0_BL.shape, generator=generator, dtype=torch.float64, device=x0_BL.device)
        return torch.where(uniform < keep, x0_BL, self.mask_id)

    def posterior(self, xt_BL: Tensor, probs_BLV: Tensor, t: float, s: float, most: float = 0.0) -> Tensor:
        """q(x_s given x_t, x_0 ~ probs) for s < t, (B, L, V). `probs` gives no mass to the mask.

        A token becomes a mask again with probability sigma = min(most, (1 - alpha_s)/alpha_t), and a mask stays one
        with probability (1 - alpha_s - sigma alpha_t)/(1 - alpha_t) (MDLM, eq. 7; with `most` above 0 ReMDM, eq. 6).
        """
        check_step(t, s)
        alpha_s, alpha_t = self.schedule.alpha(torch.tensor([s, t], dtype=torch.float64)).tolist()
        sigma = min(most, (1 - alpha_s) / alpha_t) if alpha_t else most
        stay = (1 - alpha_s - sigma * alpha_t) / (1 - alpha_t)
        masked = probs_BLV * (1 - stay)
        masked[..., self.mask_id] = stay
        written = torch.zeros_like(probs_BLV).scatter_(-1, xt_BL[..., None], 1 - sigma)
        written[..., self.mask_id] = sigma
        return torch.where((xt_BL == self.mask_id)[..., None], masked, written)

    def cross_entropy(self, logits_BLV: Tensor, x0_BL: Tensor, xt_BL: Tensor, t_B: Tensor) -> Tensor:
        """-log p(x_0 given x_t), float64 (B, L): cross-entropy at masks, 0 elsewhere. The mask's logit is left out."""
        without = logits_BLV.double().index_fill(-1, torch.tensor(self.mask_id, device=logits_BLV.device), -torch.inf)
        masked = xt_BL == self.mask_id
        out = torch.zeros_like(without[..., 0])
        out[masked] = F.cross_entropy(without[masked], x0_BL[masked], reduction="none")
        return out

    def nelbo(self, logits_BLV: Tensor, x0_BL: Tensor, xt_BL: Tensor, t_B: Tensor) -> Tensor:
        """Integrand of the NELBO over t, nats a token, float64 (B, L): weight(t) CE at masks (MDLM, eq. 10)."""
        check_inside(t_B)
        return self.schedule.weight(t_B.double())[:, None] * self.cross_entropy(logits_BLV, x0_BL, xt_BL, t_B)
