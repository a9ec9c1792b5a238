"""Numbers in the types Q4_K and Q6_K of GGUF files, which the package `gguf` reads and does not write.

A block is 256 numbers in groups. Each group has a scale, and these are numbers of few bits, too, with one scale for the
block. Of a group's scale several are tried, and each is improved by least squares for the numbers that it rounds to, as
llama.cpp's quantizer does; bytes differ where two are almost as good.
"""

from __future__ import annotations

import numpy as np

BLOCK = 256
TRIED = np.arange(-9, 10) / 10
"""What is added to the greatest number of a group, in steps of rounding, before a scale is taken from it."""


def quantize_k(rows: np.ndarray, kind: str) -> np.ndarray:
    """The bytes of float32 rows, whose length is a multiple of 256, as uint8 [rows, bytes]. kind: Q4_K or Q6_K."""
    blocks = QUANTIZED[kind](np.ascontiguousarray(rows, np.float32).reshape(-1, BLOCK))
    return blocks.reshape(len(rows), -1)


def _q6_k(blocks: np.ndarray) -> np.ndarray:
    """x = d s q, with q of 6 bits, -32 to 31, and s of 8 bits for each 16 numbers. Stored are q's low and high bits, s
    and d.
    """
    num = len(blocks)
    groups = blocks.reshape(num, 16, 16)
    scales = _symmetric_scales(groups)
    peak = np.take_along_axis(scales, np.abs(scales).argmax(1)[:, None], 1)
    d = (peak / -128).astype(np.float16)
    small = _rounded(scales, d.astype(np.float32), -128, 127)
    whole = d.astype(np.float32) * small
    values = (_rounded(groups, whole[..., None], -32, 31) + 32).astype(np.uint8).reshape(num, -1)
    low, high = (values & 15).reshape(num, 2, 2, 64), (values >> 4).reshape(num, 2, 4, 32)
    low = low[:, :, 0] | low[:, :, 1] << 4
    high = high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6
    parts = (low.reshape(num, -1), high.reshape(num, -1), small.astype(np.int8).view(np.uint8), d.view(np.uint8))
    return np.concatenate(parts, 1)


def _q4_k(blocks: np.ndarray) -> np.ndarray:
    """x = d s q - e m, with q of 4 bits and s and m of 6 bits for each 32 numbers: d, e, s and m packed, q."""
    num = len(blocks)
    groups = blocks.reshape(num, 8, 32)
    scales, offsets = _scales_and_offsets(groups)
    d, e = ((each.max(1, keepdims=True) / 63).astype(np.float16) for each in (scales, offsets))
    s, m = (_rounded(each, unit.astype(np.float32), 0, 63) for each, unit in ((scales, d), (offsets, e)))
    whole, below = (unit.astype(np.float32) * each for unit, each in ((d, s), (e, m)))
    values = _rounded(groups + below[..., None], whole[..., None], 0, 15).astype(np.uint8).reshape(num, 4, 2, 32)
    first, second = (each.astype(np.uint8) for each in (s, m))
    packed = (
        first[:, :4] | first[:, 4:] >> 4 << 6,
        second[:, :4] | second[:, 4:] >> 4 << 6,
        first[:, 4:] & 15 | (second[:, 4:] & 15) << 4,
    )
    nibbles = (values[:, :, 0] | values[:, :, 1] << 4).reshape(num, -1)
    return np.concatenate([d.view(np.uint8), e.view(np.uint8), *packed, nibbles], 1)


def _symmetric_scales(groups: np.ndarray) -> np.ndarray:
    """Of each group [..., n] the scale a with the least sum of x^2 (x - a q)^2, of those that are tried."""
    peak = np.take_along_axis(groups, np.abs(groups).argmax(-1)[..., None], -1)
    weight = groups * groups
    best, found = np.zeros(groups.shape[:-1], np.float32), np.zeros(groups.shape[:-1], np.float32)
    for more in TRIED:
        q = _rounded(groups, peak / np.float32(-(32 + more)), -32, 31)
        both, square = (weight * groups * q).sum(-1), (weight * q * q).sum(-1)
        scale = _ratio(both, square)
        gain = both * scale  # by which the sum is less than that of zeros
        better = gain > best
        best, found = np.where(better, gain, best), np.where(better, scale, found)
    return found


def _scales_and_offsets(groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of each group [..., n] the a and b, 0 or more, with the least weighted sum of (x - a q + b)^2, of those tried."""
    weight = np.sqrt((groups * groups).mean(-1, keepdims=True)) + np.abs(groups)
    low = np.minimum(groups.min(-1, keepdims=True), 0)
    span = groups.max(-1, keepdims=True) - low
    total, sum_x = weight.sum(-1), (weight * groups).sum(-1)
    found, offset = np.zeros(groups.shape[:-1], np.float32), -low[..., 0]
    least = (weight * (groups - low) ** 2).sum(-1)
    for more in TRIED:
        q = _rounded(groups - low, span / np.float32(15 + more), 0, 15)
        sum_q, square, both = (weight * q).sum(-1), (weight * q * q).sum(-1), (weight * q * groups).sum(-1)
        a = _ratio(total * both - sum_q * sum_x, total * square - sum_q * sum_q)
        b = _ratio(sum_q * a - sum_x, total)
        a, b = np.where(b < 0, _ratio(both, square), a), np.maximum(b, 0)
        error = (weight * (groups - a[..., None] * q + b[..., None]) ** 2).sum(-1)
        better = (error < least) & (a >= 0)
        least = np.where(better, error, least)
        found, offset = np.where(better, a, found), np.where(better, b, offset)
    return found, offset


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """The quotient; 0 where nothing is below."""
    return np.divide(above, below, out=np.zeros_like(above), where=below != 0)


def _rounded(values: np.ndarray, unit: np.ndarray, least: int, most: int) -> np.ndarray:
    """Values in units, as whole numbers in float32; 0 where the unit is 0."""
    shape = np.broadcast_shapes(values.shape, unit.shape)
    out = np.divide(values, unit, out=np.zeros(shape, np.float32), where=np.broadcast_to(unit != 0, shape))
    return np.rint(out, out=out).clip(least, most)


QUANTIZED = {"Q4_K": _q4_k, "Q6_K": _q6_k}
