"""The C++ libraries of the package: their sources, the processors that they are compiled for, and how.

A wheel may hold them compiled, in the folder `prebuilt` of the package. This module imports nothing but the standard
library, since the build of such a wheel (`hatch_build.py`) loads it alone.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
FOLDER = PACKAGE / "prebuilt"


@dataclass(frozen=True)
class LibrarySource:
    """A library: its name, what it is, the folder of its sources, the file that includes the others, and the
    compiler's flags for every processor.
    """

    name: str
    what: str
    folder: Path
    main: str
    flags: tuple[str, ...]


SOURCES = (
    LibrarySource(
        "native",
        "the native backend",
        PACKAGE / "models" / "backends" / "native",
        "forward.cpp",
        ("-O3", "-std=c++17", "-fno-math-errno", "-fPIC", "-fopenmp", "-Wno-psabi"),
    ),
    LibrarySource(
        "constraints",
        "the library of constraints",
        PACKAGE / "sampling" / "constraints" / "native",
        "automata.cpp",
        ("-O3", "-std=c++17", "-fPIC", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi"),
    ),
)
NATIVE, CONSTRAINTS = SOURCES

LEVELS: dict[str, dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "x86_64": {
        "avx2": (("avx2", "fma", "f16c", "bmi2"), ("-march=x86-64-v3",)),
        "avx512": (("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"), ("-march=x86-64-v4",)),
        "avx512_vnni": (("avx512_vnni",), ("-march=x86-64-v4", "-mavx512vnni")),
        "avx512_bf16": (("avx512_bf16",), ("-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16")),
        "amx": (
            ("amx_tile", "amx_int8", "amx_bf16"),
            ("-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16", "-mamx-tile", "-mamx-int8", "-mamx-bf16"),
        ),
    },
    "aarch64": {"dotprod": (("asimddp",), ("-march=armv8.2-a+dotprod",))},
}
"""Instruction sets of a machine in ascending order: the features, by Linux's names, that each adds to those before it,
and the compiler's flags."""
BASELINES = {"x86_64": ("-march=x86-64",), "aarch64": ("-march=armv8-a",)}
"""The compiler's flags for any processor of a machine, whose level has the machine's name."""


OPENMP = "libgomp.so.1"
"""GNU's OpenMP runtime."""
LINKED = ("-shared", "-s", "-static-libstdc++", "-static-libgcc")


def levels(machine: str) -> dict[str, tuple[str, ...]]:
    """The compiler's flags of each level of a machine, the one for any processor first."""
    return {machine: BASELINES[machine]} | {name: flags for name, (_, flags) in LEVELS[machine].items()}


def path_of(source: LibrarySource, level: str, folder: Path | None = None) -> Path:
    """Where a wheel has a library for a level, or where `folder` has it. Its name has a hash of the sources, so that
    none is loaded that was compiled from others.
    """
    key = hashlib.sha256(repr(source.flags).encode())
    for file in sorted(source.folder.iterdir()):
        key.update(file.read_bytes())
    return (folder or FOLDER) / f"{source.name}-{level}-{key.hexdigest()[:16]}.so"


def build(machine: str, names: Sequence[str], folder: Path, compiler: str) -> Iterator[Path]:
    """Compile both libraries for some levels of a machine; yields each when it is there.

    The native backend is not linked with an OpenMP runtime: it uses that of PyTorch, where that is loaded before it, or
    the compiler's, which is brought along. Nothing is needed of the C++ runtime of the machine that it runs on.
    """
    found = subprocess.run([compiler, f"-print-file-name={OPENMP}"], check=True, capture_output=True, text=True)
    runtime = Path(found.stdout.strip())
    if runtime.is_absolute():
        shutil.copyfile(runtime, folder / OPENMP)
        yield folder / OPENMP
    for level in names:
        for source in SOURCES:
            path = path_of(source, level, folder)
            parts, flags = path.with_suffix(".o"), (*source.flags, *levels(machine)[level])
            subprocess.run([compiler, *flags, "-c", source.folder / source.main, "-o", parts], check=True)
            subprocess.run([compiler, *LINKED, parts, "-o", path], check=True)
            parts.unlink()
            yield path
