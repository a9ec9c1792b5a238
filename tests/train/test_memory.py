"""The arithmetic of a run's memory, against the peak that is measured in a step."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from answers import some_pairs, write_rows
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.config import ModelConfig
from daguerre.models.loading import save_model
from daguerre.models.tokenizer import Tokenizer
from daguerre.train import report
from daguerre.train.distill.loss import Distillation
from daguerre.train.feed import Feed
from daguerre.train.lora import Lora
from daguerre.train.memory import BatchRows, memory_of
from daguerre.train.prefer.loss import PreferenceLoss
from daguerre.train.prefer.rows import PairReader
from daguerre.train.recipe import Recipe, Stage, TrainedShape, load_recipe
from daguerre.train.run import DATA, CopiedAnswers
from daguerre.train.teach.loss import TaughtLoss
from daguerre.train.trainer import Trainer
from live_memory import LiveMemory
from preferences import some_preferences
from test_cli import Called, call
from training_runs import RECIPE

__all__ = ["call"]

TOLERANCE = 0.15
SHAPE = TrainedShape(width=128, num_layers=4, num_heads=4, num_kv_heads=2, mlp_width=352, max_positions=512)
STAGE = Stage(until=1.0, length=128, sequences=2, micro_batches=2)
WIDE = replace(RECIPE, model=SHAPE, stages=(STAGE,), steps=3, checkpoint_steps=0)
CASES: dict[str, dict[str, Any]] = {
    "all weights": {},
    "layers computed again": {"checkpoint_layers": True},
    "16 bits": {"precision": "bf16"},
    "the last layer": {"train": ("layers.3",), "model": None},
    "an adapter": {"lora": Lora(), "model": None},
    "an adapter, 16 bits": {"lora": Lora(), "model": None, "precision": "bf16"},
    "an adapter, layers computed again": {"lora": Lora(), "model": None, "checkpoint_layers": True},
    "sdpa": {"attn_impl": "sdpa"},
    "one micro-batch": {"stages": (Stage(until=1.0, length=64, sequences=1, micro_batches=1),)},
    "without gates and norms of heads": {"model": replace(SHAPE, gated_mlp=False, qk_norm=False, tied=False)},
}


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pictures and TensorBoard, which have tests of their own."""
    monkeypatch.setattr(report, "draw_curves", lambda run: run)
    monkeypatch.setattr(report, "_tensorboard", lambda *rest: None)


