"""Compiled libraries in a wheel: built by a real build with a compiler that is pretended, loaded without a compiler."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from daguerre.models import prebuilt, processor
from daguerre.models.backends import library

ROOT = Path(__file__).resolve().parents[2]
COMPILER = """#!/bin/sh
case "$1" in -print-file-name=*) echo "$RUNTIME"; exit;; esac
echo "$@" >> "$LOG"
for last; do true; done
echo "GLIBC_2.2 GLIBC_2.36 GLIBC_2.9" > "$last"
"""


def build(tmp_path: Path, wanted: str) -> tuple[zipfile.ZipFile, list[str]]:
    """A wheel, and the calls of the compiler."""
    compiler, log = tmp_path / "c++", tmp_path / "log"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(tmp_path), str(ROOT)]
    (runtime := tmp_path / "runtime").write_text("GLIBC_2.40")
    more = {"CXX": str(compiler), "LOG": str(log), "RUNTIME": str(runtime), "DAGUERRE_PREBUILT": wanted}
    subprocess.run(command, env=os.environ | more, check=True, capture_output=True)
    (path,) = tmp_path.glob("*.whl")
    return zipfile.ZipFile(path), log.read_text().splitlines()


def test_a_wheel_has_both_libraries_for_each_level_of_another_machine(tmp_path: Path) -> None:
    wheel, calls = build(tmp_path, "aarch64")
    held = {name for name in wheel.namelist() if name.startswith("daguerre/prebuilt/")}

    assert held == {f"daguerre/prebuilt/{prebuilt.OPENMP}"} | {
        f"daguerre/prebuilt/{prebuilt.path_of(source, level).name}"
        for source in prebuilt.SOURCES
        for level in ("aarch64", "dotprod")
    }
    assert wheel.filename is not None
    assert wheel.filename.endswith("-py3-none-manylinux_2_40_aarch64.whl"), "the newest symbol decides: the runtime's"
    compiled = [call for call in calls if " -c " in call]
    assert len(compiled) == 4
    assert sum("-march=armv8.2-a+dotprod" in call for call in compiled) == 2


def test_every_level_has_flags_for_the_compiler() -> None:
    for machine, named in prebuilt.LEVELS.items():
        assert list(prebuilt.levels(machine)) == [machine, *named]
    assert dict(prebuilt.LEVELS.get(platform.machine(), {})) == processor.LEVELS


def test_a_name_changes_with_the_sources_and_the_flags(tmp_path: Path) -> None:
    folder = tmp_path / "native"
    shutil.copytree(prebuilt.CONSTRAINTS.folder, folder)
    same = prebuilt.LibrarySource("constraints", "", folder, "automata.cpp", prebuilt.CONSTRAINTS.flags)
    assert prebuilt.path_of(same, "avx2") == prebuilt.path_of(prebuilt.CONSTRAINTS, "avx2")
    other = prebuilt.LibrarySource("constraints", "", folder, "automata.cpp", ("-O0",))
    assert prebuilt.path_of(other, "avx2") != prebuilt.path_of(same, "avx2")
    with (folder / "automata.cpp").open("a") as file:
        file.write("// more\n")
    assert prebuilt.path_of(same, "avx2") != prebuilt.path_of(prebuilt.CONSTRAINTS, "avx2")


SCRIPT = """
import daguerre, json
from daguerre.models import prebuilt
from daguerre.models.backends import library
from daguerre.models.processor import compiler_flags
from pathlib import Path
prebuilt.FOLDER = Path("{folder}")
schema = {{"type": "object", "properties": {{"n": {{"type": "integer"}}}}, "required": ["n"]}}
schema["additionalProperties"] = False
model = daguerre.load(backend="native")
done = model.generate("x = ", max_tokens=16, schema=schema, mode="ar")
print(json.dumps([done.text, *(library.origin(source) for source in prebuilt.SOURCES)]))
"""


@pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler")
def test_they_are_used_without_a_compiler_and_left_alone_where_the_compiler_is_asked(tmp_path: Path) -> None:
    """The library of this processor stands for that of its level."""
    folder = tmp_path / "prebuilt"
    folder.mkdir()
    for source, load in ((prebuilt.NATIVE, library.library), (prebuilt.CONSTRAINTS, _constraints)):
        load()
        made = next(path for path in library.places(source, processor.compiler_flags()) if path.is_file())
        shutil.copy(made, prebuilt.path_of(source, processor.instruction_set(), folder))
    environment = os.environ | {"DAGUERRE_CACHE": "off", "CXX": "no-such-compiler"}
    command = [sys.executable, "-c", SCRIPT.format(folder=folder)]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    text, *origins = json.loads(done.stdout)
    assert json.loads(text).keys() == {"n"}
    assert all(said.startswith(f"in the package: {folder}") for said in origins)

    load = f"from pathlib import Path\nfrom daguerre.models import prebuilt\nprebuilt.FOLDER = Path({str(folder)!r})\n"
    asked = [sys.executable, "-c", load + "from daguerre.models.backends.library import library\nlibrary()"]
    refused = subprocess.run(
        asked, env=environment | {library.COMPILE: "1"}, check=False, capture_output=True, text=True
    )
    assert "CXX names no-such-compiler, which is not found" in refused.stderr


def _constraints() -> None:
    from daguerre.sampling.constraints.compiled import library as constraints

    assert constraints() is not None


def test_what_shares_work_between_threads_is_compiled_for_it(subtests: pytest.Subtests) -> None:
    """Without the flag a compiler skips these lines and says nothing."""
    for source in prebuilt.SOURCES:
        with subtests.test(source.name):
            texts = [
                path.read_text(encoding="utf-8") for path in source.folder.iterdir() if path.suffix in (".h", ".cpp")
            ]
            assert any("#pragma omp" in text for text in texts)
            assert "-fopenmp" in source.flags
            for path in library.places(source, processor.compiler_flags()):
                if path.is_file():
                    code = path.read_bytes()
                    assert b"GOMP_parallel" in code or b"__kmpc_fork_call" in code, path
