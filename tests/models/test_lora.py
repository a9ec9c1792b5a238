"""Adapters in PEFT's layout are merged as PEFT itself merges them, and what cannot be merged is refused by name."""

from __future__ import annotations

import copy
import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import daguerre
from daguerre.errors import CheckpointError, UnsupportedError
from daguerre.models.gguf.writing import write_gguf
from daguerre.models.loading import load_folder
from published import CASES, NUM_TOKENS, ROWS, Case, logits_under, made, ours, seen_by

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
QKV = ["q_proj", "k_proj", "v_proj"]


def adapted(case: Case, name: str, folder: Path, **options: Any) -> torch.nn.Module:
    """Write a random adapter of a case's oracle, and return the oracle with it merged, by PEFT."""
    peft = pytest.importorskip("peft")
    random = torch.Generator().manual_seed(1)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # PEFT uses what transformers deprecates
        wrapped = peft.get_peft_model(copy.deepcopy(made(name)), peft.LoraConfig(task_type="CAUSAL_LM", **options))
        for key, weight in wrapped.named_parameters():
            if "lora_" in key or "modules_to_save" in key:
                weight.copy_(0.2 * torch.randn(weight.shape, generator=random))
        wrapped.save_pretrained(str(folder))
        merged: torch.nn.Module = wrapped.merge_and_unload()
    return merged


MERGED: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"target_modules": QKV, "r": 4, "lora_alpha": 8}),
    ("llama", {"target_modules": "all-linear", "r": 3, "lora_alpha": 5, "use_rslora": True}),
    ("llama", {"target_modules": ["embed_tokens", "o_proj"], "r": 4, "modules_to_save": ["lm_head"]}),
    (
        "qwen3",
        {
            "target_modules": [*QKV, "gate_proj", "down_proj"],
            "r": 4,
            "rank_pattern": {"k_proj": 2, "layers.1.mlp.down_proj": 6},
            "alpha_pattern": {"k_proj": 32, "layers.1.mlp.down_proj": 1},
        },
    ),
    ("qwen2", {"target_modules": [*QKV, "up_proj"], "r": 2, "layers_to_transform": [1]}),
    ("gpt2", {"target_modules": ["c_attn", "c_fc", "c_proj"], "r": 4, "fan_in_fan_out": True}),
    ("gpt2 with a head", {"target_modules": ["c_attn", "attn.c_proj"], "r": 4, "fan_in_fan_out": True}),
]


