"""Rounding to the block types of GGUF files: the bytes that llama.cpp makes of the same numbers without an importance
matrix. PyTorch is not needed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from daguerre.errors import MissingExtra, UnsupportedError
from daguerre.models.contention import num_threads
from daguerre.models.gguf.header import KINDS
from daguerre.models.gguf.k_types import QUANTIZED, quantize_k

ROUNDED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", *QUANTIZED)
"""The types that are made, by ggml's names."""
MIX = "q4_k_m"
"""llama.cpp's mix of Q4_K and Q6_K."""
NAMES = ("q8_0", "q6_k", "q5_k", "q5_1", "q5_0", MIX, "q4_k", "q4_1", "q4_0")
"""What a model can be rounded to, by most of its matrices; that with the most bits first."""
PROJECTION = {"Q4_0": "Q8_0", "Q4_1": "Q8_0", "Q5_0": "Q8_0", "Q5_1": "Q8_0", "Q4_K": "Q6_K", "Q5_K": "Q6_K"}
"""The type of the vocabulary's projection beside matrices of 4 or 5 bits: there they cost most."""
SHORTER = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
"""The type of rows that are no whole number of blocks of 256, as llama.cpp chooses it."""


def kind_in(name: str, width: int, *, projects: bool = False, counts: bool = False) -> str | None:
    """The type of a matrix with rows of `width` numbers in a model rounded to one of NAMES; None for rows that are no
    whole number of blocks. projects: it is the vocabulary's. counts: see `counts_more`.
    """
    kind = ("Q6_K" if counts else "Q4_K") if name == MIX else name.upper()
    kind = PROJECTION.get(kind, kind) if projects else kind
    if width % KINDS[kind].block:
        kind = SHORTER.get(kind, kind)
    return None if width % KINDS[kind].block else kind


def counts_more(layer: int, num_layers: int) -> bool:
    """Whether values and the MLP's last matrix of a layer have more bits in MIX: in the first and last eighth of the
    layers, and in every third between.
    """
    eighth = num_layers // 8
    return layer < eighth or layer >= 7 * num_layers // 8 or (layer - eighth) % 3 == 2


def rounded(rows: np.ndarray, kind: str) -> np.ndarray:
    """The bytes (rows, bytes of a row), uint8, of float32 rows in a type of ROUNDED, of whose blocks a row has a whole
    number: by the native library, whose bytes are those of `slow_rounded`; without it those.
    """
    from daguerre.models.backends.library import library  # which reads files of its own

    try:
        compiled = library()
    except UnsupportedError:
        return slow_rounded(rows, kind)
    about, held = KINDS[kind], np.ascontiguousarray(rows, np.float32)
    made = np.empty((len(held), held.shape[1] // about.block * about.num_bytes), np.uint8)
    given = about.number, held.ctypes.data, held.size // about.block, made.ctypes.data
    assert not compiled.daguerre_round(*given, num_threads()), kind
    return made


def slow_rounded(rows: np.ndarray, kind: str) -> np.ndarray:
    """The same by NumPy, or by the package `gguf`. MissingExtra where it is needed and missing."""
    if kind in QUANTIZED:
        return quantize_k(rows, kind)
    with np.errstate(all="ignore"):  # scales that no half float has
        return np.asarray(_package().quants.quantize(rows, _number(kind)), np.uint8).reshape(len(rows), -1)


def _number(kind: str) -> Any:
    return _package().GGMLQuantizationType(KINDS[kind].number)


def _package() -> Any:
    try:
        import gguf
    except ImportError:
        raise MissingExtra("gguf", "gguf") from None
    return gguf
