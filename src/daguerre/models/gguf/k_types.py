"""Rounding to the types Q4_K, Q5_K and Q6_K of GGUF files by NumPy: the bytes that llama.cpp's reference quantizers
make without an importance matrix, slowly. `native/rounding.h` makes the same.

A block is 256 numbers in groups. Each group has a scale, and these are numbers of few bits, too, with one scale for the
block. Of a group's scale several are tried, and each is improved by least squares for the numbers that it rounds to
(github.com/ggml-org/llama.cpp, ggml/src/ggml-quants.c). Sums are made in the order of their numbers, in float32.
"""

from __future__ import annotations

import numpy as np

BLOCK = 256
NOTHING = np.float32(1e-15)
"""Groups of smaller numbers become zeros."""
SEARCH = {15: (np.float32(-1), 21), 31: (np.float32(-0.5), 16)}
"""By the greatest code: what is added to it for the first scale, in steps of rounding, and how many are tried."""
MAGIC = np.float32(12582912)
"""1.5 * 2^23: behind it sums have no fraction."""
TENTH = np.float32(0.1)


def quantize_k(rows: np.ndarray, kind: str) -> np.ndarray:
    """The bytes [rows, bytes], uint8, of float32 rows, whose length is a multiple of 256. kind: Q4_K, Q5_K or Q6_K."""
    with np.errstate(all="ignore"):
        blocks = QUANTIZED[kind](np.ascontiguousarray(rows, np.float32).reshape(-1, BLOCK))
    return blocks.reshape(len(rows), -1)


def _q6_k(blocks: np.ndarray) -> np.ndarray:
    """x = d s q, with q of 6 bits, -32 to 31, and s of 8 bits for each 16 numbers. Stored are q's low and high bits, s
    and d.
    """
    num = len(blocks)
    groups = blocks.reshape(num, 16, 16)
    scales, codes = _symmetric(groups)
    peak = np.take_along_axis(scales, np.abs(scales).argmax(1)[:, None], 1)
    inverse = np.float32(-128) / peak
    d = (1 / inverse).astype(np.float16)
    small = np.clip(_nearest(inverse * scales), -128, 127)
    step = (d.astype(np.float32) * small)[..., None]
    values = (
        np.where(step == 0, codes, np.clip(_nearest(groups / step), -32, 31) + 32).astype(np.uint8).reshape(num, -1)
    )
    low, high = (values & 15).reshape(num, 2, 2, 64), (values >> 4).reshape(num, 2, 4, 32)
    low = low[:, :, 0] | low[:, :, 1] << 4
    high = high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6
    parts = (low.reshape(num, -1), high.reshape(num, -1), small.astype(np.int8).view(np.uint8), d.view(np.uint8))
    return np.where(np.abs(peak) < NOTHING, np.uint8(0), np.concatenate(parts, 1))


def _affine_k(blocks: np.ndarray, most: int) -> np.ndarray:
    """x = d s q - e m, with q up to `most` and s and m of 6 bits for each 32 numbers: d, e, s and m packed, the fifth
    bits of q if there are any, and the others.
    """
    num = len(blocks)
    groups = blocks.reshape(num, 8, 32)
    scales, offsets, codes = _affine(groups, most)
    greatest = [np.maximum(each.max(1, keepdims=True), 0) for each in (scales, offsets)]
    inverse = [np.where(peak > 0, np.float32(63) / peak, np.float32(0)) for peak in greatest]
    d, e = ((peak / np.float32(63)).astype(np.float16) for peak in greatest)
    s, m = (np.minimum(_nearest(i * x), 63) for i, x in zip(inverse, (scales, offsets), strict=True))
    step, below = ((unit.astype(np.float32) * each)[..., None] for unit, each in ((d, s), (e, m)))
    found = np.clip(_nearest((groups + below) / step), 0, most)
    values = np.where(step == 0, codes, found).astype(np.uint8).reshape(num, 4, 2, 32)
    first, second = (each.astype(np.uint8) for each in (s, m))
    packed = (
        first[:, :4] | first[:, 4:] >> 4 << 6,
        second[:, :4] | second[:, 4:] >> 4 << 6,
        first[:, 4:] & 15 | (second[:, 4:] & 15) << 4,
    )
    fifth = np.packbits(values.reshape(num, 8, 32) >> 4, axis=1, bitorder="little").reshape(num, -1)
    nibbles = (values[:, :, 0] & 15 | values[:, :, 1] << 4).reshape(num, -1)
    return np.concatenate([d.view(np.uint8), e.view(np.uint8), *packed, *([fifth] if most > 15 else []), nibbles], 1)


