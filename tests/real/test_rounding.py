"""Numbers are rounded to blocks as llama.cpp's own library rounds them, byte for byte."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from daguerre.models.gguf.rounding import ROUNDED, rounded
from models.test_rounding import DRAWS, drawn
from real.files import bring_llama_cpp

REFERENCE = {kind: f"quantize_row_{kind.lower().removesuffix('k')}{'K' if 'K' in kind else ''}_ref" for kind in ROUNDED}


def theirs(library: ctypes.CDLL, rows: np.ndarray, kind: str, size: int) -> np.ndarray:
    made = np.zeros(size, np.uint8)
    function = getattr(library, REFERENCE[kind])
    function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64), None
    function(rows.ctypes.data, made.ctypes.data, rows.size)
    return made


def test_bytes_are_llama_cpps(subtests: pytest.Subtests) -> None:
    (path,) = Path(bring_llama_cpp()).glob("node_modules/@node-llama-cpp/linux-x64/bins/*/libggml-base.so")
    library = ctypes.CDLL(str(path))
    for name in DRAWS:
        for kind in ROUNDED:
            with subtests.test(name, kind=kind):
                rows = drawn(name)
                made = rounded(rows, kind)
                assert (made.ravel() == theirs(library, rows, kind, made.size)).all()
