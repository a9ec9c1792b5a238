"""What `daguerre inspect` says of a model, from config.json alone: counts are those that are known of public models."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from daguerre.commands.describing import as_lines, cache_bytes, facts_of, in_bytes
from daguerre.errors import DaguerreError
from daguerre.model import Model
from daguerre.models.families import FAMILIES
from daguerre.models.loading import load_folder, model_folder
from daguerre.models.processor import instruction_set
from published import CASES, made, write_tokenizer
from test_cli import Called, assert_one_line, call

__all__ = ["call"]

QWEN: dict[str, Any] = {"hidden_act": "silu", "max_position_embeddings": 32768, "rope_theta": 1e6, "rms_norm_eps": 1e-6}
QWEN |= {"eos_token_id": 151643, "use_sliding_window": False, "max_window_layers": 28, "sliding_window": 32768}


def shape(width: int, inner: int, layers: int, heads: int, keys: int, vocabulary: int, **more: Any) -> dict[str, Any]:
    """Keys of config.json."""
    return {
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": keys,
        "vocab_size": vocabulary,
        **more,
    }


LLADA = {
    "d_model": 4096,
    "n_layers": 32,
    "n_heads": 32,
    "n_kv_heads": 32,
    "mlp_hidden_size": 12288,
    "vocab_size": 126464,
    "embedding_size": 126464,
    "max_sequence_length": 4096,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5,
    "weight_tying": False,
    "mask_token_id": 126336,
    "eos_token_id": 126081,
    "bias_for_layer_norm": False,
}
QWEN25_7B = QWEN | shape(3584, 18944, 28, 28, 4, 152064, tie_word_embeddings=False)
QWEN3_17B = QWEN | shape(2048, 6144, 28, 16, 8, 151936, head_dim=128)
GPT2 = {"n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257, "eos_token_id": 50256}
LLAMA = {"eos_token_id": 2, "hidden_act": "silu", "rms_norm_eps": 1e-5}
STEERLING = {
    "interpretable": True,
    "vocab_size": 100281,
    "n_layers": 32,
    "n_head": 32,
    "n_embd": 4096,
    "n_kv_heads": 4,
    "block_size": 4096,
    "mlp_ratio": 4,
    "weight_sharing": True,
    "n_concepts": 33732,
    "n_unknown_concepts": 101196,
    "factorize_rank": 256,
    "pad_multiple": 16,
    "pad_token_id": 100277,
    "eos_token_id": 100257,
    "mask_token_id": 100280,
}
PUBLIC: list[tuple[str, str, str, dict[str, Any], int, dict[str, Any]]] = [
    # name on the hub, architecture, model_type, keys of its config.json, parameters, and what else is said.
    # Numbers of parameters: the hub's page of each model, from its safetensors; for SDAR-4B-Chat half of `total_size`
    # in its index (github.com/JetAstra/SDAR, training/model); for CoDA its projection is not tied (arXiv 2510.03270).
    ("GSAI-ML/LLaDA-8B-Base", "LLaDAModelLM", "llada", LLADA, 8_015_581_184, {"context": "full", "mask_id": 126336}),
    (
        "Dream-org/Dream-v0-Base-7B",
        "DreamModel",
        "Dream",
        QWEN25_7B | {"mask_token_id": 151666},
        7_615_616_512,
        {"context": "full", "shift": True, "mask_id": 151666},
    ),
    (
        "Qwen/Qwen3-0.6B",
        "Qwen3ForCausalLM",
        "qwen3",
        QWEN | shape(1024, 3072, 28, 16, 8, 151936, head_dim=128, tie_word_embeddings=True),
        596_049_920,
        {"context": "causal", "mask_id": None},
    ),
    (
        "Qwen/Qwen2.5-0.5B",
        "Qwen2ForCausalLM",
        "qwen2",
        QWEN | shape(896, 4864, 24, 14, 2, 151936, tie_word_embeddings=True),
        494_032_768,
        {"context": "causal"},
    ),
    (
        "JetLM/SDAR-4B-Chat",
        "SDARForCausalLM",
        "sdar",
        QWEN | shape(2560, 9728, 36, 32, 8, 151936, head_dim=128, tie_word_embeddings=False, block_size=4),
        4_411_424_256,
        {"context": "block", "block_size": 4, "shift": False, "mask_id": 151669},
    ),
    (
        "JetLM/SDAR-1.7B-Chat-b32",
        "SDARForCausalLM",
        "sdar",
        QWEN3_17B | {"tie_word_embeddings": True},
        1_720_574_976,
        {"block_size": 32},
    ),
    (  # the shape is that of Qwen3-8B, and so is the number
        "tencent/WeDLM-8B-Instruct",
        "WeDLMForCausalLM",
        "wedlm",
        QWEN
        | shape(4096, 12288, 36, 32, 8, 151936, head_dim=128, tie_word_embeddings=False)
        | {"attention_bias": False, "qk_norm": True, "mask_token_id": 151665, "layer_types": ["full_attention"] * 36},
        8_190_735_360,
        {
            "context": "reordered",
            "shift": False,
            "mask_id": 151665,
            "modes": ["block", "full"],
            "operations": [
                *("generate", "stream", "infill", "fill", "edit"),
                *("nll (ar)", "nll (elbo)", "nll (chain)", "decide"),
            ],
        },
    ),
    (  # the number that the publisher's notebooks print
        "guidelabs/steerling-8b",
        "SteerlingForCausalLM",
        "steerling",
        STEERLING,
        8_391_778_304,
        {"context": "block", "block_size": 64, "shift": False, "mask_id": 100280, "modes": ["block"]},
    ),
    ("Salesforce/CoDA-v0-Instruct", "CoDALanguageModel", "CoDA", QWEN3_17B, 2_031_739_904, {"mask_id": 151669}),
    (
        "Efficient-Large-Model/Fast_dLLM_v2_1.5B",
        "Fast_dLLM_QwenForCausalLM",
        "Fast_dLLM_Qwen",
        QWEN | shape(1536, 8960, 28, 12, 2, 151936, tie_word_embeddings=True),
        1_543_714_304,
        {"block_size": 32, "shift": True, "mask_id": 151665},
    ),
    (
        "dllm-hub/Qwen3-0.6B-diffusion-mdlm-v0.1",
        "A2DQwen3LMHeadModel",
        "a2d-qwen3",
        QWEN | shape(1024, 3072, 28, 16, 8, 151936, head_dim=128, tie_word_embeddings=True),
        596_049_920,
        {"context": "full", "shift": False, "mask_id": 151669},
    ),
    ("openai-community/gpt2", "GPT2LMHeadModel", "gpt2", GPT2, 124_439_808, {"positions": 1024}),
    (
        "openai-community/gpt2-medium",
        "GPT2LMHeadModel",
        "gpt2",
        GPT2 | {"n_embd": 1024, "n_layer": 24, "n_head": 16},
        354_823_168,
        {},
    ),
    ("diffusionfamily/diffugpt-s", "GPT2LMHeadModel", "gpt2", GPT2, 124_439_808, {"mask_id": 10541}),
    (
        "diffusionfamily/diffullama",
        "LlamaForCausalLM",
        "llama",
        LLAMA | shape(4096, 11008, 32, 32, 32, 32000, max_position_embeddings=4096),
        6_738_415_616,
        {"context": "full", "mask_id": 811},
    ),
    (
        "meta-llama/Llama-3.2-1B",
        "LlamaForCausalLM",
        "llama",
        LLAMA | shape(2048, 8192, 16, 32, 8, 128256, head_dim=64, tie_word_embeddings=True, rope_theta=5e5),
        1_235_814_400,
        {"head_width": 64},
    ),
    (
        "mistralai/Mistral-7B-v0.3",
        "MistralForCausalLM",
        "mistral",
        LLAMA | shape(4096, 14336, 32, 32, 8, 32768, sliding_window=None, rope_theta=1e6),
        7_248_023_552,
        {},
    ),
    (
        "ByteDance-Seed/Stable-DiffCoder-8B-Instruct",
        "StableDiffcoderForCausalLM",
        "llama",
        LLAMA | shape(4096, 14336, 32, 32, 8, 155136, rope_theta=5e5, max_position_embeddings=8192),
        8_250_462_208,
        {"block_size": 4, "mask_id": 5},
    ),
]


def write_config(parent: Path, name: str, architecture: str, kind: str, config: dict[str, Any]) -> Path:
    """config.json alone, in a folder of the hub's cache."""
    folder = parent / f"models--{name.replace('/', '--')}" / "snapshots" / ("0" * 40)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"architectures": [architecture], "model_type": kind, **config}))
    return folder


