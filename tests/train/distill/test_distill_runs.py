"""Whole runs of `train distill`: every context and method, killed and resumed, adapters, errors, the command line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import daguerre
from answers import RECIPE, some_pairs, write_rows
from daguerre.cli import app
from daguerre.errors import DaguerreError
from daguerre.model import Model
from daguerre.models.loading import save_model
from daguerre.train.convert import Convert
from daguerre.train.distill.options import Distill
from daguerre.train.run import DATA, CopiedAnswers, run_training
from daguerre.train.sft.presets import Sft
from daguerre.train.trainer import Trainer
from training_runs import rows, run_until

MakeModel = Callable[..., Model]
SHORT = [
    *("steps=3", "minutes=0", "precision=float32", "stages.0.length=64", "stages.0.sequences=2"),
    *("checkpoint_steps=1", "eval_steps=0"),
]
FACTS: dict[str, dict[str, Any]] = {
    "causal": {},
    "full": {"context": "full", "shift": False},
    "block": {"context": "block", "shift": False, "block_size": 8},
}
ROUNDS = {"sdtt": {"rounds": 2}, "trajectories": {"states": 2, "rounds": 2}, "on_policy": {"steps": 3, "rollouts": 2}}


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "pairs.jsonl", some_pairs(30))


def folder_of(model: Model, out: Path) -> str:
    return str(save_model(out, model.backbone, model.tokenizer))


@pytest.mark.parametrize(("name", "method"), [("causal", "sdtt"), ("full", "trajectories"), ("block", "on_policy")])
def test_a_run_that_was_stopped_ends_as_one_that_was_not(
    make_model: MakeModel, pairs: Path, tmp_path: Path, name: str, method: str
) -> None:
    """The second half of it has another teacher, which the checkpoint holds."""
    start = folder_of(make_model(**FACTS[name]), tmp_path / "start")
    options = Distill(method=method, threshold=0.5, **ROUNDS[method])  # type: ignore[arg-type]
    few = {"stages": (replace(RECIPE.stages[0], micro_batches=1),), "steps": 4, "eval_steps": 0, "checkpoint_steps": 1}
    recipe = replace(RECIPE, model=None, sft=Sft(), distill=options, **few)  # type: ignore[arg-type]

    def files(out: Path) -> CopiedAnswers:
        return CopiedAnswers([pairs], out / DATA, 64, 0.1)

    whole, out = tmp_path / "whole", tmp_path / "run"
    Trainer(recipe, whole, files(whole), start_from=start, quiet=True).run()
    run_until(3, Trainer(recipe, out, files(out), start_from=start, quiet=True))
    Trainer(recipe, out, out / DATA, resume=True, quiet=True).run()
    weights = "model/model.safetensors"
    assert (out / weights).read_bytes() == (whole / weights).read_bytes()
    assert (out / weights).read_bytes() != (Path(start) / "model.safetensors").read_bytes()
    assert [row["loss"] for row in rows(out)] == [row["loss"] for row in rows(whole)]
    held = rows(whole, "held.csv")
    assert 0 <= float(held[-1]["exact"]) <= 1 <= float(held[-1]["forwards"])


def test_the_command_line_trains_an_adapter_and_resumes_it(
    make_model: MakeModel, pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    start = folder_of(make_model(**FACTS["full"]), tmp_path / "start")
    changes = [*SHORT, "lora.rank=2", "distill.rounds=3", "train=[]"]
    sets = [word for change in changes for word in ("--set", change)]
    first = CliRunner().invoke(
        app, ["train", "distill", "--from", start, "--data", str(pairs), "--device", "cpu", "--out", "run", *sets]
    )
    assert first.exit_code == 0, first.output
    assert (tmp_path / "run" / "adapter").is_dir()
    assert len(rows(tmp_path / "run")) == 3
    again = CliRunner().invoke(app, ["train", "--resume", "--out", "run", "--device", "cpu"])
    assert again.exit_code == 0, again.output


def test_chosen_weights_alone_change(make_model: MakeModel, pairs: Path, tmp_path: Path) -> None:
    start = folder_of(make_model(**FACTS["full"]), tmp_path / "start")
    out = run_training(
        "distill",
        start_from=start,
        data=[pairs],
        out=tmp_path / "run",
        overrides=[*SHORT, 'train=["layers.1"]'],
        device="cpu",
        quiet=True,
    )
    before, after = (dict(daguerre.load(str(f)).backbone.named_parameters()) for f in (start, out))
    changed = {name for name, weight in after.items() if not bool((weight == before[name]).all())}
    assert changed and all(name.startswith("layers.1.") for name in changed)


def test_what_does_not_fit_is_one_line_before_anything_is_written(
    make_model: MakeModel, pairs: Path, tmp_path: Path
) -> None:
    distill = Distill()
    for changes, message in (
        ({"sft": None}, r"\[distill\] needs \[sft\]"),
        ({}, "leave out model"),
        ({"model": None, "convert": Convert(to="sdar")}, "leave out convert"),
        ({"model": None, "sft": Sft(times="uniform")}, "leave out sft.times"),
        ({"model": None, "sft": Sft(clean=0.5)}, "leave out sft.clean"),
        ({"model": None, "stages": (replace(RECIPE.stages[0], corruption="edit"),)}, "leave out stages.0.corruption"),
    ):
        with pytest.raises(DaguerreError, match=message):
            replace(RECIPE, distill=distill, **changes)  # type: ignore[arg-type]
    for wrong, message in (
        ({"method": "stdd"}, "sdtt"),
        ({"policy": "chain"}, "distill.policy"),
        ({"threshold": 0.0}, "distill.threshold must be above 0 and at most 1"),
        ({"noise": (0.5,)}, "distill.noise must be 2 numbers"),
        ({"window": (0.0, 1.0)}, "distill.window must be 2 numbers"),
        ({"rollouts": 1}, "rollouts must be at least 2"),
        ({"curriculum": 0.0}, "distill.curriculum"),
    ):
        with pytest.raises(DaguerreError, match=message):
            Distill(**wrong)  # type: ignore[arg-type]
    usual: dict[str, Any] = {"data": [pairs], "out": tmp_path / "run", "device": "cpu", "quiet": True}
    cases: tuple[tuple[dict[str, Any], list[str], str], ...] = (
        ({"context": "full", "shift": False, "time_input": True}, [], "told no time"),
        ({"mask_id": None}, [], "writes from left to right alone"),
        ({}, ["sft.preset=ar"], "loss 'ar' has none"),
        ({"context": "reordered", "shift": False}, [], "reordered context"),
    )
    for index, (facts, more, message) in enumerate(cases):
        start = folder_of(make_model(**facts), tmp_path / str(index))
        with pytest.raises(DaguerreError, match=message) as caught:
            run_training("distill", start_from=start, overrides=[*SHORT, *more], **usual)
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "run").exists()
    with pytest.raises(DaguerreError, match="no \\[model\\]: start it from a model with --from"):
        run_training("distill", overrides=SHORT, **usual)
