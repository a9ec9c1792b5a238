"""Runs that are killed, stopped, starved of disk or fed wrong data: nothing is lost, and what happened is said."""

from __future__ import annotations

import csv
import errno
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import tiny_config
from daguerre.errors import CheckpointError, DataError, InputError, MissingExtra, TrainingError, UnsupportedError
from daguerre.models.core.backbone import Backbone
from daguerre.models.loading import load_model, read_extra, save_model
from daguerre.models.tokenizer import Tokenizer
from daguerre.train import checkpoint, report, trainer
from daguerre.train.batch import LossReport
from daguerre.train.checkpoint import list_checkpoints, load_checkpoint
from daguerre.train.drafting import with_draft_head
from daguerre.train.recipe import ModelShape, Recipe, Share, Stage
from daguerre.train.report import CsvLog
from daguerre.train.run import run_training
from daguerre.train.shards import write_shards
from daguerre.train.trainer import Trainer

STEPS = 20
SHAPE = ModelShape(width=32, num_layers=2, num_heads=4, num_kv_heads=2, mlp_width=48, max_positions=64)
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

# Runs a recipe as the command line does. `moment` is where the process kills itself, for real, with SIGKILL: at the
# n-th call of something. Pictures and TensorBoard are left out for speed.
SCRIPT = """
import json, os, signal, shutil, sys
from pathlib import Path
import torch
from daguerre.train import checkpoint, report, trainer
from daguerre.train.recipe import recipe_from_dict

torch.set_num_threads(1)
report._tensorboard = lambda *rest: None
report.draw_curves = lambda run: None
recipe, out, corpus, moment = sys.argv[1:]
places = {"loss": (trainer, "batch_loss"), "sync": (os, "fsync"), "clear": (shutil, "rmtree"), "never": (os, "abort")}
name, calls = moment.split(":")
owner, attribute = places[name]
original, left = getattr(owner, attribute), iter(range(int(calls)))

def limited(*args, **kwargs):
    if next(left, None) is None:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*args, **kwargs)

setattr(owner, attribute, limited)
resume = bool(checkpoint.list_checkpoints(Path(out) / "checkpoints"))
trainer.Trainer(recipe_from_dict(json.loads(recipe)), Path(out), Path(corpus), resume=resume).run()
"""


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pictures and TensorBoard, which have tests of their own."""
    monkeypatch.setattr(report, "draw_curves", lambda run: run)
    monkeypatch.setattr(report, "_tensorboard", lambda *rest: None)


@pytest.fixture(scope="module")
def reference(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody disturbed."""
    out = tmp_path_factory.mktemp("reference") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "draw_curves", lambda run: run)
        patch.setattr(report, "_tensorboard", lambda *rest: None)
        run(RECIPE, out, corpus)
    return out


def run(recipe: Recipe, out: Path, corpus: Path, **options: Any) -> Trainer:
    made = Trainer(recipe, out, corpus, quiet=True, **options)
    assert made.run() == out / "model"
    return made


def start(recipe: Recipe, out: Path, corpus: Path, moment: str = "never:0") -> subprocess.Popen[str]:
    arguments = [json.dumps(asdict(recipe)), str(out), str(corpus), moment]
    return subprocess.Popen([sys.executable, "-c", SCRIPT, *arguments], stderr=subprocess.PIPE, text=True)


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


def wait_for_steps(process: subprocess.Popen[str], out: Path, num: int) -> None:
    until = time.monotonic() + 60
    while len(rows(out)) < num:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < until
        time.sleep(0.005)


