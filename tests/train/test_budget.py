"""Budgets in minutes: every phase counts, a run ends on time, and says in which type it multiplies."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from daguerre.errors import TrainingError
from daguerre.models.core.config import ModelConfig
from daguerre.models.loading import load_model
from daguerre.models.tokenizer import Tokenizer
from daguerre.train import figures, precision, pretraining, report, trained_model
from daguerre.train import run as command
from daguerre.train.batch import Batch, LossReport, batch_loss
from daguerre.train.budget import EVALUATION, STEP, RunBudget, RunProgress
from daguerre.train.evaluation import Evaluation
from daguerre.train.monitor import HeldOut
from daguerre.train.recipe import Recipe, Share, TrainedShape
from daguerre.train.stage import Stage
from daguerre.train.trainer import Trainer
from training_runs import list_steps

RECIPE = Recipe(
    name="tiny",
    tokenizer="2k",
    model=TrainedShape(width=16, num_layers=1, num_heads=2, num_kv_heads=1, mlp_width=16, max_positions=64),
    mixture={"blocks": Share(share=1.0, layout="blocks")},
    stages=(
        Stage(until=0.6, length=32, sequences=2, micro_batches=2),
        Stage(until=1.0, length=48, sequences=1, micro_batches=2),
    ),
    minutes=5.0,
    precision="float32",
    eval_steps=0,
)


class Machine:
    """A clock that only work moves, in seconds. A row of training takes `row`, one of an evaluation a third of that
    times `surprise`; every other phase takes `other`. At `ctrl_c` the user interrupts the run, once.
    """

    def __init__(self) -> None:
        self.now, self.row, self.other, self.surprise = 1000.0, 0.0, 0.0, 1.0
        self.ctrl_c = float("inf")

    def __call__(self) -> float:
        return self.now

    def after(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, taking `other` seconds."""

        def slow(*args: Any, **options: Any) -> Any:
            self.now += self.other
            return function(*args, **options)

        return slow

    def loss(self, model: Any, batch: Batch, attn_impl: str) -> LossReport:
        if torch.is_grad_enabled():
            self.now += self.row * batch.tokens.numel()
        if self.now >= self.ctrl_c:
            self.ctrl_c = float("inf")
            signal.raise_signal(signal.SIGINT)
        return batch_loss(model, batch, attn_impl)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made, measure = Machine(), Evaluation.measure

    def slowly(found: Evaluation, *args: Any) -> HeldOut:
        made.now += made.surprise * made.row * found.num_rows / 3
        return measure(found, *args)

    monkeypatch.setattr(pretraining, "batch_loss", made.loss)
    monkeypatch.setattr(Evaluation, "measure", slowly)
    monkeypatch.setattr(trained_model, "save_checkpoint", made.after(trained_model.save_checkpoint))
    monkeypatch.setattr(trained_model, "write_model", made.after(trained_model.write_model))
    monkeypatch.setattr(report, "draw_curves", made.after(lambda run: run))
    return made


def rows(out: Path, name: str, column: str) -> list[float]:
    header, *lines = (out / name).read_text().splitlines()
    index = header.split(",").index(column)
    return [float(line.split(",")[index]) for line in lines]


def run(recipe: Recipe, out: Path, corpus: Path, clock: Machine, **options: Any) -> Trainer:
    def data(tokenizer: Tokenizer, config: ModelConfig) -> Path:  # tokenizing a folder of source
        clock.now += clock.other
        return corpus

    began = clock.now
    clock.now += clock.other  # loading PyTorch
    place = corpus if options.get("resume") else data
    made = Trainer(recipe, out, place, quiet=True, clock=clock, began=began, **options)
    made.run()
    return made


@pytest.mark.parametrize(
    ("row", "other", "surprise", "eval_steps", "adapts"),
    [(0.04, 0.2, 1.0, 10, True), (0.05, 1.0, 1.4, 0, False), (0.05, 4.0, 0.7, 9, False), (0.1, 2.0, 1.0, 0, True)],
)
def test_a_run_ends_within_a_tenth_of_its_minutes_on_any_machine(
    corpus: Path,
    start: str,
    tmp_path: Path,
    machine: Machine,
    row: float,
    other: float,
    surprise: float,
    eval_steps: int,
    adapts: bool,
) -> None:
    """A step takes from ten seconds to 25, an evaluation as long as three of those."""
    machine.row, machine.other, machine.surprise = row, other, surprise
    began, recipe = machine.now, replace(RECIPE, eval_steps=eval_steps, model=None if adapts else RECIPE.model)
    made = run(recipe, tmp_path / "run", corpus, machine, start_from=start if adapts else None)
    assert 4.5 <= (machine.now - began) / 60 <= 5.5
    assert made.progress.minutes == pytest.approx((machine.now - began) / 60, abs=0.5)
    factors, lengths = (rows(tmp_path / "run", "log.csv", name) for name in ("lr_factor", "length"))
    assert factors[-1] < 2 / len(factors) and max(factors) > 0.99
    assert lengths[-1] == 48
    steps = rows(tmp_path / "run", "held.csv", "step")
    assert steps == sorted(set(steps)) and steps[-1] == made.progress.step  # each step once, the last one too
    assert (steps[0] == 0) == adapts


