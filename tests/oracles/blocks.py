"""Products with GGUF's blocks by NumPy and the package `gguf`, which the native library's are compared with.

Letters: O outputs, I inputs, R rows, G groups of inputs, S of them in a group.
"""

from __future__ import annotations

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from daguerre.models.gguf.header import KINDS

SCALES = dict.fromkeys(("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K"), 0)
SCALES |= {"Q2_K": 80, "Q3_K": 108, "Q6_K": 208}
"""Where a block has its scale, a 16-bit float."""
MINIMA = {"Q4_1": 2, "Q5_1": 2, "Q2_K": 82, "Q4_K": 2, "Q5_K": 2}
"""Where those with minima have the scale of these."""
CODES = {kind: slice(4, None) for kind in ("Q4_1", "Q5_1")} | {kind: slice(16, None) for kind in ("Q4_K", "Q5_K")}
CODES["Q2_K"] = slice(16, 80)
"""Where they have codes."""
IN_GROUP = {"Q2_K": 16, "Q3_K": 16}
"""Inputs of a group where they are not 32."""
WIDE, LEAST = np.longdouble, 2.0**-100


def numbers(blocks: np.ndarray, kind: str) -> np.ndarray:
    """The numbers (O, I), float32, of stored bytes (O, bytes)."""
    made: np.ndarray = dequantize(blocks, GGMLQuantizationType(KINDS[kind].number))
    return made


def steps_and_minima(blocks: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Numbers less their minima, and minima, both exact."""
    if kind not in MINIMA:
        return numbers(blocks, kind), None
    size, at = KINDS[kind].num_bytes, MINIMA[kind]
    no_minima, no_codes = (blocks.copy().reshape(len(blocks), -1, size) for _ in range(2))
    no_minima[..., at : at + 2] = 0
    no_codes[..., CODES[kind]] = 0
    return numbers(no_minima.reshape(blocks.shape), kind), numbers(no_codes.reshape(blocks.shape), kind)


def rounded_rows(x: np.ndarray, num: int) -> tuple[np.ndarray, np.ndarray]:
    """Codes (R, num), padded with zeros, and scales (R, num / 32) of rows (R, I)."""
    parts = np.pad(x.astype(np.float32), ((0, 0), (0, num - x.shape[1]))).reshape(len(x), -1, 32)
    largest = np.abs(parts).max(-1, keepdims=True)
    inverse = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > LEAST)
    codes = np.floor(fused(parts, inverse, np.float32(128.5))) - 128
    return codes.reshape(len(x), -1), (largest / np.float32(127))[..., 0]


def fused(a: np.ndarray, b: np.ndarray, c: np.ndarray | np.float32) -> np.ndarray:
    """a b + c in float32, rounded once."""
    made: np.ndarray = (a.astype(WIDE) * b.astype(WIDE) + np.asarray(c).astype(WIDE)).astype(np.float32)
    return made


def product(x: np.ndarray, blocks: np.ndarray, kind: str) -> np.ndarray:
    """The product, float32 (R, O), of rows (R, I) with a matrix in blocks: rows are rounded to 8 bits in groups of 32;
    the sum of a group with numbers less minima is exact, and rounded once; then it is added, times the scale of its
    inputs, and behind it the group's minimum times the sum of inputs, each by a fused addition.
    """
    steps, minima = steps_and_minima(blocks, kind)
    codes, scales = rounded_rows(x, steps.shape[1])
    size, out = IN_GROUP.get(kind, 32), np.zeros((len(x), len(blocks)), np.float32)
    for start in range(0, steps.shape[1], size):
        group, scale = slice(start, start + size), scales[:, start // 32, None]
        exact = (codes[:, group].astype(np.float64) @ steps[:, group].astype(np.float64).T).astype(np.float32)
        out = fused(exact, scale, out)
        if minima is not None:
            total = scale * codes[:, group].sum(1, keepdims=True, dtype=np.float32)
            out = fused(minima[None, :, start], total, out)
    return out
