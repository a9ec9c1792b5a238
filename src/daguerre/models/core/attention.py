"""Attention of queries over keys under a mask: one function, several implementations, equal results.

Letters: B examples, R rows, C keys, N heads, G query heads for each key-value head, H head width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from daguerre.errors import unknown

Block = tuple[slice, slice, Tensor | None]
"""Query rows, the keys they are multiplied with, and a mask; None means the causal triangle."""
Attention = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""attend(layer, q, k, v): attention (..., R, N, H) of a layer's queries (..., R, N, H) over the keys and values
(..., R, kv heads, H) of this forward and the cached ones. A backbone gets one such function for each forward."""
Product = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
TILE = 128
"""Query rows that `matmul` multiplies together with the keys that any of them sees."""


def attend(q: Tensor, k: Tensor, v: Tensor, blocks: list[Block], attn_impl: str = "sdpa") -> Tensor:
    """Attention of q (B, N, R, H) over k and v (B, kv heads, C, H), block by block of the layout: (B, N, R, H)."""
    if attn_impl not in ATTN_IMPLS:
        raise unknown("attn_impl", attn_impl, ATTN_IMPLS)
    product = ATTN_IMPLS[attn_impl]
    parts = [product(q[:, :, rows], k[:, :, keys], v[:, :, keys], mask) for rows, keys, mask in blocks]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)


def prepare(blocks: list[Block], dtype: torch.dtype, attn_impl: str, device: torch.device) -> list[Block]:
    """Blocks as the implementation takes them, once for all layers: for `matmul`, tiles of rows with the keys that any
    of them sees, and biases that are added to scores in place of masks.
    """
    if attn_impl != "matmul":
        return blocks
    out: list[Block] = []
    for rows, keys, mask in (tile for block in blocks for tile in tiles(block, device)):
        bias = torch.zeros(mask.shape, dtype=dtype, device=device).masked_fill_(~mask, torch.finfo(dtype).min)
        out.append((rows, keys, bias))
    return out


def tiles(block: Block, device: torch.device) -> Iterator[tuple[slice, slice, Tensor]]:
    """A block in parts of `TILE` rows, each with the keys from the first to the last that any of its rows sees in any
    example: about half of a causal triangle, and less of texts that share a sequence.
    """
    rows, keys, mask = block
    for start in range(rows.start, rows.stop, TILE):
        stop, first, last = min(start + TILE, rows.stop), 0, keys.stop
        if mask is None:
            last -= rows.stop - stop
            part = torch.ones(1, 1, stop - start, last, dtype=torch.bool, device=device).tril(last - (stop - start))
        else:
            part = mask[:, :, start - rows.start : stop - rows.start]
            seen = part.flatten(0, 2).any(0).nonzero().flatten().tolist() or [0]  # rows of padding may see none
            first, last = seen[0], seen[-1] + 1
        yield slice(start, stop), slice(first, last), part[..., first:last]


def sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """The reference: PyTorch's scaled dot product attention, with a boolean mask or the causal triangle."""
    gqa = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=gqa)


def _matmul(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """Two products and a softmax; on a CPU twice as fast as SDPA for training windows of a few hundred rows."""
    assert bias is not None
    batch, num_heads, num_rows, head = q.shape
    groups = num_heads // k.shape[1]
    grouped = q.reshape(batch, k.shape[1], groups * num_rows, head)
    out = _MatmulAttention.apply(grouped, k, v, bias, groups)
    return out.view(batch, num_heads, num_rows, head)


class _MatmulAttention(torch.autograd.Function):
    """softmax(q k^T / sqrt(H) + bias) v, keeping only the probabilities for the backward pass."""

    @staticmethod
    def forward(ctx, q, k, v, bias, groups):  # type: ignore[no-untyped-def]
        scores = torch.matmul(q, k.transpose(-1, -2)).mul_(q.shape[-1] ** -0.5)
        batch, kv_heads, rows, num_keys = scores.shape
        scores.view(batch, kv_heads, groups, rows // groups, num_keys).add_(bias[:, :, None])
        probs = torch.softmax(scores, dim=-1, dtype=scores.dtype)  # named, or autocast makes it float32
        ctx.save_for_backward(q, k, v, probs)
        return torch.matmul(probs, v)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        q, k, v, probs = ctx.saved_tensors
        grad_v = torch.matmul(probs.transpose(-1, -2), grad)
        grad_p = torch.matmul(grad, v.transpose(-1, -2))
        grad_s = torch._softmax_backward_data(grad_p, probs, -1, probs.dtype).mul_(q.shape[-1] ** -0.5)
        return torch.matmul(grad_s, k), torch.matmul(grad_s.transpose(-1, -2), q), grad_v, None, None


ATTN_IMPLS: dict[str, Product] = {"sdpa": sdpa, "matmul": _matmul}
