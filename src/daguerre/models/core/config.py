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
from daguerre.kinds import Whole
from daguerre.models.core import limits
from daguerre.models.core.gemma_shape import GemmaShape
from daguerre.models.core.shapes import ConceptShape as ConceptShape
from daguerre.models.core.shapes import Experts as Experts
from daguerre.models.core.shapes import FimTokens as FimTokens
from daguerre.models.core.shapes import RopeScaling as RopeScaling
from daguerre.models.core.shapes import Windows as Windows

Context = Literal["causal", "block", "full", "reordered"]
ProcessName = Literal["absorbing", "uniform", "hybrid"]
Anchor = Literal["noisy", "clean"]
NormName = Literal["rms", "layer"]
Placement = Literal["pre", "post", "both"]
Activation = Literal["silu", "gelu", "gelu_tanh"]
Positions = Literal["rotary", "learned"]
NormScope = Literal["head", "all"]
DraftRows = Literal["none", "learned", "random"]
DRAFT_MATRICES = ("qkv", "out", "down")
"""The matrices of a layer that low-rank weights of drafts are added to."""
DRAFT_PARTS = {"qkv": 3, "out": 1, "gate_up": 2, "down": 1}
"""Those that they may be added to, and of how many published matrices each consists."""
PARTS = {
    "rope_scaling": RopeScaling,
    "windows": Windows,
    "experts": Experts,
    "concepts": ConceptShape,
    "fim": FimTokens,
    "gemma": GemmaShape,
}
"""Fields that are objects of their own."""


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Shape of a backbone, its context and its noise, apart from a vocabulary.

    `context` is how clean rows attend to each other (DESIGN, section 2). In reordered context known tokens come first
    and masked ones last, each in the order of their positions, and a row sees the rows up to it (WeDLM, arXiv
    2512.22737). With `shift`, the row at position j predicts the token at j+1. `process` is the noise process that the
    model is trained to reverse. With `time_input` the noise level is an input: for the absorbing process the masked
    share of the positions that may be masked, else t.

    anchor           the row before a block, which predicts the block's first token, with block context and a shift.
                     noisy: it is computed again among the noisy rows; clean: it is the last clean row (Fast-dLLM v2)
    head_width       0: width / num_heads
    qkv_bias, out_bias, mlp_bias   biases of the matrices of attention, and of the MLP
    tied             the vocabulary projection is the embedding
    output_bias      the vocabulary projection, which is not tied, has a bias
    norm_bias        LayerNorm has a bias
    adaptive_width   the width of the vector of the noise level from which adaptive norms are computed; 0: norms are
                     plain (`models.core.adaptive`). Without `time_input` the level is always 0
    norm_placement   pre: x + f(norm(x)); post: x + norm(f(x)), as in OLMo 2; both: x + norm(f(norm(x))), as in Gemma
    gated_mlp        down(activation(gate(x)) * up(x)); else down(activation(up(x)))
    rope_share       the share of each head that is rotated; the rotated numbers come first
    qk_norm_scope    what QK-norm divides by: the root mean square of a head, or of all heads together (OLMo 2, OLMoE)
    clip_qkv         queries, keys and values, before QK-norm, are kept within this distance of 0; None: they are not
    embedding_scale  what embeddings are multiplied by before the first layer
    attention_scale  what scores are multiplied by; None: 1/sqrt(head_width)
    windows          layers whose rows do not see far
    experts          layers with a mixture of experts in place of the MLP
    gemma            the core is that of DiffusionGemma (`models.core.gemma`), whose experts are beside the MLP
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
    anchor: Anchor = "noisy"
    process: ProcessName = "absorbing"
    time_input: bool = False
    head_width: int = 0
    qk_norm: bool = True
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    tied: bool = True
    output_bias: bool = False
    norm: NormName = "rms"
    norm_bias: bool = True
    norm_placement: Placement = "pre"
    norm_eps: float = 1e-6
    activation: Activation = "silu"
    gated_mlp: bool = True
    positions: Positions = "rotary"
    rope_theta: float = 10_000.0
    rope_share: float = 1.0
    rope_scaling: RopeScaling | None = field(default=None)
    qk_norm_scope: NormScope = "head"
    clip_qkv: float | None = None
    embedding_scale: float = 1.0
    attention_scale: float | None = None
    windows: Windows | None = field(default=None)
    experts: Experts | None = field(default=None)
    adaptive_width: int = 0
    gemma: GemmaShape | None = field(default=None)