def test_parameters_are_counted_from_a_public_config(subtests: pytest.Subtests, tmp_path: Path) -> None:
    for name, architecture, kind, config, num, said in PUBLIC:
        with subtests.test(name):
            facts = facts_of(write_config(tmp_path, name, architecture, kind, config))
            assert facts["parameters"] == num
            assert {key: facts[key] for key in said} == said
            assert facts["weights_bytes"] == {"float32": 4 * num, "bfloat16": 2 * num}
            assert facts["tokenizer"] == "none in this folder"
            assert facts["decode"] == FAMILIES[facts["family"]].decode
            assert json.loads(json.dumps(facts)) == facts


def test_the_memory_that_is_shown_is_what_is_allocated(subtests: pytest.Subtests, tmp_path: Path) -> None:
    for name in ("llama", "sdar", "llada", "gpt2", "a2d"):
        folder = CASES[name].write(tmp_path / name, made(name))
        loaded, facts = load_folder(folder), facts_of(folder)
        with subtests.test(name):
            assert facts["weights_bytes"]["float32"] == sum(weight.nbytes for weight in loaded.backbone.parameters())
            if loaded.backbone.config.context == "full":
                assert facts["cache_bytes"] == {}
                continue
            model = Model(loaded.backbone, loaded.tokenizer, "torch")
            cache = model.denoiser.backend.cache(128)
            cache.reserve(128, 128)
            assert facts["cache_bytes"]["128"]["float32"] == cache.num_bytes


