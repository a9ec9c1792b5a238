"""A backbone whose layers are split over processes: each computes some heads and some of an MLP's inner numbers.

Matrices into a layer are cut by rows (of outputs), those out of it by columns, so two sums over processes make a layer
(Megatron-LM, Shoeybi et al., arXiv 1909.08053). All else is on every process, and every process is asked the same: it
gives the same answers, with its own part of the keys and values in its cache.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from daguerre.errors import UnsupportedError
from daguerre.models.core.backbone import MLP, Backbone, SelfAttention
from daguerre.models.core.config import ModelConfig


def split_layers(backbone: Backbone, group: Any = None) -> Backbone:
    """Leave this process, one of a group of PyTorch's (None: of all), its part of every layer. In place; its config
    becomes that of the part, so caches are as small.

    UnsupportedError for a model whose layers cannot be split so.
    """
    size, rank = torch.distributed.get_world_size(group), torch.distributed.get_rank(group)
    config = backbone.config
    _check(config, size)
    for layer in backbone.layers:
        attention, mlp = layer.attention, layer.mlp
        assert isinstance(attention, SelfAttention)
        assert isinstance(mlp, MLP)
        _split_attention(attention, config.head_width, size, rank)
        if mlp.gated:
            _keep_rows(mlp.gate_up, _parts((config.mlp_width,) * 2, size, rank))
        else:
            _keep_rows(mlp.up, _parts((config.mlp_width,), size, rank))
        _keep_columns(mlp.down, _parts((config.mlp_width,), size, rank), rank)
        for first, last in ((attention.qkv, attention.out), (mlp.gate_up if mlp.gated else mlp.up, mlp.down)):
            first.register_forward_pre_hook(lambda _, inputs: (_Copied.apply(inputs[0], group), *inputs[1:]))
            last.register_forward_hook(lambda _, inputs, out: _Summed.apply(out, group))
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
        "low-rank weights of drafts": bool(config.draft_rank),
    }
    for what, has in reasons.items():
        if has:
            raise UnsupportedError(f"layers of {what} cannot be split over processes: run the model in one")


def _split_attention(attention: SelfAttention, head: int, size: int, rank: int) -> None:
    rows = _parts(tuple(num * head for num in attention.heads), size, rank)
    _keep_rows(attention.qkv, rows)
    _keep_columns(attention.out, _parts((attention.heads[0] * head,), size, rank), rank)
    queries, keys, values = (num // size for num in attention.heads)
    attention.heads = (queries, keys, values)


def _parts(sizes: tuple[int, ...], size: int, rank: int) -> Tensor:
    """Which numbers of matrices that are stacked are a process's: the same share of each."""
    out, start = [], 0
    for num in sizes:
        out.append(torch.arange(start + rank * num // size, start + (rank + 1) * num // size))
        start += num
    return torch.cat(out)


def _keep_rows(matrix: nn.Linear, rows: Tensor) -> None:
    matrix.weight = _parameter(matrix.weight, matrix.weight.detach()[rows])
    if matrix.bias is not None:
        matrix.bias = _parameter(matrix.bias, matrix.bias.detach()[rows])
    matrix.out_features = len(rows)


def _keep_columns(matrix: nn.Linear, columns: Tensor, rank: int) -> None:
    """Columns of a matrix; its bias is added once, by the first process."""
    matrix.weight = _parameter(matrix.weight, matrix.weight.detach()[:, columns].contiguous())
    if matrix.bias is not None and rank:
        matrix.bias = _parameter(matrix.bias, torch.zeros_like(matrix.bias))
    matrix.in_features = len(columns)


def _parameter(old: Tensor, values: Tensor) -> nn.Parameter:
    return nn.Parameter(values, requires_grad=old.requires_grad)


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
