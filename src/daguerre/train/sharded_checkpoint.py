"""Checkpoints that several processes write, each its parts (PyTorch's DCP), and that any number of them reads."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from daguerre.errors import CheckpointError
from daguerre.train.checkpoint import SHARDS, save_checkpoint
from daguerre.train.devices import Devices
from daguerre.train.optim import Muon, Optimizer
from daguerre.train.sharded import full, local


@dataclass(frozen=True)
class ShardedState:
    """What a checkpoint holds of a run: tensors by the names of the weights that they belong to, and the optimizer."""

    devices: Devices
    weights: Mapping[str, Tensor]
    average: Mapping[str, Tensor]
    optimizer: Optimizer

    def tensors(self) -> Iterator[tuple[str, str, Tensor]]:
        """Every tensor: its name in a checkpoint, that of the weight that it is cut as, and this process's part."""
        for kind, named in (("model", self.weights), ("average", self.average)):
            for name, tensor in named.items():
                yield f"{kind}.{name}", name, tensor
        for number, (part, _) in enumerate(self.optimizer.parts):
            weights = [weight for group in part.param_groups for weight in group["params"]]
            for index, weight in enumerate(weights):
                for key, tensor in sorted(part.state.get(weight, {}).items()):
                    cut = "" if key == "step" else self.optimizer.names[id(weight)]
                    yield f"optimizer.{number}.{index}.{key}", cut, tensor

    def stored(self) -> dict[str, Tensor]:
        """The tensors as checkpoints have them."""
        return {name: self.devices.stored(cut, tensor) for name, cut, tensor in self.tensors()}

    def take(self, stored: Mapping[str, Tensor]) -> None:
        """Read this process's parts from tensors as checkpoints have them, or from whole ones."""
        for name, cut, tensor in self.tensors():
            if stored[name] is not tensor:
                whole = full(stored[name]).to(local(tensor).device)
                local(tensor).copy_(self.devices.part(cut, whole, tensor))


def save_shards(held: ShardedState, folder: Path, step: int, state: dict[str, Any]) -> None:
    """Write a checkpoint as `save_checkpoint` does, by all processes together."""
    devices, flat = held.devices, held.stored()
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
def load_shards(path: Path, held: ShardedState) -> None:
    """Read this process's parts of a checkpoint of any number of processes. CheckpointError for one that is damaged, or
    of other shapes.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    place = path / SHARDS
    try:
        known = FileSystemReader(place).read_metadata().state_dict_metadata
        make_states(held.optimizer, known)
        flat = held.stored()
        wrong = {name: tuple(tensor.shape) for name, tensor in flat.items()} != {
            name: tuple(getattr(stored, "size", ())) for name, stored in known.items()
        }
        if wrong:
            raise CheckpointError(f"{path} holds another model than the recipe describes: resume with its own recipe")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # one process may read what several wrote
            load(flat, checkpoint_id=place, no_dist=not torch.distributed.is_initialized())
        held.take(flat)
    except (OSError, CheckpointException, RuntimeError, ValueError, EOFError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(f"{path} is damaged ({reason}): remove it, and --resume takes the one before") from error


@torch.no_grad()
def load_whole(saved: Mapping[str, Any], held: ShardedState) -> None:
    """Take this process's parts of what one process wrote."""
    flat = {f"{kind}.{name}": tensor for kind in ("model", "average") for name, tensor in saved[kind].items()}
    for number, part in enumerate(saved["optimizer"]):
        for index, state in part["state"].items():
            flat |= {f"optimizer.{number}.{index}.{key}": tensor for key, tensor in state.items()}
    make_states(held.optimizer, flat)
    held.take(flat)


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