def test_the_cache_is_shown_for_a_few_lengths_and_the_longest(tmp_path: Path) -> None:
    config = load_folder(CASES["llama"].write(tmp_path, made("llama"), max_position_embeddings=5000)).backbone.config
    each = 2 * 2 * 2 * 8  # keys and values, layers, heads, their width
    expected = {str(n): {"float32": 4 * n * each, "bfloat16": 2 * n * each} for n in (1024, 4096, 5000)}
    assert cache_bytes(config) == expected


CAN: list[tuple[str, set[str], set[str]]] = [
    (
        "llama",
        {"ar", "speculative", "beam"},
        {"generate", "stream", "infill", "fill (one gap)", "edit (one part)", "nll (ar)", "decide"},
    ),
    (
        "dream",
        {"block", "full", "ancestral"},
        {"generate", "stream", "infill", "fill", "edit", "nll (elbo)", "nll (chain)", "decide"},
    ),
    ("sdar", {"block"}, {"generate", "stream", "nll (elbo)", "nll (chain)", "decide"}),
]


def test_what_a_model_can_do_is_listed(tmp_path: Path) -> None:
    for name, modes, operations in CAN:
        facts = facts_of(CASES[name].write(tmp_path / name, made(name)))
        assert {*facts["modes"]} == modes, name
        assert {*facts["operations"]} == operations, name


def test_tokenizers_and_templates_are_told(tmp_path: Path) -> None:
    folder = CASES["sdar"].write(tmp_path, made("sdar"))
    assert facts_of(folder)["tokenizer"] == "260 tokens, byte-level"
    write_tokenizer(folder, chat_template="{{ messages[0].content }}")
    assert "chat" in facts_of(folder)["operations"]


def test_the_default_model_is_described_without_its_weights(call: Callable[..., Called], tmp_path: Path) -> None:
    code, out, err = call("inspect", "--json")
    assert code == 0, err
    values = json.loads(out)
    backbone = load_folder(model_folder()).backbone
    assert values["parameters"] == backbone.num_parameters
    assert (values["family"], values["context"], values["mask_id"]) == ("daguerre", "causal", 3)
    assert values["tokenizer"] == "2,048 tokens, byte-level"
    (tmp_path / "config.json").write_bytes((model_folder() / "config.json").read_bytes())
    assert json.loads(call("inspect", str(tmp_path), "--json")[1])["tokenizer"] == "none in this folder"
    code, out, _ = call("inspect", str(tmp_path))
    assert [line.split()[0] for line in out.splitlines()] == list(values)


