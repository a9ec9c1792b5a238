"""Noise schedules: alpha(t), the share of tokens that survive to t, and its derivative. t=0 is clean, t=1 all noise."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import torch
from torch import Tensor

from daguerre.errors import InputError


class Schedule(ABC):
    """alpha falls monotonically from alpha(0)=1 to alpha(1)=0."""

    @abstractmethod
    def alpha(self, t: Tensor) -> Tensor:
        """Survival probability at times t in [0, 1], same shape."""

    @abstractmethod
    def alpha_prime(self, t: Tensor) -> Tensor:
        """d alpha / dt, never positive."""

    def weight(self, t: Tensor) -> Tensor:
        """The absorbing NELBO weight -alpha'/(1-alpha) of a masked token's cross-entropy (MDLM, eq. 10). In float64,
        where 1 - alpha does not yet round to 0 for a t of 1e-6; a schedule with a closed form has it in place of this.
        """
        exact = t.double()
        return (-self.alpha_prime(exact) / (1 - self.alpha(exact))).to(t.dtype)


@dataclass(frozen=True)
class Cosine(Schedule):
    """alpha = 1 - cos(pi/2 (1 - t)) (MaskGIT; MD4, table 1): few masks late."""

    def alpha(self, t: Tensor) -> Tensor:
        return 1 - torch.cos(math.pi / 2 * (1 - t))

    def alpha_prime(self, t: Tensor) -> Tensor:
        return -math.pi / 2 * torch.sin(math.pi / 2 * (1 - t))

    def weight(self, t: Tensor) -> Tensor:
        return math.pi / 2 / torch.tan(math.pi / 2 * t)


@dataclass(frozen=True)
class Polynomial(Schedule):
    """alpha = 1 - t^power (MD4, table 1)."""

    power: float = 2.0

    def __post_init__(self) -> None:
        if not self.power > 0:
            raise InputError(f"a polynomial schedule needs a positive power, not {self.power}")

    def alpha(self, t: Tensor) -> Tensor:
        return 1 - t**self.power

    def alpha_prime(self, t: Tensor) -> Tensor:
        return -self.power * t ** (self.power - 1)

    def weight(self, t: Tensor) -> Tensor:
        return self.power / t  # 1 - alpha would round to 0 for a small t


@dataclass(frozen=True)
class Linear(Polynomial):
    """alpha = 1 - t: the masked share is the time itself, and the weight is 1/t (MDLM's log-linear sigma, LLaDA)."""

    power: float = field(default=1.0, init=False, repr=False)


SCHEDULES: dict[str, type[Schedule]] = {"linear": Linear, "cosine": Cosine, "polynomial": Polynomial}