def test_a_users_five_minutes_are_five_minutes_though_interrupted(
    start: str, tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `daguerre train --from MODEL --data FOLDER --max-minutes 5`, Ctrl-C, and `daguerre train --resume`."""
    monkeypatch.setattr(command.UserFolder, "write", machine.after(command.UserFolder.write))
    machine.row, machine.other, source = 0.06, 4.0, tmp_path / "source"
    source.mkdir()
    for name in "abc":
        (source / f"{name}.py").write_text("".join(f"def {name}_{i}(x):\n    return x + {i}\n\n\n" for i in range(20)))
    small = ["stages.0.length=32", "precision=float32"]
    place: dict[str, Any] = {"out": tmp_path / "run", "device": "cpu", "clock": machine}
    began, machine.ctrl_c = machine.now, machine.now + 100
    command.run_training(None, start_from=start, data=source, max_minutes=5.0, overrides=small, **place)
    spent, printed = machine.now - began, capsys.readouterr().err
    assert 100 < spent < 200
    for line in ("stopping after this step", "stopped early; --resume goes on", "held-out text, next-token"):
        assert printed.count(line) == 1
    machine.now += 100_000.0
    began = machine.now
    command.run_training(None, resume=True, **place)
    assert 4.5 <= (spent + machine.now - began) / 60 <= 5.5
    printed = capsys.readouterr().err
    assert "the budget is spent" in printed
    assert printed.count("held-out text, next-token") == 1
    steps = rows(tmp_path / "run", "held.csv", "step")
    assert steps[0] == 0 < steps[1] < steps[2] and len(steps) == 3


def test_minutes_add_up_over_resumes_without_the_time_between(corpus: Path, tmp_path: Path, machine: Machine) -> None:
    machine.row, machine.other, out = 0.08, 1.0, tmp_path / "run"
    whole = run(RECIPE, tmp_path / "whole", corpus, machine)
    began, first = machine.now, Trainer(RECIPE, out, corpus, quiet=True, clock=machine)
    after_step = first._after_step

    def stop() -> None:
        after_step()
        first.stop_asked = first.progress.step >= 4

    first._after_step = stop  # type: ignore[method-assign]
    first.run()
    spent = machine.now - began
    machine.now += 100_000.0
    began = machine.now
    second = run(RECIPE, out, corpus, machine, resume=True)
    assert 4.5 <= (spent + machine.now - began) / 60 <= 5.5
    assert 4 < second.progress.step <= whole.progress.step
    assert rows(out, "log.csv", "lr_factor")[-1] < 0.05
    minutes = rows(out, "log.csv", "minutes")
    assert minutes == sorted(minutes)
    weights = (out / "model" / "model.safetensors").read_bytes()
    third = run(RECIPE, out, corpus, machine, resume=True)
    assert third.progress.step == second.progress.step  # its minutes are spent
    assert (out / "model" / "model.safetensors").read_bytes() == weights
    fourth = run(replace(RECIPE, minutes=6.0), out, corpus, machine, resume=True)
    assert fourth.progress.step > third.progress.step


def test_whichever_budget_ends_first_ends_the_run(corpus: Path, tmp_path: Path, machine: Machine) -> None:
    machine.row, both = 0.05, replace(RECIPE, steps=6)
    assert run(replace(both, minutes=0.5), tmp_path / "a", corpus, machine).progress.step < 6
    assert run(replace(both, minutes=1000.0), tmp_path / "b", corpus, machine).progress.step == 6


def test_a_budget_that_setting_up_has_spent_gives_no_step_and_is_said_to_be_too_short(
    corpus: Path, start: str, tmp_path: Path, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = replace(RECIPE, minutes=0.5, model=None)
    made = Trainer(recipe, tmp_path / "run", corpus, start_from=start, clock=machine, began=machine.now - 60.0)
    with pytest.raises(TrainingError, match=r"budget of 0\.5 minutes is too short for a step: setting up took 1\.00"):
        made.run()
    assert made.progress.step == 0
    assert not (tmp_path / "run" / "held.csv").exists() and not (tmp_path / "run" / "model").exists()
    assert list_steps(tmp_path / "run") == [0]
    assert capsys.readouterr().err.count("the budget has no time for held-out figures") == 1


def test_a_budget_shorter_than_a_step_makes_the_step_smaller(
    corpus: Path, start: str, tmp_path: Path, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    """A step of eight micro-batches takes more than the budget."""
    recipe = replace(RECIPE, minutes=2.0, model=None, eval_steps=0)
    stage = recipe.stages[0]
    recipe = replace(recipe, stages=(replace(stage, until=1.0, sequences=2, micro_batches=8),))
    machine.row, machine.surprise = 8 / (2 * stage.length), 0.0
    made = Trainer(recipe, tmp_path / "run", corpus, start_from=start, clock=machine)
    made.run()
    assert made.progress.step == 1 and 1 <= made.recipe.stages[0].micro_batches < 8
    assert "a step of 16 texts would take about" in capsys.readouterr().err


def test_figures_that_would_take_a_quarter_of_the_budget_are_left_out(
    corpus: Path,
    start: str,
    tmp_path: Path,
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A forward of a row takes a tenth of a second, and a step less than the estimate by it."""
    machine.row, recipe = 0.013, replace(RECIPE, minutes=2.0, model=None, eval_steps=1)
    made = Trainer(recipe, tmp_path / "run", corpus, start_from=start, clock=machine)
    monkeypatch.setattr(figures, "seconds_a_row", lambda *_: 0.1)
    began = machine.now
    made.run()
    assert made.progress.step > 5
    assert 1.8 <= (machine.now - began) / 60 <= 2.2
    assert not (tmp_path / "run" / "held.csv").exists()
    assert capsys.readouterr().err.count("the budget has no time for held-out figures (") == 1


def test_an_evaluation_at_the_end_that_would_be_late_is_left_out(
    corpus: Path, tmp_path: Path, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last step took so long that the budget is over."""
    machine.row = 0.06
    made = Trainer(RECIPE, tmp_path / "run", corpus, clock=machine)
    after_step = made._after_step

    def slow() -> None:
        after_step()
        if made.progress.minutes > 4:
            machine.now += 120

    made._after_step = slow  # type: ignore[method-assign]
    made.run()
    assert "the budget has no time for held-out figures" in capsys.readouterr().err
    assert not (tmp_path / "run" / "held.csv").exists()


def test_the_share_counts_what_is_to_come_and_never_falls() -> None:
    now = [0.0]
    budget = RunBudget(0, 10.0, RunProgress(), lambda: now[0], began=-60.0)
    for phase in (EVALUATION, "curves", "checkpoint", "export"):
        budget.expect(phase, 30.0)
    assert budget.share() == pytest.approx(1 / 8)
    with budget.timing(STEP):
        now[0] = 120.0
    assert budget.share() == pytest.approx(3 / (10 - 2 - 1))  # half of the step is held back too
    with budget.timing(EVALUATION):
        now[0] += 1.0
    assert budget.closing_seconds == pytest.approx(91.0)  # as measured
    now[0] = 120.0
    assert budget.share() == pytest.approx(3 / 7, abs=0.01)
    budget.close()
    assert budget.progress.minutes == pytest.approx(3 + 91 / 60)


@pytest.mark.slow
def test_six_seconds_for_all_of_a_run_end_it_and_it_says_what_it_cut(tmp_path: Path) -> None:
    """`daguerre train --max-minutes 0.1` with no clock but the machine's, however slow or busy that is."""
    source, out = tmp_path / "source", tmp_path / "run"
    source.mkdir()
    for name in "abc":
        (source / f"{name}.py").write_text("".join(f"def {name}_{i}(x):\n    return x + {i}\n\n\n" for i in range(20)))
    command = [sys.executable, "-m", "daguerre", "train", "--from", "default", "--data", str(source)]
    command += ["--out", str(out), "--max-minutes", "0.1", "--device", "cpu"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        assert "the budget of 0.1 minutes is too short for a step" in ran.stderr
        return
    assert "the budget is spent" in ran.stderr and "the budget has no time for held-out figures" in ran.stderr
    assert load_model(out / "model")[0].config.num_layers > 0


# ---- precision ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("native", "line"),
    [
        (torch.float32, "float32: this processor does not multiply bfloat16 natively"),
        (torch.bfloat16, "bf16: this processor multiplies bfloat16 natively"),
    ],
)
def test_auto_is_what_the_processor_multiplies_and_is_said_once(
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    native: torch.dtype,
    line: str,
) -> None:
    monkeypatch.setattr(precision, "native_dtype", lambda device: native)
    seen = set[bool]()

    def watched(model: Any, batch: Batch, attn_impl: str) -> LossReport:
        seen.add(torch.is_autocast_enabled("cpu"))
        return batch_loss(model, batch, attn_impl)

    monkeypatch.setattr(pretraining, "batch_loss", watched)
    made = Trainer(replace(RECIPE, minutes=0.0, steps=2, precision="auto"), tmp_path / "run", corpus)
    made.run()
    assert made.trained.dtype is native
    assert seen == {native is torch.bfloat16}
    assert capsys.readouterr().err.count(line) == 1


def test_a_precision_that_is_set_is_used_and_one_that_is_emulated_is_said_to_be_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(precision, "native_dtype", lambda device: torch.float32)
    cpu = torch.device("cpu")
    assert precision.choose_precision("float32", cpu) == (torch.float32, "float32: as the recipe says")
    dtype, line = precision.choose_precision("bf16", cpu)
    assert dtype is torch.bfloat16
    assert "this processor emulates bfloat16, which is slow: set precision=auto" in line
    monkeypatch.setattr(precision, "native_dtype", lambda device: torch.bfloat16)
    assert precision.choose_precision("bf16", cpu) == (torch.bfloat16, "bf16: as the recipe says")
    assert "this cuda device multiplies" in precision.choose_precision("auto", torch.device("cuda"))[1]
