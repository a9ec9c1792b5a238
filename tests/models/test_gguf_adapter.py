"""An adapter alone as a GGUF file: what it holds, and that llama.cpp computes with it what the merged model gives."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import daguerre
from conftest import MakeModel
from daguerre.errors import UnsupportedError
from daguerre.models.backends.torch_backend import TorchBackend
from daguerre.models.core.config import ModelConfig
from daguerre.models.forward import Forward, Layout, Logits
from daguerre.models.gguf.adapter import write_adapter
from daguerre.models.gguf.pieces import as_halves
from daguerre.models.gguf.writing import write_gguf
from daguerre.models.loading import load_folder, open_source, save_model
from daguerre.models.lora_names import AdapterNames
from daguerre.train.chosen import base_of
from daguerre.train.lora import Lora, start_lora
from llama_cpp_runs import LlamaCpp
from published import CASES, made
from test_cli import Called, assert_one_line, call

__all__ = ["call"]

gguf = pytest.importorskip("gguf")


def adapter_names(folder: Path) -> tuple[ModelConfig, AdapterNames]:
    """The config of a model, and the names by which an adapter has its matrices."""
    source = open_source(folder)
    return source.config(), source.names()


def adapter_of(folder: Path, out: Path, options: Lora, size: float = 0.2) -> Path:
    """An adapter of random factors for a model."""
    backbone = load_folder(folder).backbone
    run = start_lora(backbone, options, base_of(str(folder), backbone), seed=0)
    random = torch.Generator().manual_seed(1)
    values = {n: size * torch.randn(p.shape, generator=random) for n, p in backbone.named_parameters()}
    return run.write(out, backbone, values, {})


def tensors(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The fields and tensors of a file, by the package gguf."""
    reader = gguf.GGUFReader(path)
    return (
        {name: field.contents() for name, field in reader.fields.items()},
        {tensor.name: np.array(tensor.data) for tensor in reader.tensors},
    )


@pytest.mark.parametrize("rslora", [False, True])
def test_a_file_holds_what_llama_cpp_multiplies(rslora: bool, tmp_path: Path) -> None:
    """W + alpha / r B A for each matrix, whose rows llama.cpp has in another order in queries and keys."""
    folder = CASES["llama"].write(tmp_path, made("llama"))
    adapter = adapter_of(folder, tmp_path / "adapter", Lora(rank=3, alpha=7, rslora=rslora))
    config, names = adapter_names(folder)
    assert write_adapter(config, names, adapter, tmp_path / "a.gguf") == 7 * config.num_layers
    fields, held = tensors(tmp_path / "a.gguf")
    assert fields["general.type"] == "adapter"
    assert fields["adapter.type"] == "lora"
    assert fields["general.architecture"] == "llama"
    alpha = fields["adapter.lora.alpha"]
    plain, merged = (load_folder(folder, adapter=beside).backbone for beside in (None, adapter))
    head = config.head_width
    for name, start, heads in (("attn_q", 0, 4), ("attn_k", 4 * head, 2), ("attn_v", 6 * head, 2)):
        a, b = (torch.from_numpy(held[f"blk.1.{name}.weight.lora_{key}"]) for key in "ab")
        product = alpha / len(a) * (b @ a)
        product = product if name == "attn_v" else as_halves(product, heads)
        rows = slice(start, start + heads * head)
        added = merged.layers[1].attention.qkv.weight[rows] - plain.layers[1].attention.qkv.weight[rows]  # type: ignore
        assert torch.allclose(product, added, atol=1e-5)


def test_scales_that_differ_are_multiplied_into_the_factors(tmp_path: Path) -> None:
    folder = CASES["qwen3"].write(tmp_path, made("qwen3"))
    adapter = adapter_of(folder, tmp_path / "adapter", Lora(rank=2, alpha=4))
    values = json.loads((adapter / "adapter_config.json").read_text()) | {"alpha_pattern": {"v_proj": 10}}
    (adapter / "adapter_config.json").write_text(json.dumps(values))
    write_adapter(*adapter_names(folder), adapter, tmp_path / "a.gguf")
    fields, held = tensors(tmp_path / "a.gguf")
    assert fields["adapter.lora.alpha"] == 0.0
    ours = load_file(adapter / "adapter_model.safetensors")
    for name, theirs, scale in (("attn_v", "v_proj", 5.0), ("attn_q", "q_proj", 2.0)):
        b = ours[f"base_model.model.model.layers.0.self_attn.{theirs}.lora_B.weight"]
        assert torch.equal(torch.from_numpy(held[f"blk.0.{name}.weight.lora_b"]), scale * b)


