"""Checkpoints that are whole or absent: written to a temporary folder, synced, renamed. They hold all a run needs."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from daguerre.errors import CheckpointError, InputError, TrainingError
from daguerre.files import sync_folder, synced_write

PREFIX = "step-"
UNFINISHED = ".writing-"
CHECKPOINTS = "checkpoints"
TENSORS, STATE, SHARDS = "tensors.pt", "state.json", "shards"
KEEP = 2


def _write_tensors(folder: Path, tensors: dict[str, Any]) -> None:
    with synced_write(folder / TENSORS) as file:
        torch.save(tensors, file)


def save_checkpoint(
    folder: Path,
    step: int,
    tensors: dict[str, Any],
    state: dict[str, Any],
    write: Callable[[Path, dict[str, Any]], None] = _write_tensors,
) -> Path:
    """Write `folder/step-N` with tensors.pt, or what `write` writes in its place, and state.json; keep the last two.
    TrainingError when the disk is full.

    A step that has a whole checkpoint keeps the one it has: replacing it could lose it.
    """
    target, unfinished = folder / f"{PREFIX}{step:08d}", folder / f"{UNFINISHED}{os.getpid()}"
    if target in list_checkpoints(folder):
        return target
    for left in folder.glob(f"{UNFINISHED}*"):  # by a process that was killed while it wrote
        shutil.rmtree(left, ignore_errors=True)
    try:
        unfinished.mkdir(parents=True)
        write(unfinished, tensors)
        with synced_write(unfinished / STATE) as file:
            file.write(json.dumps(state, indent=1).encode())
        sync_folder(unfinished)
        if target.exists():  # half deleted: it has no state.json
            shutil.rmtree(target)
        unfinished.rename(target)
        sync_folder(folder)
    except (OSError, RuntimeError) as error:
        shutil.rmtree(unfinished, ignore_errors=True)
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


def find_checkpoint(run: Path, resume: bool) -> Path | None:
    """The checkpoint that a run goes on from, None for a new run.

    InputError when a new run would overwrite one that is there, or none is there to resume.
    """
    found = list_checkpoints(run / CHECKPOINTS)
    if found and not resume:
        raise InputError(f"{run} holds a run already: pass --resume to go on with it, or another --out")
    if resume and not found:
        raise InputError(f"{run} holds no checkpoint to resume: give the folder of a run with --out, or start one")
    return found[-1] if found else None


def load_state(path: Path) -> dict[str, Any]:
    """state.json of one checkpoint. CheckpointError when it is damaged."""
    try:
        state = json.loads((path / STATE).read_text(encoding="utf-8"))
        if not isinstance(state, dict):
            raise ValueError("not a checkpoint of ours")
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from error
    return state


def load_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """(tensors, state) of one checkpoint; no tensors of one that several processes wrote (`train.sharded_checkpoint`).
    CheckpointError when it is damaged.
    """
    state = load_state(path)
    if (path / SHARDS).is_dir():  # which each process reads its part of
        return {}, state
    try:
        tensors = torch.load(path / TENSORS, map_location="cpu", weights_only=True)
        if not isinstance(tensors, dict):
            raise ValueError("not a checkpoint of ours")
    except Exception as error:  # torch.load raises many kinds, of many lines
        raise _damaged(path, error) from error
    return tensors, state


def _damaged(path: Path, error: Exception) -> CheckpointError:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return CheckpointError(f"{path} is damaged ({reason}): remove it, and --resume takes the one before")
