"""What a GGUF file says of a model, in the words of a publisher's `config.json`, so that the same families read it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from daguerre.errors import CheckpointError, InputError, UnsupportedError, shown
from daguerre.models.gguf.cores import MIXED, MORE, PARTLY, WINDOW, WINDOWED
from daguerre.models.gguf.header import Header, stem_of
from daguerre.models.gguf.values import GgufMetadata, rope_scaling
from daguerre.models.published_facts import Published
from daguerre.models.texts import Texts

FAMILY, BLOCK = "daguerre.family", "daguerre.block_size"
"""Keys of files that Daguerre wrote: the family, where llama.cpp's architecture does not tell it, and the size of a
block.
"""
QUANTIZED = re.compile(r"[-._](?:bf16|f16|f32|fp16|i?q\d\w*)$", re.IGNORECASE)
"""The end of a file's name that says how its weights are stored."""
Declared = tuple[str, str]
"""An architecture and a model_type, as in a config.json."""
LLAMA, QWEN2, QWEN3 = (
    ("LlamaForCausalLM", "llama"),
    ("Qwen2ForCausalLM", "qwen2"),
    ("Qwen3ForCausalLM", "qwen3"),
)
GEMMA3, PHI3 = ("Gemma3ForCausalLM", "gemma3_text"), ("Phi3ForCausalLM", "phi3")
A2D = "A2D{}LMHeadModel"
ARCHITECTURES: dict[str, dict[str, Declared]] = {
    "llama": {
        "llama": LLAMA,
        "mistral": ("MistralForCausalLM", "mistral"),
        "diffullama": LLAMA,
        "stable_diffcoder": ("StableDiffcoderForCausalLM", "llama"),
        "a2d": (A2D.format("Llama"), "a2d-llama"),
        "a2d_block": (A2D.format("Llama"), "a2d-llama"),
    },
    "qwen2": {
        "qwen2": QWEN2,
        "dream": ("DreamModel", "Dream"),
        "open_dcoder": QWEN2,
        "a2d": (A2D.format("Qwen2"), "a2d-qwen2"),
        "a2d_block": (A2D.format("Qwen2"), "a2d-qwen2"),
        "fast_dllm": ("Fast_dLLM_QwenForCausalLM", "Fast_dLLM_Qwen"),
    },
    "qwen3": {
        "qwen3": QWEN3,
        "sdar": ("SDARForCausalLM", "sdar"),
        "a2d": (A2D.format("Qwen3"), "a2d-qwen3"),
        "a2d_block": (A2D.format("Qwen3"), "a2d-qwen3"),
        "coda": ("CoDALanguageModel", "CoDA"),
    },
    "dream": {
        "dream": ("DreamModel", "Dream"),
        "dreamon": ("DreamModel", "Dream"),
        "open_dcoder": QWEN2,
        "a2d": (A2D.format("Qwen2"), "a2d-qwen2"),
    },
    "llada": {
        "llada": ("LLaDAModelLM", "llada"),
        "diffullama": LLAMA,
        "a2d": (A2D.format("Llama"), "a2d-llama"),
    },
    "gemma3": {"gemma3": GEMMA3},
    "phi3": {"phi3": PHI3},
    "qwen3moe": {
        "qwen3_moe": ("Qwen3MoeForCausalLM", "qwen3_moe"),
        "sdar_moe": ("SDARMoeForCausalLM", "sdar_moe"),
    },
    "llada-moe": {"llada_moe": ("LLaDAMoEModelLM", "lladamoe")},
    "rnd1": {"rnd1": ("RND1", "rnd1")},
    "llada2": {"llada2": ("LLaDA2MoeModelLM", "llada2_moe"), "llada21": ("LLaDA2MoeModelLM", "llada21_moe")},
}
"""The families whose core each of llama.cpp's architectures is; first the one of that name."""
MASKS = {"dream": "<|mask|>", "llada": "<|mdm_mask|>", "llada-moe": "<|mask|>", "llada2": "<|mask|>"}
"""The published texts of their masks."""
OTHERS = (
    *("attention.scale", "attention.clamp_kqv", "attention.max_alibi_bias"),
    *("logit_scale", "embedding_scale", "residual_scale", "attn_logit_softcapping", "final_logit_softcapping"),
)
"""Keys of what the cores do not compute; a 0 is as if they were not there."""
SHIFTED = {"dream": True, "llada": False, "llada-moe": False, "rnd1": True, "llada2": False}
"""Whether these architectures, which denoise, have a shift, which diffusion.shift_logits says, too."""
BY_NAME = {"llada21": r"llada-?2\.1"}
"""Families that only a model's name tells from another of their architecture, as in its publisher's folders."""
WITH_BLOCKS = {"qwen3": "sdar", "qwen3moe": "sdar_moe"}
"""The family of a file with a mask and a size of blocks."""


