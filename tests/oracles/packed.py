"""Packed matrices and products in 4 bits by PyTorch, which the native library's are compared with.

Letters: O outputs, I inputs, G groups of IN_GROUP inputs, R rows.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from daguerre.models.backends.panels import COLUMNS, IN_WORD, QUARTER, Numbers, words_of
from daguerre.models.core.cache import INT8
from oracles.rounding import IN_GROUP, ZERO, grouped, rounded


def ungrouped(codes: Tensor, scales: Tensor, num_in: int) -> Tensor:
    """The float32 matrix (O, I) of 4-bit codes and scales."""
    return ((codes.float() - ZERO) * scales.float()[..., None]).flatten(1)[:, :num_in]


def grouped_product(x: Tensor, codes: Tensor, scales: Tensor) -> Tensor:
    """The product, float32 (R, O), of rows (R, I) with 4-bit weights: rows are rounded to 8 bits in the same groups, a
    group's sum is exact, and groups are added in their order, each rounded as the processor's fused addition does.
    """
    num_groups = codes.shape[1]
    parts = F.pad(x.float(), (0, num_groups * IN_GROUP - x.shape[1])).unflatten(1, (-1, IN_GROUP))
    largest = parts.abs().amax(-1)
    inverse = torch.where(largest > 0, INT8 / largest, 0.0)[..., None]
    near = (parts.double() * inverse.double() + 128.5).float().floor() - 128
    sums = torch.einsum("rgi,ogi->rog", near.double(), codes.double() - ZERO)
    scaled, steps = sums.float() * scales.float(), largest / INT8
    out = torch.zeros(len(x), len(codes))
    for group in range(num_groups):
        out = (scaled[..., group].double() * steps[:, None, group].double() + out.double()).float()
    return out


def slow_linear(weight: Tensor, numbers: Numbers, narrow: bool = False) -> list[Tensor]:
    """What `Packing.linear` makes, computed by PyTorch: words, and for int8 scales and offsets."""
    weight = weight.float()
    panels, words = -(-len(weight) // COLUMNS), words_of(weight.shape[1], numbers, narrow)
    more = (0, panels * COLUMNS - len(weight))
    if numbers == "int4":
        codes, scales = grouped(weight)
        halves = F.pad(codes, (0, 0, 0, 0, *more)).view(panels, 4, QUARTER, -1, 8, 2, 4)
        packed = (halves[..., 0, :] | halves[..., 1, :] << 4).view(torch.int32)
        both = F.pad(scales, (0, 0, *more)).view(panels, 4, QUARTER, -1, 1, 2).view(torch.int32)
        return [torch.cat([packed, both], dim=-2).flatten(3).transpose(2, 3).flatten()]
    matrix, *about = rounded(weight) if numbers == "int8" else [weight.to(getattr(torch, numbers))]
    num = IN_WORD[numbers]
    matrix = F.pad(matrix, (0, words * num - weight.shape[1], *more)).view(panels, 4, QUARTER, words, num)
    return [matrix.transpose(2, 3).flatten().view(torch.int32), *(F.pad(x, more) for x in about)]
