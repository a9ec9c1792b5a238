"""What a wheel has besides the package: the recipes that `daguerre train` knows by name, and compiled libraries, where
DAGUERRE_PREBUILT asks for them: `make wheels`.

DAGUERRE_PREBUILT is a machine, x86_64 or aarch64, and may name levels of `models/prebuilt.py`: "x86_64:avx2,amx".
CXX names the compiler, which for another machine is a cross compiler. Without DAGUERRE_PREBUILT a wheel has no compiled
code and is for any machine.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

VARIABLE = "DAGUERRE_PREBUILT"
OLDEST = 17
"""The glibc that is named where libraries need less: the one of manylinux2014."""


class WheelHook(BuildHookInterface):  # type: ignore[type-arg]
    """Puts recipes into the wheel, and compiles the libraries."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "editable":  # which finds them in the repository
            recipes = sorted((Path(self.root) / "recipes").glob("*.toml"))
            build_data["force_include"] |= {str(path): f"daguerre/recipes/{path.name}" for path in recipes}
        wanted = os.environ.get(VARIABLE)
        if not wanted or version == "editable":
            return
        prebuilt = _loaded(Path(self.root) / "src" / "daguerre" / "models" / "prebuilt.py")
        machine, _, names = wanted.partition(":")
        if machine not in prebuilt.BASELINES:
            self.app.abort(f"{VARIABLE} is one of {', '.join(prebuilt.BASELINES)}, not {machine}")
        known = prebuilt.levels(machine)
        levels = names.split(",") if names else list(known)
        if unknown := sorted({*levels} - {*known}):
            self.app.abort(f"{VARIABLE}: {machine} has the levels {', '.join(known)}, not {', '.join(unknown)}")
        self._made = tempfile.TemporaryDirectory(prefix="daguerre-prebuilt-")
        made = list(prebuilt.build(machine, levels, Path(self._made.name), os.environ.get("CXX", "g++")))
        for path in made:
            self.app.display_info(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB")
        build_data["force_include"][self._made.name] = "daguerre/prebuilt"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-manylinux_2_{oldest_glibc(made)}_{machine}"


def oldest_glibc(libraries: Sequence[Path]) -> int:
    """The minor version of the oldest glibc 2 that has all symbols that the libraries name: a tag of a wheel (PEP 600),
    the same as auditwheel's. GNU's OpenMP runtime is one of them; they need nothing else of a system.
    """
    named = (int(found) for path in libraries for found in re.findall(rb"GLIBC_2\.(\d+)", path.read_bytes()))
    return max([OLDEST, *named])


def _loaded(path: Path) -> Any:
    """A module, alone: its package needs PyTorch."""
    spec = importlib.util.spec_from_file_location("daguerre_prebuilt", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
