"""Several processes train as one does: the same losses and weights, whatever their number, also when one is killed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import answers
from answers import some_pairs, write_rows
from conftest import tiny_config
from daguerre.errors import CheckpointError, InputError, UnsupportedError
from daguerre.models.loading import load_model
from daguerre.models.tokenizer import Tokenizer
from daguerre.train import devices
from daguerre.train.distill.options import Distill
from daguerre.train.lora import Lora
from daguerre.train.prefer.options import Prefer
from daguerre.train.recipe import Recipe
from daguerre.train.reinforce.options import Reinforce
from daguerre.train.run import DATA, CopiedAnswers
from daguerre.train.sft.presets import Sft
from daguerre.train.stage import Stage
from daguerre.train.teach.options import Rollouts, Teaching
from daguerre.train.trainer import Trainer
from distributed_run import leave_out, main, settings_of, together
from training_runs import ADAPT, RECIPE, list_steps, run_until

RUNNER = Path(__file__).parents[1] / "distributed_run.py"
STAGES = (Stage(until=1.0, length=32, sequences=1, micro_batches=4),)
MANY = replace(RECIPE, steps=4, stages=STAGES, checkpoint_steps=1)
THREE = (replace(STAGES[0], micro_batches=3),)
ANSWERS: dict[str, Any] = {"stages": THREE, "mixture": {}, "model": None}
"""Of a recipe that trains answers in three processes."""
NEAR = 1e-5


def several(processes: int, recipe: Recipe, out: Path, corpus: Path, **more: Any) -> list[float]:
    """Train in so many processes; the losses that the first one reported."""
    together(processes, main, settings_of(recipe, out, corpus, **more))
    return losses_of(out)


def losses_of(out: Path) -> list[float]:
    losses: list[float] = json.loads((out / "losses.json").read_text())
    return losses


def torchrun(processes: int, settings: dict[str, Any], folder: Path) -> int:
    """Train in so many processes that torchrun starts; its exit status."""
    path = folder / "settings.json"
    path.write_text(json.dumps(settings))
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    done = subprocess.run([*start, str(RUNNER), str(path)], capture_output=True, timeout=300, check=False)
    return done.returncode


def alone(recipe: Recipe, out: Path, corpus: Path | CopiedAnswers, **options: Any) -> tuple[Trainer, list[float]]:
    """Train in this process; the losses."""
    made, losses = Trainer(recipe, out, corpus, quiet=True, **options), list[float]()
    told: Callable[..., None] = made.reporter.step
    made.reporter.step = lambda row, share: (losses.append(row["loss"]), told(row, share))[1]  # type: ignore[method-assign]
    made.run()
    return made, losses


def near(one: list[float], other: list[float]) -> bool:
    return len(one) == len(other) and all(abs(a - b) < NEAR * abs(a) for a, b in zip(one, other, strict=True))


def assert_same_model(one: Path, other: Path) -> None:
    """Weights that are alike but for rounding: bfloat16, as they are stored, and gradients near zero, whose rounding
    the optimizer makes larger. A lost micro-batch changes half of a matrix by more.
    """
    first, second = (load_model(folder / "model")[0].state_dict() for folder in (one, other))
    assert first.keys() == second.keys()
    for name, weight in first.items():
        assert torch.allclose(weight, second[name], rtol=2**-6, atol=3e-4), name


@pytest.fixture(scope="module")
def whole(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    """The run of one process."""
    with pytest.MonkeyPatch.context() as patch:
        leave_out(patch)
        out = tmp_path_factory.mktemp("whole") / "run"
        return out, alone(MANY, out, corpus)[1]


@pytest.mark.slow
def test_two_processes_train_as_one_does_in_16_bits(corpus: Path, tmp_path: Path) -> None:
    """Parts of weights, gradients and averages are float32: rounded ones would differ by far more."""
    recipe = replace(MANY, precision="bf16", steps=3)  # the first of which moves nothing
    _, losses = alone(recipe, tmp_path / "one", corpus)
    assert near(several(2, recipe, tmp_path / "two", corpus), losses)


@pytest.mark.slow
def test_two_processes_train_as_one_does(whole: tuple[Path, list[float]], corpus: Path, tmp_path: Path) -> None:
    losses = several(2, MANY, tmp_path / "run", corpus)
    assert near(losses, whole[1])
    assert_same_model(tmp_path / "run", whole[0])


@pytest.mark.slow
@pytest.mark.parametrize("normalizer", [None, "window"])
def test_two_processes_fine_tune_as_one_does(normalizer: str | None, tmp_path: Path) -> None:
    """Also where a loss is a mean over all micro-batches of a step, those of the other process included. The rate of
    matrices is small, since their steps are orthogonalized in bfloat16 where the processor has it.
    """
    file, stage = write_rows(tmp_path / "rows.jsonl", some_pairs(30)), replace(STAGES[0], length=64)
    shape = replace(answers.SHAPE, context="full", shift=False)
    options = Sft(preset="llada", normalizer=normalizer, packing=False)
    optim = replace(answers.RECIPE.optim, muon_lr=answers.RECIPE.optim.muon_lr / 20)
    recipe = replace(answers.RECIPE, model=shape, sft=options, stages=(stage,), steps=3, eval_steps=0, optim=optim)
    data = CopiedAnswers([file], tmp_path / "one" / DATA, 64, 0.1)
    _, losses = alone(recipe, tmp_path / "one", data)
    assert near(several(2, recipe, tmp_path / "two", file, answers=True), losses)


@pytest.mark.slow
def test_two_processes_learn_from_a_teacher_as_one_does(start: str, tmp_path: Path) -> None:
    """Each has a part of the teacher, too; a run that is resumed has the same one."""
    file, stage = write_rows(tmp_path / "rows.jsonl", some_pairs(30)), replace(STAGES[0], length=48, block_size=4)
    optim = replace(answers.RECIPE.optim, muon_lr=answers.RECIPE.optim.muon_lr / 20)
    parts: dict[str, Any] = {"sft": Sft(gaps=0.3), "teacher": Teaching(rows=7), "stages": (stage,), "optim": optim}
    recipe = replace(answers.RECIPE, model=None, steps=3, **parts)
    _, losses = alone(
        recipe, tmp_path / "one", CopiedAnswers([file], tmp_path / "one" / DATA, 48, 0.1), start_from=start
    )
    how: dict[str, Any] = {"answers": True, "start": start}
    assert near(several(2, recipe, tmp_path / "two", file, **how), losses)
    several(2, recipe, tmp_path / "run", file, stop=2, **how)
    several(2, recipe, tmp_path / "run", tmp_path / "run" / DATA, resume=True)
    assert_same_model(tmp_path / "run", tmp_path / "one")


@pytest.mark.slow
def test_four_processes_of_which_one_is_killed_lose_nothing_and_two_or_one_go_on(
    whole: tuple[Path, list[float]], corpus: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    assert torchrun(4, settings_of(MANY, out, corpus, kill=2), tmp_path) != 0
    assert near(losses_of(out), whole[1][:2])
    assert list_steps(out)[-1] == 2
    assert not list((out / "checkpoints").glob(".writing-*"))
    shutil.copytree(out, tmp_path / "other")
    after = several(2, MANY, out, corpus, resume=True)
    assert near(after, whole[1][2:])
    assert_same_model(out, whole[0])
    shards = tmp_path / "other" / "checkpoints" / "step-00000002" / "shards"
    assert len([*shards.iterdir()]) == 5  # the parts of four, and an index
    _, losses = alone(MANY, tmp_path / "other", corpus, resume=True)
    assert near(losses, whole[1][2:])
    assert_same_model(tmp_path / "other", whole[0])


@pytest.mark.slow
def test_two_share_the_matrices_of_layers_and_four_go_on_in_two_pairs(
    whole: tuple[Path, list[float]], corpus: Path, tmp_path: Path
) -> None:
    shared = replace(MANY, tensor_parallel=2)
    together(2, main, settings_of(replace(shared, steps=4), tmp_path / "run", corpus, stop=2))
    assert near(losses_of(tmp_path / "run"), whole[1][:2])
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    assert near(several(4, shared, tmp_path / "run", corpus, resume=True), whole[1][2:])
    assert_same_model(tmp_path / "run", whole[0])
    _, losses = alone(MANY, tmp_path / "other", corpus, resume=True)
    assert near(losses, whole[1][2:])


@pytest.mark.slow
def test_two_processes_go_on_with_an_adapter_of_one_in_16_bits(corpus: Path, start: str, tmp_path: Path) -> None:
    recipe = replace(
        ADAPT,
        lora=Lora(rank=4, dropout=0.25, whole=("model.norm",)),
        steps=3,
        stages=STAGES,
        precision="bf16",
        checkpoint_layers=True,
    )
    _, losses = alone(recipe, tmp_path / "one", corpus, start_from=start)
    run_until(1, Trainer(recipe, tmp_path / "two", corpus, start_from=start, quiet=True))
    after = several(2, recipe, tmp_path / "two", corpus, resume=True)
    assert near(after, losses[1:])
    held = [load_file(tmp_path / name / "adapter" / "adapter_model.safetensors") for name in ("one", "two")]
    assert held[0].keys() == held[1].keys()
    assert all(torch.allclose(held[0][name], held[1][name], rtol=1e-2, atol=1e-4) for name in held[0])


def test_a_damaged_checkpoint_of_shards_is_refused_in_one_line(
    whole: tuple[Path, list[float]], corpus: Path, tmp_path: Path
) -> None:
    shutil.copytree(whole[0], tmp_path / "run")
    last = tmp_path / "run" / "checkpoints" / "step-00000004"
    (last / "tensors.pt").unlink()
    (last / "shards").mkdir()
    with pytest.raises(CheckpointError, match="is damaged") as caught:
        Trainer(MANY, tmp_path / "run", corpus, resume=True, quiet=True)
    assert "\n" not in str(caught.value)


ALONE: list[tuple[dict[str, Any], str]] = [
    ({"steps": 0, "minutes": 1.0}, "3 processes need a budget in steps"),
    ({}, "stages have 4 micro-batches, which 3 processes cannot share"),
    ({"stages": THREE, "compile": True}, "compile trains in one process"),
    (ANSWERS | {"prefer": Prefer()}, "prefer trains in one process"),
    (ANSWERS | {"reinforce": Reinforce(group=3)}, "reinforce trains in one process"),
    (ANSWERS | {"sft": Sft(), "distill": Distill()}, "distill trains in one process"),
    (ANSWERS | {"sft": Sft(keep=1.0)}, r"sft\.keep trains in one process"),
    (ANSWERS | {"sft": Sft(), "teacher": Teaching(), "rollouts": Rollouts()}, "rollouts trains in one process"),
    (ANSWERS | {"sft": Sft(), "teacher": Teaching(), "tensor_parallel": 3}, "a teacher's matrices are not shared"),
    ({"tensor_parallel": 2}, "tensor_parallel=2 is no divisor of 3 processes"),
    ({"tensor_parallel": 3, "lora": Lora()}, "an adapter's matrices are not shared: set tensor_parallel=1"),
]
"""What several processes cannot train."""


def test_what_several_processes_cannot_train_is_refused(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    for changes, message in ALONE:
        with subtests.test(message):
            with pytest.raises(InputError, match=message):
                Trainer(replace(MANY, **changes), tmp_path / "run", corpus, quiet=True)
            assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("changes", [{"out_bias": True}, {"mlp_bias": True}, {"draft_head": 8}])
def test_a_model_that_is_split_for_inference_alone_is_not_trained_split(
    changes: dict[str, Any], tokenizer: Tokenizer
) -> None:
    with pytest.raises(UnsupportedError, match="train whole: set tensor_parallel=1"):
        devices._check_split(tiny_config(tokenizer, **changes))
