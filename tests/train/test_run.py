"""`daguerre train` before its first step: everything is checked, then the data is written; nothing there is lost."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from daguerre.errors import CheckpointError, DaguerreError, DataError, InputError, TrainingError, UnsupportedError
from daguerre.model import Model
from daguerre.models.core.backbone import Backbone
from daguerre.models.loading import load_model, save_model
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.checkpoint import list_checkpoints, load_state
from daguerre.train.figures import HeldFigures
from daguerre.train.monitor import HeldOut
from daguerre.train.objectives import Objective
from daguerre.train.recipe import Recipe, load_recipe
from daguerre.train.run import run_training
from daguerre.train.shards import write_shards
from daguerre.train.trainer import Trainer
from training_runs import list_steps, rows

TINY = ["steps=2", "precision=float32", "stages.0.length=32", "stages.0.sequences=1"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_source(tmp_path / "source", "value")


def write_source(folder: Path, name: str) -> Path:
    folder.mkdir()
    for i in range(3):
        lines = [f"def {name}_{i}_{j}({name}):\n    return {name} + {j}\n" for j in range(12)]
        (folder / f"m{i}.py").write_text("\n\n".join(lines))
    return folder


def adapt(start: str, data: Path | None, out: Path, **options: Any) -> Path:
    return run_training(None, start_from=start, data=data, out=out, overrides=TINY, quiet=True, device="cpu", **options)


def resume(out: Path, **options: Any) -> Path:
    return run_training(None, out=out, resume=True, quiet=True, device="cpu", **options)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_refused_run_leaves_the_one_that_is_there_as_it_was(start: str, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    adapt(start, source, out)
    before = contents(out)
    with pytest.raises(InputError, match="holds a run already"):
        adapt(start, write_source(tmp_path / "other", "different"), out)
    assert contents(out) == before


def test_what_is_wrong_is_said_before_anything_is_written(start: str, source: Path, tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"device": "abacus"}, "device 'abacus' cannot be used"),
        ({"device": "meta"}, "device 'meta' cannot be used"),
        ({"start_from": None}, "start it from a model with --from"),
        ({"overrides": ["optim.muon_lrr=1"]}, "muon_lr"),
        ({"overrides": ["stages.0.length=65"]}, "the model's context is 64"),
        ({"resume": True}, "no checkpoint to resume"),
        ({"max_minutes": 0.0}, "must be positive"),
        ({"recipe_name": "small"}, r"recipe has model.width = 256, the model to start from 32"),
    ]
    usual = {"recipe_name": "adapt", "start_from": start, "data": source, "device": "cpu", "overrides": TINY}
    for options, message in cases:
        with pytest.raises(DaguerreError, match=message) as caught:
            run_training(**usual | {"out": tmp_path / "run"} | options)
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "run").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_a_cuda_device_that_is_not_here_is_one_error(start: str, source: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="device 'cuda' cannot be used"):
        run_training("adapt", start_from=start, data=source, device="cuda", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_model_that_cannot_be_trained_is_refused_before_anything_is_written(
    make_model: Callable[..., Model], source: Path, tmp_path: Path
) -> None:
    for context, message in (("full", "full context"), ("reordered", "no layout of training has reordered")):
        model = make_model(context=context, shift=context == "full")
        folder = save_model(tmp_path / context, model.backbone, model.tokenizer)
        with pytest.raises(UnsupportedError, match=message):
            adapt(str(folder), source, tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_a_file_where_the_run_should_be_is_one_error(start: str, source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="is a file: give --out a folder"):
        adapt(start, source, tmp_path / "file")
    with pytest.raises(TrainingError, match="cannot write a run"):
        adapt(start, source, tmp_path / "file" / "run")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_recipe_with_a_model_of_the_same_shape_may_start_from_it(start: str, corpus: Path, tmp_path: Path) -> None:
    config = load_model(start)[0].config
    names = ("width", "num_layers", "num_heads", "num_kv_heads", "mlp_width", "max_positions")
    overrides = [*TINY, "stages.1.length=32", "stages.1.sequences=1"]
    overrides += [f"model.{name}={getattr(config, name)}" for name in names]
    options: dict[str, Any] = {"start_from": start, "data": corpus, "quiet": True, "device": "cpu"}
    run_training("small", overrides=overrides, out=tmp_path / "run", **options)
    with pytest.raises(InputError, match="recipe has tokenizer = '8k', the model to start from another"):
        run_training("small", overrides=[*overrides, "tokenizer=8k"], out=tmp_path / "other", **options)
    assert not (tmp_path / "other").exists()


# ---- going on -----------------------------------------------------------------------------------------------------


def test_a_run_on_a_corpus_goes_on_without_naming_it(start: str, corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    adapt(start, corpus, out)
    resume(out)
    assert load_state(list_checkpoints(out / "checkpoints")[-1])["data"]["path"] == str(corpus.resolve())
    assert not (out / "data").exists()


def test_a_corpus_that_has_moved_is_missed_and_another_is_refused(start: str, corpus: Path, tmp_path: Path) -> None:
    out, place, other = tmp_path / "run", tmp_path / "corpus", tmp_path / "other"
    shutil.copytree(corpus, place)
    adapt(start, place, out)
    adapt(start, write_source(tmp_path / "source", "x"), other)
    before = contents(out)
    with pytest.raises(DataError, match=r"is not what .*step-00000002 was trained on"):
        resume(out, data=other / "data")
    with pytest.raises(InputError, match="has not been trained on"):
        resume(out, data=tmp_path / "source")
    with pytest.raises(DataError, match="no such folder"):
        resume(out, data=tmp_path / "nowhere")
    assert contents(out) == before
    place.rename(tmp_path / "moved")
    with pytest.raises(DataError, match=r"data of this run is not at .*corpus: say where it is with --data"):
        resume(out)
    resume(out, data=tmp_path / "moved")


def test_a_run_on_a_folder_of_source_goes_on_with_its_own_copy(start: str, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    adapt(start, source, out)
    (source / "m0.py").unlink()
    out.rename(tmp_path / "moved")
    resume(tmp_path / "moved")
    resume(tmp_path / "moved", data=source)
    with pytest.raises(InputError, match="has not been trained on"):
        resume(tmp_path / "moved", data=write_source(tmp_path / "other", "different"))


def again(start: str, source: Path, out: Path) -> None:
    """The command of `adapt` with --resume, as after a kill."""
    given: dict[str, Any] = {"start_from": start, "data": source, "out": out, "resume": True, "device": "cpu"}
    run_training("adapt", overrides=TINY, quiet=True, **given)


def test_a_run_killed_while_its_data_is_cached_begins_again(start: str, source: Path, tmp_path: Path) -> None:
    """What was written of the data is not read; a copy that is whole is not made again."""
    out = tmp_path / "run"
    (out / "data").mkdir(parents=True)
    (out / "data" / "manifest.jsonl").write_text("half a li")
    (out / "data" / "train.bin").write_bytes(b"half")
    again(start, source, out)
    made = (out / "data" / "train.bin").stat().st_mtime_ns
    shutil.rmtree(out / "checkpoints")
    (source / "m9.py").write_text("x = 1\n" * 20)
    again(start, source, out)
    assert (out / "data" / "train.bin").stat().st_mtime_ns == made
    assert [row["step"] for row in rows(out, "held.csv")] == ["0", "2"]


def test_a_run_killed_after_it_was_measured_is_not_measured_again(
    start: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, evaluate = tmp_path / "run", HeldFigures.evaluate

    def killed(self: Trainer) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_forecast", killed)
        with pytest.raises(KeyboardInterrupt):
            adapt(start, source, out)
    assert list_steps(out) == [0]
    measured = list[int]()

    def counted(self: HeldFigures) -> HeldOut:
        measured.append(self.budget.progress.step)
        return evaluate(self)

    monkeypatch.setattr(HeldFigures, "evaluate", counted)
    resume(out)
    assert measured == [2]
    assert [row["step"] for row in rows(out, "held.csv")] == ["0", "2"]


def test_reading_a_folder_ends_with_its_share_of_the_budget(
    start: str, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A clock that goes on by a minute whenever it is read: a sixth of five minutes is over after one file."""
    clock = itertools.count(0.0, 60.0)
    options: dict[str, Any] = {"max_minutes": 5.0, "device": "cpu", "overrides": TINY}
    with pytest.raises(TrainingError, match="too short for a step"):
        run_training("adapt", start_from=start, data=source, out=tmp_path / "run", clock=lambda: next(clock), **options)
    assert "the budget has no time to read all files: 2 are left out" in capsys.readouterr().err
    assert len((tmp_path / "run" / "data" / "manifest.jsonl").read_text().splitlines()) == 1


