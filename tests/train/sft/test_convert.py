"""Autoregressive models become full or block ones: weights are kept, layouts fit, and what comes out decodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import daguerre
from answers import some_pairs, write_rows
from daguerre.errors import DaguerreError, InputError, UnsupportedError
from daguerre.model import Model
from daguerre.models.core.config import Windows
from daguerre.models.loading import load_folder, save_model
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.convert import CONVERSIONS, Convert, converted
from daguerre.train.recipe import load_recipe
from daguerre.train.run import DATA, CopiedAnswers, run_training
from daguerre.train.sft.method import FineTuning
from daguerre.train.trainer import Trainer
from published import CASES, made

SHORT = [
    "steps=4",
    "minutes=0",
    "precision=float32",
    "stages.0.length=48",
    "stages.0.sequences=2",
    "checkpoint_steps=2",
    "eval_steps=0",
]
PRESETS = {"causal": "daguerre", "diffullama": "dream", "sdar": "sdar", "fast_dllm": "fast_dllm"}
PUBLISHED = [
    ("llama", "causal", "llama"),
    ("llama", "sdar", "a2d_block"),
    ("qwen2", "causal", "qwen2"),
    ("qwen2", "sdar", "a2d_block"),
    ("qwen3", "causal", "qwen3"),
    ("llama", "diffullama", "diffullama"),
    ("qwen2", "diffullama", "dream"),
    ("qwen2", "fast_dllm", "fast_dllm"),
    ("qwen3", "sdar", "sdar"),
]


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    rows = [{"text": row["prompt"] + row["completion"]} for row in some_pairs(30)]
    return write_rows(tmp_path / "texts.jsonl", rows)


def options_for(to: str) -> list[str]:
    return [*SHORT, f"convert.to={to}", *([] if to == "diffullama" else ["anneal=0"])]


@pytest.mark.parametrize("to", CONVERSIONS)
def test_our_own_model_is_converted_trained_resumed_and_decodes(
    start: str, texts: Path, tmp_path: Path, to: str
) -> None:
    recipe = load_recipe("convert", options_for(to))
    out, whole = tmp_path / "run", tmp_path / "whole"
    begun = daguerre.load(start).backbone

    def trainer(folder: Path) -> Trainer:
        return Trainer(recipe, folder, CopiedAnswers([texts], folder / DATA, 48, 0.1), start_from=start, quiet=True)

    first = trainer(whole)
    assert isinstance(first.method, FineTuning) and first.method.answers.name == PRESETS[to]
    assert all(torch.equal(begun.state_dict()[name], value) for name, value in first.model.state_dict().items())
    first.run()
    second = trainer(out)
    after = second._after_step

    def stop() -> None:
        after()
        second.stop_asked = second.progress.step == 2

    second._after_step = stop  # type: ignore[method-assign]
    second.run()
    run_training("convert", resume=True, out=out, overrides=options_for(to), device="cpu", quiet=True)
    weights = "model/model.safetensors"
    assert (out / weights).read_bytes() == (whole / weights).read_bytes()
    model = daguerre.load(out / "model", backend="torch")
    for key, value in CONVERSIONS[to].items():
        assert getattr(model.config, key) == value
    assert model.generate("name ", 6, min_tokens=6).usage.completion_tokens == 6


def test_attention_opens_over_the_first_part_of_a_run(start: str, texts: Path, tmp_path: Path) -> None:
    recipe = load_recipe("convert", [*options_for("diffullama"), "anneal=1.0", "sft.packing=true"])
    data = CopiedAnswers([texts], tmp_path / "run" / DATA, 48, 0.1)
    trainer, ratios = Trainer(recipe, tmp_path / "run", data, start_from=start, quiet=True), list[float]()
    annealed = trainer.method.annealed

    def watched(*args: Any) -> Any:
        out = annealed(*args)
        ahead = out.layout.rows.position[0][None, :] > out.layout.rows.position[0][:, None]
        ratios.append(float(out.layout.seen[0][ahead].float().mean()))
        return out

    trainer.method.annealed = watched  # type: ignore[method-assign]
    trainer.run()
    assert np.array(ratios[::2]) == pytest.approx([0, 0.25, 0.5, 0.75], abs=0.1)


@pytest.mark.parametrize(("name", "to", "family"), PUBLISHED)
def test_a_published_model_becomes_one_of_the_family_that_has_its_new_context(
    texts: Path, tmp_path: Path, name: str, to: str, family: str
) -> None:
    pytest.importorskip("transformers")
    source = CASES[name].write(tmp_path / "published", made(name))
    how: dict[str, Any] = {"device": "cpu", "quiet": True, "out": tmp_path / "run"}
    before = load_folder(source)
    recipe = load_recipe("convert", options_for(to))
    data = CopiedAnswers([texts], tmp_path / "run" / DATA, 48, 0.1)
    trainer = Trainer(recipe, tmp_path / "run", data, start_from=str(source), quiet=True)
    config = trainer.model.config
    assert config.mask_id is not None
    words = before.backbone.embedding.weight
    others = ~torch.isin(torch.arange(len(words)), torch.tensor([config.mask_id, config.null_id or config.mask_id]))
    ours = trainer.model.embedding.weight.detach()
    assert torch.equal(ours[others], words[others])
    if before.tokenizer.mask_id is None:
        assert torch.allclose(ours[config.mask_id], words[others].mean(0), atol=1e-6)
        assert config.mask_id >= before.tokenizer.num_tokens  # type: ignore[attr-defined]
    trainer.run()
    after = load_folder(tmp_path / "run" / "model")
    assert after.family == family
    assert after.backbone.config == config
    assert after.tokenizer == before.tokenizer
    run_training("convert", resume=True, overrides=options_for(to), **how)
    model = daguerre.load(tmp_path / "run" / "model", dtype="float32", backend="torch")
    assert model.generate("name ", 6, min_tokens=6).usage.completion_tokens == 6


@pytest.mark.parametrize("rate", [0.0, 0.05])
def test_an_adapter_of_a_converted_model_is_merged_into_it(
    texts: Path, tmp_path: Path, start: str, rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The adapter alone is written of a model that stays what it was; it says nothing of a conversion."""
    lora = ["lora.rank=2", "lora.targets=['qkv']", f"optim.adamw_lr={rate}", "precision=float32"]
    seen = dict[str, torch.Tensor]()
    export = Trainer.export

    def seeing(trainer: Trainer) -> Path:
        names = [name for name in trainer.trained.average.values if name.startswith("layers.0.attention.qkv.lora")]
        for name in names:
            seen[name.rpartition("parts.")[2]] = trainer.trained.average.values[name].clone()
        return export(trainer)

    monkeypatch.setattr(Trainer, "export", seeing)
    out = run_training(
        "convert",
        start_from=start,
        data=[texts],
        out=tmp_path / "run",
        overrides=[*options_for("sdar"), *lora],
        device="cpu",
        quiet=True,
    )
    assert out == tmp_path / "run" / "model" and not (tmp_path / "run" / "adapter").exists()
    before, after = (load_folder(folder).backbone for folder in (start, out))
    assert (after.config.context, after.config.block_size) == ("block", 4) and before.config.context == "causal"
    was, now = before.state_dict(), after.state_dict()
    others = [name for name in now if "attention.qkv" not in name and "embedding" not in name]
    assert others and all(torch.equal(was[name], now[name]) for name in others)
    name, scale = "layers.0.attention.qkv.weight", 16.0 / 2
    parts = sorted({key.split(".")[0] for key in seen})
    added = torch.cat([scale * seen[f"{part}.b"] @ seen[f"{part}.a"] for part in parts])
    assert torch.allclose(now[name], was[name] + added, rtol=2**-7, atol=2**-9)  # the model is kept in bfloat16
    assert torch.equal(now[name], was[name]) == (rate == 0)