def _symmetric(groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of each group [..., n] the scale a with the least sum of x^2 (x - a q)^2, of those that are tried; and q + 32."""
    peak = np.take_along_axis(groups, np.abs(groups).argmax(-1)[..., None], -1)
    weight = groups * groups
    found, codes = np.zeros(groups.shape[:-1], np.float32), np.zeros(groups.shape, np.float32)
    gain = np.full(groups.shape[:-1], -np.inf, np.float32)
    for step in (0, *range(-9, 0), *range(1, 10)):
        q = np.clip(_nearest(-(32 + TENTH * np.float32(step)) / peak * groups), -32, 31)
        both, square = _sum(weight * groups * q), _sum(weight * q * q)
        better = (step == 0) | ((square > 0) & (both * both > gain * square))
        scale = np.where(square != 0, both / square, np.float32(0))
        gain, found, codes = (
            np.where(better, scale * both, gain),
            np.where(better, scale, found),
            np.where(better[..., None], q + 32, codes),
        )
    some = np.abs(peak) >= NOTHING
    return np.where(some[..., 0], found, np.float32(0)), np.where(some, codes, np.float32(0))


def _affine(groups: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each group [..., n] the a, the b, 0 or more, with the least weighted sum of (a q - b - x)^2, of those that are
    tried, and the q.
    """
    size = np.sqrt(_sum(groups * groups) / np.float32(groups.shape[-1]))
    weight = size[..., None] + np.abs(groups)
    low, high = np.minimum(groups.min(-1), 0), groups.max(-1)
    flat, below, total, sum_x = low == high, low, _sum(weight), _sum(weight * groups)
    inverse = np.float32(most) / (high - low)
    scale, codes = 1 / inverse, _codes(groups, inverse, low, most)
    least = _sum(weight * (scale[..., None] * codes + low[..., None] - groups) ** 2)
    first, num = SEARCH[most]
    for step in range(num):
        inverse = (first + TENTH * np.float32(step) + np.float32(most)) / (high - low)
        q = _codes(groups, inverse, low, most)
        sum_q, square, both = _sum(weight * q), _sum(weight * q * q), _sum(weight * q * groups)
        determinant = total * square - sum_q * sum_q
        a, b = (total * both - sum_x * sum_q) / determinant, (square * sum_x - sum_q * both) / determinant
        a, b = np.where(b > 0, both / square, a), np.where(b > 0, np.float32(0), b)
        error = _sum(weight * (a[..., None] * q + b[..., None] - groups) ** 2)
        better = (determinant > 0) & (error < least)
        least, scale, low = (np.where(better, x, y) for x, y in ((error, least), (a, scale), (b, low)))
        codes = np.where(better[..., None], q, codes)
    scale, offset = np.where(flat, np.float32(0), scale), -np.where(flat, below, low)
    return scale, offset, np.where(flat[..., None], np.float32(0), codes)


def _codes(groups: np.ndarray, inverse: np.ndarray, low: np.ndarray, most: int) -> np.ndarray:
    return np.clip(_nearest(inverse[..., None] * (groups - low[..., None])), 0, most)


def _nearest(x: np.ndarray) -> np.ndarray:
    """The nearest whole number, ties to even, of numbers below 2^22; of others what llama.cpp makes of them."""
    words = (x + MAGIC).view(np.int32)
    return ((words & 0x7FFFFF) - 0x400000).astype(np.float32)


def _sum(x: np.ndarray) -> np.ndarray:
    """Sums over the last axis, number by number."""
    total: np.ndarray = np.cumsum(x, -1, dtype=np.float32)[..., -1]
    return total


QUANTIZED = {"Q4_K": lambda x: _affine_k(x, 15), "Q5_K": lambda x: _affine_k(x, 31), "Q6_K": _q6_k}
