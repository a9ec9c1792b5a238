"""Runs that are killed, stopped, starved of disk or fed wrong data: nothing is lost, and what happened is said."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from daguerre.errors import CheckpointError, DataError, InputError, TrainingError
from daguerre.models.loading import load_model, read_extra
from daguerre.models.tokenizer import Tokenizer
from daguerre.train import checkpoint, pretraining, trainer
from daguerre.train.batch import LossReport
from daguerre.train.checkpoint import list_checkpoints, load_checkpoint
from daguerre.train.optim import lr_factor, repeat_factor
from daguerre.train.recipe import Optimization
from daguerre.train.report import CsvLog
from daguerre.train.shards import write_shards
from daguerre.train.stage import Stage
from daguerre.train.trainer import Trainer
from training_runs import RECIPE, SHAPE, STEPS, list_steps, rows, run, train_apart


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
    """Three processes die by SIGKILL: in a step, as a checkpoint is synced, as an old one is cleared."""
    out, said = tmp_path / "run", tmp_path / "said"
    moments = {"in a step": 12, "as a checkpoint is synced": 5, "as an old one is cleared": 2}
    for moment, call in moments.items():
        assert train_apart(RECIPE, out, corpus, moment, call, said) == -signal.SIGKILL, said.read_text()
        assert 0 < list_steps(out)[-1] < STEPS
    run(RECIPE, out, corpus, resume=True)
    assert_same_run(out, reference)
    assert not list((out / "checkpoints").glob(".writing-*"))


def test_a_checkpoint_is_made_once_a_minute_has_passed_since_the_last_and_not_before(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a recipe's own `checkpoint_minutes`. The clock stands still but for what is added after a step."""
    now, taken, saved = 1000.0, {1: 59.0, 2: 1.0, 3: 0.5, 4: 60.0, 5: 0.5}, list[int]()
    monkeypatch.setattr(trainer, "time", SimpleNamespace(monotonic=lambda: now))
    made = Trainer(replace(RECIPE, steps=7, checkpoint_steps=0), tmp_path / "run", corpus, quiet=True)
    save, after_step = made.save, made._after_step

    def watched() -> None:
        saved.append(made.progress.step)
        save()

    def later() -> None:
        nonlocal now
        now += taken.get(made.progress.step, 0.0)
        after_step()

    made.save, made._after_step = watched, later  # type: ignore[method-assign]
    made.run()
    assert saved == [0, 3, 5, 7]  # as it begins, after 60.5 seconds, after 60.5 more, and at the end
    assert list_steps(tmp_path / "run") == [5, 7]


def test_ctrl_c_finishes_the_step_saves_and_exits_with_zero(corpus: Path, reference: Path, tmp_path: Path) -> None:
    out, said = tmp_path / "run", tmp_path / "said"
    recipe = replace(RECIPE, checkpoint_steps=0)
    assert train_apart(recipe, out, corpus, "Ctrl-C", 5, said) == 0, said.read_text()
    assert "stopping after this step" in said.read_text()
    assert "--resume goes on" in said.read_text()
    assert list_steps(out) == [0, 3] and len(rows(out)) == 3
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
    recipe = replace(RECIPE, eval_steps=5, checkpoint_steps=0, checkpoint_minutes=0.0)
    run(recipe, tmp_path / "run", corpus)
    assert_same_run(tmp_path / "run", reference)
    assert [int(row["step"]) for row in rows(tmp_path / "run", "held.csv")] == [5, 10, STEPS]


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


def test_rates_fall_faster_once_the_text_has_been_read_that_often(corpus: Path, tmp_path: Path) -> None:
    optim = Optimization(passes=0.02)
    made = run(replace(RECIPE, steps=6, optim=optim), tmp_path / "run", corpus)
    log = rows(tmp_path / "run")
    passes = [0.0, *(int(row["tokens"]) / made.shard.num_tokens for row in log[:-1])]
    assert passes[1] < optim.passes < passes[3]
    for step, (row, before) in enumerate(zip(log, passes, strict=True)):
        factor = lr_factor(step / 6, optim.warmup, optim.decay) * repeat_factor(before, optim.passes)
        assert float(row["lr_factor"]) == pytest.approx(factor, rel=1e-5)


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
    original, calls = pretraining.batch_loss, iter(range(at))

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
    monkeypatch.setattr(pretraining, "batch_loss", poisoned(9, loss, scale))
    made = Trainer(RECIPE, out, corpus, quiet=True)
    with pytest.raises(TrainingError, match=r"step 5 .*lower optim.muon_lr.*step-00000003 is whole") as caught:
        made.run()
    assert "\n" not in str(caught.value)
    assert all(p.isfinite().all() for p in made.model.parameters())
    assert list_steps(out) == [0, 3]
    assert len(rows(out)) == 4


def test_a_run_that_diverges_in_its_first_step_goes_on_from_where_it_began(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pretraining, "batch_loss", poisoned(0, math.nan, 1.0))
    with pytest.raises(TrainingError, match="--resume: step-00000000 is whole"):
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
    measure = made._measure_before

    def taken_away() -> None:
        shutil.rmtree(tmp_path / "run")
        measure()

    made._measure_before = taken_away  # type: ignore[method-assign]
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


def test_every_write_of_a_run_is_whole_or_absent(reference: Path) -> None:
    left = [p.name for p in reference.rglob("*") if p.name.endswith(".tmp") or p.name.startswith(".writing")]
    assert left == []
    assert json.loads((reference / "recipe.json").read_text())["name"] == "tiny"
    assert os.listdir(reference / "model")