def same(a: Any, b: Any) -> bool:
    """Equal bit for bit, through dictionaries and lists."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def assert_same_run(out: Path, reference: Path) -> None:
    """Weights, average, optimizer, the exported model and every logged figure but the times."""
    tensors, state = load_checkpoint(list_checkpoints(out / "checkpoints")[-1])
    expected, expected_state = load_checkpoint(list_checkpoints(reference / "checkpoints")[-1])
    assert same(tensors, expected)
    for key in ("step", "micro", "tokens"):
        assert state["progress"][key] == expected_state["progress"][key]
    weights = "model/model.safetensors"
    assert (out / weights).read_bytes() == (reference / weights).read_bytes()
    timeless = [
        [{k: v for k, v in row.items() if k not in ("minutes", "tokens_per_second")} for row in rows(folder)]
        for folder in (out, reference)
    ]
    assert [int(row["step"]) for row in timeless[0]] == list(range(1, len(timeless[1]) + 1))
    assert timeless[0] == timeless[1]


# ---- killed, stopped, resumed -------------------------------------------------------------------------------------


def test_a_run_killed_at_any_moment_ends_with_the_weights_of_one_never_killed(
    corpus: Path, reference: Path, tmp_path: Path
) -> None:
    """Four processes die by SIGKILL: by surprise, in a step, as a checkpoint is synced, as an old one is cleared."""
    out = tmp_path / "run"
    with start(RECIPE, out, corpus) as process:
        wait_for_steps(process, out, 4)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    for moment in ("loss:11", "sync:4", "clear:2"):
        process = start(RECIPE, out, corpus, moment)
        error = process.communicate(timeout=120)[1]
        assert process.returncode == -signal.SIGKILL, error
        assert 0 < list_steps(out)[-1] < STEPS
    run(RECIPE, out, corpus, resume=True)
    assert_same_run(out, reference)
    assert not list((out / "checkpoints").glob(".writing-*"))


def list_steps(out: Path) -> list[int]:
    return [int(path.name.removeprefix("step-")) for path in list_checkpoints(out / "checkpoints")]


def test_ctrl_c_finishes_the_step_saves_and_exits_with_zero(corpus: Path, reference: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    recipe = replace(RECIPE, checkpoint_steps=0)
    process = start(recipe, out, corpus)
    wait_for_steps(process, out, 2)
    process.send_signal(signal.SIGINT)
    error = process.communicate(timeout=60)[1]
    assert process.returncode == 0, error
    assert "stopping after this step" in error
    assert "--resume goes on" in error
    assert list_steps(out) == [len(rows(out))]
    assert load_model(out / "model")[0].config.width == SHAPE.width
    run(RECIPE, out, corpus, resume=True)
    assert_same_run(out, reference)


def test_a_second_ctrl_c_interrupts_at_once_and_leaves_signals_as_they_were(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGINT)
    made = Trainer(RECIPE, tmp_path / "run", corpus, quiet=True)

    def impatient(*rest: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(made, "_step", impatient)
    with pytest.raises(KeyboardInterrupt):
        made.run()
    assert signal.getsignal(signal.SIGINT) == before


def test_evaluating_and_saving_often_do_not_change_the_weights(corpus: Path, reference: Path, tmp_path: Path) -> None:
    recipe = replace(RECIPE, eval_steps=7, checkpoint_steps=0, checkpoint_minutes=0.0)
    run(recipe, tmp_path / "run", corpus)
    assert_same_run(tmp_path / "run", reference)
    assert [int(row["step"]) for row in rows(tmp_path / "run", "held.csv")] == [7, 14, STEPS]


def test_a_finished_run_that_is_resumed_stays_as_it_was(corpus: Path, reference: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(reference, out)
    run(RECIPE, out, corpus, resume=True)
    assert_same_run(out, reference)
    assert len(rows(out, "held.csv")) == 1


def test_a_damaged_checkpoint_can_be_removed_and_the_one_before_goes_on(
    corpus: Path, reference: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    shutil.copytree(reference, out)
    newest = list_checkpoints(out / "checkpoints")[-1]
    (newest / "tensors.pt").write_bytes((newest / "tensors.pt").read_bytes()[:-5000])
    with pytest.raises(CheckpointError, match=r"damaged.*remove it, and --resume takes the one before"):
        Trainer(RECIPE, out, corpus, resume=True, quiet=True)
    shutil.rmtree(newest)
    run(RECIPE, out, corpus, resume=True)
    assert_same_run(out, reference)


def test_the_average_and_its_count_are_what_is_exported(reference: Path) -> None:
    tensors, state = load_checkpoint(list_checkpoints(reference / "checkpoints")[-1])
    exported = dict(load_model(reference / "model")[0].named_parameters())
    assert state["average_count"] == STEPS
    assert state["progress"]["micro"] == 2 * STEPS
    assert all(torch.equal(exported[n], v.bfloat16().float()) for n, v in tensors["average"].items())
    assert read_extra(reference / "model")["trained"]["step"] == STEPS


# ---- what goes wrong ----------------------------------------------------------------------------------------------


def poisoned(at: int, loss: float, scale: float) -> Callable[..., LossReport]:
    """batch_loss whose call number `at` has this loss, and gradients times `scale`."""
    original, calls = trainer.batch_loss, iter(range(at))

    def made(*args: Any) -> LossReport:
        found = original(*args)
        if next(calls, None) is None:
            return replace(found, loss=found.loss * scale + loss)
        return found

    return made


@pytest.mark.parametrize(("loss", "scale"), [(math.nan, 1.0), (math.inf, 1.0), (0.0, 1e37)])
def test_a_loss_or_gradient_that_is_no_number_stops_the_run_before_it_reaches_the_weights(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss: float, scale: float
) -> None:
    out = tmp_path / "run"
    monkeypatch.setattr(trainer, "batch_loss", poisoned(9, loss, scale))
    made = Trainer(RECIPE, out, corpus, quiet=True)
    with pytest.raises(TrainingError, match=r"step 5 .*lower optim.muon_lr.*step-00000003 is whole") as caught:
        made.run()
    assert "\n" not in str(caught.value)
    assert all(p.isfinite().all() for p in made.model.parameters())
    assert list_steps(out) == [3]
    assert len(rows(out)) == 4


def test_a_run_that_diverges_before_its_first_checkpoint_does_not_speak_of_one(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "batch_loss", poisoned(0, math.nan, 1.0))
    with pytest.raises(TrainingError, match="start again: nothing was saved yet"):
        Trainer(RECIPE, tmp_path / "run", corpus, quiet=True).run()


def test_a_full_disk_stops_the_run_with_one_error_and_it_can_go_on(
    corpus: Path, reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        calls = iter(range(7))
        original = CsvLog.write

        def write(log: CsvLog, row: dict[str, Any]) -> None:
            if next(calls, None) is None:
                raise OSError(errno.ENOSPC, "No space left on device")
            original(log, row)

        patch.setattr(CsvLog, "write", write)
        with pytest.raises(TrainingError, match=r"disk is full.*--resume"):
            Trainer(RECIPE, out, corpus, quiet=True).run()
    with monkeypatch.context() as patch:

        def full(*rest: Any, **options: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr(checkpoint.torch, "save", full)
        with pytest.raises(TrainingError, match=r"disk is full.*--resume"):
            Trainer(RECIPE, out, corpus, resume=True, quiet=True).run()
    assert list_steps(out) == [3, 6]
    run(RECIPE, out, corpus, resume=True)
    assert_same_run(out, reference)


def test_a_run_whose_folder_is_taken_away_stops_with_one_error(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Trainer(RECIPE, tmp_path / "run", corpus, quiet=True)
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(TrainingError, match=r"cannot be written.*No such file") as caught:
        made.run()
    assert "\n" not in str(caught.value)


def test_data_of_another_tokenizer_is_an_error_before_anything_is_written(tmp_path: Path) -> None:
    corpus, out = tmp_path / "corpus", tmp_path / "run"
    write_shards(corpus, {"train": ["x = 1\n"], "val": []}, Tokenizer.default("8k"))
    with pytest.raises(DataError, match="another vocabulary"):
        Trainer(RECIPE, out, corpus, quiet=True)
    assert not out.exists()


def test_a_folder_with_a_run_is_neither_overwritten_nor_resumed_without_a_word(
    corpus: Path, reference: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="holds a run already: pass --resume"):
        Trainer(RECIPE, reference, corpus, quiet=True)
    with pytest.raises(InputError, match="no checkpoint to resume"):
        Trainer(RECIPE, tmp_path / "none", corpus, resume=True, quiet=True)


def test_a_run_is_not_resumed_with_another_model(corpus: Path, reference: Path) -> None:
    for shape in (replace(SHAPE, num_layers=1), replace(SHAPE, mlp_width=64)):
        with pytest.raises(CheckpointError, match="another model than the recipe"):
            Trainer(replace(RECIPE, model=shape), reference, corpus, resume=True, quiet=True)


def test_windows_longer_than_the_context_are_an_error(corpus: Path, tmp_path: Path) -> None:
    stage = Stage(until=1.0, length=65, sequences=1, micro_batches=1)
    with pytest.raises(InputError, match="windows of 65 tokens, the model's context is 64"):
        Trainer(replace(RECIPE, stages=(stage,)), tmp_path / "run", corpus, quiet=True)


# ---- starting from a model ----------------------------------------------------------------------------------------

ADAPT = replace(RECIPE, model=None, steps=3, checkpoint_steps=1)
OLD_FIELDS = (
    "vocab_size width num_layers num_heads num_kv_heads mlp_width max_positions mask_id eos_id bos_id pad_id null_id "
    "context shift block_size process time_input draft_head norm_eps rope_theta"
).split()
"""Fields of a config that version 0.1 wrote."""


def test_a_run_from_a_model_trains_all_of_it_and_resumes_without_naming_it_again(
    corpus: Path, reference: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    made = run(ADAPT, out, corpus, start_from=str(reference / "model"))
    begun = dict(load_model(reference / "model")[0].named_parameters())
    assert all(p.requires_grad for p in made.model.parameters())
    assert not any(torch.equal(begun[n], p) for n, p in made.model.named_parameters())
    other = tmp_path / "other"
    run(replace(ADAPT, steps=2), other, corpus, start_from=str(reference / "model"))
    resumed = run(ADAPT, other, corpus, resume=True)
    assert resumed.progress.step == 3
    assert resumed.model.config == made.model.config


def test_a_run_resumes_with_the_draft_head_and_the_gap_filler_of_the_model_it_came_from(
    corpus: Path, reference: Path, tmp_path: Path
) -> None:
    backbone, tokenizer = load_model(reference / "model", dtype=torch.float32)
    start = with_draft_head(backbone, 8, seed=1)
    save_model(tmp_path / "model", start, tokenizer, dtype=torch.float32)
    mixture = {"next_token": Share(share=1.0, layout="next_token")}
    out, recipe = tmp_path / "run", replace(RECIPE, steps=3, checkpoint_steps=1, mixture=mixture)
    run(replace(recipe, steps=2), out, corpus, start_from=str(tmp_path / "model"))
    resumed = run(recipe, out, corpus, resume=True)
    assert resumed.progress.step == 3
    assert resumed.model.config == start.config
    assert start.config.null_id is not None
    for (name, old), new in zip(start.named_parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(old, new) == name.startswith("draft_head"), name


def test_a_model_that_the_objectives_do_not_fit_is_refused(corpus: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"context": "full"}, "its layouts are full, full_suffix"),
        ({"context": "block", "shift": False, "block_size": 8}, "its layouts are bd3"),
        ({"null_id": None}, "no gap filler"),
    ]
    for facts, message in wrong:
        save_model(tmp_path / "model", Backbone(tiny_config(tokenizer, **facts)).initialize(0), tokenizer)
        with pytest.raises(UnsupportedError, match=message):
            Trainer(ADAPT, tmp_path / "run", corpus, start_from=str(tmp_path / "model"), quiet=True)


def test_a_run_of_an_earlier_version_goes_on(corpus: Path, reference: Path, tmp_path: Path) -> None:
    """Its config counts the reserved ids and has a family, its recipe other names, its Muon is PyTorch's."""
    out, whole = tmp_path / "run", tmp_path / "whole"
    run(ADAPT, whole, corpus, start_from=str(reference / "model"))
    run_until(2, Trainer(ADAPT, out, corpus, start_from=str(reference / "model"), quiet=True))
    state_file = list_checkpoints(out / "checkpoints")[-1] / "state.json"
    state = json.loads(state_file.read_text())
    model = {key: state["model"][key] for key in OLD_FIELDS} | {"num_reserved": 16, "family": "daguerre"}
    recipe = state["recipe"] | {"backend": state["recipe"].pop("attn_impl"), "model": None}
    state_file.write_text(json.dumps(state | {"model": model, "recipe": recipe}))
    (out / "recipe.json").write_text(json.dumps(recipe))
    tensors_file = state_file.with_name("tensors.pt")
    tensors = torch.load(tensors_file)
    muon = tensors["optimizer"][0]
    assert muon["param_groups"][0].keys() >= {"lr", "momentum", "weight_decay", "params"}
    theirs = torch.optim.Muon([torch.nn.Parameter(torch.zeros(2, 2))]).state_dict()["param_groups"][0]
    muon["param_groups"] = [theirs | group for group in muon["param_groups"]]
    torch.save(tensors, tensors_file)
    run_training(None, out=out, resume=True, quiet=True, device="cpu")
    assert list_steps(out)[-1] == 3
    weights = "model/model.safetensors"
    assert (out / weights).read_bytes() == (whole / weights).read_bytes()


