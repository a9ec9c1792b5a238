"""Checkpoints that are whole or absent: written beside, synced, renamed. They carry everything a run needs to go on."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch

from daguerre.errors import CheckpointError, TrainingError

PREFIX = "step-"
BESIDE = ".writing-"
TENSORS, STATE = "tensors.pt", "state.json"
KEEP = 2


def save_checkpoint(folder: Path, step: int, tensors: dict[str, Any], state: dict[str, Any]) -> Path:
    """Write `folder/step-N` with tensors.pt and state.json; keep the last two. TrainingError when the disk is full.

    A step that has a whole checkpoint keeps the one it has: replacing it could lose it.
    """
    target, beside = folder / f"{PREFIX}{step:08d}", folder / f"{BESIDE}{os.getpid()}"
    if target in list_checkpoints(folder):
        return target
    for left in folder.glob(f"{BESIDE}*"):  # by a process that was killed while it wrote
        shutil.rmtree(left, ignore_errors=True)
    try:
        beside.mkdir(parents=True)
        with (beside / TENSORS).open("wb") as file:
            torch.save(tensors, file)
            _sync(file)
        with (beside / STATE).open("w", encoding="utf-8") as text:
            json.dump(state, text, indent=1)
            _sync(text)
        _sync_folder(beside)
        if target.exists():  # half deleted: it has no state.json
            shutil.rmtree(target)
        beside.rename(target)
        _sync_folder(folder)
    except (OSError, RuntimeError) as error:
        shutil.rmtree(beside, ignore_errors=True)
        reason = "the disk is full" if is_disk_full(error) else str(error)
        raise TrainingError(
            f"cannot write a checkpoint under {folder}: {reason}; earlier ones are whole: free room, then --resume"
        ) from error
    for old in list_checkpoints(folder)[:-KEEP]:
        (old / STATE).unlink(missing_ok=True)  # first, so that what is half deleted is no checkpoint
        shutil.rmtree(old, ignore_errors=True)
    return target


def is_disk_full(error: BaseException) -> bool:
    """Whether an error, or one that it came from, is a disk without room; torch.save hides it behind a RuntimeError."""
    seen: BaseException | None = error
    while seen is not None:
        if getattr(seen, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "file write failed" in str(seen):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def list_checkpoints(folder: Path) -> list[Path]:
    """Whole checkpoints, oldest first."""
    return sorted(p for p in folder.glob(f"{PREFIX}*") if (p / STATE).is_file())


def load_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """(tensors, state) of one checkpoint. CheckpointError when it is damaged."""
    try:
        state = json.loads((path / STATE).read_text(encoding="utf-8"))
        tensors = torch.load(path / TENSORS, map_location="cpu", weights_only=True)
        if not isinstance(state, dict) or not isinstance(tensors, dict):
            raise ValueError("not a checkpoint of ours")
    except Exception as error:  # torch.load raises many kinds, of many lines
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(f"{path} is damaged ({reason}): remove it, and --resume takes the one before") from error
    return tensors, state


def _sync(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
