"""Muon on hidden matrices and AdamW on the rest, a learning-rate factor over the run, and an average of the weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from daguerre.train.recipe import Optimization

HIDDEN = ("layers.", "draft_head.")


class Optimizer:
    """PyTorch's Muon and AdamW side by side, driven by one factor of progress, on the weights that want a gradient."""

    def __init__(self, model: nn.Module, options: Optimization) -> None:
        trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
        matrices = [p for n, p in trained.items() if p.ndim == 2 and n.startswith(HIDDEN)]
        rest = [p for n, p in trained.items() if p.ndim != 2 or not n.startswith(HIDDEN)]
        self.options = options
        self.parts: list[tuple[torch.optim.Optimizer, float]] = []
        if matrices:
            momentum, decay = options.muon_momentum, options.weight_decay
            muon = torch.optim.Muon(matrices, lr=options.muon_lr, momentum=momentum, weight_decay=decay)
            self.parts.append((muon, options.muon_lr))
        if rest:
            adamw = torch.optim.AdamW(rest, lr=options.adamw_lr, betas=(0.9, 0.95), weight_decay=0.0)
            self.parts.append((adamw, options.adamw_lr))

    def step(self, progress: float) -> float:
        """Update the weights at `progress` of the run, in [0, 1]; returns the learning-rate factor."""
        factor = lr_factor(progress, self.options.warmup, self.options.decay)
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


class Average:
    """Exponential moving average of the weights in float32; early on a plain mean, so that it does not lag."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.count = 0
        self.values: dict[str, Tensor] = {n: p.detach().clone() for n, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        self.count += 1
        decay = min(self.decay, self.count / (self.count + 10))
        new = [p.detach() for _, p in model.named_parameters()]
        torch._foreach_lerp_(list(self.values.values()), new, 1 - decay)