def test_blocks_may_grow_from_small_ones(start: str, texts: Path, tmp_path: Path) -> None:
    stages = "stages=[{until=0.5,length=48,sequences=2,micro_batches=1,block_size=1},"
    stages += "{until=1.0,length=48,sequences=2,micro_batches=1,block_size=8}]"
    few = [one for one in options_for("sdar") if not one.startswith("stages")]
    out = run_training(
        "convert",
        start_from=start,
        data=[texts],
        out=tmp_path / "run",
        overrides=[*few, stages],
        device="cpu",
        quiet=True,
    )
    assert daguerre.load(out).config.block_size == 8


def test_what_cannot_be_converted_is_refused(
    make_model: Callable[..., Model], tokenizer: Tokenizer, texts: Path, tmp_path: Path, start: str
) -> None:
    with pytest.raises(UnsupportedError, match="only an autoregressive model"):
        converted(make_model(context="full").backbone, tokenizer, Convert(to="sdar"), None)
    windows = Windows(size=8, layers=(0,))
    sliding = make_model(context="causal", mask_id=None, null_id=None, windows=windows).backbone
    for to in CONVERSIONS:
        with pytest.raises(UnsupportedError, match=r"see windows of 8 positions, .* without sliding windows"):
            converted(sliding, tokenizer, Convert(to=to), None)
    for options, message in (
        ({"to": "dream"}, "unknown convert.to"),
        ({"to": "diffullama", "block_size": 4}, "is full"),
    ):
        with pytest.raises(InputError, match=message):
            Convert(**options)  # type: ignore[arg-type]
    recipe = load_recipe("convert", SHORT)
    for changes, message in (
        ({"convert": Convert(to="sdar")}, "anneal opens"),
        ({"sft": None}, "does not read convert, a key of sft"),
    ):
        with pytest.raises(InputError, match=message):
            replace(recipe, **changes)  # type: ignore[arg-type]
    folder = save_model(tmp_path / "model", make_model(context="full").backbone, tokenizer)
    with pytest.raises(DaguerreError, match="only an autoregressive model"):
        run_training(
            "convert", start_from=str(folder), data=[texts], out=tmp_path / "run", overrides=SHORT, device="cpu"
        )
    pytest.importorskip("transformers")
    source = CASES["qwen3"].write(tmp_path / "published", made("qwen3"))
    with pytest.raises(UnsupportedError, match="no published layout is qwen3 converted to 'diffullama'"):
        run_training(
            "convert", start_from=str(source), data=[texts], out=tmp_path / "run", overrides=SHORT, device="cpu"
        )
    assert not (tmp_path / "run").exists()