def test_what_llama_cpp_cannot_add_is_refused(tmp_path: Path) -> None:
    folder = CASES["llama"].write(tmp_path, made("llama"))
    adapter = adapter_of(folder, tmp_path / "adapter", Lora(rank=2, whole=("lm_head",)))
    with pytest.raises(UnsupportedError, match=r"changes lm_head\.weight, and llama\.cpp adds factors to"):
        write_adapter(*adapter_names(folder), adapter, tmp_path / "a.gguf")
    gpt2 = CASES["gpt2"].write(tmp_path / "gpt2", made("gpt2"))
    adapter = adapter_of(gpt2, tmp_path / "other", Lora(rank=2))
    with pytest.raises(UnsupportedError, match=r"llama\.cpp has no"):
        write_adapter(*adapter_names(gpt2), adapter, tmp_path / "a.gguf")
    assert not (tmp_path / "a.gguf").exists()


def test_the_command_writes_an_adapter_alone_or_merged(call: Callable[..., Called], tmp_path: Path) -> None:
    folder = CASES["llama"].write(tmp_path, made("llama"))
    adapter = adapter_of(folder, tmp_path / "adapter", Lora(rank=2))
    code, out, err = call("export", "--adapter", str(adapter), "--gguf", str(tmp_path / "a.gguf"))
    assert (code, err) == (0, "")
    assert f"factors of 14 matrices, for {folder}: llama.cpp takes it with --lora" in out
    code, _, err = call("export", str(folder), "--adapter", str(adapter), "--alone", "--gguf", str(tmp_path / "b.gguf"))
    assert code == 0, err
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    code, _, err = call("export", str(folder), "--adapter", str(adapter), "--gguf", str(tmp_path / "m.gguf"))
    assert code == 0, err
    assert tensors(tmp_path / "m.gguf")[1].keys().isdisjoint(tensors(tmp_path / "a.gguf")[1])
    assert_one_line(call("export", "--adapter", str(adapter), "--gguf", str(tmp_path / "a.gguf")), "is there already")
    assert_one_line(call("export", "--adapter", str(adapter), "--out", str(tmp_path / "x")), "name a model; or write")


@pytest.mark.parametrize("kind", ["llama", "ours"])
def test_llama_cpp_writes_the_tokens_of_the_merged_model(kind: str, tmp_path: Path, make_model: MakeModel) -> None:
    pytest.importorskip("llama_cpp")
    if kind == "ours":
        model = make_model(seed=1, width=64, num_heads=2, mlp_width=64)
        folder = save_model(tmp_path / "model", model.backbone, model.tokenizer, torch.float32)
    else:
        folder = CASES["llama"].write(tmp_path, made("llama"))
    adapter = adapter_of(folder, tmp_path / "adapter", Lora(rank=4, alpha=8))
    plain = load_folder(folder)
    write_gguf(plain.backbone, plain.tokenizer, tmp_path / "m.gguf", "f32", plain.family)
    write_adapter(*adapter_names(folder), adapter, tmp_path / "a.gguf")
    merged = load_folder(folder, adapter=adapter).backbone
    tokens = np.random.default_rng(0).integers(20, 200, 24)
    with LlamaCpp(tmp_path / "m.gguf", lora=tmp_path / "a.gguf") as theirs, LlamaCpp(tmp_path / "m.gguf") as without:
        found, before = (torch.from_numpy(each.logits(tokens.tolist())) for each in (theirs, without))
    wanted = logits(merged, tokens)
    known = wanted.isfinite()
    assert (found - wanted)[known].abs().max() < 1e-4
    assert (before - wanted)[known].abs().max() > 0.1
    if kind == "ours":
        write_again = daguerre.load(folder, dtype="float32", adapter=adapter, backend="torch")
        text = write_again.generate(tokens.tolist(), 16, mode="ar", min_tokens=16)
        with LlamaCpp(tmp_path / "m.gguf", lora=tmp_path / "a.gguf") as theirs:
            prompt = [write_again.config.bos_id or 0, *tokens.tolist()]
            assert theirs.greedy(prompt, 16) == [token.id for token in text.tokens]


def logits(backbone: Any, tokens: np.ndarray) -> torch.Tensor:
    """The logits of a causal model, (R, V)."""
    rows = np.arange(len(tokens))
    layout = Layout(rows, (rows + 1).astype(np.int32), len(tokens))
    (answer,) = TorchBackend(backbone).forward([Forward(tokens, layout, None, rows.astype(np.int32), Logits())])
    return torch.from_numpy(answer.logits)
