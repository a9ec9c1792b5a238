"""What the processor can do: its instruction set, and the numbers that it multiplies natively.

The environment variable DAGUERRE_ISA names a lesser instruction set than the machine's, for the native backend and for
the choice of precision, so that one machine can stand in for another.
"""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import torch

from daguerre.errors import InputError, unknown

VARIABLE = "DAGUERRE_ISA"
"""The environment variable."""
LEVELS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "avx2": (("avx2", "fma", "f16c", "bmi2"), ("-march=x86-64-v3",)),
    "avx512": (("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"), ("-march=x86-64-v4",)),
    "avx512_bf16": (("avx512_bf16", "avx512_vnni"), ("-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16")),
    "amx": (
        ("amx_tile", "amx_int8", "amx_bf16"),
        ("-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16", "-mamx-tile", "-mamx-int8", "-mamx-bf16"),
    ),
}
"""From the least to the most: what each needs beside those before it, as Linux names it, and a compiler's flags."""


@lru_cache(maxsize=1)
def cpu_flags() -> frozenset[str]:
    """Names of the processor's features, as Linux has them; none elsewhere."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("flags", "Features")):
                return frozenset(line.partition(":")[2].split())
    return frozenset()


def available() -> tuple[str, ...]:
    """The names of LEVELS that this processor has, from the least to the most."""
    found: list[str] = []
    for name, (features, _) in LEVELS.items():
        if not cpu_flags() >= set(features):
            break
        found.append(name)
    return tuple(found)


def chosen() -> str | None:
    """The level that DAGUERRE_ISA names; None where it is not set. InputError for one that is not here."""
    name = os.environ.get(VARIABLE) or None
    if name is None:
        return None
    if name not in LEVELS:
        raise unknown(VARIABLE, name, LEVELS)
    if name not in available():
        known = ", ".join(available()) or "none of its values"
        raise InputError(f"{VARIABLE}={name} asks for what this processor has not: it has {known}; unset it")
    return name


def compiler_flags() -> tuple[str, ...]:
    """A compiler's flags for the chosen level, or for this processor as it is."""
    name = chosen()
    return ("-march=native",) if name is None else LEVELS[name][1]


def instruction_set() -> str:
    """The level in use: the chosen one, or the most that this processor has; elsewhere the name of its kind."""
    return chosen() or next(reversed(available()), platform.machine())


def native_dtype(device: str | torch.device = "cpu") -> torch.dtype:
    """bfloat16 where the device multiplies it natively, else float32, which then is at least as fast."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    if device.type != "cpu":
        return torch.float32
    return torch.bfloat16 if instruction_set() in ("avx512_bf16", "amx") else torch.float32
