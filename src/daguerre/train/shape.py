"""The shape of a model that is trained from scratch: the table [model] of a recipe."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from daguerre.errors import CheckpointError, InputError
from daguerre.models.core.config import ModelConfig, ModelShape
from daguerre.models.core.limits import NAMES
from daguerre.train.keys import RecipeKey, Section


def _key(meaning: str, name: str = "", low: float | None = None) -> RecipeKey:
    return RecipeKey(meaning=meaning, names=NAMES.get(name, ()), low=low)


_size = partial(_key, low=1)
KEYS = {
    "width": _size("width of hidden states"),
    "num_layers": _size("layers"),
    "num_heads": _size("attention heads"),
    "num_kv_heads": _size("key and value heads, a divisor of num_heads"),
    "mlp_width": _size("inner width of the MLP"),
    "max_positions": _size("tokens of the longest text"),
    "context": _key("what clean rows see", "context"),
    "shift": _key("rows predict the next token; else their own"),
    "block_size": _key("tokens of a block, in block context"),
    "anchor": _key("row before a block, which predicts its first token", "anchor"),
    "process": _key("masks (absorbing), other tokens (uniform), or both", "process"),
    "time_input": _key("the noise level is an input"),
    "head_width": _key("width of a head; 0: width / num_heads"),
    "qk_norm": _key("queries and keys are normalized"),
    "qkv_bias": _key("biases of queries, keys and values"),
    "out_bias": _key("bias of the output of attention"),
    "mlp_bias": _key("biases of the MLP"),
    "tied": _key("the vocabulary projection is the embedding"),
    "output_bias": _key("bias of an untied vocabulary projection"),
    "norm": _key("norm of hidden states", "norm"),
    "norm_bias": _key("LayerNorm has a bias"),
    "norm_placement": _key("pre: before each branch; post: after it; both", "norm_placement"),
    "norm_eps": _key("added to the mean square"),
    "activation": _key("activation of the MLP", "activation"),
    "gated_mlp": _key("the MLP has a gate"),
    "positions": _key("positions of rows", "positions"),
    "rope_theta": _key("base of rotary positions"),
    "rope_share": _key("share of each head that is rotated"),
    "rope_scaling": _key("rotary positions scaled for long texts"),
    "qk_norm_scope": _key("normalizes each head alone, or all together", "qk_norm_scope"),
    "clip_qkv": _key("greatest size of queries, keys and values"),
    "embedding_scale": _key("factor of embeddings"),
    "attention_scale": _key("factor of attention scores; none: 1 / sqrt(head_width)"),
    "windows": _key("layers with sliding windows"),
    "experts": _key("a mixture of experts; cannot be trained from scratch"),
    "adaptive_width": _key("width of the noise level's vector for adaptive norms; 0: plain norms"),
    "gemma": _key("the core of DiffusionGemma; for loading alone"),
}
"""The sentences and ranges of the fields of `ModelShape`, which has their types and defaults."""


@dataclass(frozen=True, kw_only=True)
class TrainedShape(ModelShape, Section, place="model."):
    """What a recipe says of a model that it trains from scratch."""

    declared = KEYS

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.context == "block") != (self.block_size is not None and self.block_size > 0):
            raise InputError('recipe: model.block_size, 1 or more, belongs to context = "block", which needs it')
        if self.context == "reordered":
            raise InputError("recipe: no layout of training has reordered context: take another model.context")
        if self.context == "block" and self.shift:
            raise InputError("recipe: a model with block context cannot be shifted: set model.shift = false")
        if self.experts is not None:
            raise InputError("recipe: model.experts cannot be trained from scratch: no loss balances them")
        if self.time_input and self.context != "full":
            raise InputError('recipe: model.time_input needs model.context = "full"')
        if self.process != "absorbing" and (self.shift or not self.time_input):
            raise InputError(f"recipe: the {self.process} process needs model.time_input = true, model.shift = false")
        try:
            self.config(vocab_size=16, mask_id=3, eos_id=2, bos_id=1, pad_id=0)
        except CheckpointError as error:
            raise InputError(f"recipe: model: {error}") from None

    def config(self, **facts: Any) -> ModelConfig:
        """The config of such a model, with the facts of its vocabulary."""
        return ModelConfig(**facts, **{f.name: getattr(self, f.name) for f in fields(self)})
