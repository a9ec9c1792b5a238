"""Published models in runs of every recipe for answers, resumed, and folders in their publishers' layouts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import daguerre
from answers import write_rows
from checkpoints import TURN
from daguerre.models.gguf.writing import write_gguf
from daguerre.models.loading import load_folder
from daguerre.train.origin import ORIGIN
from daguerre.train.run import run_training
from daguerre.train.sft.method import FineTuning
from daguerre.train.shards import Shard
from daguerre.train.trainer import Trainer
from published import CASES, made

CHATML = (
    "{%- for m in messages -%}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor -%}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif -%}"
)
TALKS = [
    {"messages": [{"role": "user", "content": f"{a}?"}, {"role": "assistant", "content": a * 3}]}
    for a in "abcdefghijkl"
]
SHORT = [
    "steps=2",
    "minutes=0",
    "precision=float32",
    "stages.0.length=48",
    "stages.0.sequences=2",
    "checkpoint_steps=1",
    "eval_steps=0",
]
ROWS: dict[str, list[dict[str, Any]]] = {
    "prefer": [{"prompt": f"{a}? ", "chosen": a * 3, "rejected": "z" * 3} for a in "abcdefghijkl"],
    "reinforce": [{"messages": talk["messages"][:1]} for talk in TALKS],
    "distill": TALKS,
}
ROLLOUTS = ["stages.0.sequences=8", "reinforce.group=4", "reinforce.length=5"]
OTHERS = {
    "prefer": ("qwen3", "llada", "sdar"),
    "reinforce": ("qwen3", "llada", "dream", "sdar", "fast dllm"),
    "distill": ("llada", "sdar", "fast dllm"),
}
PRESETS = {"qwen3": "ar", "llada": "llada", "dream": "dream", "sdar": "sdar", "fast dllm": "fast_dllm", "llama": "ar"}


def published(name: str, folder: Path) -> Path:
    pytest.importorskip("transformers")
    source = CASES[name].write(folder, made(name))
    config = json.loads((source / "tokenizer_config.json").read_text())
    (source / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": CHATML}))
    return source


@pytest.mark.parametrize("name", PRESETS)
def test_a_published_model_learns_answers_by_its_own_loss_and_stays_in_its_layout(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = published(name, tmp_path / "published")
    file, out = write_rows(tmp_path / "talks.jsonl", TALKS), tmp_path / "run"
    losses = []
    take = Trainer._open_data

    def watched(made: Trainer, *rest: Any) -> None:
        take(made, *rest)
        assert isinstance(made.method, FineTuning)
        losses.append(made.method.answers.name)

    monkeypatch.setattr(Trainer, "_open_data", watched)
    how: dict[str, Any] = {"device": "cpu", "quiet": True, "out": out}
    whole = tmp_path / "whole"
    run_training("sft", start_from=str(source), data=[file], overrides=SHORT, **(how | {"out": whole}))
    run_training("sft", start_from=str(source), data=[file], overrides=[*SHORT, "steps=1"], **how)
    run_training("sft", resume=True, overrides=SHORT, **how)
    assert losses == [PRESETS[name]] * 3
    assert_trained(source, out, name)
    model = daguerre.load(out / "model", dtype="float32", backend="torch")
    said = model.chat([{"role": "user", "content": "a?"}], 4)
    assert said.usage.completion_tokens <= 4


@pytest.mark.parametrize(("recipe", "name"), [(recipe, name) for recipe in OTHERS for name in OTHERS[recipe]])
def test_other_recipes_train_a_published_model_which_stays_in_its_layout(
    recipe: str, name: str, tmp_path: Path
) -> None:
    source, out = published(name, tmp_path / "published"), tmp_path / "run"
    (tmp_path / "mine.py").write_text("def varied(prompt, answer):\n    return sum(answer.encode()) % 7\n")
    rewards = f"reinforce.reward={tmp_path / 'mine.py'}:varied"
    estimate = "reinforce.estimate=" + ("left_to_right" if PRESETS[name] == "ar" else "coupled")
    more = [rewards, estimate, *ROLLOUTS] if recipe == "reinforce" else []
    file = write_rows(tmp_path / "rows.jsonl", ROWS[recipe])
    how: dict[str, Any] = {"device": "cpu", "quiet": True, "out": out, "overrides": [*SHORT, *more]}
    run_training(recipe, start_from=str(source), data=[file], **how)
    assert_trained(source, out, name)


def assert_trained(source: Path, out: Path, name: str) -> None:
    """What a run wrote loads as a model of the family that it began with, whose weights alone are others."""
    before, after = load_folder(source), load_folder(out / "model")
    assert after.family == before.family == CASES[name].family
    assert after.backbone.config == before.backbone.config
    assert after.tokenizer == before.tokenizer
    ours, theirs = before.backbone.state_dict(), after.backbone.state_dict()
    assert ours.keys() == theirs.keys()
    assert not all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert (out / ORIGIN / "tensors.json").is_file()


def test_the_end_of_a_turn_is_learned_and_what_follows_it_is_not(tmp_path: Path) -> None:
    source = published("qwen3", tmp_path / "published")
    file, out = write_rows(tmp_path / "talks.jsonl", TALKS), tmp_path / "run"
    run_training("sft", start_from=str(source), data=[file], overrides=SHORT, device="cpu", quiet=True, out=out)
    shard = Shard.open(out / "data", "train")
    assert shard.answers is not None
    for number in range(shard.num_documents):
        start, end = shard.starts[number : number + 2]
        tokens, answers = shard.tokens[start:end], shard.answers[start:end]
        assert tokens[-1] == TURN and answers[-4:].all() and not answers[:-4].any()


def test_a_run_that_begins_with_a_gguf_file_ends_in_a_folder_of_its_family(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    source = published("qwen3", tmp_path / "published")
    loaded = load_folder(source)
    write_gguf(loaded.backbone, loaded.tokenizer, tmp_path / "a.gguf", dtype="f32")
    file = write_rows(tmp_path / "talks.jsonl", TALKS)
    out = tmp_path / "run"
    folder = run_training("sft", start_from=str(tmp_path / "a.gguf"), data=[file], overrides=SHORT, out=out)
    again = load_folder(folder)
    assert again.family == "qwen3" and again.backbone.config.ends == loaded.backbone.config.ends
    assert again.tokenizer.chat_template.sources == loaded.tokenizer.chat_template.sources  # type: ignore[attr-defined]
