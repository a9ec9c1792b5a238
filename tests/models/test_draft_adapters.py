"""Adapters in Uno's layout: rows of random tokens that draft behind a plain model's text."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

pytest.importorskip("gguf")
pytest.importorskip("torch")

import daguerre
from backends import needs_compiler
from daguerre.canvas import Canvas
from daguerre.errors import CheckpointError, UnsupportedError
from daguerre.models.backbone_session import BackboneSession, random_tokens
from daguerre.models.backends.native_backend import NativeBackend
from daguerre.models.backends.torch_backend import TorchBackend
from daguerre.models.core.config import ModelConfig
from daguerre.models.forward import Forward, Hidden, Layout
from daguerre.models.loading import load_folder
from daguerre.models.processor import in_crowd
from daguerre.models.row_times import RowTimes

FILE = Path(__file__).parents[1] / "data" / "gguf" / "qwen3-q6_k.gguf"
EVERY = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
RANK, ALPHA = 4, 64
PROMPT = list(range(20, 60))


def write(folder: Path, config: ModelConfig, targets: tuple[str, ...] = EVERY, **values: Any) -> Path:
    """An adapter of random numbers, as PEFT writes it."""
    rng, head = np.random.default_rng(0), config.head_width
    q, kv, width, inner = config.num_heads * head, config.num_kv_heads * head, config.width, config.mlp_width
    sizes = {
        "q_proj": ("self_attn", width, q),
        "k_proj": ("self_attn", width, kv),
        "v_proj": ("self_attn", width, kv),
        "o_proj": ("self_attn", q, width),
        "gate_proj": ("mlp", width, inner),
        "up_proj": ("mlp", width, inner),
        "down_proj": ("mlp", inner, width),
    }
    tensors = {}
    for layer in range(config.num_layers):
        for name in targets:
            scope, num_in, num_out = sizes[name]
            module = f"base_model.model.model.layers.{layer}.{scope}.{name}"
            tensors[f"{module}.lora_A.weight"] = rng.normal(0, num_in**-0.5, (RANK, num_in)).astype(np.float32)
            tensors[f"{module}.lora_B.weight"] = rng.normal(0, 0.03, (num_out, RANK)).astype(np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    about = {
        "peft_type": "LORA",
        "base_model_name_or_path": "IFM/uno-qwen3-8b-base",
        "r": RANK,
        "lora_alpha": ALPHA,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(targets),
        "task_type": "CAUSAL_LM",
    }
    (folder / "adapter_config.json").write_text(json.dumps(about | values))
    return folder


@pytest.fixture(autouse=True)
def row_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A further row takes little, whatever this machine has to do: how much is drafted does not depend on it."""
    monkeypatch.setattr(RowTimes, "share", lambda self, crowd=1: in_crowd(0.05, crowd))


@pytest.fixture(scope="module")
def config() -> ModelConfig:
    return load_folder(FILE, defer=True, drafts="none").weights.config


@pytest.fixture(scope="module")
def adapter(config: ModelConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("uno") / "adapter", config)


@needs_compiler
@pytest.mark.parametrize("targets", [EVERY, ("q_proj", "v_proj")])
def test_rows_are_those_of_the_merged_model_behind_a_text_of_the_plain_one(
    config: ModelConfig, targets: tuple[str, ...], tmp_path: Path
) -> None:
    """As the publisher's code computes them, in a forward of their own: the last token, then noise with the adapter."""
    folder, num, ahead = write(tmp_path / "adapter", config, targets), len(PROMPT), 5
    plain, merged = (TorchBackend(load_folder(FILE, drafts="none", adapter=one).backbone) for one in (None, folder))
    cache, given, rows = plain.cache(num), np.array(PROMPT), np.arange(num, num + ahead)
    text = Layout(np.arange(num), np.arange(1, num + 1, dtype=np.int32), num)
    (seed,) = plain.forward([Forward(given, text, cache, np.array([num - 1], np.int32), Hidden())])
    noise = random_tokens(load_folder(FILE, defer=True, drafts=folder).weights.config, rows)
    assert len({*noise.tolist()}) == ahead
    layout = Layout(rows, np.full(ahead, num, np.int32), 0, mask=np.tri(ahead, dtype=bool))
    (drafted,) = merged.forward([Forward(noise, layout, cache, np.arange(ahead, dtype=np.int32), Hidden())])
    (alone,) = plain.forward([Forward(noise, layout, cache, np.arange(ahead, dtype=np.int32), Hidden())])
    assert np.abs(drafted.hidden - alone.hidden).max() > 0.1

    backbone = load_folder(FILE, drafts=folder).backbone
    for backend in (TorchBackend(backbone), NativeBackend(backbone)):
        canvas = Canvas(
            tokens=np.array(PROMPT + [0] * 8),
            open=np.arange(num + 8) >= num,
            span=(num, num + 8),
            gaps=((num, num + 8),),
        )
        session = BackboneSession(backbone.config, backend.cache(num + 8))
        (forward,) = next(session.verify(canvas, np.zeros(0, np.int64), ahead))
        (answer,) = backend.forward([forward])
        assert np.abs(answer.hidden - np.concatenate([seed.hidden, drafted.hidden])).max() < 1e-3


@needs_compiler
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_texts_are_those_of_ar(adapter: Path, temperature: float) -> None:
    model = daguerre.load(FILE, drafts=adapter)
    options: dict[str, Any] = {"temperature": temperature, "seed": 5, "heal": False}
    plain = model.generate(PROMPT, 40, mode="ar", **options)
    for block_size in (None, 6):
        got = model.generate(PROMPT, 40, mode="speculative", drafter="head", block_size=block_size, **options)
        assert [token.text for token in got.tokens] == [token.text for token in plain.tokens]
        assert got.usage.head_drafted > (40 if block_size is None else 5)
    assert not model.config.draft_head and model.config.draft_rank == RANK


def test_what_does_not_fit_is_refused(config: ModelConfig, adapter: Path, tmp_path: Path) -> None:
    def damaged(**values: Any) -> Path:
        shutil.copytree(adapter, tmp_path / "adapter", dirs_exist_ok=True)
        about = json.loads((adapter / "adapter_config.json").read_text())
        (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(about | values))
        return tmp_path / "adapter"

    with pytest.raises(UnsupportedError, match="use_dora"):
        load_folder(FILE, defer=True, drafts=damaged(use_dora=True))
    with pytest.raises(UnsupportedError, match="embed_tokens"):
        load_folder(FILE, defer=True, drafts=damaged(target_modules=["embed_tokens"]))
    with pytest.raises(CheckpointError, match="does not fit"):
        load_folder(FILE, defer=True, drafts=damaged(r=8))
    tensors = load_file(adapter / "adapter_model.safetensors")
    save_file(
        tensors | {"base_model.model.lm_head.lora_A.weight": np.zeros((4, 4))}, damaged() / "adapter_model.safetensors"
    )
    with pytest.raises(CheckpointError, match="no place for, such as"):
        load_folder(FILE, defer=True, drafts=tmp_path / "adapter")
    (tmp_path / "adapter" / "adapter_model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="copy the whole folder"):
        load_folder(FILE, defer=True, drafts=tmp_path / "adapter")
