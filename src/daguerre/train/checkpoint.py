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
KEEP = 2


def save_checkpoint(folder: Path, step: int, tensors: dict[str, Any], state: dict[str, Any]) -> Path:
    """Write `folder/step-N` with tensors.pt and state.json; keep the last two. TrainingError when the disk is full."""
    target, beside = folder / f"{PREFIX}{step:08d}", folder / f".writing-{os.getpid()}"
    try:
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        with (beside / "tensors.pt").open("wb") as file:
            torch.save(tensors, file)
            _sync(file)
        with (beside / "state.json").open("w", encoding="utf-8") as text:
            json.dump(state, text, indent=1)
            _sync(text)
        if target.exists():
            shutil.rmtree(target)
        beside.rename(target)
        _sync_folder(folder)
    except (OSError, RuntimeError) as error:
        shutil.rmtree(beside, ignore_errors=True)
        full = getattr(error, "errno", None) == errno.ENOSPC or "file write failed" in str(error)
        reason = "the disk is full" if full else str(error)
        raise TrainingError(
            f"cannot write a checkpoint under {folder}: {reason}; earlier checkpoints are whole: free room, then --resume"
        ) from error
    for old in list_checkpoints(folder)[:-KEEP]:
        shutil.rmtree(old, ignore_errors=True)
    return target


def list_checkpoints(folder: Path) -> list[Path]:
    """Whole checkpoints, oldest first."""
    return sorted(p for p in folder.glob(f"{PREFIX}*") if (p / "state.json").is_file())


def load_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """(tensors, state) of one checkpoint. CheckpointError when it is damaged."""
    try:
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        tensors = torch.load(path / "tensors.pt", map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises many kinds
        raise CheckpointError(f"{path} is damaged ({error}): remove it, and --resume takes the one before") from error
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