def gguf_facts(header: Header, tokenizer: Mapping[str, Any], family: str | None = None) -> Published:
    """What a file says, with what `tokenizer_config` gives. `family`: the user's word; None: the file's.

    CheckpointError, in one line, for a file that is damaged or lacks what a model needs; UnsupportedError for an
    architecture that is not read; InputError where the family is not said, or is of another core.
    """
    values, path = GgufMetadata(header), header.path
    if values.arch not in ARCHITECTURES:
        names = ", ".join(ARCHITECTURES)
        raise UnsupportedError(f"{path} is of llama.cpp's architecture {shown(values.arch)}, and {names} are read")
    family = _family(values, family)
    architecture, model_type = ARCHITECTURES[values.arch][family]
    shape = _shape(values, family)
    config = {"architectures": [architecture], "model_type": model_type, **_tokens(values)}
    config |= _llada(shape, path) if family == "llada" else shape
    rows = shape["vocab_size"], shape["hidden_size"]
    shapes = {"model.embed_tokens.weight": rows, **({} if shape["tie_word_embeddings"] else {"lm_head.weight": rows})}
    return Published(
        file="the file",
        config=config,
        generation=_sampling(values),
        tokenizer=tokenizer,
        shapes=shapes,
        name=QUANTIZED.sub("", stem_of(path)),
        family=family,
        never=tuple(index for index in values.tokens("suppress_tokens") if index < shape["vocab_size"]),
    )


SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
"""Keys of how a publisher has texts drawn, and what generation_config.json calls the same."""


def _sampling(values: GgufMetadata) -> dict[str, Any]:
    """What the file says of sampling, in the keys of generation_config.json."""
    found = {name: values.header.scalar(f"general.sampling.{key}") for key, name in SAMPLING.items()}
    given = {
        name: float(str(np.float32(x))) if isinstance(x, float) else x for name, x in found.items() if x is not None
    }
    return {"do_sample": True, **given} if given else {}


def _family(values: GgufMetadata, family: str | None) -> str:
    """The family: the user's word, the file's, or the one that llama.cpp's architecture is named after."""
    possible, path = ARCHITECTURES[values.arch], values.header.path
    if family is None:
        family = values.header.text(FAMILY)
    if family is not None:
        if family not in possible:
            raise InputError(f"{path} is not of family {family!r}, but of {', '.join(possible)}: leave family out")
        return str(family)
    masked = values.token("mask") is not None
    if masked and values.arch in WITH_BLOCKS and BLOCK in values.header.metadata:
        return WITH_BLOCKS[values.arch]
    shift = values.flag("diffusion.shift_logits", SHIFTED.get(values.arch))
    if (masked and values.arch not in SHIFTED) or shift != SHIFTED.get(values.arch):
        raise InputError(f"{path} does not say which of {', '.join(possible)} it is: give its family by name")
    if values.arch not in SHIFTED and values.flag(f"{values.arch}.attention.causal", True) is False:
        raise UnsupportedError(f"{path}: {values.arch}.attention.causal is false without a mask token: not supported")
    name = f"{stem_of(path)}\n{values.header.text('general.name') or ''}"
    named = [one for one in possible if one in BY_NAME and re.search(BY_NAME[one], name, re.IGNORECASE)]
    return next(iter(named or possible))


