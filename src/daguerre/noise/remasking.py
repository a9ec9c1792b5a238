"""Remasking: tokens already written may become masks again (ReMDM, arXiv 2503.00307)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from daguerre.errors import InputError, unknown
from daguerre.noise.absorbing import Absorbing
from daguerre.noise.schedule import check_step

RULES = ("cap", "rescale")


@dataclass(frozen=True)
class Remasking:
    """The reverse of an absorbing process in which a token is masked again with probability sigma in each step.

    Its marginals, and so the model that it needs, are those of `process`; what is written early can be corrected.
    sigma is at most sigma_max = min(1, (1 - alpha_s)/alpha_t). cap: min(eta, sigma_max), eta about .01 at 1000 steps;
    rescale: eta sigma_max.
    """

    process: Absorbing
    eta: float
    rule: Literal["cap", "rescale"] = "cap"

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise unknown("rule", self.rule, RULES)
        if not 0 <= self.eta <= 1:
            raise InputError(f"eta must be a probability, from 0 to 1, not {self.eta}")

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
        times = torch.tensor([s, t], dtype=torch.float64)
        alpha_s, alpha_t = self.process.schedule.alpha(times).tolist()
        sigma = self._sigma(alpha_s, alpha_t)
        stay = (1 - alpha_s - sigma * alpha_t) / (1 - alpha_t)
        masked = probs_BLV * (1 - stay)
        masked[..., self.mask_id] = stay
        written = torch.zeros_like(probs_BLV).scatter_(-1, xt_BL[..., None], 1 - sigma)
        written[..., self.mask_id] = sigma
        return torch.where((xt_BL == self.mask_id)[..., None], masked, written)

    def _sigma(self, alpha_s: float, alpha_t: float) -> float:
        most = 1.0 if alpha_t == 0 else min(1.0, (1 - alpha_s) / alpha_t)
        return min(self.eta, most) if self.rule == "cap" else self.eta * most
