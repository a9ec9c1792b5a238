"""Checkpoints are whole or absent, whatever goes wrong while they are written."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from daguerre.errors import CheckpointError, TrainingError
from daguerre.train import checkpoint
from daguerre.train.checkpoint import KEEP, list_checkpoints, load_checkpoint, save_checkpoint

TENSORS = {"model": {"a": torch.arange(200_000, dtype=torch.float32)}, "optimizer": [{"state": {0: torch.ones(3)}}]}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def save(folder: Path, step: int) -> Path:
    return save_checkpoint(folder, step, TENSORS, {"step": step})


def test_a_checkpoint_comes_back_as_it_was(tmp_path: Path) -> None:
    path = save(tmp_path, 7)
    tensors, state = load_checkpoint(path)
    assert path.name == "step-00000007"
    assert state == {"step": 7}
    assert torch.equal(tensors["model"]["a"], TENSORS["model"]["a"])  # type: ignore[call-overload]
    assert names(tmp_path) == ["step-00000007"]


def test_the_last_two_are_kept_in_the_order_of_their_steps(tmp_path: Path) -> None:
    for step in (5, 90, 100, 1000):
        save(tmp_path, step)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000100", "step-00001000"]
    assert len(names(tmp_path)) == KEEP


def test_a_step_that_is_saved_is_left_as_it_is(tmp_path: Path) -> None:
    first = save(tmp_path, 3)
    before = (first / "tensors.pt").stat().st_mtime_ns
    assert save_checkpoint(tmp_path, 3, {"model": {}}, {"step": "other"}) == first
    assert (first / "tensors.pt").stat().st_mtime_ns == before
    assert load_checkpoint(first)[1] == {"step": 3}


def test_leftovers_of_killed_processes_are_cleared_and_never_listed(tmp_path: Path) -> None:
    (tmp_path / ".writing-123").mkdir()
    (tmp_path / ".writing-123" / "tensors.pt").write_bytes(b"half")
    (tmp_path / "step-00000002").mkdir()
    (tmp_path / "step-00000002" / "tensors.pt").write_bytes(b"half deleted")
    assert list_checkpoints(tmp_path) == []
    save(tmp_path, 2)
    assert names(tmp_path) == ["step-00000002"]
    assert load_checkpoint(tmp_path / "step-00000002")[1] == {"step": 2}


def test_a_checkpoint_that_is_half_deleted_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill while an old one is removed, after its first file."""
    save(tmp_path, 1)
    save(tmp_path, 2)

    def interrupted(path: Path, **options: Any) -> None:
        (path / "tensors.pt").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.shutil, "rmtree", interrupted)
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path, 3)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000002", "step-00000003"]


def fail_at(monkeypatch: pytest.MonkeyPatch, target: Any, name: str, call: int) -> None:
    """The `call`-th use of target.name finds the disk full."""
    original, calls = getattr(target, name), iter(range(call))

    def limited(*args: Any, **kwargs: Any) -> Any:
        if next(calls, None) is None:
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(*args, **kwargs)

    monkeypatch.setattr(target, name, limited)


@pytest.mark.parametrize(
    ("target", "name", "call"),
    [(torch, "save", 0), *((os, "fsync", call) for call in range(3)), (Path, "rename", 0), (Path, "mkdir", 0)],
    ids=["torch.save", "sync of tensors", "sync of state", "sync of folder", "rename", "mkdir"],
)
def test_a_disk_that_fills_up_costs_only_the_checkpoint_in_the_making(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: Any, name: str, call: int
) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    with monkeypatch.context() as patch:
        fail_at(patch, target, name, call)
        with pytest.raises(TrainingError, match=r"the disk is full.*--resume") as caught:
            save(tmp_path, 3)
    assert "\n" not in str(caught.value)
    assert names(tmp_path) == ["step-00000001", "step-00000002"]
    assert load_checkpoint(tmp_path / "step-00000002")[1] == {"step": 2}
    save(tmp_path, 3)
    assert names(tmp_path) == ["step-00000002", "step-00000003"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two mebibytes."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(tmp_path)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting needs more rights")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="mounting needs root")
def test_a_disk_that_is_really_full_is_one_error_and_loses_nothing(small_disk: Path) -> None:
    save(small_disk, 1)
    save(small_disk, 2)
    with pytest.raises(TrainingError, match=r"the disk is full.*--resume"):
        save(small_disk, 3)
    assert names(small_disk) == ["step-00000001", "step-00000002"]
    assert load_checkpoint(small_disk / "step-00000002")[1] == {"step": 2}


def test_an_error_that_is_not_a_full_disk_is_told_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "file"
    folder.write_text("not a folder")
    with pytest.raises(TrainingError, match=r"exists|Not a directory"):
        save(folder, 1)


def truncate(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: truncate(path / "tensors.pt"),
        lambda path: truncate(path / "state.json"),
        lambda path: (path / "tensors.pt").unlink(),
        lambda path: (path / "tensors.pt").write_bytes(b""),
        lambda path: (path / "state.json").write_text("[]"),
    ],
    ids=["half the tensors", "half the state", "no tensors", "empty tensors", "another state"],
)
def test_a_damaged_checkpoint_says_what_to_do(tmp_path: Path, damage: Any) -> None:
    path = save(tmp_path, 4)
    damage(path)
    with pytest.raises(CheckpointError, match=r"step-00000004 is damaged.*remove it, and --resume takes") as caught:
        load_checkpoint(path)
    assert "\n" not in str(caught.value)


def test_a_full_disk_is_found_behind_another_error() -> None:
    def write() -> None:
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        finally:
            raise RuntimeError("unexpected pos 64 vs 0")

    with pytest.raises(RuntimeError) as caught:
        write()
    assert checkpoint.is_disk_full(caught.value)
    assert not checkpoint.is_disk_full(RuntimeError("other"))
