"""Remasking: tokens already written may become masks again (ReMDM, arXiv 2503.00307).

A second reverse of the absorbing process with the same marginals: what samples by a `Reverse` is tried with it too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from daguerre.noise.absorbing import Absorbing
from daguerre.noise.schedule import check_step


@dataclass(frozen=True)
class Remasking:
    """The reverse of an absorbing process in which a token is masked again with probability sigma in each step.

    sigma is at most sigma_max = min(1, (1 - alpha_s)/alpha_t). cap: min(eta, sigma_max); rescale: eta sigma_max.
    """

    process: Absorbing
    eta: float
    rule: Literal["cap", "rescale"] = "cap"

    @property
    def mask_id(self) -> int:
        """The mask."""
        return self.process.mask_id

    def prior_from(self, u: Tensor) -> Tensor:
        """All masks, whatever `u`."""
        return self.process.prior_from(u)

    def posterior(self, xt_BL: Tensor, probs_BLV: Tensor, t: float, s: float) -> Tensor:
        """p(x_s given x_t, x_0 ~ probs) for s < t, (B, L, V). `probs` gives no mass to the mask.

        A token becomes the mask with probability sigma; a mask stays one with probability
        (1 - alpha_s - sigma alpha_t)/(1 - alpha_t).
        """
        check_step(t, s)
        alpha_s, alpha_t = self.process.schedule.alpha(torch.tensor([s, t], dtype=torch.float64)).tolist()
        largest = 1.0 if alpha_t == 0 else min(1.0, (1 - alpha_s) / alpha_t)
        sigma = min(self.eta, largest) if self.rule == "cap" else self.eta * largest
        stay = (1 - alpha_s - sigma * alpha_t) / (1 - alpha_t)
        masked = probs_BLV * (1 - stay)
        masked[..., self.mask_id] = stay
        written = torch.zeros_like(probs_BLV).scatter_(-1, xt_BL[..., None], 1 - sigma)
        written[..., self.mask_id] = sigma
        return torch.where((xt_BL == self.mask_id)[..., None], masked, written)
