"""The configuration of a model: shape of the backbone, context, shift, special tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from daguerre.errors import CheckpointError, DaguerreError, unknown

Context = Literal["causal", "block", "full"]
CONTEXTS: tuple[Context, ...] = ("causal", "block", "full")
ProcessName = Literal["absorbing", "uniform", "hybrid"]
PROCESS_NAMES: tuple[ProcessName, ...] = ("absorbing", "uniform", "hybrid")
NormName = Literal["rms", "layer"]
Placement = Literal["pre", "post"]
Activation = Literal["silu", "gelu", "gelu_tanh"]
Positions = Literal["rotary", "learned"]
ScalingName = Literal["linear", "llama3", "yarn"]
NAMES: dict[str, tuple[str, ...]] = {
    "context": CONTEXTS,
    "process": PROCESS_NAMES,
    "norm": ("rms", "layer"),
    "norm_placement": ("pre", "post"),
    "activation": ("silu", "gelu", "gelu_tanh"),
    "positions": ("rotary", "learned"),
}
"""The allowed values of each of these fields."""
SIZES = ("vocab_size", "width", "num_layers", "num_heads", "num_kv_heads", "mlp_width", "max_positions")


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """How rotary positions were extended beyond `original_positions` (names and defaults as in transformers).

    linear  every position is divided by `factor`
    llama3  low frequencies are divided by `factor`, high ones are kept, those between are interpolated (Llama 3.1)
    yarn    the same, with limits given as numbers of turns within the original positions; cosines and sines are scaled
            by `attention_factor`, by default 0.1 ln(factor) + 1 (YaRN, arXiv 2309.00071)
    """

    kind: ScalingName
    factor: float
    original_positions: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("linear", "llama3", "yarn"):
            raise unknown("rope scaling", self.kind, ("linear", "llama3", "yarn"))
        if not self.factor > 0 or (self.kind != "linear" and self.original_positions < 1):
            raise CheckpointError(f"rope_scaling needs a factor above 0, and {self.kind} its original_positions")


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Shape of a backbone, its context and its noise, apart from a vocabulary.

    `context` is how clean rows attend to each other (DESIGN, section 2). With `shift`, the row at position j predicts
    the token at j+1. `process` is the noise process that the model is trained to reverse. With `time_input` the noise
    level is an input: for the absorbing process the masked share of the positions that may be masked, else t.

    head_width       0: width / num_heads
    qkv_bias, out_bias, mlp_bias   biases of the matrices of attention, and of the MLP
    tied             the vocabulary projection is the embedding
    norm_placement   pre: x + f(norm(x)); post: x + norm(f(x)), as in OLMo 2
    gated_mlp        down(activation(gate(x)) * up(x)); else down(activation(up(x)))
    rope_share       the share of each head that is rotated; the rotated numbers come first
    """

    width: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    mlp_width: int
    max_positions: int
    context: Context = "causal"
    shift: bool = True
    block_size: int | None = None
    process: ProcessName = "absorbing"
    time_input: bool = False
    head_width: int = 0
    qk_norm: bool = True
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    tied: bool = True
    norm: NormName = "rms"
    norm_placement: Placement = "pre"
    norm_eps: float = 1e-6
    activation: Activation = "silu"
    gated_mlp: bool = True
    positions: Positions = "rotary"
    rope_theta: float = 10_000.0
    rope_share: float = 1.0
    rope_scaling: RopeScaling | None = field(default=None)


