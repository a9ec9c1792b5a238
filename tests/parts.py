"""The parts of the suite that `make test-all` adds to `make test`, and which of them a change asks for.

    python tests/parts.py            the parts whose sources are not those with which they last passed, one a line
    python tests/parts.py --all      every part

`parts.toml` says what each part is. `proven.json` says with which sources it last passed: a run of whole parts in which
nothing failed writes it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PROVEN = HERE / "proven.json"
PROPERTY = "part"
"""The property of a test that names its part."""


@dataclass(frozen=True)
class Part:
    """Tests that only `make test-all` runs: whole files, functions of others, and cases that are marked."""

    name: str
    about: str
    files: tuple[str, ...]
    """Patterns of files that are all of this part, from the root."""
    sources: tuple[str, ...]
    """Patterns of files after whose change the part has to run again, from the root."""
    tests: tuple[str, ...] = ()
    """Patterns of functions, as "path::function"; `*` for all of a file."""
    kept: tuple[str, ...] = ()
    """Functions that match `tests` and that `make test` runs all the same."""
    markers: tuple[str, ...] = ()
    """Names of helpers that mark cases for this part; a file of tests that uses one may have some."""
    per_processor: bool = False
    """Whether processors of another kind have other cases."""

    def has(self, test: str) -> bool:
        """Whether a function ("path::function", without parameters) is of this part."""
        return test not in self.kept and any(fnmatchcase(test, pattern) for pattern in self.tests)

    def is_in(self, name: str) -> bool:
        """Whether a file, by its path from the root, may have tests of this part."""
        if matches(name, self.files) or any(test.startswith(f"{name}::") for test in self.tests):
            return True
        if not self.markers or not re.fullmatch(r"tests/.*\.py", name):
            return False
        text = (ROOT / name).read_text(encoding="utf-8")
        return any(marker in text for marker in self.markers)


@cache
def parts() -> dict[str, Part]:
    """The parts of `parts.toml`, by name."""
    table = tomllib.loads((HERE / "parts.toml").read_text(encoding="utf-8"))
    keys = ("files", "sources", "tests", "kept", "markers")
    return {
        name: Part(
            name, facts["about"], *(tuple(facts.get(key, ())) for key in keys), facts.get("per_processor", False)
        )
        for name, facts in table.items()
    }


def part_of(name: str) -> str | None:
    """The part that a whole file belongs to, by its path from the root; None where `make test` runs it."""
    return next((part.name for part in parts().values() if matches(name, part.files)), None)


def parts_of_test(test: str) -> set[str]:
    """The parts that a test belongs to by the table; test: "path::function", or its id."""
    path, _, function = test.partition("[")[0].partition("::")
    whole = part_of(path)
    return {part.name for part in parts().values() if part.has(f"{path}::{function}")} | ({whole} if whole else set())


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a path from the root matches a pattern: `*` within a folder, `**` over folders, a folder with its own."""
    return any(_regex(pattern).fullmatch(name) for pattern in patterns)


@cache
def _regex(pattern: str) -> re.Pattern[str]:
    pieces = {"**": ".*", "*": "[^/]*"}
    body = "".join(pieces.get(piece, re.escape(piece)) for piece in re.split(r"(\*\*|\*)", pattern))
    return re.compile(f"{body}(/.*)?")


@cache
def tracked(root: Path = ROOT) -> tuple[str, ...]:
    """The files of the checkout that git tracks, or would; where there is no git, all of the folders that it has."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return tuple(sorted(name for name in done.stdout.split("\0") if name and (root / name).is_file()))
    return tuple(sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()))


def files_of(part: Part) -> list[str]:
    """All files that a part depends on: its sources, and those that have tests of it."""
    return [name for name in tracked() if matches(name, part.sources) or part.is_in(name)]


def digest(part: Part) -> str:
    """The SHA-256 of the names and contents of a part's files, and of what the processor can do if that matters."""
    total = hashlib.sha256()
    for name in files_of(part):
        total.update(f"{name}\0".encode() + hashlib.sha256((ROOT / name).read_bytes()).digest())
    if part.per_processor:
        from daguerre.models.processor import available

        total.update(" ".join(available()).encode())
    return total.hexdigest()


def proven() -> dict[str, str]:
    """The digests with which parts have passed."""
    return json.loads(PROVEN.read_text(encoding="utf-8")) if PROVEN.exists() else {}


def changed(known: Mapping[str, str] | None = None) -> list[str]:
    """The parts whose files are not those with which they last passed."""
    known = proven() if known is None else known
    return [part.name for part in parts().values() if known.get(part.name) != digest(part)]


def passed(names: Iterable[str]) -> None:
    """Write down that parts have passed with the files as they are."""
    digests = proven() | {name: digest(parts()[name]) for name in names}
    text = json.dumps({name: digests[name] for name in parts() if name in digests}, indent=2)
    PROVEN.write_text(text + "\n", encoding="utf-8")


class Proofs:
    """A plugin of pytest that writes down which parts have passed. `asked`: those of the run, all of each."""

    def __init__(self, asked: Iterable[str]) -> None:
        self.asked, self.seen = set(asked), set[str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self.seen |= {value for name, value in report.user_properties if name == PROPERTY}

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if exitstatus == 0:  # a part of which all was skipped, for want of a browser, say, has not passed
            passed(self.asked & self.seen)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="name every part, changed or not")
    names = parts() if parser.parse_args(argv).all else changed()
    sys.stdout.writelines(f"{name}\n" for name in names)
    return 0


if __name__ == "__main__":
    sys.exit(main())
