"""Fast-dLLM v2 1.5B and 7B: Qwen2.5 with block context and a shift; a block's first token is the last one that the
clean rows before it predict.
"""

from __future__ import annotations

from daguerre.models.core.config import ModelConfig
from daguerre.models.families.base import Family, Published
from daguerre.models.families.llama import ROTARY_BUFFER, llama_pieces
from daguerre.models.families.qwen import IM_END, qwen2_shape, qwen_tokens
from daguerre.models.families.reading import mask_of, whole

MASK, BLOCK = 151665, 32


def _read(published: Published) -> ModelConfig:
    tokens = qwen_tokens(published, mask_of(published, published.tokens.get("|<MASK>|"), MASK), eos_id=IM_END)
    return ModelConfig(
        **qwen2_shape(published),
        context="block",
        block_size=whole(published.config, "bd_size", BLOCK),
        shift=True,
        anchor="clean",
        **tokens,
    )


FAMILY = Family(
    name="fast_dllm",
    title="Fast-dLLM v2 1.5B and 7B",
    model_types=("Fast_dLLM_Qwen",),
    architectures=("Fast_dLLM_QwenForCausalLM",),
    read=_read,
    pieces=llama_pieces,
    prefix="model.",
    ignored=(ROTARY_BUFFER,),
    decode={"mode": "block", "block_size": 8, "policy": "threshold", "threshold": 0.9},
    examples=("Efficient-Large-Model/Fast_dLLM_v2_1.5B", "Efficient-Large-Model/Fast_dLLM_v2_7B"),
    source="arXiv 2509.26328; the model card of Fast_dLLM_v2_7B",
)
FAMILIES = (FAMILY,)
