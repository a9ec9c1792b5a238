"""The compiled library of the native backend (source: the folder `native`) and its C interface.

A wheel may have it compiled for several processors. Else it is compiled once for the local one, by an installed
compiler, and kept in the folder of `files.cache_folder`. Of processes that start side by side one compiles, and the
others wait for it.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import logging
import os
import platform
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Lock
from typing import Any

from daguerre.errors import UnsupportedError
from daguerre.files import atomic_write, cache_folder
from daguerre.models import prebuilt
from daguerre.models.prebuilt import NATIVE, LibrarySource
from daguerre.models.processor import compiler_flags, instruction_set

LOG = logging.getLogger("daguerre")


ERRORS = {
    1: "a position that the model does not have",
    2: "a wanted row that does not exist",
    3: "out of memory",
    4: "a token that the vocabulary does not have",
    5: "tokens and positions must be int64, the rest of a layout and wanted rows int32",
    6: "keys that a cache has let go of",
}
"""Meanings of the error codes of the library."""

Pointer, Int, Long = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64


def _fields(names: str, kind: Any) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


class LinearStruct(ctypes.Structure):
    """A packed matrix."""

    _fields_ = [
        *_fields("weight bias scale offset", Pointer),
        *_fields("words panels", Int),
        ("quarters", Pointer),
        ("kind", Int),
    ]


class UnpackedStruct(ctypes.Structure):
    """A matrix, and where it is packed to: `native/packer.h`."""

    _fields_ = [
        ("weight", Pointer),
        *_fields("out num_in", Long),
        *_fields("is_bfloat16 product", Int),
        *_fields("to scale offset", Pointer),
        *_fields("words panels", Int),
    ]


class UnpackedBlocksStruct(ctypes.Structure):
    """Rows of blocks, and where they are packed to: `native/block_packer.h`."""

    _fields_ = [*_fields("rows types to quarters", Pointer), *_fields("groups panels", Int), ("num_in", Long)]


class LowRankStruct(ctypes.Structure):
    """Low-rank weights B A, which are added to those of a matrix."""

    _fields_ = [*_fields("a b", LinearStruct), *_fields("quarters", Int)]


class LayerStruct(ctypes.Structure):
    """The matrices of a layer, and the weights of its norms."""

    _fields_ = [
        *_fields("qkv out up down", LinearStruct),
        *_fields("qkv_draft out_draft up_draft down_draft", LowRankStruct),
        *_fields("qk_weight before_attention before_mlp attention_weight attention_bias mlp_weight mlp_bias", Pointer),
        ("router", LinearStruct),
        ("expert_bias", Pointer),
        *_fields("expert_up expert_down", ctypes.POINTER(LinearStruct)),
        ("sliding", Int),
    ]


class ExpertsStruct(ctypes.Structure):
    """The shape of a model's mixtures of experts; all zeros without any."""

    _fields_ = [
        *_fields("num per_token inner shared groups kept_groups sigmoid normalized", Int),
        ("scale", ctypes.c_float),
        ("on_disk", Int),
    ]


class HeadStruct(ctypes.Structure):
    """The vocabulary projection, and the draft head or empty matrices."""

    _fields_ = [*_fields("logits up_row up_state up_before down", LinearStruct), ("ids", Pointer), ("num", Int)]


class ConceptHeadStruct(ctypes.Structure):
    """The head of known or of discovered concepts."""

    _fields_ = [*_fields("down up", LinearStruct), *_fields("first num kept", Int)]


class GemmaLayerStruct(ctypes.Structure):
    """What a layer of DiffusionGemma's core has beyond those of other models."""

    _fields_ = [
        *_fields("before_experts experts_weight sum_weight", Pointer),
        ("scale", ctypes.c_float * 2),
        *_fields("is_global number", Int),
    ]


class GemmaStruct(ctypes.Structure):
    """DiffusionGemma's core."""

    _fields_ = [
        ("layers", ctypes.POINTER(GemmaLayerStruct)),
        ("turns", Pointer * 2),
        ("mean", ctypes.POINTER(LinearStruct)),
        ("before", Pointer),
        *_fields("up down", LinearStruct),
        ("pairs", Int * 2),
        *_fields("kv_heads head chunk", Int),
        *_fields("scale softcap", ctypes.c_float),
    ]


