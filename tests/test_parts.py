"""The table of what `make test-all` adds: each part has tests and sources, and a change asks for the right ones."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import parts
from parts import Part, changed, digest, files_of, matches, tracked

ROOT = Path(__file__).resolve().parents[1]
TESTS = [name for name in tracked() if re.fullmatch(r"tests/(?!clients/).*test_[^/]*\.py", name)]


def test_every_pattern_of_the_table_has_files_and_every_part_has_tests() -> None:
    for part in parts.parts().values():
        for pattern in (*part.files, *part.sources):
            assert any(matches(name, [pattern]) for name in tracked()), f"{part.name}: {pattern}"
        assert any(part.is_in(name) for name in TESTS), part.name
        for test in (*part.tests, *part.kept):
            path, _, function = test.partition("::")
            assert path in TESTS, test
            text = (ROOT / path).read_text(encoding="utf-8")
            assert function == "*" or f"def {function}(" in text, f"{part.name}: {test}"


def test_a_file_belongs_to_one_part_at_most() -> None:
    for name in TESTS:
        owners = [part.name for part in parts.parts().values() if matches(name, part.files)]
        assert len(owners) <= 1, (name, owners)


def test_a_change_asks_for_the_parts_whose_sources_it_touches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, text in {"src/a.py": "1", "src/deep/b.cpp": "2", "docs/c.md": "3", "tests/test_d.py": "4"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "tests/test_e.py").write_text("@every_color")
    one = Part("one", "", (), ("src/*.py",), markers=("every_color",))
    two = Part("two", "", ("tests/test_d.py",), ("src/deep",))
    monkeypatch.setattr(parts, "ROOT", tmp_path)
    monkeypatch.setattr(parts, "parts", lambda: {"one": one, "two": two})

    def asked() -> list[str]:
        names = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file())
        monkeypatch.setattr(parts, "tracked", lambda: tuple(names))
        return changed(known)

    known: dict[str, str] = {}
    assert asked() == ["one", "two"]
    known.update(one=digest(one), two=digest(two))
    assert asked() == []
    assert files_of(one) == ["src/a.py", "tests/test_e.py"]
    for name, wanted in {
        "docs/c.md": [],
        "src/a.py": ["one"],
        "tests/test_e.py": ["one"],
        "src/deep/b.cpp": ["two"],
        "tests/test_d.py": ["two"],
    }.items():
        before = (tmp_path / name).read_text()
        (tmp_path / name).write_text(before + " # changed")
        assert asked() == wanted, name
        (tmp_path / name).write_text(before)
    (tmp_path / "src/new.py").write_text("")
    assert asked() == ["one"]


def test_files_of_parts_are_read_where_they_are_named_or_their_part_is_asked_for() -> None:
    """By pytest itself, which is asked for a folder with files of a part, and for a file of another by its name."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    given = ["tests/audit", "tests/overlap", "tests/train/test_race.py"]
    for part, wanted, other in (
        ((), {"tests/audit/test_ledger.py", "tests/train/test_race.py"}, "tests/audit/test_verify.py"),
        (("--part", "audit"), {"tests/audit/test_verify.py"}, "tests/audit/test_ledger.py"),
    ):
        done = subprocess.run([*command, *part, *given], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        read = {line.partition("::")[0] for line in done.stdout.splitlines() if "::" in line}
        assert wanted <= read and other not in read
