"""WeDLM 7B and 8B: Qwen2.5 and Qwen3 in reordered context, known tokens first and masks last."""

from __future__ import annotations

from daguerre.models.core.config import ModelConfig
from daguerre.models.families.base import Family, Published
from daguerre.models.families.llama import ROTARY_BUFFER, llama_pieces, llama_shape
from daguerre.models.families.qwen import qwen_tokens
from daguerre.models.families.reading import flag, mask_of, refuse

MASK = 151665


def _read(published: Published) -> ModelConfig:
    config = published.config
    refuse(config, {"mlp_bias": (False,)})
    bias = flag(config, "attention_bias", True)  # of queries, keys and values alone
    shape = llama_shape(published) | {"qkv_bias": bias, "out_bias": False, "qk_norm": flag(config, "qk_norm")}
    tokens = qwen_tokens(published, mask_of(published, MASK))
    return ModelConfig(**shape, context="reordered", shift=False, **tokens)


FAMILY = Family(
    name="wedlm",
    title="WeDLM 7B and 8B, Base and Instruct",
    model_types=("wedlm",),
    architectures=("WeDLMForCausalLM",),
    read=_read,
    pieces=llama_pieces,
    prefix="model.",
    ignored=(ROTARY_BUFFER,),
    decode={
        "mode": "block",
        "block_size": 16,
        "sliding": True,
        "policy": "entropy_threshold",
        "entropy_threshold": 0.4,
        "position_penalty": 0.02,
        "end_of_text": "plain",
    },
    examples=("tencent/WeDLM-8B-Instruct", "tencent/WeDLM-8B-Base", "tencent/WeDLM-7B-Base"),
    source="arXiv 2512.22737; github.com/Tencent/WeDLM, README.md and wedlm/sampling_params.py",
)
FAMILIES = (FAMILY,)