def test_a_folder_without_a_run_is_said_to_have_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no run to resume at"):
        resume(tmp_path)
    with pytest.raises(InputError, match="no checkpoint to resume"):
        run_training("small", out=tmp_path, resume=True)
    (tmp_path / "recipe.json").write_text(json.dumps(asdict(load_recipe("small"))))
    with pytest.raises(InputError, match="no checkpoint to resume"):
        resume(tmp_path)


def test_a_resumed_run_says_which_settings_have_changed(
    start: str, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    place: dict[str, Any] = {"out": out, "device": "cpu"}
    run_training(None, start_from=start, data=source, overrides=[*TINY, "optim.clip=0.5"], quiet=True, **place)
    run_training(None, resume=True, **place)
    assert "setting changed" not in capsys.readouterr().err
    run_training(None, resume=True, overrides=["steps=3"], **place)
    changes = [line for line in capsys.readouterr().err.splitlines() if "setting changed" in line]
    assert changes == ["setting changed: steps 2 -> 3"]
    assert list_steps(out)[-1] == 3
    run_training("adapt", resume=True, overrides=[*TINY, "steps=4"], **place)
    changes = [line for line in capsys.readouterr().err.splitlines() if "setting changed" in line]
    assert changes == ["setting changed: optim.clip 0.5 -> 1.0", "setting changed: steps 3 -> 4"]
    with pytest.raises(InputError, match="stepz"):
        resume(out, overrides=["stepz=3"])


def test_a_damaged_recipe_is_one_error(start: str, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    adapt(start, source, out)
    for content in (b"{", b"[]", b"[1]", b"\xff", b"{}", b'{"mixture": [1]}'):
        (out / "recipe.json").write_bytes(content)
        with pytest.raises(CheckpointError, match="is damaged") as caught:
            resume(out)
        assert "\n" not in str(caught.value)


def test_a_damaged_state_is_one_error(start: str, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    adapt(start, source, out)
    (list_checkpoints(out / "checkpoints")[-1] / "state.json").write_text("[")
    with pytest.raises(CheckpointError, match=r"is damaged.*takes the one before"):
        resume(out)


def test_a_folder_without_python_is_refused_by_the_name_of_its_option(start: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="pass --data with a folder of Python files"):
        adapt(start, tmp_path / "empty", tmp_path / "run")
    assert not (tmp_path / "run").exists()


# ---- the recipes --------------------------------------------------------------------------------------------------

SHAPE = {"width": 32, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "mlp_width": 48, "max_positions": 64}


@pytest.mark.parametrize("name", ["small", "refine", "full"])
def test_a_recipe_trains_through_its_stages_with_all_its_objectives(name: str, tmp_path: Path, preloaded: None) -> None:
    """As it is in the file, but for the shape, the lengths, the number of sequences, the budget and the loaders."""
    recipe = load_recipe(name)
    texts = [Path(module.__file__).read_text() for module in (json, shutil)]
    write_shards(tmp_path / "data", {"train": texts, "val": texts[:1]}, Tokenizer.default(recipe.tokenizer))
    steps = steps_until_all_are_drawn(recipe)
    overrides = [f"steps={steps}", "stages.0.length=32", "stages.1.length=64"]
    overrides += ["stages.0.sequences=1", "stages.1.sequences=1"]
    overrides += [f"model.{key}={value}" for key, value in SHAPE.items()]
    overrides += ["loaders=1"] if recipe.loaders else []
    out = run_training(name, overrides=overrides, data=tmp_path / "data", out=tmp_path / "run", quiet=True)
    long = sum(step / steps >= recipe.stages[0].until for step in range(steps))
    assert lengths(tmp_path / "run") == [32] * (steps - long) + [64] * long
    assert set(recipe.mixture) >= {"drafts", "blocks", "canvas", "infill", "suffix"}
    backbone, tokenizer = load_model(out)
    assert tokenizer == Tokenizer.default(recipe.tokenizer)
    assert all(p.isfinite().all() for p in backbone.parameters())


@pytest.mark.parametrize("name", ["longer", "settle"])
def test_a_recipe_of_longer_training_goes_on_from_a_model_with_all_its_objectives(
    name: str, start: str, tmp_path: Path
) -> None:
    """As it is in the file, but for the shape, the length, the number of sequences, the budget and compiling."""
    recipe = load_recipe(name)
    texts = [Path(module.__file__).read_text() for module in (json, shutil)]
    write_shards(tmp_path / "data", {"train": texts, "val": texts[:1]}, Tokenizer.default(recipe.tokenizer))
    steps = steps_until_all_are_drawn(recipe)
    config = load_model(start)[0].config
    overrides = [f"steps={steps}", "stages.0.length=64", "stages.0.sequences=1", "compile=false"]
    overrides += [f"model.{key}={getattr(config, key)}" for key in SHAPE]
    out = run_training(
        name, start_from=start, overrides=overrides, data=tmp_path / "data", out=tmp_path / "run", quiet=True
    )
    assert lengths(tmp_path / "run") == [64] * steps
    backbone, _ = load_model(out)
    assert backbone.config == config
    assert all(p.isfinite().all() for p in backbone.parameters())


def steps_until_all_are_drawn(recipe: Recipe) -> int:
    mixture, drawn = recipe.make_mixture(), set[Objective]()
    for index in range(200):
        drawn.add(mixture.pick(index))
        if len(drawn) == len(recipe.mixture):
            return index // recipe.stages[0].micro_batches + 1
    raise AssertionError


def lengths(run: Path) -> list[int]:
    """The length of each step's windows."""
    return [int(row.split(",")[3]) for row in (run / "log.csv").read_text().splitlines()[1:]]


def test_the_full_recipe_is_what_its_header_says() -> None:
    recipe = load_recipe("full")
    with torch.device("meta"):
        backbone = Backbone(recipe.model_config(Tokenizer.default(recipe.tokenizer)))
    assert round(backbone.num_parameters / 1e6, 1) == 26.7
    assert (recipe.tokenizer, recipe.attn_impl, len(recipe.stages), len(recipe.mixture)) == ("8k", "sdpa", 2, 5)


def test_the_adapt_recipe_goes_on_from_a_model_with_all_its_objectives(
    start: str, source: Path, tmp_path: Path
) -> None:
    steps = steps_until_all_are_drawn(load_recipe("adapt"))
    overrides = [f"steps={steps}", "stages.0.length=64", "stages.0.sequences=1"]
    run_training(None, start_from=start, data=source, overrides=overrides, out=tmp_path / "run", quiet=True)
    assert lengths(tmp_path / "run") == [64] * steps
