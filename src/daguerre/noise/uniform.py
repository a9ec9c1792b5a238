"""The uniform process: tokens turn into random ones (UDLM, arXiv 2412.10193; Duo, arXiv 2506.10892; D3PM uniform)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from daguerre.noise.replacing import Marginals, Replacing
from daguerre.noise.schedule import Linear, Schedule


@dataclass(frozen=True)
class Uniform(Replacing):
    """A token survives with probability alpha_t, else it is one of noise_ids, each as likely (itself included).

    Nothing in x_t says which tokens are noise, so a denoiser needs the time, and every token may change in every step.
    """

    mask_id: None = field(default=None, init=False, repr=False)
    schedule: Schedule = Linear()

    def prior_from(self, u: Tensor) -> Tensor:
        """Any of noise_ids, each as likely."""
        return self.uniform_tokens(u)

    def level(self, t: Tensor) -> Marginals:
        """noise = (1 - alpha)/N for each."""
        alpha = self.schedule.alpha(t)
        return Marginals(alpha, (1 - alpha) / self.num_noise, torch.zeros_like(alpha))

    def arrival(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """-alpha'/(alpha N) for each."""
        rate = -self.schedule.alpha_prime(t) / self.schedule.alpha(t)
        return rate / self.num_noise, torch.zeros_like(rate)
