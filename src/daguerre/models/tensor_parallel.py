"""A backbone whose layers are split over processes: each computes some heads and some of an MLP's inner numbers.

Matrices into a layer are cut by rows (of outputs), those out of it by columns, so two sums over processes make a layer
(Megatron-LM, Shoeybi et al., arXiv 1909.08053). All else is on every process, and every process is asked the same: it
gives the same answers, with its own part of the keys and values in its cache.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from daguerre.errors import InputError, UnsupportedError
from daguerre.models.core.backbone import MLP, Backbone, SelfAttention
from daguerre.models.core.config import ModelConfig


def join_others(name: str) -> str:
    """Join the processes that torchrun started, unless that is done; the device of this process: of several GPUs its
    own. InputError in a process that torchrun did not start.
    """
    if "WORLD_SIZE" not in os.environ:
        raise InputError(
            "tensor_parallel needs several processes: start them with `torchrun --nproc-per-node 2 PROGRAM`"
        )
    device = torch.device(name)
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    return str(device)


@dataclass(frozen=True)
class MatrixSplit:
    """How a matrix is cut: along a dimension, into parts of `sizes` that are stacked there, each shared alike."""

    dim: int
    sizes: tuple[int, ...]
    group: Any

    @property
    def size(self) -> int:
        """How many processes share the matrix."""
        return torch.distributed.get_world_size(self.group)

    def part(self, whole: Tensor) -> Tensor:
        """This process's part of a whole matrix."""
        mine = _parts(self.sizes, self.size, torch.distributed.get_rank(self.group))
        return whole.index_select(self.dim, mine.to(whole.device))

    def joined(self, part: Tensor) -> Tensor:
        """The whole matrix, on every process of the group, from each one's part."""
        part = part.contiguous()
        every = [torch.empty_like(part) for _ in range(self.size)]
        torch.distributed.all_gather(every, part, group=self.group)
        shape = list(part.shape)
        shape[self.dim] = sum(self.sizes)
        whole = part.new_empty(shape)
        for rank, one in enumerate(every):
            whole.index_copy_(self.dim, _parts(self.sizes, self.size, rank).to(whole.device), one)
        return whole


def splits_of(config: ModelConfig, group: Any) -> dict[str, MatrixSplit]:
    """How each matrix of a backbone's layers is cut, by the name of its weight or bias; the rest is not cut."""
    head, inner = config.head_width, (config.mlp_width,)
    heads = tuple(num * head for num in (config.num_heads, config.num_kv_heads, config.num_kv_heads))
    first, sizes = ("gate_up", inner * 2) if config.gated_mlp else ("up", inner)
    out = dict[str, MatrixSplit]()
    for layer in range(config.num_layers):
        for name, biased, parts in (
            ("attention.qkv", config.qkv_bias, heads),
            (f"mlp.{first}", config.mlp_bias, sizes),
        ):
            for kind in ("weight", "bias") if biased else ("weight",):
                out[f"layers.{layer}.{name}.{kind}"] = MatrixSplit(0, parts, group)
        out[f"layers.{layer}.attention.out.weight"] = MatrixSplit(1, heads[:1], group)
        out[f"layers.{layer}.mlp.down.weight"] = MatrixSplit(1, inner, group)
        for name, split in (
            ("attention.qkv_draft.b", MatrixSplit(0, heads, group)),
            ("attention.out_draft.a", MatrixSplit(1, heads[:1], group)),
            ("mlp.gate_up_draft.b", MatrixSplit(0, sizes, group)),
            ("mlp.down_draft.a", MatrixSplit(1, inner, group)),
        ):
            if config.draft_rank_of(name.partition(".")[2].partition("_draft")[0]):
                out[f"layers.{layer}.{name}.weight"] = split
    return out


def split_layers(backbone: Backbone, group: Any = None) -> Backbone:
    """Leave this process, one of a group of PyTorch's (None: of all), its part of every layer. In place; its config
    becomes that of the part, so caches are as small.

    UnsupportedError for a model whose layers cannot be split so.
    """
    size, rank = torch.distributed.get_world_size(group), torch.distributed.get_rank(group)
    config = backbone.config
    _check(config, size)
    for name, split in splits_of(config, group).items():
        module, kind = backbone.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]
        old = backbone.get_parameter(name)
        setattr(module, kind, nn.Parameter(split.part(old.detach()), requires_grad=old.requires_grad))
    for layer in backbone.layers:
        attention, mlp = layer.attention, layer.mlp
        assert isinstance(attention, SelfAttention)
        assert isinstance(mlp, MLP)
        queries, keys, values = (num // size for num in attention.heads)
        attention.heads = (queries, keys, values)
        for last in (attention.out, mlp.down):
            if last.bias is not None and rank:  # it is added once
                last.bias = nn.Parameter(torch.zeros_like(last.bias), requires_grad=False)
        for first in (attention.qkv, attention.qkv_draft, mlp.gate_up if mlp.gated else mlp.up):
            if first is not None:
                first.register_forward_pre_hook(lambda _, inputs: (_Copied.apply(inputs[0], group), *inputs[1:]))
        for summed in (attention.out, attention.out_draft, mlp.down, mlp.down_draft):
            if summed is not None:
                summed.register_forward_hook(lambda _, inputs, out: _Summed.apply(out, group))
    backbone.config = replace(
        config,
        num_heads=config.num_heads // size,
        num_kv_heads=config.num_kv_heads // size,
        head_width=config.head_width,
        mlp_width=config.mlp_width // size,
    )
    return backbone


def _check(config: ModelConfig, size: int) -> None:
    """UnsupportedError for what is not split."""
    for name in ("num_heads", "num_kv_heads", "mlp_width"):
        if getattr(config, name) % size:
            raise UnsupportedError(f"{size} processes cannot share {name}={getattr(config, name)}: take fewer")
    reasons = {
        "DiffusionGemma": config.gemma is not None,
        "a mixture of experts": config.experts is not None,
        "norms of all heads together": config.qk_norm and config.qk_norm_scope == "all",
    }
    for what, has in reasons.items():
        if has:
            raise UnsupportedError(f"layers of {what} cannot be split over processes: run the model in one")


def _parts(sizes: tuple[int, ...], size: int, rank: int) -> Tensor:
    """Which numbers of matrices that are stacked are a process's: the same share of each."""
    out, start = [], 0
    for num in sizes:
        out.append(torch.arange(start + rank * num // size, start + (rank + 1) * num // size))
        start += num
    return torch.cat(out)


class _Copied(torch.autograd.Function):
    """Rows that every process has; their gradient is the sum of all processes'."""

    @staticmethod
    def forward(ctx, x, group):  # type: ignore[no-untyped-def]
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        grad = grad.contiguous().clone()
        torch.distributed.all_reduce(grad, group=ctx.group)
        return grad, None


class _Summed(torch.autograd.Function):
    """The sum of all processes' rows; every process has its gradient."""

    @staticmethod
    def forward(ctx, x, group):  # type: ignore[no-untyped-def]
        out = x.contiguous().clone()
        torch.distributed.all_reduce(out, group=group)
        return out

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        return grad, None
