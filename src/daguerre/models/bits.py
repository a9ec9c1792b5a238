"""Numbers of weights without PyTorch: float32, or the bits of bfloat16, which NumPy has not, as uint16."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from daguerre.errors import unknown

NumberType = Literal["float32", "bfloat16"]
"""The types that weights are computed in."""
TYPES: dict[str, np.dtype] = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(np.uint16)}
"""NumPy's types that hold them."""
STORED: dict[str, np.dtype] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}
"""NumPy's types that hold numbers as safetensors and GGUF files name them."""


def number_type(x: np.ndarray) -> NumberType:
    """The type of the numbers that an array holds."""
    return "bfloat16" if x.dtype == np.uint16 else "float32"


def number_type_of(dtype: Any) -> NumberType:
    """A type of weights by its name, or PyTorch's. InputError for one that no model is computed in."""
    name = str(dtype).removeprefix("torch.")
    if name not in TYPES:
        raise unknown("dtype", name, TYPES)
    return "bfloat16" if name == "bfloat16" else "float32"


def floats(x: np.ndarray) -> np.ndarray:
    """The numbers as float32."""
    if x.dtype == np.uint16:
        return (x.astype(np.uint32) << 16).view(np.float32)
    return x.astype(np.float32, copy=False)


def halves(x: np.ndarray) -> np.ndarray:
    """The bits of the nearest bfloat16 of float32 numbers, ties to even, as uint16; what is no number stays none."""
    wide = np.ascontiguousarray(x, np.float32).view(np.uint32)
    made = ((wide + (0x7FFF + (wide >> 16 & 1))) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FC0), made)


def converted(x: np.ndarray, to: NumberType) -> np.ndarray:
    """The numbers in a type; the array itself where it has it."""
    if x.dtype == TYPES[to]:
        return x
    return floats(x) if to == "float32" else halves(floats(x))


LINE = 64
"""Bytes of a line of the processor's caches, at whose beginning packed weights and keys begin."""


def aligned(num: int, dtype: type[np.generic]) -> np.ndarray:
    """Zeros in memory from the beginning of a line, which is taken where something is written."""
    size = num * np.dtype(dtype).itemsize
    held = np.zeros(size + LINE, np.uint8)
    start = -held.ctypes.data % LINE
    return held[start : start + size].view(dtype)