class ModelStruct(ctypes.Structure):
    """The shape, options and weights of a backbone."""

    _fields_ = [
        *_fields("width heads kv_heads head rotary inner num_layers vocab positions", Int),
        *_fields("product cache gated activation centered qk_norm pre_norm post_norm adaptive window", Int),
        *_fields("eps clip_qkv embedding_scale", ctypes.c_float),
        ("experts", ExpertsStruct),
        ("embedding", Pointer),
        ("tokens", LinearStruct),
        ("draft_row", Pointer),
        *_fields("learned final_weight final_bias cos sin sliding_cos sliding_sin query_scale", Pointer),
        ("layers", ctypes.POINTER(LayerStruct)),
        *_fields("exact drafting", HeadStruct),
        *_fields("up_token confidence", Pointer),
        ("confidence_bias", ctypes.c_float * 2),
        ("concepts", ctypes.POINTER(ConceptHeadStruct)),
        ("gemma", ctypes.POINTER(GemmaStruct)),
    ]


class CacheStruct(ctypes.Structure):
    """Keys and values of one request."""

    _fields_ = [*_fields("pages memory", Pointer), *_fields("layers codes", Int)]


class RulesStruct(ctypes.Structure):
    """How tokens are drawn."""

    _fields_ = [
        *_fields("temperature top_p min_p", ctypes.c_double),
        *_fields("bias_tokens bias_values bans allowed", Pointer),
        *_fields("allowed_at seed sample purpose step", Long),
        *_fields("top_k num_bias num_bans num_allowed", Int),
    ]


class EditStruct(ctypes.Structure):
    """How concepts change hidden states before they become logits."""

    _fields_ = [*_fields("concepts write mask shift scale ban", Pointer), ("num", Int)]


BATCH = struct.Struct("@7i4x")
"""The sizes of a batch: `Packed` of native/model.h."""
PART = struct.Struct("@7P6i2d10i")
"""One request's part of a batch: `Part` of native/model.h."""

COMPILE = "DAGUERRE_COMPILE"
"""The environment variable that leaves the package's compiled libraries alone: the compiler is asked instead, for this
very processor."""
_libraries: dict[tuple[LibrarySource, tuple[str, ...]], Any] = {}
_making = Lock()


def library(*more: str) -> Any:
    """The library for the instruction set that `models.processor` chooses; compiled at first use and kept on disk.

    more: compiler flags in place of those for the instruction set. UnsupportedError if it cannot be compiled.
    """
    return compiled(NATIVE, more or compiler_flags(), _declared)


def compiled(source: LibrarySource, processor: tuple[str, ...], declared: Callable[[Any], Any]) -> Any:
    """A library for the processor that these flags of a compiler are for; `declared` declares its functions and returns
    it. It is that of the package if that has one (`models.prebuilt`), or else compiled at first use and kept on disk.

    UnsupportedError if it cannot be compiled, now or before.
    """
    key = source, processor
    with _making:
        if key not in _libraries:
            try:
                _libraries[key] = declared(_load(source, processor))
            except UnsupportedError as error:
                _libraries[key] = error
            except OSError as error:
                _libraries[key] = UnsupportedError(
                    f'backend "native" has no folder to compile in ({error}): set TMPDIR to one, or leave out backend'
                )
        found = _libraries[key]
    if isinstance(found, UnsupportedError):
        raise found
    return found


def places(source: LibrarySource, processor: tuple[str, ...]) -> list[Path]:
    """Where a library for a processor is if it is there: in the package, and in the cache."""
    found, kept = list[Path](), _kept(source, processor)
    if processor == compiler_flags() and not os.environ.get(COMPILE):
        found.append(prebuilt.path_of(source, instruction_set()))
    return found if kept is None else [*found, kept]


def _kept(source: LibrarySource, processor: tuple[str, ...]) -> Path | None:
    """Where the cache has a library that was compiled here; None if there is no cache."""
    folder = cache_folder()
    return None if folder is None else folder / "compiled" / f"{source.name}-{_key(source, processor)}.so"


def origin(source: LibrarySource) -> str:
    """Where a library comes from when it is first needed on this machine, in words."""
    for path in places(source, compiler_flags()):
        if path.is_file():
            made = "in the package" if path.parent == prebuilt.FOLDER else "compiled here"
            return f"{made}: {path}"
    try:
        return f"not there yet: {find_compiler()} compiles it at first use"
    except UnsupportedError:
        return "not there, and no C++ compiler either: PyTorch and NumPy do its work"


def _load(source: LibrarySource, processor: tuple[str, ...]) -> Any:
    for place in places(source, processor):
        with suppress(OSError):  # missing, damaged, or not readable
            return _opened(place)
    path = _kept(source, processor)
    once = "" if path is None else "; this happens only once"
    LOG.info("compiling %s for this processor%s", source.what, once)
    with ExitStack() as stack:
        if path is not None:
            with suppress(OSError):  # a folder that is not writable, or knows no locks
                path.parent.mkdir(parents=True, exist_ok=True)
                lock = stack.enter_context(path.with_suffix(".lock").open("w"))
                fcntl.flock(lock, fcntl.LOCK_EX)
                return _opened(path)  # another process has compiled it meanwhile
        made, found = _compile(
            source, (*source.flags, *processor), Path(stack.enter_context(tempfile.TemporaryDirectory()))
        )
        if path is not None:
            with suppress(OSError), atomic_write(path) as file:  # a full disk, say
                file.write(made.read_bytes())
        return found


