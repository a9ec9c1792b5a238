"""Qwen2 and Qwen3, and what was made of them: A2D (Tiny-A2D), Open-dCoder and CoDA with full context, SDLM with drafts
after causal context.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from daguerre.errors import UnsupportedError
from daguerre.models.core.config import ModelConfig
from daguerre.models.families.base import Family, Published
from daguerre.models.families.llama import ROTARY_BUFFER, llama_pieces, llama_shape, rows_of_embedding
from daguerre.models.families.reading import flag, mask_of, refuse, token_id, vocabulary, whole, with_masks

IM_END = 151645
NUM_TOKENS = {"qwen2": 151665, "qwen3": 151669}
"""Tokens of the tokenizers: the id of the first one that is added to them, which a conversion makes its mask."""
A2D = "github.com/ZHZisZZ/dllm, examples/a2d"


def qwen2_shape(published: Published, **options: Any) -> dict[str, Any]:
    """The shape of a Qwen2 or Qwen2.5: biases of queries, keys and values, and no others."""
    refuse(published.config, {"mlp_bias": (False,), "qk_norm": (False,)})
    return llama_shape(_with_defaults(published), **options) | {"qkv_bias": True, "out_bias": False}


def qwen3_shape(published: Published, **options: Any) -> dict[str, Any]:
    """The shape of a Qwen3: QK-norm, and no biases unless the config has them."""
    refuse(published.config, {"mlp_bias": (False,), "qk_norm": (True,)})
    return llama_shape(_with_defaults(published, head_dim=128), **options) | {"qk_norm": True}


def _with_defaults(published: Published, **values: Any) -> Published:
    """The files, with these values where the config has none. Windows are off where it does not switch them on."""
    given = {key: value for key, value in published.config.items() if value is not None}
    return replace(published, config={"use_sliding_window": False, **values, **given})


def qwen_tokens(published: Published, mask_id: int | None = None, eos_id: int | None = None) -> dict[str, Any]:
    """Tokens of a Qwen; the embedding may have grown with the mask."""
    return vocabulary(published, rows_of_embedding(published), mask_id=mask_id, eos_id=eos_id)


def _qwen2(published: Published) -> ModelConfig:
    return with_masks(ModelConfig(**qwen2_shape(published, sliding=True), **qwen_tokens(published)), published)


def _qwen3(published: Published) -> ModelConfig:
    return with_masks(ModelConfig(**qwen3_shape(published, sliding=True), **qwen_tokens(published)), published)


def _open_dcoder(published: Published) -> ModelConfig:
    tokens = qwen_tokens(published, mask_of(published, published.tokens.get("<M>"), NUM_TOKENS["qwen2"]))
    return ModelConfig(**qwen2_shape(published), context="full", shift=True, **tokens)


def _a2d(published: Published) -> ModelConfig:
    kind = str(published.config.get("model_type"))
    shape = qwen3_shape if "qwen3" in kind else qwen2_shape if "qwen2" in kind else llama_shape
    added = NUM_TOKENS["qwen3" if "qwen3" in kind else "qwen2"] if "qwen" in kind else None
    tokens = qwen_tokens(published, mask_of(published, published.tokens.get("<|mask|>"), added))
    return ModelConfig(**shape(published), context="full", shift=False, **tokens)


def _a2d_block(published: Published) -> ModelConfig:
    return replace(_a2d(published), context="block", block_size=whole(published.config, "block_size", 32))


def _coda(published: Published) -> ModelConfig:
    # The config leaves tie_word_embeddings out; the published weights have a projection of their own.
    tied = bool(published.shapes) and "lm_head.weight" not in published.shapes
    shape = qwen3_shape(published, tied=tied, theta=1e6)
    tokens = qwen_tokens(published, mask_of(published, 151669), eos_id=IM_END)
    return ModelConfig(**shape, context="full", shift=True, **tokens)


def _sdlm(published: Published) -> ModelConfig:
    if flag(published.config, "causal_attn"):
        raise UnsupportedError("causal_attn=true in config.json is not supported: rows of a draft see each other here")
    mask = token_id(published.config, "text_mask_token_id")
    tokens = qwen_tokens(published, mask_of(published, 151666) if mask is None else mask)
    return ModelConfig(**qwen2_shape(published), **tokens)


FAMILY = Family(
    name="qwen2",
    title="Qwen2, Qwen2.5 and Qwen2.5-Coder (autoregressive)",
    model_types=("qwen2",),
    architectures=("Qwen2ForCausalLM",),
    read=_qwen2,
    pieces=llama_pieces,
    prefix="model.",
    ignored=(ROTARY_BUFFER,),
    examples=("Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-Coder-0.5B"),
    source="arXiv 2412.15115",
)
QWEN3 = replace(
    FAMILY,
    name="qwen3",
    title="Qwen3 (autoregressive)",
    model_types=("qwen3",),
    architectures=("Qwen3ForCausalLM",),
    read=_qwen3,
    examples=("Qwen/Qwen3-0.6B", "Qwen/Qwen3-1.7B"),
    source="arXiv 2505.09388",
)
OPEN_DCODER = replace(
    FAMILY,
    name="open_dcoder",
    title="Open-dCoder 0.5B (Open-dLLM)",
    read=_open_dcoder,
    names=("open-?dcoder", "open-?dllm"),
    decode={"mode": "full", "policy": "entropy", "temperature": 0.7},
    examples=("fredzzp/open-dcoder-0.5B",),
    source="github.com/pengzhangzhi/Open-dLLM, README.md",
)
MDLM = Family(
    name="a2d",
    title="Tiny-A2D and other models that dLLM's A2D made, with full context",
    model_types=("a2d-qwen3", "a2d-qwen2", "a2d-llama"),
    architectures=("A2DQwen3LMHeadModel", "A2DQwen2LMHeadModel", "A2DLlamaLMHeadModel"),
    read=_a2d,
    pieces=llama_pieces,
    names=("mdlm",),
    prefix="model.",
    ignored=(ROTARY_BUFFER,),
    decode={"mode": "block", "block_size": 32, "policy": "confidence"},
    examples=("dllm-hub/Qwen3-0.6B-diffusion-mdlm-v0.1", "dllm-hub/Qwen2.5-Coder-0.5B-Instruct-diffusion-mdlm-v0.1"),
    source=f"arXiv 2602.22661; {A2D}/mdlm/sample.py",
)
BD3LM = replace(
    MDLM,
    name="a2d_block",
    title="Tiny-A2D and other models that dLLM's A2D made, with block context",
    read=_a2d_block,
    names=("bd3lm",),
    decode={"mode": "block", "policy": "confidence"},
    examples=("dllm-hub/Qwen3-0.6B-diffusion-bd3lm-v0.1",),
    source=f"arXiv 2602.22661; {A2D}/bd3lm/sample.py",
)
CODA = replace(
    FAMILY,
    name="coda",
    title="CoDA 1.7B Base and Instruct",
    model_types=("CoDA",),
    architectures=("CoDALanguageModel",),
    read=_coda,
    decode={"mode": "block", "block_size": 32, "policy": "entropy"},
    examples=("Salesforce/CoDA-v0-Base", "Salesforce/CoDA-v0-Instruct"),
    source="arXiv 2510.03270; github.com/SalesforceAIResearch/CoDA, README.md",
)
SDLM = replace(
    FAMILY,
    name="sdlm",
    title="SDLM 3B and 32B: a few tokens ahead of causal context, the likely ones are kept",
    read=_sdlm,
    marks=("text_mask_token_id", "causal_attn"),
    decode={"mode": "block", "block_size": 4, "policy": "chain", "threshold": 0.9},
    examples=("OpenGVLab/SDLM-3B-D4", "OpenGVLab/SDLM-3B-D8", "OpenGVLab/SDLM-32B-D4"),
    source="arXiv 2509.24007; github.com/OpenGVLab/SDLM, sdlm_inference.py",
)
FAMILIES = (FAMILY, QWEN3, OPEN_DCODER, MDLM, BD3LM, CODA, SDLM)
