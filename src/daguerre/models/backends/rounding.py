"""Matrices in fewer bits, and the slow products that the native backend's are compared with.

Letters: O outputs, I inputs, G groups of IN_GROUP inputs, R rows.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from daguerre.models.core.cache import INT8

IN_GROUP = 32
"""Inputs whose 4-bit weights share a scale."""
IN_CHUNK = 64
"""Inputs that are packed together: two groups."""
ZERO = 8
"""The 4-bit code of zero."""


def rounded(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Int8 codes (O, I) of a matrix; float32 scales (O,); and int32 (O,), 128 times the sums of codes, the excess of a
    product when 128 is added to each code of the inputs.
    """
    weight = weight.float()
    scale = weight.abs().amax(1).clamp_min(torch.finfo(torch.float32).tiny) / INT8
    codes = (weight / scale[:, None]).round()
    return codes.to(torch.int8), scale, (128 * codes.sum(1)).to(torch.int32)


def grouped(weight: Tensor) -> tuple[Tensor, Tensor]:
    """4-bit codes of a matrix, uint8 (O, G, IN_GROUP) from 0 to 15, and float16 scales (O, G). A weight is its code
    less ZERO, times the scale; the largest of a group, by magnitude, has code 0. As many groups as fill chunks.
    """
    parts = F.pad(weight.float(), (0, -weight.shape[1] % IN_CHUNK)).unflatten(1, (-1, IN_GROUP))
    high, low = parts.amax(-1), parts.amin(-1)
    largest = torch.where(high >= -low, high, low)
    scales = (largest / -ZERO + 0.0).clamp(-HALF, HALF).half()  # no zero is negative
    steps = torch.where(scales == 0, 1.0, scales.float())[..., None]
    codes = torch.where(scales[..., None] == 0, 0.0, (parts / steps).round().clamp_(-ZERO, ZERO - 1)) + ZERO
    return codes.to(torch.uint8), scales


HALF = torch.finfo(torch.float16).max


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
