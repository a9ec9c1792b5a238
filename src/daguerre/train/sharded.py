"""Tensors of which each process holds a part (DTensor), beside plain ones: the same functions take both."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def is_sharded(tensor: Tensor) -> bool:
    """Whether a process holds only its part of a tensor."""
    return hasattr(tensor, "to_local")


def local(tensor: Any) -> Tensor:
    """This process's part, which shares its memory."""
    out: Tensor = tensor.to_local() if is_sharded(tensor) else tensor
    return out


def full(tensor: Any) -> Tensor:
    """The whole tensor, on every process: all of them must call this."""
    out: Tensor = tensor.full_tensor() if is_sharded(tensor) else tensor
    return out


def like(whole: Tensor, sharded: Any) -> Tensor:
    """This process's part of a whole tensor that every process has, cut as another one is."""
    if not is_sharded(sharded):
        return whole
    from torch.distributed.tensor import distribute_tensor

    cut = distribute_tensor(whole, sharded.device_mesh, sharded.placements, src_data_rank=None)
    return local(cut)


def whole_of(part: Tensor, sharded: Any) -> Tensor:
    """The whole tensor, on every process, from a part that is cut as another tensor is."""
    if not is_sharded(sharded):
        return part
    from torch.distributed.tensor import DTensor

    mesh, placements = sharded.device_mesh, sharded.placements
    cut = DTensor.from_local(part, mesh, placements, run_check=False, shape=sharded.shape, stride=sharded.stride())
    return full(cut)


def norm_of(gradients: list[tuple[Any, int]]) -> float:
    """The norm of gradients of which each process holds parts, each part held by so many processes; all of them must
    call this.
    """
    total = torch.stack([local(grad).double().square().sum().cpu() / copies for grad, copies in gradients]).sum()
    torch.distributed.all_reduce(total)
    return float(total.sqrt())