@dataclass(frozen=True, kw_only=True)
class ModelConfig(ModelShape):
    """Shape of a backbone, its vocabulary and how it was trained; set by a recipe, stored in `config.json`.

    `mask_id` is None for a model without masked rows: an autoregressive one, or one of another process. `bos_id` is the
    token before every text; None: a canvas begins with the text. `end_ids` end a text as `eos_id` does. `null_id` is
    the gap filler; None for a model that was not trained to end gaps with it. `reserved_ids` are tokens
    that never occur in text; of them only the end of text, the gap filler and `expand_id` are predicted. `noise_ids` is
    the run [first, end) of tokens that the noise of a uniform or hybrid process draws; None: all that are not reserved.

    `draft_head` is the inner width of the draft head, 0 without one; `draft_rank` is the rank of the low-rank weights
    that act on the noisy rows of drafts alone, 0 without, and `draft_matrices` those that have them: the first or last
    matrix of attention, the first (`gate_up`) or last one of the MLP. With `draft_split` each published matrix of which
    one of these consists has weights of its own, of this rank. A model without masks may have rows of drafts, too, each
    of which sees those before it: they read a vector that was trained (`draft_rows` "learned"), or random tokens (as
    Uno's, arXiv 2609.04010). Without these its draft head reads the clean row that drew the last token. `draft_tokens`,
    ascending, are all that drafts consist of; empty: every token. `draft_acceptance` has the measured chances, at
    temperatures 0 and 1, that the tokens of a draft are accepted, each given that those before it are; empty if they
    were not measured.

    `expand_id` is the token that makes two masked positions of one; in such a model the gap filler, at a masked
    position, deletes it (DreamOn, arXiv 2602.01326). Only mode "expand" draws it.

    With `masks_in_place` a masked row predicts its own position, although a clean row predicts the next one
    (Nemotron-Labs-Diffusion, arXiv 2607.05722): a block begins with a token of the autoregressive distribution, whose
    row is then the anchor of the others, and a draft takes a forward of its own.

    `concepts` are heads that explain hidden states and steer them; they leave the model's distributions as they are.

    `fim` are the tokens of a model that was trained to fill in the middle; None for any other.

    `ends_loops` is for a model whose greedy texts are known to loop: they end where they do
    (`daguerre.decoding.plan.Plan.stops_loops`).
    """

    vocab_size: int
    mask_id: int | None
    eos_id: int
    bos_id: int | None
    pad_id: int
    null_id: int | None = None
    expand_id: int | None = None
    end_ids: tuple[int, ...] = ()
    reserved_ids: tuple[int, ...] = tuple(range(16))
    noise_ids: tuple[int, int] | None = None
    draft_head: int = 0
    draft_rank: int = 0
    draft_matrices: tuple[str, ...] = DRAFT_MATRICES
    draft_split: bool = False
    draft_rows: DraftRows = "none"
    draft_tokens: tuple[int, ...] = ()
    draft_acceptance: tuple[tuple[float, ...], ...] = ()
    masks_in_place: bool = False
    concepts: ConceptShape | None = None
    fim: FimTokens | None = None
    ends_loops: bool = False

    def __post_init__(self) -> None:
        limits.check(self, limits.CONFIG)
        for name, kind in PARTS.items():
            limits.check_part(name, getattr(self, name), kind)
        object.__setattr__(self, "reserved_ids", limits.check_reserved(self.vocab_size, self.reserved_ids))
        object.__setattr__(self, "end_ids", tuple(self.end_ids))
        ids = ("mask_id", "eos_id", "bos_id", "pad_id", "null_id", "expand_id")
        named = {name: getattr(self, name) for name in ids} | ({} if self.fim is None else self.fim.named)
        limits.check_tokens(self.vocab_size, named, self.end_ids)
        if self.noise_ids is not None:
            object.__setattr__(self, "noise_ids", self._noise(self.noise_ids))
        object.__setattr__(self, "draft_acceptance", tuple(map(tuple, self.draft_acceptance)))
        if len(self.draft_acceptance) not in (0, 2):
            raise CheckpointError("draft_acceptance has two lists of numbers, for temperatures 0 and 1, or none")
        if not self.head_width:
            if self.width % self.num_heads:
                raise CheckpointError(f"width {self.width} must divide by {self.num_heads} heads, or give head_width")
            object.__setattr__(self, "head_width", self.width // self.num_heads)
        object.__setattr__(self, "draft_matrices", tuple(self.draft_matrices))
        object.__setattr__(self, "draft_tokens", tuple(self.draft_tokens))
        self._check_context()
        self._check_drafts()
        self._check_positions()
        if self.windows is not None:
            self._check_windows(self.windows)
        if self.output_bias and self.tied:
            raise CheckpointError("output_bias belongs to a projection that is not tied: leave out one of the two")
        plain = self.norm == "rms" or self.norm_placement != "pre" or self.draft_rank or self.experts
        if self.adaptive_width and plain:
            raise CheckpointError(
                "adaptive_width is 0 or more, with LayerNorm before the matrices, no experts and no draft_rank"
            )
        if self.experts is not None and self.draft_rank:
            raise CheckpointError("draft_rank belongs to a model without experts: leave it out")

    def _noise(self, ids: tuple[int, ...]) -> tuple[int, int]:
        if len(ids) != 2:
            raise CheckpointError("noise_ids are two numbers, [first, end)")
        first, end = ids
        if self.process == "absorbing" or not 0 <= first < end <= self.vocab_size:
            raise CheckpointError("noise_ids are a run [first, end) of tokens, of a uniform or hybrid process")
        return first, end

    def _check_context(self) -> None:
        if self.context == "block" and not self.block_size:
            raise CheckpointError("a model with block context needs `block_size` in its config.json")
        if self.time_input and self.context != "full":
            raise CheckpointError("a model with `time_input` needs full context: spans have no common noise level")
        if self.gemma is not None:
            self.gemma.check(self)
        elif self.process != "absorbing" and (self.shift or not self.time_input):
            raise CheckpointError(f"a model of the {self.process} process needs `time_input`, and no shift")
        if self.context == "reordered" and (self.shift or self.mask_id is None or self.process != "absorbing"):
            raise CheckpointError("reordered context belongs to a model with masks and no shift: correct config.json")
        if self.expand_id is not None:
            self._check_expand(self.expand_id)
        if self.anchor == "clean" and not (self.context == "block" and self.shift):
            raise CheckpointError('anchor "clean" belongs to block context with a shift: leave it out')

    def _check_drafts(self) -> None:
        if self.draft_head and (self.context != "causal" or not self.shift):
            raise CheckpointError("a model with `draft_head` needs causal context and a shift: others do not draft")
        if self.masks_in_place and (self.draft_head or not self.can_draft):
            raise CheckpointError("masks_in_place belongs to causal context with a shift, and no draft_head")
        rows = self.draft_rows != "none"
        if rows and (self.mask_id is not None or not self.can_draft or not self.draft_rank or self.windows):
            raise CheckpointError(
                "draft_rows belongs to an autoregressive model without masks and windows, and needs a draft_rank: "
                "correct the config, or leave out drafts"
            )
        if self.draft_rank and not (self.draft_head or self.masks_in_place or rows):
            raise CheckpointError("draft_rank is a rank, 0 or more, and needs a `draft_head`: drafts go through both")
        limits.check_draft_tokens(self.vocab_size, self.draft_tokens)
        for name in self.draft_matrices:
            if name not in DRAFT_PARTS:
                raise unknown("matrix of draft_matrices", name, DRAFT_PARTS)
        if "gate_up" in self.draft_matrices and not self.gated_mlp:
            raise CheckpointError("draft_matrices: gate_up belongs to a gated MLP: leave it out")

    def _check_positions(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise CheckpointError(f"{self.num_heads} heads must divide by {self.num_kv_heads} for keys")
        if self.positions == "rotary" and (self.rotary_width % 2 or not self.rotary_width):
            raise CheckpointError(f"heads of width {self.head_width} cannot be rotated: make it even")
        if self.rope_scaling is not None and self.positions != "rotary":
            raise CheckpointError("rope_scaling belongs to rotary positions: leave it out")
        if self.rope_scaling is not None and self.rope_scaling.kind == "longrope":
            for name, divisors in (("short", self.rope_scaling.short), ("long", self.rope_scaling.long)):
                if 2 * len(divisors) != self.rotary_width:
                    raise CheckpointError(
                        f"rope_scaling has {len(divisors)} {name} factors, and heads that rotate {self.rotary_width} "
                        "numbers, in pairs, need one for each pair: copy the config again"
                    )

    def _check_expand(self, expand_id: int) -> None:
        if self.context != "full" or self.process != "absorbing" or None in (self.mask_id, self.null_id):
            raise CheckpointError("expand_id belongs to full context with a mask_id and a null_id: correct config.json")

    def _check_windows(self, windows: Windows) -> None:
        if not {*windows.layers} <= {*range(self.num_layers)}:
            raise CheckpointError(f"windows: layers are numbers of layers, below {self.num_layers}")
        if self.context != "causal" or self.mask_id is not None:
            raise CheckpointError("windows belong to causal context without masks: leave them out")
        if windows.rope_theta is not None and self.positions != "rotary":
            raise CheckpointError("windows: rope_theta belongs to rotary positions: leave it out")

    def is_sliding(self, layer: int) -> bool:
        """Whether the rows of a layer see no further than a window."""
        return self.windows is not None and layer in self.windows.layers

    @property
    def layers_by_kind(self) -> tuple[list[int], list[int]]:
        """The numbers of the sliding layers, and those of all others."""
        numbers = range(self.num_layers)
        return [n for n in numbers if self.is_sliding(n)], [n for n in numbers if not self.is_sliding(n)]

    @cached_property
    def key_shapes(self) -> list[tuple[int, int]]:
        """The number of heads of the keys and values of each layer, and their width."""
        shapes = [(self.num_kv_heads, self.head_width)] * self.num_layers
        if self.gemma is not None:
            wide = self.gemma.global_kv_heads, self.gemma.global_head_width
            shapes = [shape if self.is_sliding(layer) else wide for layer, shape in enumerate(shapes)]
        return shapes

    @property
    def rotary_width(self) -> int:
        """How many numbers of a head are rotated."""
        return int(self.head_width * self.rope_share) if self.positions == "rotary" else 0

    def experts_of(self, layer: int) -> Experts | None:
        """The mixture of experts of a layer; None if it has an MLP."""
        return None if self.experts is None or layer < self.experts.first_layer else self.experts

    @cached_property
    def can_draft(self) -> bool:
        """Whether there are both autoregressive distributions and drafts: causal context with a shift."""
        return self.context == "causal" and self.shift

    @property
    def drafts_clean(self) -> bool:
        """Whether the draft head reads clean rows, since there are no others."""
        return self.draft_head > 0 and not self.has_draft_rows

    @cached_property
    def has_draft_rows(self) -> bool:
        """Whether there are rows that draft: masked ones, or others."""
        return self.mask_id is not None or self.draft_rows != "none"

    @property
    def has_confidence(self) -> bool:
        """Whether the draft head says how likely each of its tokens is accepted."""
        return self.draft_rank > 0 or self.drafts_clean

    @property
    def is_ordered(self) -> bool:
        """Whether a known token sees the known tokens before it and no others: causal and reordered context."""
        return self.context in ("causal", "reordered")

    @property
    def noisy_offset(self) -> int:
        """How far a masked row is before the position that it predicts: 1 with a shift, unless masks are in place."""
        return int(self.shift and not self.masks_in_place)

    def draft_rank_of(self, matrix: str) -> int:
        """The rank of a matrix's low-rank weights; 0 if it has none."""
        parts = DRAFT_PARTS[matrix] if self.draft_split else 1
        return self.draft_rank * parts if matrix in self.draft_matrices else 0

    @property
    def unpredictable_ids(self) -> tuple[int, ...]:
        """Reserved tokens that no row may predict: all but `ends`."""
        ends = set(self.ends)
        return tuple(i for i in self.reserved_ids if i not in ends)

    @cached_property
    def ordinary_ids(self) -> np.ndarray:
        """Token ids that are not reserved, int64, ascending."""
        return np.setdiff1d(np.arange(self.vocab_size), self.reserved_ids)

    @cached_property
    def ends(self) -> list[int]:
        """What is predicted and is no text: the ends of text, the gap filler, and the token that expands a gap."""
        others = [index for index in (self.null_id, self.expand_id) if index is not None]
        return list(dict.fromkeys([self.eos_id, *self.end_ids, *others]))

    @cached_property
    def first(self) -> list[int]:
        """What every canvas begins with: <bos>, if there is one."""
        return [] if self.bos_id is None else [self.bos_id]

    @cached_property
    def placeholder(self) -> int:
        """The token at open positions: the mask; without masks any token, which no row reads."""
        return self.pad_id if self.mask_id is None else self.mask_id

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
            values["reserved_ids"] = range(_reserved(source, values.pop("num_reserved")))
        values.pop("family", None)
        for key in values:
            if key not in known:
                raise CheckpointError(f"{source}: {unknown('key', key, known)}")
        try:
            for name, kind in PARTS.items():
                if isinstance(values.get(name), dict):
                    values[name] = kind(**values[name])
            return cls(**values)
        except TypeError as error:
            raise CheckpointError(f"{source} is incomplete: {error}") from None
        except DaguerreError as error:
            raise CheckpointError(f"{source} has an invalid value: {error}") from None


def _reserved(source: str, number: object) -> int:
    """How many of the first tokens are reserved, in a folder of version 0.1."""
    try:
        return int(Whole(high=limits.MOST_TOKENS)("num_reserved", number))
    except DaguerreError as error:
        raise CheckpointError(f"{source} has an invalid value: {error}") from None