def _opened(path: Path) -> Any:
    """A library, loaded. Where the process has no OpenMP runtime that it sees, one is shown to it first: that of a
    PyTorch which keeps it to itself, else the wheel's or the system's, which a PyTorch that comes later shares.
    """
    try:
        return ctypes.CDLL(str(path))
    except OSError:
        for runtime in _openmp_runtimes():
            with suppress(OSError):
                ctypes.CDLL(runtime, ctypes.RTLD_GLOBAL)
                return ctypes.CDLL(str(path))
        raise


def _openmp_runtimes() -> list[str]:
    """GNU's OpenMP runtimes: those of this process, or, where it has none, the wheel's, then the system's."""
    with suppress(OSError):
        lines = Path("/proc/self/maps").read_text().splitlines()
        if held := sorted({line.split(maxsplit=5)[5] for line in lines if "/libgomp" in line}):
            return held
    return [str(prebuilt.FOLDER / prebuilt.OPENMP), prebuilt.OPENMP]


def _key(source: LibrarySource, more: Sequence[str]) -> str:
    """A hash of what the compiled code depends on: source, flags, CXX and processor."""
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
        names = ("flags", "Features", "vendor_id", "cpu family", "model", "stepping", "CPU ")
        processor = [line for line in first if line.startswith(names) and "MHz" not in line]
    except OSError:
        processor = [platform.processor()]  # which may take a process
    facts = (*source.flags, *more, os.environ.get("CXX"), platform.machine(), processor)
    key = hashlib.sha256(repr(facts).encode())
    for file in sorted(source.folder.iterdir()):
        key.update(file.read_bytes())
    return key.hexdigest()


def _compile(source: LibrarySource, flags: Sequence[str], folder: Path) -> tuple[Path, Any]:
    """The compiled library, loaded. It uses the OpenMP runtime of the process, or, if that fails, the compiler's."""
    compiler, parts = find_compiler(), folder / "native.o"
    _run(compiler, *flags, "-c", source.folder / source.main, "-o", parts)
    for number, threads in enumerate(((), ("-fopenmp",))):
        made = folder / f"native-{number}.so"
        with suppress(OSError, UnsupportedError):
            _run(compiler, "-shared", *threads, parts, "-o", made)
            return made, _opened(made)
    raise UnsupportedError(f'backend "native": the library compiled by {compiler} cannot be loaded: leave out backend')


def find_compiler() -> str:
    """The name of a C++ compiler: that of the environment variable CXX, if set. UnsupportedError if none is found."""
    named = os.environ.get("CXX")
    found = next(filter(shutil.which, [named] if named else ["g++", "clang++", "c++"]), None)
    if found is None:
        what = f"CXX names {named}, which is not found" if named else "none is found: install g++"
        raise UnsupportedError(f'backend "native" needs a C++ compiler and {what}, or leave out backend')
    return found


def _run(compiler: str, *arguments: object) -> None:
    done = subprocess.run([compiler, *map(str, arguments)], check=False, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        reason = next((line for line in lines if "error" in line), lines[0])
        raise UnsupportedError(
            f'backend "native" could not be compiled by {compiler} ({reason}): '
            "install another compiler and name it in CXX, or leave out backend"
        )


def _declared(made: Any) -> Any:
    made.daguerre_forward.argtypes = (Pointer, ctypes.c_char_p, Long, *(Pointer,) * 6)
    made.daguerre_forward.restype = Int
    made.daguerre_logits.argtypes = (Pointer, Pointer, Int, Pointer, Pointer, Int)
    made.daguerre_logits.restype = Int
    made.daguerre_draft.argtypes = (Pointer, Pointer, Long, Pointer, Pointer, Pointer, Int)
    made.daguerre_draft.restype = Int
    made.daguerre_pack.argtypes = (Pointer, Int)
    made.daguerre_pack.restype = Int
    made.daguerre_pack_blocks.argtypes = (Pointer, Int)
    made.daguerre_pack_blocks.restype = Int
    made.daguerre_unpack_row.argtypes = (Pointer, Long, Pointer)
    made.daguerre_unpack_row.restype = Int
    made.daguerre_numbers.argtypes = (Int, Pointer, Long, Pointer, Int, Int)
    made.daguerre_numbers.restype = Int
    made.daguerre_round.argtypes = (Int, Pointer, Long, Pointer, Int)
    made.daguerre_round.restype = Int
    made.daguerre_product.argtypes = (Pointer, Int, Pointer, Int, Int, Pointer, Int)
    made.daguerre_product.restype = Int
    return made
