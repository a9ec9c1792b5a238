"""Whole runs on pairs of answers: killed and resumed, of all weights, chosen ones and an adapter; and the command."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import daguerre
from answers import some_pairs, write_rows
from daguerre.cli import app
from daguerre.errors import CheckpointError, DaguerreError
from daguerre.model import Model
from daguerre.models.loading import save_model
from daguerre.train.curves import read_columns
from daguerre.train.earlier import FILE
from daguerre.train.lora import Lora
from daguerre.train.prefer.options import Prefer
from daguerre.train.recipe import Recipe, load_recipe, recipe_from_dict
from daguerre.train.run import DATA, run_training
from daguerre.train.sft.presets import Sft
from daguerre.train.trainer import Trainer
from preferences import some_preferences
from training_runs import rows, run_until

RECIPE = replace(
    load_recipe("prefer"),
    stages=(replace(load_recipe("prefer").stages[0], length=64, sequences=2, micro_batches=1),),
    minutes=0.0,
    steps=4,
    eval_steps=2,
    checkpoint_steps=1,
    precision="float32",
)
CONTEXTS: dict[str, dict[str, Any]] = {
    "causal": {},
    "full": {"context": "full", "shift": False},
    "block": {"context": "block", "shift": False, "block_size": 4},
}
SHORT = [
    *("steps=2", "minutes=0", "precision=float32", "stages.0.length=64", "stages.0.sequences=1"),
    *("checkpoint_steps=1", "eval_steps=0"),
]
PARTS = ("preference", "margin", "accuracy", "chosen", "rejected", "drift", "variance")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "pairs.jsonl", some_preferences(30))


def folder_of(make_model: Callable[..., Model], path: Path, **shape: Any) -> str:
    model = make_model(max_positions=64, **shape)
    return str(save_model(path, model.backbone, model.tokenizer))


def kept(out: Path) -> bytes:
    found = [*out.glob("model/model.safetensors"), *out.glob("adapter/adapter_model.safetensors")]
    return found[0].read_bytes()


@pytest.mark.parametrize(
    ("context", "changes"),
    [
        ("causal", {}),
        ("full", {}),
        ("block", {}),
        ("causal", {"lora": Lora(rank=2, dropout=0.2)}),
        ("full", {"lora": Lora(rank=2)}),
        ("causal", {"train": ("mlp",)}),
    ],
)
def test_a_run_that_was_killed_ends_as_one_that_was_not(
    make_model: Callable[..., Model], file: Path, tmp_path: Path, context: str, changes: dict[str, Any]
) -> None:
    """Also without the model that it began with, but for an adapter: what margins are compared to is in the run."""
    start = folder_of(make_model, tmp_path / "start", **CONTEXTS[context])
    recipe: Recipe = replace(RECIPE, **changes)
    whole, out = tmp_path / "whole", tmp_path / "run"
    how: dict[str, Any] = {"start_from": start, "data": [file], "device": "cpu", "quiet": True}
    run_training_of(recipe, whole, **how)
    made = trainer_of(recipe, out, start, file)
    run_until(2, made)
    assert [row["step"] for row in rows(out)] == ["1", "2"]
    Trainer(recipe, out, out / DATA, resume=True, quiet=True).run()
    assert kept(out) == kept(whole)
    assert [[row[name] for name in PARTS] for row in rows(out)] == [
        [row[name] for name in PARTS] for row in rows(whole)
    ]
    log, held = read_columns(whole / "log.csv"), read_columns(whole / "held.csv")
    assert log["preference"][0] == pytest.approx(math.log(2), abs=1e-5) and log["margin"][0] == 0.0
    assert log["margin"][-1] != 0.0
    assert held["step"].tolist() == [0, 2, 4] and held["accuracy"][0] == 0.5
    assert log["variance"][-1] == 0 if context == "causal" else log["variance"][-1] > 0


def run_training_of(recipe: Recipe, out: Path, **how: Any) -> None:
    trainer_of(recipe, out, how["start_from"], how["data"][0]).run()


def trainer_of(recipe: Recipe, out: Path, start: str, file: Path) -> Trainer:
    from daguerre.train.prefer.rows import PairReader
    from daguerre.train.run import CopiedAnswers

    data = CopiedAnswers([file], out / DATA, 64, 0.1, PairReader(True), pairs=True)
    return Trainer(recipe, out, data, start_from=start, quiet=True)


@pytest.mark.parametrize("context", CONTEXTS)
def test_a_preference_is_learned(
    make_model: Callable[..., Model], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, context: str
) -> None:
    """One word is preferred to another whatever the prompt: held-out pairs get in order."""
    monkeypatch.setattr("daguerre.train.evaluation.VAL_MICRO_BATCHES", 12)
    start = folder_of(make_model, tmp_path / "start", **CONTEXTS[context])
    rows = [{**row, "chosen": "name", "rejected": "value"} for row in some_preferences(60)]
    file = write_rows(tmp_path / "pairs.jsonl", rows)
    optim = replace(RECIPE.optim, muon_lr=0.01, adamw_lr=0.003)
    recipe = replace(RECIPE, steps=16, eval_steps=0, checkpoint_steps=0, optim=optim)
    trainer_of(recipe, tmp_path / "run", start, file).run()
    held = read_columns(tmp_path / "run" / "held.csv")
    assert held["accuracy"][-1] > 0.9 and held["preference"][-1] < 0.6 < held["preference"][0]
    assert daguerre.load(tmp_path / "run" / "model").config.context == context


def test_the_command_trains_resumes_and_says_what_it_brought(start: str, file: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    sets = [word for key in SHORT for word in ("--set", key)]
    runner = CliRunner()
    arguments = ["train", "prefer", "--from", start, "--data", str(file), "--out", str(out), "--device", "cpu"]
    done = runner.invoke(app, [*arguments, *sets])
    assert done.exit_code == 0, done.output
    assert "30 rows: " in done.output and "memory of a step" in done.output
    assert "held-out pairs, loss: 0.693 before, " in done.output and "% in order" in done.output
    assert daguerre.load(out / "model").config.context == "causal"
    again = runner.invoke(app, ["train", "prefer", "--resume", "--out", str(out), "--device", "cpu", *sets])
    assert again.exit_code == 0 and "the budget is spent" in again.output
    saved = json.loads((out / "recipe.json").read_text())
    assert recipe_from_dict(saved).prefer == Prefer()


def test_a_run_without_the_weights_that_it_began_with_is_not_resumed(start: str, file: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run_until(2, trainer_of(RECIPE, out, start, file))
    for damage in ("damaged", "other", "gone"):
        if damage == "damaged":
            (out / FILE).write_bytes(b"x")
        elif damage == "other":
            torch.save({"weight": torch.zeros(2)}, out / FILE)
        else:
            (out / FILE).unlink()
        with pytest.raises(CheckpointError, match=r"reference\.pt"):
            Trainer(RECIPE, out, out / DATA, resume=True, quiet=True)


def test_wrong_data_is_one_line_before_anything_is_written(
    start: str, file: Path, corpus: Path, tmp_path: Path
) -> None:
    answers = write_rows(tmp_path / "answers.jsonl", some_pairs(20))
    usual: dict[str, Any] = {"start_from": start, "overrides": SHORT, "device": "cpu", "quiet": True}
    out = tmp_path / "run"
    for data, message in (
        ([], "say what to train on"),
        ([answers], r"no row of answers.jsonl can be trained on: 20 since its keys .* are none of prompt, chosen and"),
        ([corpus], "has no pairs of answers"),
    ):
        with pytest.raises(DaguerreError, match=message) as caught:
            run_training("prefer", data=data, out=out, **usual)
        assert "\n" not in str(caught.value) and not out.exists()
    run_training("prefer", data=[file], out=out, **usual)
    for recipe in ("sft", "adapt"):
        with pytest.raises(DaguerreError, match="holds pairs of answers: train on it with the recipe prefer"):
            run_training(recipe, data=[out / DATA], out=tmp_path / "other", **usual)
    run_training("sft", data=[answers], out=tmp_path / "sft", **usual)
    with pytest.raises(DaguerreError, match="has no pairs of answers"):
        run_training("prefer", data=[tmp_path / "sft" / DATA], out=tmp_path / "other", **usual)
    with pytest.raises(DaguerreError, match="start it from a model with --from"):
        run_training("prefer", data=[file], out=tmp_path / "other", **{**usual, "start_from": None})


def test_a_recipe_of_preferences_has_nothing_else() -> None:
    for changes in ({"sft": Sft()}, {"draft_head": 8}, {"anneal": 0.5}):
        with pytest.raises(DaguerreError, match="prefer does not read"):
            replace(RECIPE, **changes)  # type: ignore[arg-type]
    with pytest.raises(DaguerreError, match=r"prefer\.bta"):
        load_recipe("prefer", ["prefer.bta=1"])
