"""The backends, and the instruction sets that the native one is made for, as parameters of tests."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from daguerre.models.load_options import Quantization
from daguerre.models.processor import LEVELS, available
from torchless import needs_torch

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("g++", "clang++", "c++"))), reason="needs a C++ compiler"
)
NATIVE: Any = pytest.param("native", marks=needs_compiler)
BACKENDS: list[Any] = [NATIVE, pytest.param("torch", marks=needs_torch)]
SAME = {"avx512_vnni": "avx512_bf16"}
"""Levels whose code is all part of another level's, which is tested where the processor has it."""
ISAS: tuple[str, ...] = (
    ("any", *(level for level in available() if SAME.get(level) not in available()))
    if platform.machine() == "x86_64"
    else ("this",)
)
"""Every instruction set that this machine can do; "any" is what each x86-64 has."""
HIGHEST = next(reversed(available()), None)


def kinds() -> list[tuple[Any, Quantization | None]]:
    """Type of the weights, and how matrices are rounded."""
    import torch

    exact, small = torch.float32, torch.bfloat16
    return [(exact, None), (small, None), (exact, "int8"), (small, "int8"), (small, "approximate_int4")]


def flags_of(isa: str) -> tuple[str, ...]:
    """A compiler's flags for one of `ISAS`. The highest is what the library is made for by default: one for both."""
    if isa in LEVELS and isa != HIGHEST:
        return LEVELS[isa][1]
    return ("-march=x86-64",) if isa == "any" else ("-march=native",)


def of_isa(isa: str, *values: Any) -> Any:
    """A parameter, an instruction set and what goes with it: all but the highest belong to the part "isas"."""
    return pytest.param(isa, *values, marks=[] if isa == ISAS[-1] else pytest.mark.part("isas"))


def every_isa(function: Any) -> Any:
    """Run a test, which takes the fixture `isa`, for each of `ISAS`; `make test` runs the highest."""
    return needs_compiler(pytest.mark.parametrize("isa", [of_isa(isa) for isa in ISAS], indirect=True)(function))


@contextmanager
def threads(num: int) -> Iterator[None]:
    """PyTorch and the native backend use so many threads meanwhile, and one after it."""
    import torch

    torch.set_num_threads(num)
    try:
        yield
    finally:
        torch.set_num_threads(1)