def _shape(values: GgufMetadata, family: str) -> dict[str, Any]:
    """The shape, in the keys of a config.json. CheckpointError where the embedding is of another one."""
    header, entries = values.header, values.header.entries
    width, heads = values.whole("embedding_length"), values.whole("attention.head_count")
    head = values.whole("attention.key_length", max(1, width // heads))
    for key in ("attention.value_length", *(() if values.arch in PARTLY else ("rope.dimension_count",))):
        if values.whole(key, head) != head:
            raise UnsupportedError(
                f"{header.path}: {values.arch}.{key} is not {head}, the width of a head: not supported"
            )
    sliding = values.arch in WINDOWED or family == "mistral"
    for key in (*OTHERS, *(() if sliding else (WINDOW,)), *(() if values.arch in MIXED else ("expert_count",))):
        if values.get(key):
            raise UnsupportedError(f"{header.path}: {values.arch}.{key}={shown(values.get(key))} is not supported")
    theta = values.number("rope.freq_base", 10_000.0)
    shape = {
        "vocab_size": _vocabulary(values, width),
        "hidden_size": width,
        "intermediate_size": values.whole("feed_forward_length", values.get("expert_feed_forward_length")),
        "num_hidden_layers": values.whole("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": values.whole("attention.head_count_kv", heads),
        "head_dim": head,
        "hidden_act": "silu",
        "max_position_embeddings": values.whole("context_length"),
        "rms_norm_eps": values.number("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in entries,
        "rope_theta": theta,
        "rope_scaling": rope_scaling(values, head, theta),
        "attention_bias": "blk.0.attn_q.bias" in entries,
        "mlp_bias": "blk.0.ffn_up.bias" in entries,
        **({} if (block := header.scalar(BLOCK)) is None else {"block_size": block, "bd_size": block}),
        **({"sliding_window": values.get(WINDOW) or None} if family == "mistral" else {}),
    }
    return shape | (MORE[values.arch](values, shape) if values.arch in MORE else {})


def _vocabulary(values: GgufMetadata, width: int) -> int:
    """V: the rows of the embedding, which everything that the file says of its vocabulary has to fit."""
    header = values.header
    embedding = header.entries.get("token_embd.weight")
    if embedding is None:
        raise CheckpointError(f"{header.path} has no tensor token_embd.weight: copy it again")
    if len(embedding.shape) != 2 or embedding.shape[1] != width:
        raise CheckpointError(
            f"{header.path}: token_embd.weight is {embedding.shape} and {values.arch}.embedding_length {width}: copy "
            "it again"
        )
    rows, said = embedding.shape[0], values.get("vocab_size")
    if said is not None and said != rows:
        raise CheckpointError(
            f"{header.path}: {values.arch}.vocab_size is {shown(said)} and token_embd.weight has {rows} rows: copy it "
            "again"
        )
    return rows


def _tokens(values: GgufMetadata) -> dict[str, Any]:
    """Special tokens, in the keys of a config.json."""
    ends = [index for name in ("eos", "eot", "eom") if (index := values.token(name)) is not None]
    if not ends:
        raise CheckpointError(f"{values.header.path} has no tokenizer.ggml.eos_token_id: convert the model again")
    named = {"bos_token_id": values.token("bos"), "pad_token_id": values.token("padding")}
    mask = {} if (index := _mask(values)) is None else {"mask_token_id": index}
    return {"eos_token_id": list(dict.fromkeys(ends)), **named, **mask, **_fim(values)}


FIM_KEYS = {
    "prefix": ("fim_pre", "prefix"),
    "suffix": ("fim_suf", "suffix"),
    "middle": ("fim_mid", "middle"),
    "repository": ("fim_rep",),
    "file": ("fim_sep",),
}
"""What the tokens of fill-in-the-middle are called in GGUF files, today and before."""


def _fim(values: GgufMetadata) -> dict[str, int]:
    """The tokens of fill-in-the-middle that the file names."""
    found = {name: [values.token(key) for key in keys] for name, keys in FIM_KEYS.items()}
    named = {name: next((index for index in each if index is not None), None) for name, each in found.items()}
    return {f"fim_{name}_token_id": index for name, index in named.items() if index is not None}


def _mask(values: GgufMetadata) -> int | None:
    """The mask: as the file names it, or in architectures that have one, by its text."""
    index, tokens = values.token("mask"), values.header.metadata.get("tokenizer.ggml.tokens")
    if index is None and values.arch in MASKS and isinstance(tokens, Texts):
        return tokens.find(MASKS[values.arch]).get(MASKS[values.arch])
    return index


def _llada(shape: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The shape in LLaDA's keys, which has no others."""
    if shape["rope_scaling"] is not None or shape["head_dim"] * shape["num_attention_heads"] != shape["hidden_size"]:
        raise UnsupportedError(f"{path}: a LLaDA with rope scaling or heads of another width is not supported")
    return {
        "d_model": shape["hidden_size"],
        "n_layers": shape["num_hidden_layers"],
        "n_heads": shape["num_attention_heads"],
        "n_kv_heads": shape["num_key_value_heads"],
        "mlp_hidden_size": shape["intermediate_size"],
        "max_sequence_length": shape["max_position_embeddings"],
        "vocab_size": shape["vocab_size"],
        "rms_norm_eps": shape["rms_norm_eps"],
        "rope_theta": shape["rope_theta"],
        "weight_tying": shape["tie_word_embeddings"],
        "include_bias": shape["mlp_bias"],
        "include_qkv_bias": shape["attention_bias"],
        "bias_for_layer_norm": False,
    }


def stored_kinds(header: Header) -> dict[str, int]:
    """How many tensors are of each type."""
    kinds = [entry.kind for entry in header.entries.values()]
    return {kind: kinds.count(kind) for kind in sorted({*kinds})}
