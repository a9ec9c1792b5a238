"""Tiny random checkpoints in publishers' layouts, and the independent implementations that compute them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from daguerre.models.backends.native_backend import NativeBackend
from daguerre.models.backends.torch_backend import TorchBackend
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.config import ModelConfig
from daguerre.models.forward import Forward, Layout, Logits
from daguerre.models.tokenizer import byte_of_character

SIZE = 320
"""Rows of the embeddings; the tokenizer has fewer."""
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<MASK>")
END, START, TURN, MASK = range(256, 256 + len(SPECIALS))
NUM_TOKENS = MASK + 1
ROWS = 37
BACKEND = {"native": NativeBackend, "torch": TorchBackend}

LLAMA: dict[str, Any] = {
    "vocab_size": SIZE,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "rope_theta": 5000.0,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "eos_token_id": END,
    "bos_token_id": END,
    "torch_dtype": "bfloat16",
}
"""What publishers write into config.json for a model with Llama's keys, in the spelling of transformers 4."""
QWEN2 = LLAMA | {"use_sliding_window": False, "sliding_window": 32, "max_window_layers": 2}
QWEN3 = LLAMA | {"head_dim": 12, "attention_bias": False, "sliding_window": None, "use_sliding_window": False}
GPT2: dict[str, Any] = {
    "vocab_size": SIZE,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 128,
    "n_ctx": 128,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "eos_token_id": END,
    "bos_token_id": END,
}
LLADA: dict[str, Any] = {
    "d_model": 32,
    "n_layers": 2,
    "n_heads": 4,
    "n_kv_heads": 4,
    "mlp_hidden_size": 56,
    "max_sequence_length": 128,
    "vocab_size": SIZE - 4,
    "embedding_size": SIZE,
    "rope": True,
    "rope_theta": 5000.0,
    "rms_norm_eps": 1e-5,
    "weight_tying": False,
    "activation_type": "silu",
    "block_type": "llama",
    "layer_norm_type": "rms",
    "layer_norm_with_affine": True,
    "bias_for_layer_norm": False,
    "include_bias": False,
    "include_qkv_bias": False,
    "attention_layer_norm": False,
    "alibi": False,
    "scale_logits": False,
    "input_emb_norm": False,
    "block_group_size": 1,
    "eos_token_id": END,
    "pad_token_id": END,
    "mask_token_id": MASK,
}
LLADA_NAMES = {
    "model.embed_tokens": "model.transformer.wte",
    "model.layers": "model.transformer.blocks",
    "self_attn.o_proj": "attn_out",
    "self_attn.": "",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ff_norm",
    "mlp.gate_proj": "ff_proj",
    "mlp.up_proj": "up_proj",
    "mlp.down_proj": "ff_out",
    "model.norm": "model.transformer.ln_f",
    "lm_head": "model.transformer.ff_out",
}
"""LLaDA's name of each part of a Llama."""


def renamed(tensors: Mapping[str, Tensor], names: Mapping[str, str]) -> dict[str, Tensor]:
    """Tensors under other names, of which every occurrence of a part is replaced, in order."""
    out = {}
    for name, tensor in tensors.items():
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        out[name] = tensor
    return out


def llada_core(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config of the Llama that a LLaDA is."""
    return LLAMA | {
        "num_key_value_heads": config["n_kv_heads"],
        "rms_norm_eps": config["rms_norm_eps"],
        "vocab_size": config["embedding_size"],
        "tie_word_embeddings": config["weight_tying"],
    }


def oracle(core: str, config: Mapping[str, Any]) -> torch.nn.Module:
    """The model of transformers with a core's mathematics, and random weights."""
    transformers = pytest.importorskip("transformers")
    kinds = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
        "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
        "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
        "gpt2": (transformers.GPT2Config, transformers.GPT2LMHeadModel),
    }
    made, model = kinds[core]
    known = dict(config)
    if core != "gpt2" and "rope_parameters" not in known:
        scaling = dict(known.pop("rope_scaling", None) or {"rope_type": "default"})
        kind = scaling.pop("type", None)
        known["rope_parameters"] = ({"rope_type": kind} if kind else {}) | scaling | {"rope_theta": known["rope_theta"]}
    for name in ("architectures", "model_type", "auto_map", "rope_theta", "rope_scaling", "torch_dtype"):
        known.pop(name, None)
    return scatter(model(made(**known, attn_implementation="eager")))


