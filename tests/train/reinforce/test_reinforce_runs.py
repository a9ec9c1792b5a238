"""Whole runs: rewards by a function and by a command, killed and resumed, adapters, templates, and errors."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import daguerre
from commands import daguerre as command_line
from daguerre.errors import DaguerreError
from daguerre.model import Model
from daguerre.models.loading import save_model
from daguerre.train import report
from daguerre.train.curves import draw_curves, read_columns
from daguerre.train.recipe import load_recipe
from daguerre.train.reinforce.prompts import PromptReader, PromptSplit, prompts_of
from daguerre.train.run import CopiedAnswers, run_training
from daguerre.train.shards import Shard
from daguerre.train.trainer import Trainer
from training_runs import rows, run_until

SHORT = [
    "minutes=0", "steps=4", "precision=float32", "eval_steps=2", "checkpoint_steps=1", "stages.0.length=32",
    "stages.0.sequences=8", "stages.0.micro_batches=2", "reinforce.group=4", "reinforce.length=5",
]  # fmt: skip
REWARD = """
def short(prompt, answer, wanted):
    assert wanted == len(prompt)
    return -len(answer)

def broken(prompt, answer):
    return 1 / 0
"""
SHAPES: dict[str, dict[str, Any]] = {
    "causal": {"context": "causal"},
    "full": {"context": "full", "shift": False},
    "full_shifted": {"context": "full", "shift": True},
    "block": {"context": "block", "shift": False, "block_size": 4},
}


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "draw_curves", lambda run: run)
    monkeypatch.setattr(report, "_tensorboard", lambda *rest: None)


@pytest.fixture(scope="module")
def starts(make_model: Callable[..., Model], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Folders of models to start from."""
    out = {}
    for name, shape in SHAPES.items():
        model = make_model(max_positions=64, **shape)
        out[name] = str(save_model(tmp_path_factory.mktemp(name) / "model", model.backbone, model.tokenizer))
    return out


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path, names = tmp_path / "prompts.jsonl", [f"x{i} = " for i in range(20)]
    path.write_text("".join(json.dumps({"prompt": name, "wanted": len(name)}) + "\n" for name in names))
    return path


