"""Mixtures of experts, which other tests write, and a model with masks in place learn answers, too."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import daguerre
from answers import write_rows
from checkpoints import MASK, write_tensors, write_tokenizer
from daguerre.model import Model
from daguerre.models.loading import load_folder, save_model
from daguerre.train.run import run_training
from families.test_moe import oracle, published_config, published_tensors

ROWS = [{"prompt": f"{a}?", "completion": a * 4} for a in "abcdefghijkl"]
SHORT = [
    "steps=2",
    "minutes=0",
    "precision=float32",
    "stages.0.length=48",
    "stages.0.sequences=2",
    "checkpoint_steps=1",
    "eval_steps=0",
]


def moe(kind: str, folder: Path) -> Path:
    oracle(kind).save_pretrained(folder / "saved")
    saved = json.loads((folder / "saved" / "config.json").read_text())
    source = folder / kind
    source.mkdir()
    (source / "config.json").write_text(json.dumps(published_config(kind, saved) | {"mask_token_id": MASK}))
    write_tokenizer(source)
    write_tensors(source, published_tensors(kind, load_file(folder / "saved" / "model.safetensors")), shards=2)
    return source


@pytest.mark.parametrize("kind", ["llada2", "llada_moe", "sdar_moe"])
def test_a_mixture_of_experts_learns_answers_and_stays_in_its_layout(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    source = moe(kind, tmp_path)
    file, out = write_rows(tmp_path / "rows.jsonl", ROWS), tmp_path / "run"
    how: dict[str, Any] = {"device": "cpu", "quiet": True, "out": out}
    run_training("sft", start_from=str(source), data=[file], overrides=SHORT, **how)
    before, after = load_folder(source), load_folder(out / "model")
    assert after.family == before.family
    assert after.backbone.config == before.backbone.config
    ours, theirs = before.backbone.state_dict(), after.backbone.state_dict()
    changed = [key for key in ours if not torch.equal(ours[key], theirs[key])]
    assert any("experts" in key or "mlp" in key for key in changed)
    assert not any(key.endswith("expert_bias") for key in changed)


def test_a_model_with_masks_in_place_learns_answers(make_model: Callable[..., Model], tmp_path: Path) -> None:
    model = make_model(masks_in_place=True, block_size=8, null_id=None)
    start = save_model(tmp_path / "model", model.backbone, model.tokenizer)
    file, out = write_rows(tmp_path / "rows.jsonl", ROWS), tmp_path / "run"
    run_training("sft", start_from=str(start), data=[file], overrides=SHORT, device="cpu", quiet=True, out=out)
    tuned = daguerre.load(out / "model", backend="torch")
    assert tuned.config == model.config
    for mode in ("ar", "block", "speculative"):
        assert tuned.generate("a?", 6, mode=mode, min_tokens=6).usage.completion_tokens == 6