def logits_under(model: torch.nn.Module, tokens: Tensor, seen: Tensor) -> Tensor:
    """Logits (R, V) of tokens (R,) of which row i sees row j where seen (R, R) is true."""
    bias = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
    with torch.inference_mode():
        out: Tensor = model(input_ids=tokens[None], attention_mask=bias[None, None], use_cache=False).logits[0]
    return out


@torch.no_grad()
def scatter(model: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """Random weights under which the mean top probability is about one half; no bias is zero and no norm is one."""
    random = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=random)
        if weight.dim() < 2:
            weight.copy_(float("norm" in name or "ln_" in name) * (name[-4:] != "bias") + 0.3 * noise)
        elif any(part in name for part in ("embed", "wte", "lm_head")):
            weight.copy_(0.7 * noise)
        else:
            weight.copy_(noise * 2.0 * weight.shape[-1] ** -0.5)
    return model.eval()


@dataclass(frozen=True, kw_only=True)
class Case:
    """A checkpoint in a publisher's layout, and what should be read from it.

    core     the model of transformers with the same mathematics, under `core_config` (None: config)
    names    parts of the core's names of tensors, and the publisher's
    without  names, or parts of them, that the publisher does not store
    """

    family: str
    core: str
    architecture: str
    model_type: str
    config: Mapping[str, Any]
    folder: str = "model"
    core_config: Mapping[str, Any] | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: Mapping[str, Any] = field(default_factory=dict)
    generation: Mapping[str, Any] = field(default_factory=dict)
    shards: int = 1

    def model(self) -> torch.nn.Module:
        """The oracle."""
        return oracle(self.core, self.core_config or self.config)

    def tensors(self, model: torch.nn.Module) -> dict[str, Tensor]:
        """The oracle's weights under the publisher's names."""
        named = renamed(model.state_dict(), self.names)
        return {name: tensor for name, tensor in named.items() if not any(part in name for part in self.without)}

    def write(self, parent: Path, model: torch.nn.Module | None = None, **changes: Any) -> Path:
        """Write the checkpoint into a folder of `parent`; `changes` are of config.json."""
        config = {"architectures": [self.architecture], "model_type": self.model_type, **self.config, **changes}
        folder = parent / self.folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "generation_config.json").write_text(json.dumps(dict(self.generation)))
        write_tokenizer(folder, **self.tokenizer)
        write_tensors(folder, self.tensors(model or self.model()), self.shards)
        return folder


def write_tokenizer(folder: Path, **config: Any) -> None:
    """A byte-level tokenizer.json with a token for each byte and SPECIALS, and its tokenizer_config.json."""
    vocabulary = {character: index for index, character in enumerate(sorted(byte_of_character()))}
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([*SPECIALS])
    assert inner.token_to_id(SPECIALS[-1]) == MASK
    inner.save(str(folder / "tokenizer.json"))
    values = {"eos_token": SPECIALS[0], "pad_token": SPECIALS[0], **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(values))


