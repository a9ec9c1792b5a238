"""Files are whole or absent, whatever interrupts their writing."""

from __future__ import annotations

from pathlib import Path

import pytest

from daguerre.files import atomic_write, sync_folder, synced_write


def test_a_file_that_fails_half_way_leaves_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"old")

    def fail_half_way() -> None:
        with atomic_write(path) as file:
            file.write(b"half")
            file.flush()
            assert path.read_bytes() == b"old"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_half_way()
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert path.read_bytes() == b"old"


def test_a_whole_file_replaces_the_one_before_and_what_killed_processes_left(tmp_path: Path) -> None:
    path = tmp_path / "a[1].json"
    for name in ("a[1].json", "a[1].json.123.tmp", "a[1].json.backup", "b.json.123.tmp"):
        (tmp_path / name).write_bytes(b"old")
    with atomic_write(path) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a[1].json", "a[1].json.backup", "b.json.123.tmp"]


def test_a_synced_file_and_its_folder_are_as_written(tmp_path: Path) -> None:
    with synced_write(tmp_path / "a") as file:
        file.write(b"text")
    sync_folder(tmp_path)
    assert (tmp_path / "a").read_bytes() == b"text"
