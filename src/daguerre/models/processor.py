"""Features of the processor: its instruction set, and the types of numbers that it multiplies natively.

The environment variable DAGUERRE_ISA selects a smaller instruction set than the machine's, for the native backend and
for the choice of precision, so that one machine can emulate an older one.
"""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from daguerre.errors import InputError, unknown
from daguerre.models import prebuilt

if TYPE_CHECKING:
    import torch

    from daguerre.models.bits import NumberType

VARIABLE = "DAGUERRE_ISA"
"""The environment variable."""
LEVELS = prebuilt.LEVELS.get(platform.machine(), {})
"""Those of this machine: see `prebuilt.LEVELS`."""


@lru_cache(maxsize=1)
def cpu_flags() -> frozenset[str]:
    """Linux's names of the processor's features; empty on other systems."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("flags", "Features")):
                return frozenset(line.partition(":")[2].split())
    return frozenset()


def available() -> tuple[str, ...]:
    """The names of LEVELS that this processor supports, in ascending order."""
    found: list[str] = []
    for name, (features, _) in LEVELS.items():
        if not cpu_flags() >= set(features):
            break
        found.append(name)
    return tuple(found)


def chosen() -> str | None:
    """The level that DAGUERRE_ISA names; None if it is not set. InputError if the processor does not support it."""
    name = os.environ.get(VARIABLE) or None
    if name is None:
        return None
    if name not in LEVELS:
        raise unknown(VARIABLE, name, LEVELS)
    if name not in available():
        known = ", ".join(available()) or "none of its values"
        raise InputError(f"{VARIABLE}={name} is not supported by this processor, which has {known}; unset it")
    return name


def compiler_flags() -> tuple[str, ...]:
    """Compiler flags for the chosen level, or for this processor if none is chosen."""
    name = chosen()
    return ("-march=native",) if name is None else LEVELS[name][1]


def instruction_set() -> str:
    """The level in use: the chosen one, or the highest that this processor supports; without one, its architecture."""
    return chosen() or next(reversed(available()), platform.machine())


ROW_TIMES = {"avx2": 0.25, "avx512": 0.12, "avx512_vnni": 0.12, "avx512_bf16": 0.25, "amx": 0.02}
"""What each further row of a forward of a few rows takes, as a share of the time that mode "ar" takes for a token; by
measurements of the default model in bfloat16 (docs/log.md): avx2 and avx512_bf16 on EPYCs that have no more, amx on a
Xeon. Those of avx512 and avx512_vnni are estimated."""
HEAD_TIMES = {"avx2": 0.05, "avx512": 0.05, "avx512_vnni": 0.05, "avx512_bf16": 0.06, "amx": 0.08}
"""What a step of the draft head takes, as such a share; all but that of amx are estimated."""


@lru_cache(maxsize=1024)
def row_time(crowd: int = 1) -> float:
    """What a further row takes, as a share of what a text's step of mode "ar" does: the entry of ROW_TIMES for the
    instruction set in use, the largest for one that has none. In a crowd of N texts, whose steps share the time in
    which weights are read, a row takes more of it (`in_crowd`). Which set is in use is looked up once.
    """
    alone = ROW_TIMES.get(instruction_set(), max(ROW_TIMES.values()))
    return in_crowd(alone, crowd)


def in_crowd(alone: float, crowd: int) -> float:
    """The share of a row in a crowd of N texts, of the share of one that is alone: N r / (1 + (N - 1) r)."""
    return crowd * alone / (1 + (crowd - 1) * alone)


@lru_cache(maxsize=1024)
def head_time(crowd: int = 1) -> float:
    """What a step of the draft head takes, as such a share: the entry of HEAD_TIMES."""
    alone = HEAD_TIMES.get(instruction_set(), max(HEAD_TIMES.values()))
    return alone * row_time(crowd) / row_time()


def native_numbers(device: str = "cpu") -> NumberType:
    """bfloat16 if the device multiplies it natively, else float32, in which PyTorch is then many times faster."""
    kind = device.partition(":")[0]
    if kind == "cuda":
        import torch

        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    return "bfloat16" if kind == "cpu" and instruction_set() in ("avx512_bf16", "amx") else "float32"


def native_dtype(device: str | torch.device = "cpu") -> torch.dtype:
    """The same as PyTorch's type."""
    import torch

    return torch.bfloat16 if native_numbers(str(device)) == "bfloat16" else torch.float32
