"""The processes that train one model together, each with a part of its weights: FSDP2, under `torchrun`.

A run of one process goes through the same calls, which then do nothing. Every process makes its own micro-batches of
those that one process would make, so the losses are the same; gradients are summed over processes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from daguerre.errors import InputError
from daguerre.models.core.backbone import Backbone
from daguerre.train.recipe import Recipe
from daguerre.train.report import StepTotals
from daguerre.train.sharded import local, norm_of
from daguerre.train.stage import Stage

RANKS = "ranks"
"""The folder in a run of what processes other than the first write."""


class Devices:
    """This process among `size`, and what they do together: all of them must make the same calls in the same order."""

    def __init__(self) -> None:
        self.size, self.rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
        self._mesh: Any = None
        self._sharded: Any = None

    @property
    def many(self) -> bool:
        """Whether there are others."""
        return self.size > 1

    @property
    def is_first(self) -> bool:
        """Whether this process writes what is written once."""
        return self.rank == 0

    def start(self, recipe: Recipe, device: torch.device) -> torch.device:
        """Join the others; the device of this process. InputError for a recipe that one process alone can train."""
        if not self.many:
            return device
        _check(recipe, self.size)
        from torch.distributed.device_mesh import init_device_mesh

        if device.type == "cuda":
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            torch.cuda.set_device(device)
        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
        self._mesh = init_device_mesh(device.type, (self.size,), mesh_dim_names=("data",))
        return device

    def leave(self) -> None:
        """Part from the others, when all is done."""
        if self.many:
            torch.distributed.destroy_process_group()

    def folder(self, out: Path) -> Path:
        """Where this process writes what all of them write."""
        return out if self.is_first else out / RANKS / str(self.rank)

    def wait(self) -> None:
        """Go on when all processes are here."""
        if self.many:
            torch.distributed.barrier()

    def agreed(self, make: Callable[[], Any]) -> Any:
        """What the first process makes, and the others are told."""
        if not self.many:
            return make()
        made = [make() if self.is_first else None]
        torch.distributed.broadcast_object_list(made, src=0)
        return made[0]

    def any(self, here: bool) -> bool:
        """Whether something is so in any process."""
        if not self.many:
            return here
        flag = torch.tensor(float(here))
        torch.distributed.all_reduce(flag)
        return bool(flag)

    def mean(self, number: float) -> float:
        """The mean of a number over processes."""
        if not self.many:
            return number
        total = torch.tensor(number, dtype=torch.float64)
        torch.distributed.all_reduce(total)
        return float(total) / self.size

    # ---- weights and gradients ------------------------------------------------------------------------------------

    def shard(self, model: Backbone) -> None:
        """Leave this process its part of every weight; layers are gathered when they are computed."""
        if not self.many:
            return
        from torch.distributed.fsdp import fully_shard

        for layer in model.layers:
            fully_shard(layer, mesh=self._mesh)
        fully_shard(model, mesh=self._mesh)
        self._sharded = model

    def cut(self) -> None:
        """Give up what a forward without a backward pass left gathered, so that parameters are parts again."""
        if self._sharded is not None:
            self._sharded.reshard()

    def numbers(self, first: int, stage: Stage) -> range:
        """Which micro-batches of a step this process makes, of those from number `first` on."""
        return range(first + self.rank, first + stage.micro_batches, self.size)

    def share(self, stage: Stage) -> float:
        """What the loss of a micro-batch is divided by: FSDP means gradients over processes, and a step is a mean of
        all its micro-batches.
        """
        return stage.micro_batches / self.size

    def clip(self, weights: Iterable[nn.Parameter], most: float) -> float:
        """Scale gradients so that their norm is at most this; the norm before."""
        if not self.many:
            return float(torch.nn.utils.clip_grad_norm_(weights, most))
        self.cut()
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        norm = norm_of(gradients)
        for gradient in gradients:
            local(gradient).mul_(min(1.0, most / (norm + 1e-6)))
        return norm

    def add_up(self, totals: StepTotals) -> None:
        """Make sums over this process's micro-batches sums over all of a step."""
        if not self.many:
            return
        numbers = vars(totals)
        flat = torch.from_numpy(np.concatenate([np.atleast_1d(np.asarray(v, np.float64)) for v in numbers.values()]))
        torch.distributed.all_reduce(flat)
        at = 0
        for name, value in numbers.items():
            num = np.size(value)
            new = flat[at : at + num].numpy()
            made = new.astype(value.dtype) if isinstance(value, np.ndarray) else type(value)(new[0])
            setattr(totals, name, made)
            at += num


def _check(recipe: Recipe, size: int) -> None:
    """InputError for what several processes cannot train, or not alike."""
    if recipe.minutes or not recipe.steps:
        raise InputError(
            f"{size} processes need a budget in steps, which all of them count alike: set steps, minutes=0"
        )
    for stage in recipe.stages:
        if stage.micro_batches % size:
            raise InputError(f"stages have {stage.micro_batches} micro-batches, which {size} processes cannot share")
    for name in ("draft_head", "concepts", "compile"):
        if getattr(recipe, name):
            raise InputError(f"{name} trains in one process: run it without torchrun")