@pytest.fixture(scope="module")
def wide_start(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> str:
    return start_of(SHAPE, tokenizer, tmp_path_factory.mktemp("wide"))


def start_of(shape: TrainedShape, tokenizer: Tokenizer, folder: Path) -> str:
    backbone = Backbone(replace(WIDE, model=shape).model_config(tokenizer)).initialize(0)
    return str(save_model(folder / "model", backbone, tokenizer))


def measured(made: Trainer) -> tuple[int, BatchRows]:
    """The peak of the second step, and its largest micro-batch."""
    (stage,) = made.recipe.stages
    with Feed(made.method.batches, 0) as feed:
        made._step(0.1, feed)
        rows = max(BatchRows.of(batch) for batch in feed.take(made.progress.micro, stage))
        states = [s for part, _ in made.trained.optimizer.parts for each in part.state.values() for s in each.values()]
        held = [*made.model.parameters(), *made.trained.average.values.values(), *states, *earlier_values(made)]
        with LiveMemory(held) as live:
            made._step(0.2, feed)
    return live.peak, rows


def earlier_values(made: Trainer) -> list[torch.Tensor]:
    """The weights of the start that a run is compared to, or those of its teacher."""
    loss = made.method.loss
    if isinstance(loss, PreferenceLoss):
        return [*loss.reference.values.values()]
    if isinstance(loss, TaughtLoss):
        return [*loss.teacher.model.parameters()]
    return [*loss.teacher.values.values()] if isinstance(loss, Distillation) else []


@pytest.mark.parametrize("name", CASES)
def test_the_arithmetic_is_within_the_tolerance_of_what_is_measured(
    name: str, corpus: Path, wide_start: str, tmp_path: Path
) -> None:
    recipe: Recipe = replace(WIDE, **CASES[name])
    start = wide_start if recipe.model is None else None
    made = Trainer(recipe, tmp_path / "run", corpus, start_from=start, quiet=True)
    peak, rows = measured(made)
    memory = memory_of(made.model, recipe, rows, made.trained.dtype)
    assert abs(memory.total - peak) < TOLERANCE * peak, memory.line()


@pytest.mark.parametrize(
    ("name", "context"), [("prefer", "causal"), ("prefer", "full"), ("distill", "full"), ("convert-chat", "causal")]
)
def test_the_arithmetic_of_runs_with_earlier_weights_is_within_the_tolerance(
    name: str, context: Any, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    pairs, shape = name == "prefer", replace(SHAPE, context=context, shift=context == "causal")
    rows = [{key: 5 * text for key, text in row.items()} for row in (some_preferences if pairs else some_pairs)(40)]
    file, out = write_rows(tmp_path / "rows.jsonl", rows), tmp_path / "run"
    how = {"minutes": 0.0, "steps": 3, "eval_steps": 0, "precision": "float32"}
    recipe: Recipe = replace(load_recipe(name), stages=(STAGE,), **how)  # type: ignore[arg-type]
    reads: dict[str, Any] = {"reads": PairReader(True), "pairs": True} if pairs else {}
    data = CopiedAnswers([file], out / DATA, STAGE.length, 0.1, **reads)
    made = Trainer(recipe, out, data, start_from=start_of(shape, tokenizer, tmp_path), quiet=True)
    peak, largest = measured(made)
    memory = memory_of(made.model, recipe, largest, made.trained.dtype)
    assert abs(memory.total - peak) < TOLERANCE * peak, memory.line()


def test_the_tracker_counts_what_is_alive() -> None:
    kept = torch.zeros(1000)
    with LiveMemory([kept]) as live:
        other = torch.ones(500)
        view = other[:100]  # of the same memory
        del other
        for _ in range(3):
            torch.ones(2000)
    assert live.peak == 4 * 3500
    assert live.alive == 4 * 1500
    assert len(view) == 100


def test_a_run_says_what_it_will_take_before_it_starts(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Trainer(replace(RECIPE, steps=1), tmp_path / "run", corpus)
    assert "memory of a step, by arithmetic: " in capsys.readouterr().err


def test_inspect_prints_the_arithmetic(call: Callable[..., Called], wide_start: str, tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "recipes" / "lora.toml").read_text()
    recipe = tmp_path / "lora.toml"
    recipe.write_text(text.replace('precision = "auto"', 'precision = "float32"'))
    code, out, err = call("inspect", wide_start, "--train", str(recipe), "--json")
    assert code == 0, err
    facts = json.loads(out)
    config = ModelConfig.from_dict(
        {k: v for k, v in json.loads((Path(wide_start) / "config.json").read_text()).items() if "sha256" not in k}
    )
    matrices = 4 * (3 * (128 + 352) + 2 * (128 + 128) + 2 * (128 + 64))  # of each layer, the sum of its sides
    assert facts["trained"] == 16 * matrices
    assert facts["of"] == Backbone(config).num_parameters + facts["trained"]
    held = facts["bytes"]
    assert (held["weights"], held["gradients"]) == (4 * facts["of"], 4 * facts["trained"])
    _, out, _ = call("inspect", wide_start, "--train", str(recipe), "--json", "--devices", "2")
    half = json.loads(out)["bytes"]
    assert (2 * half["weights"], 2 * half["optimizer"]) == (held["weights"], held["optimizer"])
    assert half["activations"] > held["activations"]  # with the weights that are gathered
    assert (held["optimizer"], held["average"]) == (8 * facts["trained"], 4 * facts["trained"])
    code, out, _ = call("inspect", "--train", "small")
    assert code == 0
    assert "8 x other trained weights (AdamW)" in out
    assert "at the peak of a step" in out
