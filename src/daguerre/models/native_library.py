"""The compiled source of native execution, `native.cpp`, and its C interface.

Compiled for the processor at hand by the compiler at hand, once, and kept in the folder of `files.cache_folder`.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

import torch

from daguerre.errors import UnsupportedError
from daguerre.files import atomic_write, cache_folder
from daguerre.models.compiled import find_compiler

LOG = logging.getLogger("daguerre")
SOURCE = Path(__file__).with_name("native.cpp")
FLAGS = ("-O3", "-std=c++17", "-fno-math-errno", "-fPIC", "-fopenmp", "-Wno-psabi")
WRONG = {
    1: "a position that the model does not have",
    2: "a row is asked for that there is not",
    3: "no memory is left",
}
"""What `daguerre_forward` answers when it has done nothing."""

Pointer, Int = ctypes.c_void_p, ctypes.c_int32


def _fields(names: str, kind: Any) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


class Linear(ctypes.Structure):
    """A packed matrix."""

    _fields_ = [*_fields("weight scale offset", Pointer), *_fields("words panels", Int)]


class Layer(ctypes.Structure):
    """The matrices of a layer, and the weights of its query and key norms."""

    _fields_ = [*_fields("qkv out gate_up down", Linear), ("qk_weight", Pointer)]


class Model(ctypes.Structure):
    """The facts and weights of a backbone."""

    _fields_ = [
        *_fields("width heads kv_heads head inner num_layers vocab positions product cache", Int),
        ("eps", ctypes.c_float),
        *_fields("final cos sin bias", Pointer),
        ("layers", ctypes.POINTER(Layer)),
        *_fields("head_product up_rows up_told down", Linear),
    ]


class Call(ctypes.Structure):
    """The arguments of a forward."""

    _fields_ = [
        *_fields("x position first count mask asked keys values scales out", Pointer),
        ("layer_stride", ctypes.c_int64),
        *_fields("batch rows num_asked past capacity base mask_width mask_batch packed threads", Int),
    ]


_libraries: dict[tuple[str, ...], Any] = {}
_making = Lock()


def library(*more: str) -> Any:
    """The compiled source, for this processor: from the cache's folder, or compiled now and kept there where that can
    be done. `more`: flags for the compiler in place of those for the processor at hand. UnsupportedError where there is
    none, and again whenever it is asked for.
    """
    flags = (*FLAGS, *(more or ("-march=native",)))
    with _making:
        if flags not in _libraries:
            try:
                _libraries[flags] = _declared(_load(flags))
            except UnsupportedError as error:
                _libraries[flags] = error
            except OSError as error:
                _libraries[flags] = UnsupportedError(f'execution "native" has no place to compile in ({error})')
        found = _libraries[flags]
    if isinstance(found, UnsupportedError):
        raise found
    return found


def _load(flags: Sequence[str]) -> Any:
    folder = cache_folder()
    path = None if folder is None else folder / "compiled" / f"native-{_key(flags)}.so"
    if path is not None:
        with suppress(OSError):  # not there, damaged, not ours to read
            return ctypes.CDLL(str(path))
    LOG.info("compiling the forward for this processor%s", "" if path is None else ", once: it is kept")
    with tempfile.TemporaryDirectory() as beside:
        made, found = _compile(flags, Path(beside))
        if path is not None:
            with suppress(OSError):  # a full disk, a folder that is not ours
                path.parent.mkdir(parents=True, exist_ok=True)
                with atomic_write(path) as file:
                    file.write(made.read_bytes())
        return found


def _key(flags: Sequence[str]) -> str:
    """A hash of what compiled code depends on: the source, flags, the compiler's name, and the processor."""
    processor = [platform.processor()]
    with suppress(OSError):
        first = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
        names = ("flags", "Features", "vendor_id", "cpu family", "model", "stepping", "CPU ")
        processor = [line for line in first if line.startswith(names) and "MHz" not in line]
    facts = (*flags, os.environ.get("CXX"), platform.machine(), processor, torch.__version__)
    return hashlib.sha256(SOURCE.read_bytes() + repr(facts).encode()).hexdigest()


def _compile(flags: Sequence[str], folder: Path) -> tuple[Path, Any]:
    """A library, loaded: with PyTorch's run-time of threads, or, of another compiler's kind, its own."""
    compiler, parts = find_compiler(), folder / "native.o"
    _run(compiler, *flags, "-c", SOURCE, "-o", parts)
    for number, threads in enumerate(((), ("-fopenmp",))):
        made = folder / f"native-{number}.so"
        with suppress(OSError, UnsupportedError):
            _run(compiler, "-shared", *threads, parts, "-o", made)
            return made, ctypes.CDLL(str(made))
    raise UnsupportedError(f'execution "native": what {compiler} made cannot be loaded: leave out execution')


def _run(compiler: str, *arguments: object) -> None:
    done = subprocess.run([compiler, *map(str, arguments)], check=False, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        reason = next((line for line in lines if "error" in line), lines[0])
        raise UnsupportedError(
            f'execution "native" could not be compiled by {compiler} ({reason}): '
            "install another compiler and name it in CXX, or leave out execution"
        )


def _declared(made: Any) -> Any:
    made.daguerre_forward.argtypes = (Pointer, Pointer)
    made.daguerre_forward.restype = Int
    made.daguerre_logits.argtypes = (Pointer, Pointer, Int, Pointer, Int)
    made.daguerre_share.argtypes = (Pointer, Pointer, Int, Pointer, Int)
    made.daguerre_draft.argtypes = (*(Pointer,) * 7, Int)
    made.daguerre_greedy.argtypes = (
        *(*(Pointer,) * 5, Int, ctypes.c_int64, ctypes.c_double, ctypes.c_double),
        *(*(Pointer,) * 4, Int),
    )
    made.daguerre_greedy.restype = Int
    for name in ("logits", "share", "draft"):
        getattr(made, f"daguerre_{name}").restype = None
    return made
