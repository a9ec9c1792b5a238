"""The C++ kernels against plain loops (`native/check.cpp`): on every instruction set of this machine, as they are for
AMX (`native/emulated.h`), and for 64-bit ARM where a compiler for it and an emulator are installed.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from backends import ISAS, flags_of, needs_compiler, of_isa
from daguerre.models.backends.library import find_compiler
from daguerre.models.prebuilt import NATIVE
from daguerre.models.processor import cpu_flags

DRIVER = Path(__file__).with_name("native") / "check.cpp"
CROSS, ROOT = "aarch64-linux-gnu-g++", "/usr/aarch64-linux-gnu"
EMULATOR = next(filter(shutil.which, ("qemu-aarch64", "qemu-aarch64-static")), None)
HERE = {isa: ("-O1", *flags_of(isa)) for isa in ISAS}
"""Compiled in half the time that the backend's -O3 takes, which other tests run."""
if "avx_vnni" in cpu_flags():
    HERE["avx2 with 8-bit products"] = (*HERE["avx2"], "-mavxvnni")
if "avx2" in HERE:
    EMULATED = "-march=x86-64-v3", "-include", str(DRIVER.with_name("emulated.h"))
    HERE["AMX with its instructions as plain loops"] = ("-O1", *EMULATED)
ARM = {
    "plain NEON": ("-march=armv8-a",),
    "products of signed numbers": ("-march=armv8.2-a+dotprod",),
    "8-bit products": ("-march=armv8.2-a+i8mm",),
}
has_arm = shutil.which(CROSS) is not None and EMULATOR is not None
pytestmark = pytest.mark.slow  # to compile
Build = Callable[[str, tuple[str, ...]], Path]


@pytest.fixture(scope="module")
def build(kept: Path | None, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """The driver as a program, by compiler and flags: compiled where a test asks for it, and kept for the next run."""
    folder = kept or tmp_path_factory.mktemp("kernels")
    return lambda compiler, flags: compile_driver((compiler, *flags), folder)


def compile_driver(command: tuple[str, ...], folder: Path) -> Path:
    """Where the program is; compiled unless it is there, or another process compiles it now."""
    sources = sorted([*DRIVER.parent.iterdir(), *NATIVE.folder.iterdir()])
    key = hashlib.sha256(repr(command).encode() + b"".join(source.read_bytes() for source in sources))
    path = folder / f"check-{key.hexdigest()}"
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            beside = path.with_suffix(".tmp")
            compiler, *more = command
            arguments = [compiler, *NATIVE.flags, *more, "-I", NATIVE.folder, DRIVER, "-o", beside]
            done = subprocess.run(arguments, check=False, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            beside.replace(path)
    return path


def equal(*command: str | Path) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("equal")


@needs_compiler
@pytest.mark.parametrize("kind", [of_isa(kind) for kind in HERE])
def test_kernels_equal_plain_loops(build: Build, kind: str) -> None:
    equal(build(find_compiler(), HERE[kind]))


@pytest.mark.skipif(
    not has_arm, reason=f"needs {CROSS} and qemu-aarch64: in Debian, apt install g++-aarch64-linux-gnu qemu-user"
)
@pytest.mark.part("isas")
@pytest.mark.parametrize("kind", ARM)
def test_kernels_for_arm_equal_plain_loops_in_an_emulator(build: Build, kind: str) -> None:
    assert EMULATOR is not None
    equal(EMULATOR, "-L", ROOT, build(CROSS, ARM[kind]))
