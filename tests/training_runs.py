"""A small recipe, and what the tests of training runs do with it."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

from daguerre.train.checkpoint import list_checkpoints
from daguerre.train.recipe import Recipe, Share, TrainedShape
from daguerre.train.stage import Stage
from daguerre.train.trainer import Trainer

STEPS = 20
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
