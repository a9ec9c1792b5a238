"""A noise process: forward corruption of tokens on a schedule, its posterior, and its losses.

CONTRIBUTING.md says what adding one takes. Letters: B sequences, L positions, V vocabulary.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

import torch
from torch import Tensor

from daguerre.errors import unknown
from daguerre.models.core.config import ModelConfig
from daguerre.noise.absorbing import Absorbing
from daguerre.noise.checks import check_process
from daguerre.noise.hybrid import Hybrid
from daguerre.noise.uniform import Uniform


class Process(Protocol):
    """Every token decays independently, from the text at t = 0 to the prior at t = 1; knows tokens, not models.

    Losses are differentiable in the logits, computed in float64, and need t in (0, 1). `needs_time`: a denoiser needs
    t as an input.
    """

    needs_time: ClassVar[bool]

    @property
    def mask_id(self) -> int | None:
        """The token that stands for none yet, if the process has one."""

    def prior_from(self, u: Tensor) -> Tensor:
        """x_1 from uniform numbers on [0, 1), int64 of the same shape."""

    def posterior(self, xt_BL: Tensor, probs_BLV: Tensor, t: float, s: float) -> Tensor:
        """p(x_s given x_t, x_0 ~ probs) for 0 <= s < t <= 1, (B, L, V). `probs` gives no mass to the mask."""

    def corrupt(self, x0_BL: Tensor, t_B: Tensor, generator: torch.Generator) -> Tensor:
        """A draw from q(x_t given x_0)."""

    def nelbo(self, logits_BLV: Tensor, x0_BL: Tensor, xt_BL: Tensor, t_B: Tensor) -> Tensor:
        """Nats a token (B, L): its mean over t uniform on (0, 1) and x_t is a bound on -log p(x_0)."""

    def cross_entropy(self, logits_BLV: Tensor, x0_BL: Tensor, xt_BL: Tensor, t_B: Tensor) -> Tensor:
        """-log p(x_0 given x_t), (B, L): the unweighted loss, with the same minimum."""


PROCESSES: dict[str, type[Process]] = {"absorbing": Absorbing, "uniform": Uniform, "hybrid": Hybrid}


def process_of(config: ModelConfig) -> Process:
    """The process that a model was trained to undo, with its defaults. Noise draws any token that is not reserved, or
    those that the config names. UnsupportedError for a model without the mask that its process needs.
    """
    ordinary = config.ordinary_ids
    noise_ids = config.noise_ids or (int(ordinary[0]), int(ordinary[-1]) + 1)
    reserved = config.reserved_ids if config.noise_ids is None else ()
    holes = tuple(i for i in reserved if noise_ids[0] <= i < noise_ids[1])
    if config.process == "uniform":
        return Uniform(noise_ids, holes=holes)
    check_process(config)
    assert config.mask_id is not None
    if config.process == "hybrid":
        return Hybrid(noise_ids, config.mask_id, holes=holes)
    if config.process == "absorbing":
        return Absorbing(config.mask_id)
    raise unknown("process", config.process, PROCESSES)


__all__ = ["PROCESSES", "Absorbing", "Hybrid", "Process", "Uniform", "process_of"]