def test_an_error_of_a_config_is_one_line(call: Callable[..., Called], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mamba", "architectures": ["MambaForCausalLM"]}')
    assert_one_line(call("inspect", str(tmp_path)), "mamba", "supported are")
    assert_one_line(call("inspect", str(tmp_path), "--family", "llada"), "mamba")
    assert_one_line(call("inspect", str(tmp_path), "--revision", "main"), "names on a hub")
    (tmp_path / "config.json").write_text("{}")
    assert_one_line(call("inspect", str(tmp_path)), "config.json")


def test_numbers_of_bytes_are_readable() -> None:
    assert [in_bytes(num) for num in (7, 1500, 16_031_162_368, 10**15)] == ["7 B", "1.5 kB", "16.03 GB", "1000 TB"]
    assert "float32 16 B" in as_lines({"weights_bytes": {"float32": 16}})


def test_export_writes_what_transformers_reads(call: Callable[..., Called], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = CASES["qwen3"].write(tmp_path, made("qwen3"))
    code, out, err = call("export", str(folder), "--out", str(tmp_path / "out"), "--dtype", "float32")
    assert code == 0, err
    assert "Qwen3ForCausalLM" in out
    assert_one_line(call("export", str(folder), "--out", str(tmp_path / "out")), "not an empty folder")
    assert_one_line(call("export", str(folder), "--out", str(tmp_path / "x"), "--dtype", "int4"), "unknown dtype")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert torch.equal(model.model.embed_tokens.weight, made("qwen3").model.embed_tokens.weight)


def test_a_published_folder_is_asked_like_any_other(call: Callable[..., Called], tmp_path: Path) -> None:
    folder = CASES["qwen2"].write(tmp_path, made("qwen2"))
    asked = ("generate", "abc", "--model", str(folder), "--max-tokens", "4", "--json", "--backend", "torch")
    code, out, err = call(*asked)
    assert code == 0, err
    assert json.loads(out)["usage"]["completion_tokens"] > 0
    assert call(*asked, "--family", "qwen2")[0] == 0
    assert_one_line(call(*asked, "--family", "llada"), "not of family 'llada'")
    assert_one_line(call(*asked, "--adapter", str(folder)), "an adapter has adapter_config.json")
    assert_one_line(call("decide", "x", "--label", "a", "--label", "b", "-m", str(folder), "--family", "gpt"), "gpt2")


def test_errors_share_one_root(tmp_path: Path) -> None:
    with pytest.raises(DaguerreError):
        facts_of(tmp_path)


def test_a_tokenizer_of_another_folder_is_described(call: Callable[..., Called], tmp_path: Path) -> None:
    folder, other = CASES["sdar"].write(tmp_path, made("sdar")), tmp_path / "other"
    other.mkdir()
    write_tokenizer(other, chat_template="{{ messages[0].content }}")
    code, out, err = call("inspect", str(folder), "--tokenizer", str(other), "--json")
    assert code == 0, err
    assert "chat" in json.loads(out)["operations"]
    assert "chat" not in facts_of(folder)["operations"]
    for option in ("--family", "--tokenizer"):
        assert_one_line(call("inspect", option, str(other)[:1]), f"{option[2:]} is for published checkpoints")


def test_export_refuses_before_weights_are_read(
    call: Callable[..., Called], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object, **__: object) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr("daguerre.models.loading.load_folder", read)
    (tmp_path / "file").write_text("")
    gpt2, llama = (CASES[name].write(tmp_path / name, made(name)) for name in ("gpt2", "llama"))
    assert_one_line(call("export", str(gpt2), "--out", str(tmp_path / "out")), "transformers has no Llama or Qwen")
    assert_one_line(call("export", str(llama), "--out", str(tmp_path / "file" / "x")), "cannot write")


def test_a_machine_is_described_with_its_compiled_libraries(
    call: Callable[..., Called], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    facts = json.loads(call("inspect", "--machine", "--json")[1])

    assert facts["instruction_set"] == instruction_set()
    assert set(facts) >= {"native", "constraints", "native_dtype", "cores"}
    monkeypatch.setenv("DAGUERRE_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "no C++ compiler either" in call("inspect", "--machine")[1]