# ---- what a run reports-------------------------------------------------------------------------------------------


def test_without_matplotlib_training_works_and_says_once_how_to_get_pictures(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(folder: Path) -> Path:
        raise MissingExtra("matplotlib", "train")

    monkeypatch.setattr(report, "draw_curves", missing)
    Trainer(replace(RECIPE, steps=4, eval_steps=1), tmp_path / "run", corpus).run()
    assert capsys.readouterr().err.count("pip install 'daguerre[train]'") == 1


def test_without_tensorboard_training_works_and_says_once_how_to_get_it(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(report, "draw_curves", lambda run: run)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    Trainer(replace(RECIPE, steps=4, eval_steps=1), tmp_path / "run", corpus).run()
    printed = capsys.readouterr().err
    assert (
        printed.count("no TensorBoard events: tensorboard is not installed: run `pip install 'daguerre[train]'`") == 1
    )
    assert "held out at step 4" in printed


def test_a_run_writes_tensorboard_events_and_a_picture(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("tensorboard")
    monkeypatch.undo()
    run(replace(RECIPE, steps=2), tmp_path / "run", corpus)
    assert (tmp_path / "run" / "curves.png").stat().st_size > 1000
    assert list((tmp_path / "run" / "tensorboard").glob("events*"))


def test_a_log_drops_rows_behind_the_resumed_step_and_half_a_row(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    log = CsvLog(path, 0)
    for step in (1, 2, 30):
        log.write({"step": step, "loss": step / 3})
    with path.open("a") as file:
        file.write("1,0.3")
    resumed = CsvLog(path, 2)
    resumed.write({"step": 2, "loss": 9.0})
    resumed.write({"step": 3, "loss": 1.0})
    assert path.read_text() == "step,loss\n1,0.333333\n2,0.666667\n3,1\n"


def test_a_log_of_a_run_without_a_checkpoint_begins_again(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    CsvLog(path, 0).write({"step": 1, "loss": 0.5})
    again = CsvLog(path, 0)
    again.write({"step": 1, "loss": 0.25})
    assert path.read_text() == "step,loss\n1,0.25\n"
    path.write_text("ste")
    CsvLog(path, 0).write({"step": 1, "loss": 0.125})
    assert path.read_text() == "step,loss\n1,0.125\n"


def test_every_write_of_a_run_is_whole_or_absent(reference: Path) -> None:
    left = [p.name for p in reference.rglob("*") if p.name.endswith(".tmp") or p.name.startswith(".writing")]
    assert left == []
    assert json.loads((reference / "recipe.json").read_text())["name"] == "tiny"
    assert os.listdir(reference / "model")


def test_a_corpus_without_validation_documents_can_be_trained_on_and_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = Path(json.__file__).read_text()
    write_shards(tmp_path / "data", {"train": [text], "val": []}, Tokenizer.default("2k"))
    Trainer(replace(RECIPE, steps=2), tmp_path / "run", tmp_path / "data").run()
    assert "no validation split" in capfd.readouterr().err
