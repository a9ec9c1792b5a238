"""ThreadSanitizer over the kernels' check, which runs whole forwards by three threads, and over what the constraints do
with rows of logits: `make sanitize`.

Its threads are those of `native/openmp.cpp`, since the waits of the compiler's own OpenMP cannot be seen.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from backends import ISAS, flags_of, of_isa
from daguerre.models.backends.library import find_compiler
from daguerre.models.prebuilt import CONSTRAINTS, NATIVE, LibrarySource

FOLDER = Path(__file__).with_name("native")
WAITS = """
#include <cstdio>
extern "C" void GOMP_barrier();
int numbers[3], sums[3];
extern "C" int omp_get_thread_num();
int main() {
#pragma omp parallel num_threads(3)
  {
    const int me = omp_get_thread_num();
    numbers[me] = me;
    BARRIER
    sums[me] = numbers[0] + numbers[1] + numbers[2];
  }
  std::printf("equal %d\\n", sums[0]);
}
"""

pytestmark = pytest.mark.skipif(os.environ.get("SANITIZER") != "thread", reason="takes minutes: make sanitize")


def ran(source: Path, folder: Path, *flags: str, library: LibrarySource = NATIVE) -> str:
    """What a program says, compiled with our own threads and the sanitizer."""
    program = folder / "program"
    compiler = [find_compiler(), *library.flags, "-O1", "-g", "-fsanitize=thread", *flags]
    subprocess.run([*compiler, "-I", library.folder, source, FOLDER / "openmp.cpp", "-o", program], check=True)
    done = subprocess.run([program], check=False, capture_output=True, text=True)
    return done.stdout + done.stderr


@pytest.mark.parametrize("isa", [of_isa(isa) for isa in ISAS])
def test_no_two_threads_of_a_constraint_write_where_another_reads(isa: str, tmp_path: Path) -> None:
    said = ran(FOLDER / "constraints.cpp", tmp_path, *flags_of(isa), library=CONSTRAINTS)
    assert said.startswith("equal") and "WARNING" not in said, said[:4_000]


@pytest.mark.parametrize("isa", [of_isa(isa) for isa in ISAS])
def test_no_two_threads_write_where_another_reads(isa: str, tmp_path: Path) -> None:
    said = ran(FOLDER / "check.cpp", tmp_path, *flags_of(isa))
    assert said.startswith("equal") and "WARNING" not in said, said[:4_000]


@pytest.mark.parametrize("barrier", ["", "GOMP_barrier();"])
def test_a_barrier_that_is_missing_is_seen(barrier: str, tmp_path: Path) -> None:
    source = tmp_path / "waits.cpp"
    source.write_text(WAITS.replace("BARRIER", barrier))
    assert ("WARNING: ThreadSanitizer: data race" in ran(source, tmp_path)) == (not barrier)