def test_a_merged_adapter_gives_the_logits_of_peft(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for number, (name, options) in enumerate(MERGED):
        with subtests.test(name, **options):
            (parent := tmp_path / str(number)).mkdir()
            case = CASES[name]
            merged = adapted(case, name, parent / "adapter", **options)
            folder = case.write(parent, made(name))
            backbone = load_folder(folder, adapter=parent / "adapter").backbone
            tokens, seen = np.random.default_rng(0).integers(0, NUM_TOKENS, ROWS), seen_by(backbone.config)
            expected, before = (logits_under(model, torch.from_numpy(tokens), seen) for model in (merged, made(name)))
            got = ours("torch", backbone, tokens, seen)[:, :NUM_TOKENS]
            assert (got - expected[:, :NUM_TOKENS]).abs().max() < 1e-5 * expected.abs().max()
            assert (before - expected).abs().max() > 0.1


def test_an_adapter_of_publishers_names_finds_them(tmp_path: Path) -> None:
    """LLaDA's names, as D2F's adapters have them; PEFT's own module is Llama's, renamed."""
    case = CASES["llada"]
    merged = adapted(case, "llada", tmp_path / "adapter", target_modules=["q_proj", "o_proj"], r=4)
    path = tmp_path / "adapter" / WEIGHTS
    held = {}
    for key, tensor in load_file(path).items():
        for llama, llada in case.names.items():
            key = key.replace(llama, llada)
        held[key] = tensor
    assert any(".attn_out.lora_A" in key for key in held)
    save_file(held, path)
    backbone = load_folder(case.write(tmp_path, made("llada")), adapter=tmp_path / "adapter").backbone
    assert torch.allclose(backbone.layers[1].attention.out.weight, merged.model.layers[1].self_attn.o_proj.weight)


def test_load_takes_an_adapter_by_its_folder(tmp_path: Path) -> None:
    case = CASES["qwen3"]
    adapted(case, "qwen3", tmp_path / "adapter", target_modules=QKV, r=4)
    folder = case.write(tmp_path, made("qwen3"))
    plain = daguerre.load(folder, dtype="float32")
    with_adapter = daguerre.load(folder, dtype="float32", adapter=tmp_path / "adapter")
    assert not torch.equal(
        plain.backbone.layers[0].attention.qkv.weight, with_adapter.backbone.layers[0].attention.qkv.weight
    )
    assert torch.equal(plain.backbone.embedding.weight, with_adapter.backbone.embedding.weight)


def test_an_adapter_is_merged_into_a_gguf_file(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    adapted(CASES["llama"], "llama", tmp_path / "adapter", target_modules=QKV, r=4)
    folder = CASES["llama"].write(tmp_path, made("llama"))
    plain = load_folder(folder)
    write_gguf(plain.backbone, plain.tokenizer, tmp_path / "m.gguf", "f32", "llama")
    theirs, mine = (load_folder(path, adapter=tmp_path / "adapter").backbone for path in (folder, tmp_path / "m.gguf"))
    assert all(torch.equal(mine.state_dict()[name], weight) for name, weight in theirs.state_dict().items())
    assert not torch.equal(mine.layers[0].attention.qkv.weight, plain.backbone.layers[0].attention.qkv.weight)  # type: ignore[union-attr, index]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A checkpoint, and an adapter that fits."""
    parent = tmp_path_factory.mktemp("adapted")
    adapted(CASES["qwen2"], "qwen2", parent / "adapter", target_modules=QKV, r=4)
    return CASES["qwen2"].write(parent, made("qwen2")), parent / "adapter"


@pytest.fixture
def written(source: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path]:
    """The checkpoint, and a copy of the adapter."""
    folder, adapter = source
    return folder, Path(shutil.copytree(adapter, tmp_path / "adapter"))


def test_an_adapter_of_another_kind_is_refused_by_name(written: tuple[Path, Path], subtests: pytest.Subtests) -> None:
    folder, adapter = written
    values = json.loads((adapter / CONFIG).read_text())
    assert load_folder(folder, adapter=adapter)
    for changes, message in [
        ({"use_dora": True}, "use_dora is not supported"),
        ({"peft_type": "IA3"}, "peft_type 'IA3'"),
        ({"layer_replication": [[0, 1]]}, "layer_replication is not supported"),
        ({"lora_bias": True}, "lora_bias is not supported"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices is not supported"),
        ({"target_parameters": ["experts"]}, "target_parameters is not supported"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights='pissa' changed the model's own weights"),
    ]:
        with subtests.test(message):
            (adapter / CONFIG).write_text(json.dumps(values | changes))
            with pytest.raises(UnsupportedError, match=message):
                load_folder(folder, adapter=adapter)


def test_every_tensor_of_an_adapter_that_does_not_fit_is_named(written: tuple[Path, Path]) -> None:
    folder, adapter = written
    held = load_file(adapter / WEIGHTS)
    first = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"

    def refused(tensors: dict[str, torch.Tensor], error: type[Exception] = CheckpointError) -> str:
        save_file(tensors, adapter / WEIGHTS)
        with pytest.raises(error) as caught:
            load_folder(folder, adapter=adapter)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    strange = {key.replace("layers.1", "layers.7"): tensor for key, tensor in held.items()}
    said = refused(strange | {"base_model.model.score.weight": torch.ones(2, 2)})
    for name in ("model.layers.7.self_attn.q_proj.weight", "model.layers.7.self_attn.v_proj.weight", "score.weight"):
        assert name in said
    said = refused({key: tensor for key, tensor in held.items() if key != first})
    assert "lacks one of lora_A and lora_B of model.layers.0.self_attn.q_proj.weight" in said
    assert "q_proj.weight" in refused(held | {first: torch.ones(4, 31)})
    assert "q_proj.weight" in refused(held | {first: torch.ones(3, 32)})
    assert "is empty" in refused({})
    magnitude = {"base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector": torch.ones(32)}
    assert "DoRA" in refused(held | magnitude, UnsupportedError)
    embedding = {f"base_model.model.model.embed_tokens.lora_embedding_{key}": torch.ones(4, 4) for key in "AB"}
    assert "at once" in refused(held | embedding, UnsupportedError)


def test_a_damaged_adapter_is_refused_in_one_line(written: tuple[Path, Path]) -> None:
    folder, adapter = written
    (adapter / WEIGHTS).write_bytes((adapter / WEIGHTS).read_bytes()[:-3])
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_folder(folder, adapter=adapter)
    (adapter / CONFIG).write_text("{}")
    with pytest.raises(CheckpointError, match="not an adapter's configuration"):
        load_folder(folder, adapter=adapter)
    with pytest.raises(CheckpointError, match=r"an adapter has adapter_config\.json"):
        load_folder(folder, adapter=folder)


def test_a_scale_that_is_none_is_named(written: tuple[Path, Path], subtests: pytest.Subtests) -> None:
    folder, adapter = written
    values = json.loads((adapter / CONFIG).read_text())
    for changes, message in [
        ({"lora_alpha": "x"}, "the scale 'lora_alpha' must be a number, not 'x'"),
        ({"lora_alpha": None}, "the scale 'lora_alpha' must be a number, not None"),
        ({"lora_alpha": float("nan")}, "must be a number, not nan"),
        ({"alpha_pattern": 5}, "alpha_pattern must map names to numbers, not 5"),
        ({"alpha_pattern": [1]}, "alpha_pattern must map names to numbers"),
        ({"alpha_pattern": {"(": 3}}, r"alpha_pattern has '\(', which is no regular expression"),
        ({"alpha_pattern": {"q_proj": "x"}}, "the scale 'q_proj' must be a number, not 'x'"),
    ]:
        with subtests.test(**changes):
            (adapter / CONFIG).write_text(json.dumps(values | changes))
            with pytest.raises(CheckpointError, match=message):
                load_folder(folder, adapter=adapter)


def test_factors_of_rank_0_and_pickles_are_refused(written: tuple[Path, Path]) -> None:
    folder, adapter = written
    held = {key: torch.ones(0, 32) if "lora_A" in key else torch.ones(32, 0) for key in load_file(adapter / WEIGHTS)}
    save_file(held, adapter / WEIGHTS)
    with pytest.raises(CheckpointError, match="of another shape"):
        load_folder(folder, adapter=adapter)
    (adapter / WEIGHTS).unlink()
    with pytest.raises(CheckpointError, match=r"has no adapter_model\.safetensors: copy the whole folder"):
        load_folder(folder, adapter=adapter)
    (adapter / "adapter_model.bin").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"adapter_model\.bin may run code when it is read"):
        load_folder(folder, adapter=adapter)
