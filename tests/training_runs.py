"""A small recipe, and what the tests of training runs do with it."""

from __future__ import annotations

import csv
import os
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from daguerre.train import pretraining
from daguerre.train.checkpoint import list_checkpoints
from daguerre.train.recipe import Recipe, Share, TrainedShape
from daguerre.train.stage import Stage
from daguerre.train.trainer import Trainer
from distributed_run import leave_out, processes

STEPS = 12
SHAPE = TrainedShape(width=32, num_layers=2, num_heads=4, num_kv_heads=2, mlp_width=48, max_positions=64)
RECIPE = Recipe(
    name="tiny",
    tokenizer="2k",
    model=SHAPE,
    mixture={
        "drafts": Share(share=0.3, layout="drafts", times="full"),
        "blocks": Share(share=0.4, layout="blocks"),
        "infill": Share(share=0.3, layout="infill"),
    },
    stages=(
        Stage(until=0.6, length=32, sequences=2, micro_batches=2),
        Stage(until=1.0, length=48, sequences=1, micro_batches=2),
    ),
    steps=STEPS,
    precision="float32",
    eval_steps=0,
    checkpoint_steps=3,
)
ADAPT = replace(RECIPE, model=None, steps=3, checkpoint_steps=1)


def run(recipe: Recipe, out: Path, corpus: Path, **options: Any) -> Trainer:
    made = Trainer(recipe, out, corpus, quiet=True, **options)
    assert made.run() == out / "model"
    return made


def run_until(step: int, made: Trainer) -> None:
    """Run, and ask it to stop after a step, as a signal does."""
    after_step = made._after_step

    def stop() -> None:
        after_step()
        made.stop_asked = made.progress.step >= step

    made._after_step = stop  # type: ignore[method-assign]
    made.run()


def rows(out: Path, name: str = "log.csv") -> list[dict[str, str]]:
    path = out / name
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def list_steps(out: Path) -> list[int]:
    return [int(path.name.removeprefix("step-")) for path in list_checkpoints(out / "checkpoints")]


MOMENTS: dict[str, tuple[Any, str, signal.Signals]] = {
    "in a step": (pretraining, "batch_loss", signal.SIGKILL),
    "as a checkpoint is synced": (os, "fsync", signal.SIGKILL),
    "as an old one is cleared": (shutil, "rmtree", signal.SIGKILL),
    "Ctrl-C": (pretraining, "batch_loss", signal.SIGINT),
}
"""By the name of a moment: the function before whose call a process gets a signal, and the signal."""


def train_apart(recipe: Recipe, out: Path, corpus: Path, moment: str, call: int, said: Path) -> int | None:
    """Train in a process of its own, which sends itself the signal of `moment` before the call number `call`; returns
    its exit code, None after ten minutes. What it says is written to the file `said`.
    """
    process = processes().Process(target=_signaled, args=(recipe, out, corpus, moment, call, said))
    process.start()
    process.join(600)
    code = process.exitcode  # None if it hangs
    process.kill()
    process.join()
    return code


def _signaled(recipe: Recipe, out: Path, corpus: Path, moment: str, call: int, said: Path) -> None:
    torch.set_num_threads(1)
    leave_out(pytest.MonkeyPatch())
    owner, name, which = MOMENTS[moment]
    original: Callable[..., Any] = getattr(owner, name)
    calls = 0

    def limited(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            os.kill(os.getpid(), which)
        return original(*args, **options)

    setattr(owner, name, limited)
    sys.stderr = said.open("w", buffering=1)  # never closed: what ends the process is said in it too
    Trainer(recipe, out, corpus, resume=bool(list_checkpoints(out / "checkpoints"))).run()
