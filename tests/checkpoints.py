"""What writes tiny checkpoints in publishers' layouts, and computes them: the models of transformers, scaled so that
the mean top probability is about one half. The table of them is `published.CASES`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
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


def renamed(tensors: Mapping[str, Tensor], names: Mapping[str, str]) -> dict[str, Tensor]:
    """Tensors under other names, of which every occurrence of a part is replaced, in order."""
    out = {}
    for name, tensor in tensors.items():
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        out[name] = tensor
    return out


def oracle(core: str, config: Mapping[str, Any]) -> torch.nn.Module:
    """The model of transformers with a core's mathematics, and random weights."""
    transformers = pytest.importorskip("transformers")
    kinds = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
        "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
        "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
        "gpt2": (transformers.GPT2Config, transformers.GPT2LMHeadModel),
        "gemma3": (transformers.Gemma3TextConfig, transformers.Gemma3ForCausalLM),
        "phi3": (transformers.Phi3Config, transformers.Phi3ForCausalLM),
    }
    made, model = kinds[core]
    known = dict(config)
    if core not in ("gpt2", "gemma3") and "rope_parameters" not in known:
        scaling = dict(known.pop("rope_scaling", None) or {"rope_type": "default"})
        kind = scaling.pop("type", None)
        known["rope_parameters"] = ({"rope_type": kind} if kind else {}) | scaling | {"rope_theta": known["rope_theta"]}
    gone = ("architectures", "model_type", "auto_map", "rope_theta", "rope_scaling", "torch_dtype")
    for name in gone[: 3 if core == "gemma3" else None]:
        known.pop(name, None)
    if core != "gemma3":
        return scatter(model(made(**known, attn_implementation="eager")))
    out = scatter(model(made(**known, attn_implementation="eager")), norms=0.0)
    out.get_input_embeddings().weight.data.mul_(0.5)  # type: ignore[operator]
    return out


def logits_under(model: torch.nn.Module, tokens: Tensor, seen: Tensor) -> Tensor:
    """Logits (R, V) of tokens (R,) of which row i sees row j where seen (R, R) is true."""
    bias = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
    with torch.inference_mode():
        out: Tensor = model(input_ids=tokens[None], attention_mask=bias[None, None], use_cache=False).logits[0]
    return out


def own_logits(model: torch.nn.Module, tokens: Tensor) -> Tensor:
    """Logits (R, V) of tokens (R,) under the masks that transformers makes itself."""
    with torch.inference_mode():
        out: Tensor = model(input_ids=tokens[None], use_cache=False).logits[0]
    return out


@torch.no_grad()
def scatter(model: torch.nn.Module, seed: int = 0, norms: float = 1.0) -> torch.nn.Module:
    """Random weights under which the mean top probability is about one half; no bias is zero, and no norm is `norms`,
    which those that change nothing have.
    """
    random = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=random)
        if weight.dim() < 2:
            weight.copy_(norms * ("norm" in name or "ln_" in name) * (name[-4:] != "bias") + 0.3 * noise)
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