@dataclass(frozen=True, kw_only=True)
class ModelConfig(ModelShape):
    """Shape of a backbone, its vocabulary and how it was trained; set by a recipe, stored in `config.json`.

    `null_id` is the gap filler; None for a model that was not trained to end gaps with it. `reserved_ids` are tokens
    that never occur in text; of them only the end of text and the gap filler are predicted. `draft_head` is the inner
    width of the draft head, 0 without one; `draft_rank` is the rank of the low-rank weights that act on the masked rows
    of drafts alone, 0 without. `draft_acceptance` has the measured chances, at temperatures 0 and 1, that the tokens of
    a draft are accepted, each given that those before it are; empty if they were not measured.
    """

    vocab_size: int
    mask_id: int
    eos_id: int
    bos_id: int
    pad_id: int
    null_id: int | None = None
    reserved_ids: tuple[int, ...] = tuple(range(16))
    draft_head: int = 0
    draft_rank: int = 0
    draft_acceptance: tuple[tuple[float, ...], ...] = ()

    def __post_init__(self) -> None:
        for name in SIZES:
            if type(getattr(self, name)) is not int or getattr(self, name) < 1:
                raise CheckpointError(f"{name} must be a whole number above 0, not {getattr(self, name)!r}")
        for name, known in NAMES.items():
            if getattr(self, name) not in known:
                raise unknown(name, getattr(self, name), known)
        object.__setattr__(self, "reserved_ids", tuple(sorted({*self.reserved_ids})))
        object.__setattr__(self, "draft_acceptance", tuple(map(tuple, self.draft_acceptance)))
        if len(self.draft_acceptance) not in (0, 2):
            raise CheckpointError("draft_acceptance has two lists of numbers, for temperatures 0 and 1, or none")
        if not self.head_width:
            if self.width % self.num_heads:
                raise CheckpointError(f"width {self.width} must divide by {self.num_heads} heads, or give head_width")
            object.__setattr__(self, "head_width", self.width // self.num_heads)
        if self.context == "block" and not self.block_size:
            raise CheckpointError("a model with block context needs `block_size` in its config.json")
        if self.time_input and self.context != "full":
            raise CheckpointError("a model with `time_input` needs full context: spans have no common noise level")
        if self.process != "absorbing" and (self.shift or not self.time_input):
            raise CheckpointError(f"a model of the {self.process} process needs `time_input`, and no shift")
        if self.draft_head and (self.context != "causal" or not self.shift):
            raise CheckpointError("a model with `draft_head` needs causal context and a shift: others do not draft")
        if self.draft_rank < 0 or (self.draft_rank and not self.draft_head):
            raise CheckpointError("draft_rank is a rank, 0 or more, and needs a `draft_head`: drafts go through both")
        if self.num_heads % self.num_kv_heads:
            raise CheckpointError(f"{self.num_heads} heads must divide by {self.num_kv_heads} for keys")
        if self.positions == "rotary" and (self.rotary_width % 2 or not 0 < self.rope_share <= 1):
            raise CheckpointError(f"heads of width {self.head_width} cannot be rotated: make it even")
        if self.rope_scaling is not None and self.positions != "rotary":
            raise CheckpointError("rope_scaling belongs to rotary positions: leave it out")

    @property
    def rotary_width(self) -> int:
        """How many numbers of a head are rotated."""
        return int(self.head_width * self.rope_share) if self.positions == "rotary" else 0

    @property
    def can_draft(self) -> bool:
        """Whether a forward gives both autoregressive distributions and drafts: causal context with a shift."""
        return self.context == "causal" and self.shift

    @property
    def unpredictable_ids(self) -> tuple[int, ...]:
        """Reserved tokens that no row may predict: all but the end of text and the gap filler."""
        return tuple(i for i in self.reserved_ids if i not in (self.eos_id, self.null_id))

    @cached_property
    def ordinary_ids(self) -> np.ndarray:
        """Token ids that are not reserved, int64, ascending."""
        return np.setdiff1d(np.arange(self.vocab_size), self.reserved_ids)

    @property
    def ends(self) -> list[int]:
        """The end of text, and the gap filler if there is one."""
        return [self.eos_id] if self.null_id is None else [self.eos_id, self.null_id]

    def to_dict(self) -> dict[str, Any]:
        """The content of `config.json`; the inverse of `from_dict`."""
        return asdict(self) | {"reserved_ids": list(self.reserved_ids)}

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(self.to_dict(), indent=2) + "\n")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], source: str = "config.json") -> ModelConfig:
        known = {f.name for f in fields(cls)}
        values = dict(values)
        if "num_reserved" in values:  # folders of version 0.1
            values["reserved_ids"] = range(values.pop("num_reserved"))
        values.pop("family", None)
        for key in values:
            if key not in known:
                raise CheckpointError(f"{source}: {unknown('key', key, known)}")
        try:
            if isinstance(values.get("rope_scaling"), dict):
                values["rope_scaling"] = RopeScaling(**values["rope_scaling"])
            return cls(**values)
        except TypeError as error:
            raise CheckpointError(f"{source} is incomplete: {error}") from None
        except DaguerreError as error:
            raise CheckpointError(f"{source} has an invalid value: {error}") from None
