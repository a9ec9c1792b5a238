"""Nemotron-Labs-Diffusion on transformers' Ministral 3: its attention written as a mask, its loops as they are
described (arXiv 2607.05722). Greedy, one text. And tiny models of its kind.

Letters: R rows of a forward, C rows before them, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, Ministral3Config, Ministral3ForCausalLM

from daguerre.models.core.backbone import Backbone
from daguerre.models.families import FAMILIES
from daguerre.models.families.base import Published
from daguerre.models.tokenizer import Tokenizer

FAMILY, T = FAMILIES["nemotron"], Tokenizer.default("2k")


SIZES: dict[str, Any] = {
    "vocab_size": T.vocab_size,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
ROPE = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 16.0, "original_max_position_embeddings": 16}
ROPE |= {"beta_fast": 1.0, "beta_slow": 0.05, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.5}
ORACLE: dict[str, Any] = {**SIZES, "rope_parameters": ROPE}
CONFIG: dict[str, Any] = {
    "model_type": "nemotron_labs_diffusion",
    **ORACLE,
    "block_size": 8,
    "mask_token_id": T.mask_id,
}
CONFIG |= {"bos_token_id": T.bos_id, "eos_token_id": T.eos_id, "pad_token_id": T.pad_id}
ADAPTER = {"peft_type": "LORA", "r": 4, "lora_alpha": 16, "target_modules": ["o_proj"], "bias": "none"}


def exported(backbone: Backbone) -> dict[str, Tensor]:
    """The tensors of a backbone under their published names, without those of an adapter."""
    weights = backbone.state_dict()
    return {piece.name: weights[piece.target][piece.index].contiguous() for piece in FAMILY.pieces(backbone.config)}


def ministral(config: dict[str, Any], weights: dict[str, Tensor], added: Sequence[Tensor] | None = None) -> Any:
    """Ministral 3 of a published config and its weights; `added` are added to the matrices o_proj of its layers."""
    model = Ministral3ForCausalLM(Ministral3Config(**config, attn_implementation="eager"))
    names = {name: name.replace("encoder.", "model.").replace("diffusion_head", "lm_head") for name in weights}
    model.load_state_dict({names[name]: weight for name, weight in weights.items()}, strict=True)
    for layer, more in zip(model.model.layers, added or (), strict=False):
        layer.self_attn.o_proj.weight.data += more
    return model.eval().requires_grad_(False)


def seeing(num_before: int, num: int, causal: bool) -> Tensor:
    """The mask (1, 1, R, C + R) that is added to scores: all rows see those before them all, and each other."""
    seen = torch.ones(num, num_before + num, dtype=torch.bool)
    if causal:
        seen = seen.tril(num_before)
    return torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)[None, None]


def backbone_of(seed: int, shared: float = 0.0, layers: float = 10.0, sharp: float = 6.0, **changes: Any) -> Backbone:
    """Random weights. What all embeddings share makes rows alike, so that drafts are right sometimes."""
    published = Published(config=CONFIG | changes, bos_id=T.bos_id, num_tokens=T.vocab_size, adapter=ADAPTER)
    config = replace(FAMILY.read(published), reserved_ids=tuple(range(16)))
    backbone = Backbone(config).initialize(seed, zero_outputs=False, scale=6.0)
    random = torch.Generator().manual_seed(seed)
    for name, weight in backbone.requires_grad_(False).named_parameters():
        if weight.dim() < 2:
            weight.add_(0.3 * torch.randn(weight.shape, generator=random))
        if name == "embedding.weight":
            weight.add_(shared * torch.randn(1, weight.shape[1], generator=random))
        if name.endswith(("out.weight", "down.weight")):
            weight.mul_(layers)
        if name.endswith("_draft.b.weight"):
            weight.mul_(3.0)
        if name == "output.weight":
            weight.mul_(sharp)
    return backbone.eval()


class Loops:
    """The three ways of decoding.

    plain, drafting   the model, and the same with its adapter
    mask, banned      the mask, and tokens that are never taken
    """

    def __init__(self, plain: Any, drafting: Any, mask: int, banned: Sequence[int]) -> None:
        self.plain, self.drafting, self.mask, self.banned = plain, drafting, mask, list(banned)
        self.cache, self.forwards, self.drafts, self.accepted = DynamicCache(), 0, list[list[int]](), 0

    def rows(self, tokens: Sequence[int], causal: bool, kept: bool, model: Any = None) -> Tensor:
        """Probabilities (R, V) of rows after the cached ones; only rows that are `kept` stay in the cache."""
        past, num = self.cache.get_seq_length(), len(tokens)
        out = (model or self.plain)(
            torch.tensor([tokens]),
            attention_mask=seeing(past, num, causal),
            position_ids=torch.arange(past, past + num)[None],
            past_key_values=self.cache if kept else copy.deepcopy(self.cache),
        )
        self.forwards += 1
        logits = out.logits[0]
        logits[:, self.banned] = -torch.inf
        return logits.softmax(-1)

    def ar(self, prompt: Sequence[int], num: int) -> list[int]:
        """One token a forward."""
        out = [int(self.rows(prompt, True, True)[-1].argmax())]
        while len(out) < num:
            out.append(int(self.rows(out[-1:], True, True)[-1].argmax()))
        return out

    def diffusion(self, prompt: Sequence[int], num: int, size: int, threshold: float) -> list[int]:
        """Blocks of `size`, each after its first token by the sure tokens of a step, or the surest."""
        out, seed = list[int](), int(self.rows(prompt, True, True)[-1].argmax())
        while len(out) < num:
            block = [seed] + [self.mask] * (min(size, num - len(out)) - 1)
            while self.mask in block:
                chances, tokens = self.rows(block, False, False).max(-1)
                chances[torch.tensor(block) != self.mask] = -1
                sure = (chances >= threshold) & (chances > 0)
                sure[chances.argmax()] = True
                block = [int(new) if take else old for old, new, take in zip(block, tokens, sure, strict=True)]
            out += block
            if len(out) < num:
                seed = int(self.rows(block, True, True)[-1].argmax())
        return out

    def linear_spec(self, prompt: Sequence[int], num: int, size: int) -> list[int]:
        """Blocks of `size`, drafted in one step by the model with its adapter, verified causally by the one without."""
        out = [int(self.rows(prompt, True, True)[-1].argmax())]
        while len(out) < num:
            block = out[-1:] + [self.mask] * (min(size, num - len(out)) - 1)
            if len(block) > 1:
                block[1:] = self.rows(block, False, False, self.drafting)[1:].argmax(-1).tolist()
                self.drafts.append(block[1:])
            tokens = self.rows(block, True, True).argmax(-1).tolist()
            accepted = 1
            while accepted < len(block) and tokens[accepted - 1] == block[accepted]:
                accepted += 1
            out += tokens[:accepted]
            self.accepted += accepted - 1
            if accepted < len(block):
                self.cache.crop(accepted - len(block))
        return out


def loops(backbone: Backbone, **changes: Any) -> Loops:
    """The published loops on the same weights."""
    products: list[Tensor] = []
    for layer in backbone.layers:
        low_rank = layer.attention.out_draft  # type: ignore[union-attr]
        products.append(low_rank.b.weight @ low_rank.a.weight)  # type: ignore[union-attr, operator]
    config, weights = ORACLE | changes, exported(backbone)
    banned = [*backbone.config.unpredictable_ids, T.eos_id]
    return Loops(ministral(config, weights), ministral(config, weights, products), T.mask_id, banned)
