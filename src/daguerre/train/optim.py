"""Muon on hidden matrices and AdamW on the rest, a learning-rate factor over the run, and an average of the weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from daguerre.models.lora_factors import NAME
from daguerre.models.processor import native_dtype
from daguerre.models.tensor_parallel import MatrixSplit
from daguerre.train.concept_loss import CONCEPTS
from daguerre.train.recipe import Optimization
from daguerre.train.sharded import is_sharded, like, local, whole_of

HIDDEN = ("layers.", "draft_head.up.", "draft_head.down.")
LOW_RANK = "_draft."
"""What the names of the low-rank weights of drafts have in them, and no others."""
FACTORS = f".{NAME}.parts."
"""What the names of LoRA's factors have in them, and no others."""
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 5


class Muon(torch.optim.Optimizer):
    """Muon (Keller Jordan, 2024): steps are momentum with all singular values made about one.

    The same as `torch.optim.Muon`, which makes them so in bfloat16 on every machine; here in `dtype`: on a processor
    without bfloat16 that takes as long as forward and backward together.
    """

    def __init__(
        self, params: Iterable[nn.Parameter], lr: float, momentum: float, weight_decay: float, dtype: torch.dtype
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.dtype = dtype
        self.splits: dict[int, MatrixSplit] = {}
        """How matrices that processes share are cut, by the identity of their weights."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient. Where processes hold parts of matrices, each of them orthogonalizes
        one in turn, whole, and tells the others.
        """
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            size = torch.distributed.get_world_size() if weights and is_sharded(weights[0]) else 1
            for start in range(0, len(weights), size):
                some = weights[start : start + size]
                matrices = [self._whole(self._followed(weight, group["momentum"]), weight) for weight in some]
                for weight, update in zip(some, self._orthogonalized(matrices, size), strict=True):
                    scale = max(1.0, update.shape[0] / update.shape[1]) ** 0.5
                    split = self.splits.get(id(weight))
                    part = like(update if split is None else split.part(update), weight)
                    local(weight).mul_(1 - group["lr"] * group["weight_decay"])
                    local(weight).add_(part, alpha=-group["lr"] * scale)

    def _whole(self, part: Tensor, weight: nn.Parameter) -> Tensor:
        """A whole matrix from this process's part."""
        gathered, split = whole_of(part, weight), self.splits.get(id(weight))
        return gathered if split is None else split.joined(gathered)

    def _followed(self, weight: nn.Parameter, momentum: float) -> Tensor:
        """The step of a matrix before it is orthogonalized: this process's part."""
        state = self.state[weight]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(weight)
        gradient, buffer = local(weight.grad), local(state["momentum_buffer"])
        buffer.lerp_(gradient, 1 - momentum)
        return gradient.lerp(buffer, momentum)

    def _orthogonalized(self, matrices: list[Tensor], size: int) -> list[Tensor]:
        """Each of at most `size` matrices orthogonalized by a process of its own."""
        if size == 1:
            return [orthogonalized(matrix, self.dtype) for matrix in matrices]
        mine = torch.distributed.get_rank()
        made = [
            orthogonalized(matrix, self.dtype).contiguous()
            if owner == mine
            else torch.empty_like(matrix, dtype=self.dtype)
            for owner, matrix in enumerate(matrices)
        ]
        for owner, update in enumerate(made):
            torch.distributed.broadcast(update, src=owner)
        return made


def orthogonalized(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    """A matrix with the same singular vectors and singular values between about .5 and 1.5, computed in `dtype`.

    Five steps of the quintic Newton-Schulz iteration whose slope at zero is largest.
    """
    a, b, c = NEWTON_SCHULZ
    tall = matrix.shape[0] > matrix.shape[1]
    x = (matrix.T if tall else matrix).to(dtype)
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x


def is_hidden(name: str) -> bool:
    """Whether a weight of that name, if it is a matrix, gets Muon's steps. Low-rank weights do not: their rates and
    those of a draft head that was trained before have to differ. Factors of LoRA do not: see `train.lora`.
    """
    return name.startswith(HIDDEN) and LOW_RANK not in name and FACTORS not in name


class Optimizer:
    """Muon and AdamW side by side, driven by one factor of progress, on the weights that need a gradient."""

    def __init__(
        self, model: nn.Module, options: Optimization, splits: Mapping[str, MatrixSplit] | None = None
    ) -> None:
        trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
        hidden = {n for n, p in trained.items() if options.muon and p.ndim == 2 and is_hidden(n)}
        matrices = [p for n, p in trained.items() if n in hidden]
        heads = [p for n, p in trained.items() if n.startswith(CONCEPTS)]
        rest = [p for n, p in trained.items() if not n.startswith(CONCEPTS) and n not in hidden]
        self.options, self.names = options, {id(weight): name for name, weight in trained.items()}
        self.parts: list[tuple[torch.optim.Optimizer, float]] = []
        if matrices:
            dtype = native_dtype(matrices[0].device)
            muon = Muon(matrices, options.muon_lr, options.muon_momentum, options.weight_decay, dtype)
            muon.splits = {id(trained[name]): split for name, split in (splits or {}).items() if name in trained}
            self.parts.append((muon, options.muon_lr))
        for weights, rate in ((rest, options.adamw_lr), (heads, options.concepts_lr)):
            if weights:
                each = False if is_sharded(weights[0]) else None  # parts cannot be updated all in one call
                adamw = torch.optim.AdamW(weights, lr=rate, betas=(0.9, 0.95), weight_decay=0.0, foreach=each)
                self.parts.append((adamw, rate))

    def step(self, progress: float, passes: float = 0.0) -> float:
        """Update the weights at `progress` of the run, in [0, 1], after so many passes over the training text; returns
        the learning-rate factor.
        """
        factor = lr_factor(progress, self.options.warmup, self.options.decay)
        factor *= repeat_factor(passes, self.options.passes)
        for part, rate in self.parts:
            for group in part.param_groups:
                group["lr"] = rate * factor
            part.step()
            part.zero_grad(set_to_none=True)
        return factor

    def state_dict(self) -> list[dict[str, Any]]:
        return [part.state_dict() for part, _ in self.parts]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        for (part, _), state in zip(self.parts, states, strict=True):
            part.load_state_dict(state)


def lr_factor(progress: float, warmup: float, decay: float) -> float:
    """Linear from 0 to 1 over `warmup`, then 1, then linear to 0 over the last `decay` of the run."""
    rising = progress / warmup if warmup > 0 else 1.0
    falling = (1.0 - progress) / decay if decay > 0 else 1.0
    return max(0.0, min(1.0, rising, falling))


def repeat_factor(passes: float, limit: float) -> float:
    """1 up to `limit` passes over the training text, then (limit / passes)^2: all that follows counts as much as
    another `limit` passes at full rate. 1 for a limit of 0.
    """
    return (limit / passes) ** 2 if 0 < limit < passes else 1.0


class Average:
    """Exponential moving average of the trained weights in float32; early on a plain mean, so that it does not lag."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.count = 0
        self.values: dict[str, Tensor] = {
            name: weight.detach().clone() for name, weight in model.named_parameters() if weight.requires_grad
        }

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        self.count += 1
        decay = min(self.decay, self.count / (self.count + 10))
        new = [local(model.get_parameter(name).detach()) for name in self.values]
        torch._foreach_lerp_([local(value) for value in self.values.values()], new, 1 - decay)
