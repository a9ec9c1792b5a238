"""Remasking: a sampler of masked models in which tokens may become masks again (ReMDM, arXiv 2503.00307)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from daguerre.errors import InputError
from daguerre.noise.absorbing import Absorbing


@dataclass(frozen=True)
class Remasking:
    """The absorbing process undone with other steps, in which a token that is written becomes a mask again with
    probability sigma = min(most, (1 - alpha_s)/alpha_t) (the rule "cap" of ReMDM, section 4.1).

    The distributions q(x_t given x_0) are those of the process (its theorem 3.1), so its models are as good as before,
    and a token that was drawn too early is drawn again.
    """

    process: Absorbing
    most: float

    def __post_init__(self) -> None:
        if not 0 <= self.most <= 1:
            raise InputError(f"remask must be a probability, from 0 to 1, not {self.most}")

    @property
    def mask_id(self) -> int:
        """The mask."""
        return self.process.mask_id

    def prior_from(self, u: Tensor) -> Tensor:
        """All masks, whatever `u`."""
        return self.process.prior_from(u)

    def posterior(self, xt_BL: Tensor, probs_BLV: Tensor, t: float, s: float) -> Tensor:
        """p(x_s given x_t, x_0 ~ probs) for s < t, (B, L, V). `probs` gives no mass to the mask."""
        return self.process.posterior(xt_BL, probs_BLV, t, s, self.most)
