"""Matrices in fewer bits.

Letters: O outputs, I inputs, G groups of IN_GROUP inputs.
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
HALF = torch.finfo(torch.float16).max


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
