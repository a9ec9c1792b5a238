"""The processes that train one model together, each with a part of its weights: FSDP2, under `torchrun`.

A run of one process goes through the same calls, which then do nothing. Every process makes its own micro-batches of
those that one process would make, so the losses are the same; gradients are summed over processes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from daguerre.errors import InputError, UnsupportedError
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.config import ModelConfig
from daguerre.models.tensor_parallel import MatrixSplit, join_others, split_layers, splits_of
from daguerre.train.recipe import Recipe
from daguerre.train.report import StepTotals
from daguerre.train.sharded import full, like, local, norm_of
from daguerre.train.stage import Stage

RANKS = "ranks"
"""The folder in a run of what processes other than the first write."""
OF_HEADS = ("q_norm.weight", "k_norm.weight")
"""Ends of the names of weights that every head uses."""


class Devices:
    """This process among `size`, and what they do together: all of them must make the same calls in the same order."""

    def __init__(self) -> None:
        self.size, self.rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
        self._mesh: Any = None
        self._sharded: Any = None
        self.tensor = 1
        self.splits: dict[str, MatrixSplit] = {}

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
        self.tensor = recipe.tensor_parallel
        _check(recipe, self.size)
        from torch.distributed.device_mesh import init_device_mesh

        device = torch.device(join_others(str(device)))
        shape = self.size // self.tensor, self.tensor
        self._mesh = init_device_mesh(device.type, shape, mesh_dim_names=("data", "tensor"))
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

    def shard(self, model: Backbone, dtype: torch.dtype) -> None:
        """Leave this process its float32 part of every weight; layers are gathered when they are computed, in the type
        that they multiply in, and their gradients are summed in float32.
        """
        if not self.many:
            return
        if self.tensor > 1:
            _check_split(model.config)
            self.splits = splits_of(model.config, self._mesh["tensor"].get_group())
            split_layers(model, self._mesh["tensor"].get_group())
        self.share_out(model, dtype)
        self._sharded = model

    def share_out(self, model: Backbone, dtype: torch.dtype) -> None:
        """Leave this process its part of every weight of a model that is not split."""
        if not self.many:
            return
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
        for layer in model.layers:
            fully_shard(layer, mesh=self._mesh["data"], mp_policy=policy)
        fully_shard(model, mesh=self._mesh["data"])

    def whole(self, name: str, tensor: Tensor) -> Tensor:
        """The whole of a weight, or of what is cut as it is, on every process."""
        gathered = full(tensor)
        return self.splits[name].joined(gathered) if name in self.splits else gathered

    def part(self, name: str, whole: Tensor, tensor: Tensor) -> Tensor:
        """This process's part of a whole tensor, cut as a weight of that name is."""
        return like(self.splits[name].part(whole) if name in self.splits else whole, tensor)

    def stored(self, name: str, tensor: Tensor) -> Tensor:
        """A tensor as checkpoints have it: cut along its rows alone, whatever shares the matrices of a layer."""
        if name not in self.splits:
            return tensor
        from torch.distributed.tensor import Shard, distribute_tensor

        return distribute_tensor(self.whole(name, tensor), self._mesh["data"], [Shard(0)], src_data_rank=None)

    def cut(self) -> None:
        """Give up what a forward without a backward pass left gathered, so that parameters are parts again."""
        if self._sharded is not None:
            self._sharded.reshard()

    def numbers(self, first: int, stage: Stage) -> range:
        """Which micro-batches of a step this process makes, of those from number `first` on."""
        return range(first + self.rank // self.tensor, first + stage.micro_batches, self.size // self.tensor)

    def share(self, stage: Stage) -> float:
        """What the loss of a micro-batch is divided by: FSDP means gradients over processes, and a step is a mean of
        all its micro-batches.
        """
        return stage.micro_batches * self.tensor / self.size

    def clip(self, model: Backbone, most: float) -> float:
        """Scale gradients so that their norm is at most this; the norm before."""
        if not self.many:
            return float(torch.nn.utils.clip_grad_norm_(model.parameters(), most))
        self.cut()
        gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
        if self.tensor > 1:
            for name, gradient in gradients.items():
                if name.endswith(OF_HEADS):  # each process has the part of its own heads
                    torch.distributed.all_reduce(local(gradient), group=self._mesh["tensor"].get_group())
        norm = norm_of([(grad, 1 if name in self.splits else self.tensor) for name, grad in gradients.items()])
        for gradient in gradients.values():
            local(gradient).mul_(min(1.0, most / (norm + 1e-6)))
        return norm

    def add_up(self, totals: StepTotals) -> None:
        """Make sums over this process's micro-batches sums over all of a step."""
        if not self.many:
            return
        numbers = {name: value for name, value in vars(totals).items() if not isinstance(value, dict)}
        flat = torch.from_numpy(np.concatenate([np.atleast_1d(np.asarray(v, np.float64)) for v in numbers.values()]))
        torch.distributed.all_reduce(flat)
        at = 0
        for name, value in numbers.items():
            num = np.size(value)
            new = flat[at : at + num].numpy() / self.tensor
            made = new.astype(value.dtype) if isinstance(value, np.ndarray) else type(value)(new[0])
            setattr(totals, name, made)
            at += num


def _check(recipe: Recipe, size: int) -> None:
    """InputError for what several processes cannot train, or not alike."""
    if recipe.minutes or not recipe.steps:
        raise InputError(
            f"{size} processes need a budget in steps, which all of them count alike: set steps, minutes=0"
        )
    if size % recipe.tensor_parallel:
        raise InputError(f"tensor_parallel={recipe.tensor_parallel} is no divisor of {size} processes")
    for stage in recipe.stages:
        if stage.micro_batches % (size // recipe.tensor_parallel):
            raise InputError(f"stages have {stage.micro_batches} micro-batches, which {size} processes cannot share")
    for name in ("draft_head", "concepts", "prefer", "reinforce", "rollouts", "distill", "compile"):
        if getattr(recipe, name):
            raise InputError(f"{name} trains in one process: run it without torchrun")
    if recipe.sft is not None and recipe.sft.keep:
        raise InputError("sft.keep trains in one process: run it without torchrun, or set sft.keep=0")
    if recipe.teacher is not None and recipe.tensor_parallel > 1:
        raise InputError("a teacher's matrices are not shared: set tensor_parallel=1")
    if recipe.lora is not None and recipe.tensor_parallel > 1:
        raise InputError("an adapter's matrices are not shared: set tensor_parallel=1")


def _check_split(config: ModelConfig) -> None:
    """UnsupportedError for a model that can be split, but not trained so."""
    if config.out_bias or config.mlp_bias or config.draft_head or config.concepts is not None:
        raise UnsupportedError("biases behind matrices, draft and concept heads train whole: set tensor_parallel=1")