@pytest.fixture
def reward(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(REWARD)
    return f"{tmp_path / 'mine.py'}:short"


def trainer(start: str, data: Path, out: Path, sets: list[str], **options: Any) -> Trainer:
    recipe = load_recipe("reinforce", [*SHORT, *sets])
    assert recipe.reinforce is not None
    reads = PromptReader(recipe.reinforce.length)
    files = CopiedAnswers([data], out / "data", 32, recipe.reinforce.held_out, reads, split=PromptSplit)
    return Trainer(recipe, out, files, start_from=start, quiet=True, **options)


CASES = [("causal", "left_to_right", 3), ("full", "coupled", 2), ("full", "traced", 1), ("full_shifted", "spg", 2),
         ("full", "left_to_right", 2), ("block", "traced", 2), ("block", "coupled", 1)]  # fmt: skip


@pytest.mark.parametrize(("name", "estimate", "updates"), CASES)
def test_a_run_that_is_stopped_within_a_rollout_ends_as_one_that_is_not(
    starts: dict[str, str], data: Path, reward: str, tmp_path: Path, name: str, estimate: str, updates: int
) -> None:
    sets = [f"reinforce.estimate={estimate}", f"reinforce.updates={updates}", f"reinforce.reward={reward}"]
    whole, out = tmp_path / "whole", tmp_path / "run"
    trainer(starts[name], data, whole, sets).run()
    for step in (1, 2):
        run_until(step, trainer(starts[name], data, out, sets, resume=step > 1))
    trainer(starts[name], data, out, sets, resume=True).run()
    weights = "model/model.safetensors"
    assert (out / weights).read_bytes() == (whole / weights).read_bytes()
    mine, other = rows(out), rows(whole)
    assert [row["step"] for row in mine] == ["1", "2", "3", "4"]
    for column in ("reward", "kl", "clipped", "answer_length", "loss"):
        assert [row[column] for row in mine] == [row[column] for row in other], column
    assert float(mine[0]["kl"]) == 0 < float(mine[-1]["kl"])
    assert float(mine[0]["reward"]) < 0
    held = rows(out, "held.csv")
    assert [row["step"] for row in held] == ["0", "1", "2", "4"] and float(held[0]["reward"]) <= 0


@pytest.mark.parametrize("kl", [0.01, 0.0])
def test_the_picture_has_rewards_the_distance_from_the_start_and_answers(
    starts: dict[str, str], data: Path, reward: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kl: float
) -> None:
    figures, drawn = pytest.importorskip("matplotlib.figure"), list[Any]()
    save = figures.Figure.savefig

    def kept(figure: Any, *rest: Any, **options: Any) -> None:
        drawn.append(figure)
        save(figure, *rest, **options)

    monkeypatch.setattr(figures.Figure, "savefig", kept)
    out = tmp_path / "run"
    trainer(starts["causal"], data, out, [f"reinforce.reward={reward}", f"reinforce.kl={kl}"]).run()
    assert draw_curves(out).stat().st_size > 10_000
    (figure,) = drawn
    axes = {each.get_ylabel() or each.get_title(): each for each in figure.axes}
    log, held = read_columns(out / "log.csv"), read_columns(out / "held.csv")
    assert log["kl"][-1] > 0 if kl else np.isnan(log["kl"]).all()
    for name, columns in {
        "Reward": [log["reward"], held["reward"]],
        "KL, nats per token": [log["kl"]],
        "share of tokens that are clipped": [log["clipped"]],
        "tokens of an answer": [log["answer_length"]],
        "share whose group has one reward": [log["agree"]],
    }.items():
        for line, column in zip(axes[name].get_lines(), columns, strict=True):
            np.testing.assert_array_equal(line.get_ydata(), column)


def test_the_command_line_with_a_function_of_a_file_and_with_a_command(
    starts: dict[str, str], data: Path, reward: str, tmp_path: Path
) -> None:
    (tmp_path / "judge.py").write_text(
        "import json, sys\nasked = json.load(sys.stdin)\nprint(-len(asked['answer']) - asked['wanted'] * 0)\n"
    )
    command = json.dumps([sys.executable, "-S", str(tmp_path / "judge.py")])
    logs = []
    for name, what in (("function", f"reinforce.reward={reward}"), ("command", f"reinforce.command={command}")):
        out = tmp_path / name
        sets = [part for each in [*SHORT, what, "steps=2"] for part in ("--set", each)]
        done = command_line(
            "train", "reinforce", "--from", starts["causal"], "--data", str(data), "--out", str(out), *sets
        )
        assert done.returncode == 0, done.stderr
        assert "memory of a step, by arithmetic" in done.stdout + done.stderr
        logs.append([row["reward"] for row in rows(out)])
        assert daguerre.load(out / "model").generate("x1 = ", 3).usage.completion_tokens
    assert logs[0] == logs[1] and float(logs[0][0]) < 0


def test_a_rewarded_answer_becomes_likelier(starts: dict[str, str], data: Path, tmp_path: Path) -> None:
    """One step on a reward of one byte raises its probability, in each context."""
    for name, estimate in (("causal", "left_to_right"), ("full", "coupled"), ("block", "traced")):
        (tmp_path / "one.py").write_text("def even(prompt, answer):\n    return float(len(answer.encode()) % 2)\n")
        rate = ["optim.muon_lr=0.003", "optim.adamw_lr=0.003", "optim.warmup=0", "reinforce.updates=1", "steps=12"]
        sets = [*rate, f"reinforce.reward={tmp_path / 'one.py'}:even", f"reinforce.estimate={estimate}"]
        sets += ["reinforce.kl=0.0", "reinforce.length=2", "stages.0.sequences=32", "reinforce.group=16"]
        out = tmp_path / name
        trainer(starts[name], data, out, sets).run()
        log = [float(row["reward"]) for row in rows(out)]
        assert np.mean(log[-4:]) > np.mean(log[:4]), (name, log)


def test_an_adapter_and_chosen_weights_are_trained_and_nothing_else(
    starts: dict[str, str], data: Path, reward: str, tmp_path: Path
) -> None:
    sets = ["reinforce.estimate=left_to_right", f"reinforce.reward={reward}", "steps=4"]
    adapter = ["lora.rank=4", "lora.alpha=8.0", "lora.dropout=0.0", "optim.adamw_lr=0.01"]
    whole, out = tmp_path / "whole", tmp_path / "lora"
    trainer(starts["causal"], data, whole, [*sets, *adapter]).run()
    run_until(3, trainer(starts["causal"], data, out, [*sets, *adapter]))
    trainer(starts["causal"], data, out, [*sets, *adapter], resume=True).run()
    name = "adapter/adapter_model.safetensors"
    assert (out / name).read_bytes() == (whole / name).read_bytes()
    assert float(rows(out)[-1]["kl"]) > 0
    chosen = tmp_path / "chosen"
    trainer(starts["causal"], data, chosen, [*sets, 'train=["layers.0"]']).run()
    before, after = (load_file(Path(folder) / "model.safetensors") for folder in (starts["causal"], chosen / "model"))
    changed = {key for key in before if not torch.equal(before[key].float(), after[key].float())}
    assert changed and all(key.startswith("layers.0.") for key in changed)


def test_templates_have_gaps_of_the_lengths_of_their_fills(
    starts: dict[str, str], tmp_path: Path, tokenizer: Any
) -> None:
    path = tmp_path / "gaps.jsonl"
    lines = [{"template": f"a{i}<gap>b<gap>", "fills": ["x", "y z = 3"]} for i in range(9)] + [{"template": "none"}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "keeps.py").write_text(
        "def keeps(prompt, answer, fills):\n"
        "    before, between, _ = prompt.split('<gap>')\n"
        "    assert answer.startswith(before) and between in answer and fills[0] == 'x'\n    return len(answer)\n"
    )
    sets = ["reinforce.estimate=coupled", f"reinforce.reward={tmp_path / 'keeps.py'}:keeps", "steps=2"]
    out = tmp_path / "run"
    made = trainer(starts["full"], path, out, sets)
    prompts = prompts_of(Shard.open(out / "data", "train"))
    assert {prompt.gaps for prompt in prompts} == {(1, len(tokenizer.encode("y z = 3", begins=False)))}
    made.run()
    assert "template has 0 gaps" in json.loads((out / "data" / "rows.json").read_text())["line"]
    with pytest.raises(DaguerreError, match="need a model with full context"):
        trainer(starts["causal"], path, tmp_path / "causal", [f"reinforce.reward={tmp_path / 'keeps.py'}:keeps"])


def test_a_conversation_is_a_prompt_as_the_template_writes_it(
    starts: dict[str, str], reward: str, tmp_path: Path
) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_text(json.dumps({"messages": [{"role": "user", "content": "hi"}]}) + "\n")
    trainer(starts["causal"], path, tmp_path / "run", [f"reinforce.reward={reward}"])
    (prompt,) = prompts_of(Shard.open(tmp_path / "run" / "data", "train"))
    assert prompt.text == "User: hi\nAssistant:"
    assert prompt.fields == {"messages": [{"role": "user", "content": "hi"}]}


def test_what_is_wrong_is_one_line(starts: dict[str, str], data: Path, reward: str, tmp_path: Path) -> None:
    good = f"reinforce.reward={reward}"
    wrong: list[tuple[list[str], str]] = [
        ([], "say what answers are rewarded with"),
        ([good, "reinforce.estimte=coupled"], "estimate"),
        ([good, "reinforce.estimate=coupled"], "in causal context an answer's probability is exact"),
        ([good, "stages.0.sequences=3"], "groups of 4"),
        ([good, "loaders=1"], "leave out loaders"),
        ([good, "lora.rank=2", "lora.dropout=0.1"], "lora.dropout = 0.0"),
        ([good, "reinforce.length=60"], "no row of prompts.jsonl can be trained on"),
        ([good.replace("short", "none")], "no function 'none'"),
        ([good.replace("short", "broken")], "the reward failed on the answer"),
        (['reinforce.command=["no-such-program"]'], "not found: no-such-program"),
        ([good, "reinforce.policy=nothing"], "policy"),
    ]
    for index, (sets, said) in enumerate(wrong):
        with pytest.raises(DaguerreError, match=said):
            trainer(starts["causal"], data, tmp_path / f"wrong-{index}", sets).run()
    usual: dict[str, Any] = {"overrides": [*SHORT, good], "device": "cpu", "quiet": True, "out": tmp_path / "none"}
    with pytest.raises(DaguerreError, match=r"has no \[model\]"):
        run_training("reinforce", data=[data], **usual)
    with pytest.raises(DaguerreError, match="say what to train on: --data FILES of prompts"):
        run_training("reinforce", start_from=starts["causal"], **usual)
    folder = trainer(starts["causal"], data, tmp_path / "run", [good]).shard.folder
    adapt = load_recipe("adapt", ["stages.0.length=32"])
    with pytest.raises(DaguerreError, match="holds prompts"):
        Trainer(adapt, tmp_path / "adapt", folder, start_from=starts["causal"], quiet=True)
