"""Checkpoints that several processes write, each its parts (PyTorch's DCP), and that any number of them reads."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from daguerre.errors import CheckpointError
from daguerre.train.checkpoint import SHARDS, save_checkpoint
from daguerre.train.devices import Devices
from daguerre.train.optim import Muon, Optimizer
from daguerre.train.sharded import like, local


def save_shards(
    devices: Devices, folder: Path, step: int, tensors: Mapping[str, Any], optimizer: Optimizer, state: dict[str, Any]
) -> None:
    """Write a checkpoint as `save_checkpoint` does, by all processes together. `tensors`: names to mappings."""
    flat = {f"{kind}.{name}": tensor for kind, named in tensors.items() for name, tensor in named.items()}
    flat |= dict(_states(optimizer))
    if not devices.is_first:
        if place := devices.agreed(lambda: None):
            _write(Path(place), flat)
        devices.wait()
        return
    told = False

    def write(place: Path, values: dict[str, Any]) -> None:
        nonlocal told
        told = True
        _write(Path(devices.agreed(lambda: str(place))), values)

    save_checkpoint(folder, step, flat, state, write)
    if not told:  # the step has a checkpoint
        devices.agreed(lambda: None)
    devices.wait()


def _write(folder: Path, flat: dict[str, Any]) -> None:
    from torch.distributed.checkpoint.state_dict_saver import save

    save(flat, checkpoint_id=folder / SHARDS)


@torch.no_grad()
def load_shards(path: Path, tensors: Mapping[str, Mapping[str, Tensor]], optimizer: Optimizer) -> None:
    """Read this process's parts of a checkpoint of any number of processes into tensors, and the optimizer's state.
    CheckpointError for one that is damaged, or of other shapes.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    place = path / SHARDS
    try:
        known = FileSystemReader(place).read_metadata().state_dict_metadata
        make_states(optimizer, known)
        flat = {f"{kind}.{name}": tensor for kind, named in tensors.items() for name, tensor in named.items()}
        flat |= dict(_states(optimizer))
        wrong = {name: tuple(tensor.shape) for name, tensor in flat.items()} != {
            name: tuple(getattr(stored, "size", ())) for name, stored in known.items()
        }
        if wrong:
            raise CheckpointError(f"{path} holds another model than the recipe describes: resume with its own recipe")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # one process may read what several wrote
            load(flat, checkpoint_id=place, no_dist=not torch.distributed.is_initialized())
    except (OSError, CheckpointException, RuntimeError, ValueError, EOFError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(f"{path} is damaged ({reason}): remove it, and --resume takes the one before") from error


@torch.no_grad()
def load_whole(saved: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]], optimizer: Optimizer) -> None:
    """Take this process's parts of what one process wrote."""
    for kind, named in tensors.items():
        for name, tensor in named.items():
            local(tensor).copy_(like(saved[kind][name].to(tensor.device), tensor))
    states = saved["optimizer"]
    known = {
        f"optimizer.{n}.{i}.{key}" for n, part in enumerate(states) for i, each in part["state"].items() for key in each
    }
    make_states(optimizer, known)
    for name, tensor in _states(optimizer):
        _, part, index, key = name.split(".")
        local(tensor).copy_(like(states[int(part)]["state"][int(index)][key].to(tensor.device), tensor))


def _states(optimizer: Optimizer) -> Iterator[tuple[str, Tensor]]:
    """The optimizer's state by the number of the part, the number of the weight, and what it is."""
    for number, (part, _) in enumerate(optimizer.parts):
        weights = [weight for group in part.param_groups for weight in group["params"]]
        for index, weight in enumerate(weights):
            for key, tensor in sorted(part.state.get(weight, {}).items()):
                yield f"optimizer.{number}.{index}.{key}", tensor


def make_states(optimizer: Optimizer, known: Any) -> None:
    """Give the optimizer zeros for each state that is stored."""
    for number, (part, _) in enumerate(optimizer.parts):
        keys = ("momentum_buffer",) if isinstance(part, Muon) else ("exp_avg", "exp_avg_sq")
        weights = [weight for group in part.param_groups for weight in group["params"]]
        for index, weight in enumerate(weights):
            if f"optimizer.{number}.{index}.{keys[0]}" not in known:
                continue
            state = part.state[weight]
            state.update({key: torch.zeros_like(weight) for key in keys})
            if not isinstance(part, Muon):
                state["step"] = torch.zeros(())