def write_tensors(folder: Path, tensors: Mapping[str, Tensor], shards: int = 1) -> None:
    """Write tensors in `shards` files, with an index if there are several."""
    held = {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}
    if shards == 1:
        save_file(held, folder / "model.safetensors", metadata={"format": "pt"})
        return
    weight_map: dict[str, str] = {}
    for number in range(shards):
        file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensor for index, (name, tensor) in enumerate(held.items()) if index % shards == number}
        save_file(part, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": sum(t.nbytes for t in held.values())}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


FULL = {"context": "full", "mask_id": MASK}
CASES: dict[str, Case] = {
    "llama": Case(
        family="llama",
        core="llama",
        architecture="LlamaForCausalLM",
        model_type="llama",
        config=LLAMA,
        facts={"context": "causal", "shift": True, "mask_id": None, "tied": False},
        shards=3,
    ),
    "llama 3, transformers 4": Case(
        family="llama",
        core="llama",
        architecture="LlamaForCausalLM",
        model_type="llama",
        config=LLAMA
        | {
            "tie_word_embeddings": True,
            "eos_token_id": [END, TURN],
            "rope_scaling": {
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
                "rope_type": "llama3",
            },
        },
        core_config=LLAMA
        | {
            "tie_word_embeddings": True,
            "rope_scaling": {
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
                "rope_type": "llama3",
            },
        },
        without=("lm_head",),
        facts={"tied": True, "end_ids": (TURN,)},
    ),
    "llama, yarn, transformers 5, biases": Case(
        family="llama",
        core="llama",
        architecture="LlamaForCausalLM",
        model_type="llama",
        config={name: value for name, value in LLAMA.items() if not name.startswith("rope")}
        | {
            "attention_bias": True,
            "mlp_bias": True,
            "head_dim": 16,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 5000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 32,
                "mscale": 1.0,
                "mscale_all_dim": 0.5,
            },
        },
        facts={"qkv_bias": True, "out_bias": True, "mlp_bias": True, "head_width": 16},
    ),
    "llama, linear": Case(
        family="llama",
        core="llama",
        architecture="LlamaForCausalLM",
        model_type="llama",
        config=LLAMA | {"rope_scaling": {"type": "linear", "factor": 4.0}, "hidden_act": "gelu_pytorch_tanh"},
        facts={"activation": "gelu_tanh"},
    ),
    "mistral": Case(
        family="mistral",
        core="mistral",
        architecture="MistralForCausalLM",
        model_type="mistral",
        config=LLAMA | {"sliding_window": None, "head_dim": None},
        facts={"context": "causal", "mask_id": None},
    ),
    "qwen2": Case(
        family="qwen2",
        core="qwen2",
        architecture="Qwen2ForCausalLM",
        model_type="qwen2",
        config=QWEN2 | {"tie_word_embeddings": True},
        generation={"eos_token_id": [TURN, END]},
        facts={"context": "causal", "shift": True, "mask_id": None, "end_ids": (TURN,), "qkv_bias": True},
    ),
    "qwen3": Case(
        family="qwen3",
        core="qwen3",
        architecture="Qwen3ForCausalLM",
        model_type="qwen3",
        config=QWEN3,
        facts={"context": "causal", "shift": True, "mask_id": None, "qk_norm": True, "head_width": 12},
        shards=2,
    ),
    "gpt2": Case(
        family="gpt2",
        core="gpt2",
        architecture="GPT2LMHeadModel",
        model_type="gpt2",
        config=GPT2,
        names={"transformer.": ""},  # as the first published file has it
        without=("lm_head",),
        facts={"context": "causal", "shift": True, "mask_id": None, "tied": True},
    ),
    "gpt2 with a head": Case(
        family="gpt2",
        core="gpt2",
        architecture="GPT2LMHeadModel",
        model_type="gpt2",
        config=GPT2 | {"n_inner": 40},
        facts={"context": "causal", "mlp_width": 40},
        shards=2,
    ),
    "diffugpt": Case(
        family="diffugpt",
        core="gpt2",
        architecture="GPT2LMHeadModel",
        model_type="gpt2",
        config=GPT2 | {"vocab_size": SIZE - 2},  # from before the mask was added
        core_config=GPT2,
        folder="diffugpt-s",
        names={"transformer.wte": "embed_tokens", "transformer.": "denoise_model."},
        without=("lm_head",),
        tokenizer={"mask_token": SPECIALS[-1]},
        facts=FULL | {"shift": True, "bos_id": END, "vocab_size": SIZE},
    ),
    "diffullama": Case(
        family="diffullama",
        core="llama",
        architecture="LlamaForCausalLM",
        model_type="llama",
        config=LLAMA,
        folder="diffullama",
        tokenizer={"mask_token": {"content": SPECIALS[-1]}},
        facts=FULL | {"shift": True, "bos_id": END},
    ),
    "stable diffcoder": Case(
        family="stable_diffcoder",
        core="llama",
        architecture="StableDiffcoderForCausalLM",
        model_type="llama",
        config=LLAMA | {"auto_map": {"AutoModelForCausalLM": "modeling.StableDiffcoderForCausalLM"}},
        tokenizer={"mask_token": SPECIALS[-1]},
        facts={"context": "block", "block_size": 4, "shift": False, "mask_id": MASK},
    ),
    "open dcoder": Case(
        family="open_dcoder",
        core="qwen2",
        architecture="Qwen2ForCausalLM",
        model_type="qwen2",
        config=QWEN2 | {"tie_word_embeddings": True},
        folder="open-dcoder-0.5B",
        tokenizer={"mask_token": SPECIALS[-1]},
        without=("lm_head",),
        facts=FULL | {"shift": True},
    ),
    "a2d": Case(
        family="a2d",
        core="qwen3",
        architecture="A2DQwen3LMHeadModel",
        model_type="a2d-qwen3",
        config=QWEN3 | {"tie_word_embeddings": True},
        folder="Qwen3-0.6B-diffusion-mdlm-v0.1",
        tokenizer={"mask_token": SPECIALS[-1]},
        facts=FULL | {"shift": False},
    ),
    "a2d of qwen2": Case(
        family="a2d",
        core="qwen2",
        architecture="A2DQwen2LMHeadModel",
        model_type="a2d-qwen2",
        config=QWEN2,
        folder="Qwen2.5-Coder-0.5B-Instruct-diffusion-mdlm-v0.1",
        tokenizer={"mask_token": SPECIALS[-1]},
        facts=FULL | {"shift": False, "qkv_bias": True, "out_bias": False},
    ),
    "a2d of llama": Case(
        family="a2d",
        core="llama",
        architecture="A2DLlamaLMHeadModel",
        model_type="a2d-llama",
        config=LLAMA,
        folder="my-mdlm",
        tokenizer={"mask_token": SPECIALS[-1]},
        facts=FULL | {"shift": False, "qkv_bias": False},
    ),
    "a2d, blocks": Case(
        family="a2d_block",
        core="qwen3",
        architecture="A2DQwen3LMHeadModel",
        model_type="a2d-qwen3",
        config=QWEN3,
        folder="Qwen3-0.6B-diffusion-bd3lm-v0.1",
        tokenizer={"mask_token": SPECIALS[-1]},
        facts={"context": "block", "block_size": 32, "shift": False, "mask_id": MASK},
    ),
    "coda": Case(
        family="coda",
        core="qwen3",
        architecture="CoDALanguageModel",
        model_type="CoDA",
        config={k: v for k, v in QWEN3.items() if k not in ("tie_word_embeddings", "eos_token_id", "bos_token_id")}
        | {"mask_token_id": MASK, "pad_token_id": END},
        core_config=QWEN3,
        facts=FULL | {"shift": True, "tied": False},
    ),
    "sdlm": Case(
        family="sdlm",
        core="qwen2",
        architecture="Qwen2ForCausalLM",
        model_type="qwen2",
        config=QWEN2 | {"text_mask_token_id": MASK, "block_size": 4, "causal_attn": False},
        core_config=QWEN2,
        facts={"context": "causal", "shift": True, "mask_id": MASK},
    ),
    "llada": Case(
        family="llada",
        core="llama",
        architecture="LLaDAModelLM",
        model_type="llada",
        config=LLADA,
        core_config=llada_core(LLADA),
        names=LLADA_NAMES,
        facts=FULL | {"shift": False, "vocab_size": SIZE, "norm_eps": 1e-5},
        shards=2,
    ),
    "llada, grouped and tied": Case(
        family="llada",
        core="llama",
        architecture="LLaDAModelLM",
        model_type="llada",
        config=LLADA | {"n_kv_heads": 2, "weight_tying": True},
        core_config=llada_core(LLADA | {"n_kv_heads": 2, "weight_tying": True}),
        names=LLADA_NAMES,
        without=("model.transformer.ff_out",),
        facts=FULL | {"shift": False, "tied": True, "num_kv_heads": 2},
    ),
    "dream": Case(
        family="dream",
        core="qwen2",
        architecture="DreamModel",
        model_type="Dream",
        config=QWEN2 | {"mask_token_id": MASK, "auto_map": {"AutoModel": "modeling_dream.DreamModel"}},
        core_config=QWEN2,
        generation={"alg": "origin", "mask_token_id": None, "eos_token_id": END},
        facts=FULL | {"shift": True, "end_ids": (TURN,)},
        shards=4,
    ),
    "dreamon": Case(
        family="dreamon",
        core="qwen2",
        architecture="DreamModel",
        model_type="Dream",
        config=QWEN2 | {"mask_token_id": MASK},
        core_config=QWEN2,
        folder="DreamOn-v0-7B",
        facts=FULL | {"shift": True},
    ),
    "sdar": Case(
        family="sdar",
        core="qwen3",
        architecture="SDARForCausalLM",
        model_type="sdar",
        config=QWEN3 | {"block_size": 4, "mask_token_id": MASK, "fuse_cross_entropy": True},
        core_config=QWEN3,
        generation={"eos_token_id": [TURN, END], "temperature": 0.6},
        facts={"context": "block", "block_size": 4, "shift": False, "mask_id": MASK, "end_ids": (TURN,)},
        shards=2,
    ),
    "sdar, named blocks": Case(
        family="sdar",
        core="qwen3",
        architecture="SDARForCausalLM",
        model_type="sdar",
        config=QWEN3,
        folder="SDAR-8B-Chat-b16",
        tokenizer={"mask_token": SPECIALS[-1]},
        facts={"context": "block", "block_size": 16, "shift": False, "mask_id": MASK},
    ),
    "fast dllm": Case(
        family="fast_dllm",
        core="qwen2",
        architecture="Fast_dLLM_QwenForCausalLM",
        model_type="Fast_dLLM_Qwen",
        config=QWEN2 | {"bd_size": 32, "mask_token_id": MASK},
        core_config=QWEN2,
        facts={"context": "block", "block_size": 32, "shift": True, "anchor": "clean", "mask_id": MASK},
    ),
}


@cache
def made(name: str) -> torch.nn.Module:
    """The oracle of a case, which nobody may change."""
    return CASES[name].model()


def seen_by(config: ModelConfig) -> Tensor:
    """Which row sees which, bool (R, R): the definition of the three contexts."""
    row, key = torch.arange(ROWS)[:, None], torch.arange(ROWS)[None]
    if config.context == "full":
        return torch.ones(ROWS, ROWS, dtype=torch.bool)
    return key // config.block_size <= row // config.block_size if config.context == "block" else key <= row


def ours(backend: str, backbone: Backbone, tokens: np.ndarray, seen: Tensor) -> Tensor:
    """Logits (R, V) of our backend."""
    end, rows = seen.sum(1).numpy().astype(np.int32), np.arange(ROWS)
    layout = Layout(rows, end, 0 if backbone.config.context == "full" else ROWS)
    (answer,) = BACKEND[backend](backbone).forward([Forward(tokens, layout, None, rows.astype(np.int32), Logits())])
    return torch.from_numpy(answer.logits)
