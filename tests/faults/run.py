"""Run each fault of `patches` against the tests that import its module, and say which are found.

    .venv/bin/python tests/faults/run.py --out tests/faults/found.json [--root CHECKOUT] [-- ARGUMENTS OF PYTEST]

A fault is found if a test fails that passes without it. Each runs in a copy of the checkout, up to the first failure.
"""

from __future__ import annotations

import argparse
import enum
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from importers import importers

HERE = Path(__file__).parent
HANGS = 240
"""Seconds of one test after which it is taken to hang."""
COPIED = ("src", "tests", "recipes", "benchmarks", "docs", "examples", "deploy", ".ci")


class Outcome(enum.StrEnum):
    FOUND = "found"
    MISSED = "missed"


@dataclass(frozen=True)
class Reached:
    outcome: Outcome
    test: str
    """The test that found it, or how many passed."""
    seconds: float

    def __str__(self) -> str:
        return f"{self.outcome} ({self.test}) in {self.seconds:.0f} s"


class Checkout:
    """A copy of a checkout, in which files are changed for one run of tests at a time."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.copy = root, folder / "tree"
        self.copy.mkdir()
        for path in root.iterdir():
            if path.name in COPIED:
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(path, self.copy / path.name, ignore=ignored, symlinks=True)
            elif path.is_file():
                shutil.copy2(path, self.copy / path.name)

    def run(self, module: str, changed: Mapping[str, str], arguments: Sequence[str] = ()) -> Reached:
        """Run the tests that import a module, with some files changed, up to the first failure that is due to them."""
        tests = importers(self.root, module)
        began = time.monotonic()
        failing = list[str]()
        while tests:
            done = self._pytest(changed, [*arguments, *(f"--deselect={test}" for test in failing), *tests])
            if done.returncode in (0, 5):
                closing = [line for line in done.stdout.splitlines() if " in " in line]
                return Reached(Outcome.MISSED, closing[-1] if closing else "no test", time.monotonic() - began)
            names = re.findall(r"^(?:FAILED|ERROR) (tests/\S+?\.py(?:::\w+)*)", done.stdout, re.MULTILINE)
            again = self._pytest({}, [*arguments, names[0]]).returncode if names else 0
            if again == 4:
                raise RuntimeError(f"pytest knows no test {names[0]}")
            if again == 0:
                test = names[0] if names else f"exit {done.returncode}: {(done.stdout + done.stderr).strip()[-300:]}"
                return Reached(Outcome.FOUND, test, time.monotonic() - began)
            failing.append(names[0])
        return Reached(Outcome.MISSED, "no test imports it", 0.0)

    def _pytest(self, changed: Mapping[str, str], arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        command = [
            sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-rfE",
            "-o", f"faulthandler_timeout={HANGS}", "-o", "faulthandler_exit_on_timeout=true", *arguments,
        ]  # fmt: skip
        own = {"PYTHONPATH": str(self.copy / "src"), "PYTHONDONTWRITEBYTECODE": ""}
        environment = os.environ | own | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        how: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
        before = {name: (self.copy / name).read_text(encoding="utf-8") for name in changed}
        try:
            for name, text in changed.items():
                (self.copy / name).write_text(text, encoding="utf-8")
            return subprocess.run(command, check=False, cwd=self.copy, env=environment, **how)
        finally:
            for name, text in before.items():
                (self.copy / name).write_text(text, encoding="utf-8")


def patched(root: Path, patch: Path) -> tuple[str, str, str]:
    """(module, path, text of the file with the fault)."""
    path = re.search(r"^\+\+\+ b/(\S+)", patch.read_text(encoding="utf-8"), re.MULTILINE)
    assert path is not None
    name = path[1]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / name
        file.parent.mkdir(parents=True)
        shutil.copy2(root / name, file)
        subprocess.run(
            ["git", "apply", str(patch.resolve())], cwd=folder, check=True, env=os.environ | {"GIT_DIR": "/nowhere"}
        )
        text = file.read_text(encoding="utf-8")
    module = ".".join(Path(name).relative_to("src").with_suffix("").parts).removesuffix(".__init__")
    return module, name, text


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=HERE.parents[1], help="the checkout whose tests are asked")
    parser.add_argument("--out", type=Path, required=True, help="JSON; what it has already is not run again")
    parser.add_argument("--patches", type=Path, default=HERE / "patches")
    parser.add_argument("arguments", nargs="*", help="arguments of pytest")
    arguments = parser.parse_args(argv)
    results = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        checkout = Checkout(arguments.root, Path(folder))
        for patch in sorted(arguments.patches.glob("*.patch")):
            if patch.name in results:
                continue
            module, name, text = patched(arguments.root, patch)
            reached = checkout.run(module, {name: text}, arguments.arguments)
            sys.stderr.write(f"{patch.name}: {reached}\n")
            results[patch.name] = {"outcome": reached.outcome, "test": reached.test}
            arguments.out.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    found = sum(result["outcome"] == Outcome.FOUND for result in results.values())
    sys.stdout.write(f"{found} of {len(results)} faults found\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
