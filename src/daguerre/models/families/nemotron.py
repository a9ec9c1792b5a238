"""Nemotron-Labs-Diffusion 3B, 8B and 14B: Ministral 3 with one set of weights for three ways of decoding.

The core is Llama's with YaRN and Llama 4's scale of queries. What follows is how mlx-vlm, whose source is the only
published one that we compared with, computes it; by its names:

clean rows   The prompt, and every finished block, are read causally: a row sees the rows before it and itself. Their
             keys are cached, and exact, because no later row changes them. A clean row predicts the next token.
noisy rows   A block is the token that the last clean row predicts, its seed, and masks. Its rows see all clean rows and
             each other, both ways. A masked row predicts its own position (`ModelConfig.masks_in_place`); the seed
             predicts nothing. No row of an unfinished block is cached: once it is finished it is read again, causally,
             and the same forward predicts the seed of the next block.
ar           One clean row a token.
diffusion    Blocks of 32 from the end of the prompt on (32 in config.json; training had 64), at most one step a
             position. A step takes the most likely tokens and commits those of a probability of at least 0.9, always
             the most probable one: our mode "block", policy "threshold". One block as long as the budget is our mode
             "full". The end of text is a token like any other: end_of_text="plain". At a temperature above 0 its
             probabilities are those at that temperature, ours those at 1. The second token of a block of two is ours
             by the autoregressive distribution, as that of any span of one position.
linear_spec  A block is drafted in one step, whatever the probabilities, and read causally, which verifies it: the
             tokens up to the first that differs from the draft are committed. (mlx-vlm begins with blocks of 8 and
             doubles them up to 32 while all of a draft is right; ours are of 32.) The adapter that the checkpoint
             brings along (`linear_spec_lora`: rank 128, scale 4, o_proj of every layer) acts on all rows of the draft's
             block, the seed among them, and on no other forward: our mode "speculative", with `draft_rank` and
             `draft_matrices`. Where mlx-vlm draws draft and tokens apart, ours share their random numbers, so more
             drafts are right at a temperature above 0.

Nothing bans the mask (100) there; here it is never predicted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from daguerre.models.core.config import ModelConfig, RopeScaling
from daguerre.models.families.base import Bundled, Change, Family, Piece, Published, Weights, as_floats
from daguerre.models.families.llama import LLAMA, ROTARY_BUFFER, llama_pieces, llama_shape
from daguerre.models.families.peft import rank_of, scale_of
from daguerre.models.families.reading import Values, mask_of, number, refuse, vocabulary, whole

MASK, END, BLOCK = 100, 11, 32
PARADIGMS = ("bidirectional", "autoregressive")
NAMES = replace(LLAMA, output="diffusion_head")
PREFIX, ADAPTER, TARGETS = "encoder.", "linear_spec_lora", ("o_proj",)
WHERE = f"{ADAPTER}/adapter_config.json"
ACCEPTANCE = {True: 0.854, False: 0.817}
"""The chance a that a token of a draft is right if those before it are, with and without the adapter, at temperature 0:
1 + a + ... + a^31 are the 6.8 and 5.5 tokens that a block of 32 commits on average (arXiv 2607.05722)."""
ACCEPTANCE_AT_ONE = 0.7
"""A guess, which counts for the first drafts of a text alone (`decoding.drafters.Apart`): no figure is published."""


def _read(published: Published) -> ModelConfig:
    config, adapter = published.config, published.adapter
    refuse(config, {"attention_bias": (False,), "dlm_paradigm": PARADIGMS})
    shape = llama_shape(published, theta=1_000_000.0)
    shape["rope_scaling"] = _with_query_scale(config, shape.get("rope_scaling"))
    block = whole(config, "block_size", BLOCK)
    end = END if config.get("eos_token_id") is None else None
    tokens = vocabulary(published, whole(config, "vocab_size"), mask_id=mask_of(published, MASK), eos_id=end)
    return ModelConfig(
        **shape,
        context="causal",
        shift=True,
        masks_in_place=True,
        block_size=block,
        draft_rank=rank_of(adapter, WHERE, TARGETS) if adapter else 0,
        draft_matrices=("out",),
        draft_acceptance=tuple((chance,) * (block - 1) for chance in (ACCEPTANCE[bool(adapter)], ACCEPTANCE_AT_ONE)),
        **tokens,
    )


def _with_query_scale(config: Values, scaling: RopeScaling | None) -> RopeScaling | None:
    """The scaling of positions with Llama 4's scale of queries, which `rope_parameters` has beside it."""
    given: Values = config.get("rope_parameters") or config.get("rope_scaling") or {}
    beta = number(given, "llama_4_scaling_beta", 0.0)
    if not beta:
        return scaling
    original = whole(given, "original_max_position_embeddings")
    if scaling is None:
        scaling = RopeScaling(kind="linear", factor=1.0)
    return replace(scaling, original_positions=original, query_beta=beta)


def _pieces(config: ModelConfig) -> list[Piece]:
    return llama_pieces(config, PREFIX, NAMES)


def _adapter_pieces(config: ModelConfig, adapter: Mapping[str, Any]) -> list[Piece]:
    """The adapter's matrices A and B become the low-rank weights of drafts; its scale is multiplied into B."""
    out = []
    for layer in range(config.num_layers if config.draft_rank else 0):
        theirs = f"base_model.model.{PREFIX}layers.{layer}.self_attn.o_proj.lora_"
        ours = f"layers.{layer}.attention.out_draft."
        out.append(Piece(f"{theirs}A.weight", f"{ours}a.weight"))
        out.append(Piece(f"{theirs}B.weight", f"{ours}b.weight", change=_times(scale_of(adapter, config.draft_rank))))
    return out


def _times(scale: float) -> Change:
    def change(matrix: Weights) -> Weights:
        return as_floats(matrix) * scale

    return change


FAMILY = Family(
    name="nemotron",
    title="Nemotron-Labs-Diffusion 3B, 8B and 14B",
    model_types=("nemotron_labs_diffusion",),
    architectures=(),
    read=_read,
    pieces=_pieces,
    prefix=PREFIX,
    ignored=(ROTARY_BUFFER, r"(.*\.)?self_attn\.[kv]_scale"),
    bundled=Bundled(folder=ADAPTER, pieces=_adapter_pieces),
    examples=("nvidia/Nemotron-Labs-Diffusion-3B", "nvidia/Nemotron-Labs-Diffusion-8B"),
    source="arXiv 2607.05722; github.com/Blaizzy/mlx-vlm, mlx_vlm/models/nemotron_labs_diffusion",
)
FAMILIES = (FAMILY,)
