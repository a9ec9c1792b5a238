"""How decoding runs the backbone, as parameters of tests."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("g++", "clang++", "c++"))), reason="needs a C++ compiler"
)
libraries_sum_alike = pytest.mark.skipif(
    torch.cpu._is_amx_tile_supported(),
    reason="on processors with AMX the libraries sum a row otherwise when others are beside it; native does not",
)
NATIVE: Any = pytest.param("native", marks=needs_compiler)
EXACT: list[Any] = [NATIVE, "lean", "reference"]
ALIKE: list[Any] = [NATIVE, *(pytest.param(kind, marks=libraries_sum_alike) for kind in ("lean", "reference"))]
"""Where a row must have the same bits whatever is computed beside it."""
