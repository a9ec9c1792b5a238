"""The backbone: a transformer decoder configured by a `ModelConfig`.

By default pre-RMSNorm, rotary positions, QK-norm, grouped queries, SwiGLU and tied embeddings.

Letters: R rows of a forward, A wanted rows, D width, N heads, H head width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from daguerre.models.core.adaptive import FINAL_PARTS, PARTS, LevelEmbedding, shifted
from daguerre.models.core.attention import Attention
from daguerre.models.core.concept_heads import ConceptHeads
from daguerre.models.core.config import ModelConfig
from daguerre.models.core.draft_head import ACCEPTED, DraftHead
from daguerre.models.core.experts import Mixture
from daguerre.models.core.low_rank import DraftRows, LowRank, add_low_rank, draft_rows
from daguerre.models.core.rotary import Rotary, own_positions, query_scale, rotary_tables, rotate

TOKENS_AT_ONCE = 8192
"""Of a vocabulary projection as float32: all of it may be gigabytes."""
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


ZERO_AT_FIRST = ("out.weight", "down.weight", "_draft.b.weight", "confidence.weight")
"""Ends of the names of the matrices that are zero at initialization."""
ZERO_IF_ADAPTIVE = ("modulation.weight",)
"""Ends of those that are zero where norms are adaptive: their gates are zero, so the matrices above must not be."""


class Norm(nn.Module):
    """RMSNorm, or LayerNorm if it is centered, in the type of its input."""

    def __init__(self, width: int, eps: float, centered: bool = False, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if centered and bias else None
        self.eps, self.centered = eps, centered

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.to(x.dtype)
        if not self.centered:
            return F.rms_norm(x, (x.shape[-1],), weight, self.eps)
        return F.layer_norm(x, (x.shape[-1],), weight, None if self.bias is None else self.bias.to(x.dtype), self.eps)


def row_norm(config: ModelConfig) -> Norm:
    """A norm of whole rows."""
    return Norm(config.width, config.norm_eps, config.norm == "layer", config.norm_bias)


def low_rank(matrix: nn.Linear, rank: int) -> LowRank | None:
    """Low-rank weights beside a matrix; None for rank 0."""
    return LowRank(matrix.in_features, matrix.out_features, rank) if rank else None


def normed(heads: Tensor, norm: Norm) -> Tensor:
    """Heads (..., N, H), each normalized by itself; or all together, if that is the width of the norm."""
    together = len(norm.weight) > heads.shape[-1]
    out: Tensor = norm(heads.flatten(-2) if together else heads)
    return out.view(heads.shape)


class SelfAttention(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        head = config.head_width
        self.heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        self.qkv = nn.Linear(config.width, sum(self.heads) * head, bias=config.qkv_bias)
        self.out = nn.Linear(config.num_heads * head, config.width, bias=config.out_bias)
        together = (config.num_heads, config.num_kv_heads) if config.qk_norm_scope == "all" else (1, 1)
        self.q_norm = Norm(together[0] * head, config.norm_eps) if config.qk_norm else None
        self.k_norm = Norm(together[1] * head, config.norm_eps) if config.qk_norm else None
        self.clip = config.clip_qkv
        self.scale = None if config.attention_scale is None else config.attention_scale * head**0.5
        self.qkv_draft = low_rank(self.qkv, config.draft_rank_of("qkv"))
        self.out_draft = low_rank(self.out, config.draft_rank_of("out"))

    def forward(
        self, x: Tensor, rotary: Rotary | None, attend: Attention, layer: int, drafts: DraftRows = None
    ) -> Tensor:
        qkv = add_low_rank(self.qkv(x), x, self.qkv_draft, drafts)
        qkv = qkv if self.clip is None else qkv.clamp(-self.clip, self.clip)
        q, k, v = qkv.unflatten(-1, (sum(self.heads), -1)).split(self.heads, dim=-2)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = normed(q, self.q_norm), normed(k, self.k_norm)
        if rotary is not None:
            cos, sin, scale = rotary
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            q = q if scale is None else q * scale
        q = q if self.scale is None else q * self.scale  # attention itself divides scores by sqrt(H)
        x = attend(layer, q, k, v).flatten(-2)
        return add_low_rank(self.out(x), x, self.out_draft, drafts)


class MLP(nn.Module):
    def __init__(self, config: ModelConfig, inner: int) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[config.activation]
        if config.gated_mlp:
            self.gate_up = nn.Linear(config.width, 2 * inner, bias=config.mlp_bias)
        else:
            self.up = nn.Linear(config.width, inner, bias=config.mlp_bias)
        self.gated = config.gated_mlp
        self.down = nn.Linear(inner, config.width, bias=config.mlp_bias)
        self.gate_up_draft = low_rank(self.gate_up, config.draft_rank_of("gate_up")) if config.gated_mlp else None
        self.down_draft = low_rank(self.down, config.draft_rank_of("down"))

    def forward(self, x: Tensor, drafts: DraftRows = None) -> Tensor:
        if self.gated:
            gate, up = add_low_rank(self.gate_up(x), x, self.gate_up_draft, drafts).chunk(2, dim=-1)
            x = self.activation(gate) * up
        else:
            x = self.activation(self.up(x))
        return add_low_rank(self.down(x), x, self.down_draft, drafts)


def mlp_of(config: ModelConfig, layer: int) -> MLP | Mixture:
    """The MLP of a layer, or its mixture of experts."""
    experts = config.experts_of(layer)
    if experts is None:
        return MLP(config, config.mlp_width)
    shared = MLP(config, experts.shared_width) if experts.shared_width else None
    return Mixture(config.width, experts, ACTIVATIONS[config.activation], shared)


class Layer(nn.Module):
    def __init__(self, config: ModelConfig, number: int) -> None:
        super().__init__()
        self.post, both = config.norm_placement == "post", config.norm_placement == "both"
        self.attention_norm = row_norm(config)
        self.attention = SelfAttention(config)
        self.after_attention_norm = row_norm(config) if both else None
        self.mlp_norm = row_norm(config)
        self.after_mlp_norm = row_norm(config) if both else None
        self.mlp = mlp_of(config, number)
        adaptive = config.adaptive_width
        self.modulation = nn.Linear(adaptive, PARTS * config.width) if adaptive else None

    def forward(
        self,
        x: Tensor,
        rotary: Rotary | None,
        attend: Attention,
        layer: int,
        drafts: DraftRows = None,
        level: Tensor | None = None,
    ) -> Tensor:
        if self.modulation is not None:
            shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = self.modulation(level).chunk(PARTS, dim=-1)
            branch = self.attention(shifted(self.attention_norm(x), shift, scale), rotary, attend, layer, drafts)
            x = x + gate * branch
            return x + mlp_gate * self.mlp(shifted(self.mlp_norm(x), mlp_shift, mlp_scale), drafts)
        if self.post:
            x = x + self.attention_norm(self.attention(x, rotary, attend, layer, drafts))
            return x + self.mlp_norm(self.mlp(x, drafts))
        x = x + _after(self.after_attention_norm, self.attention(self.attention_norm(x), rotary, attend, layer, drafts))
        return x + _after(self.after_mlp_norm, self.mlp(self.mlp_norm(x), drafts))


def _after(norm: Norm | None, branch: Tensor) -> Tensor:
    """The results of a branch, normalized where there is a norm after it."""
    return branch if norm is None else norm(branch)


class TimeInput(nn.Module):
    """Embeds a noise level in [0, 1]: sines and cosines of 1000 t, then a two-layer MLP; zero at initialization.

    The vector's norm is below 1, like that of a token's embedding at initialization: the vector is added to every row,
    and a larger one would drown out the tokens.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.inner = nn.Linear(config.width, config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(self, time: Tensor) -> Tensor:
        """Vectors (..., D) of levels (...)."""
        width = self.inner.in_features
        exponent = torch.arange(0, width, 2, device=time.device, dtype=torch.float32) / width
        angle = 1000.0 * time[..., None].float() * 10_000.0**-exponent
        waves = torch.cat([angle.cos(), angle.sin()], dim=-1).to(self.inner.weight.dtype)
        out = self.out(F.silu(self.inner(waves)))
        return out * torch.rsqrt(1 + width * out.float().square().mean(-1, keepdim=True)).to(out.dtype)


class WeightLoader(Protocol):
    """Brings weights into memory that are still in files."""

    def present(self, backbone: Backbone, layer: int | None) -> AbstractContextManager[None]:
        """The weights of a layer, or of what is outside of layers, are there while this lasts."""

    def read(self, backbone: Backbone) -> None:
        """Every weight is there from now on."""


class Backbone(nn.Module):
    """Tokens to hidden states; the vocabulary projection is a separate call, on wanted rows only."""

    layer_class: ClassVar[type[nn.Module]] = Layer

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.deferred: WeightLoader | None = None
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.draft_embedding = nn.Embedding(1, config.width) if config.draft_rows == "learned" else None
        learned = config.positions == "learned"
        self.position_embedding = nn.Embedding(config.max_positions, config.width) if learned else None
        self.layers = nn.ModuleList(self.layer_class(config, number) for number in range(config.num_layers))
        self.final_norm = row_norm(config)
        self.output = None if config.tied else nn.Linear(config.width, config.vocab_size, bias=config.output_bias)
        adaptive = config.adaptive_width
        self.time_input = TimeInput(config) if config.time_input and not adaptive else None
        self.level_embedding = LevelEmbedding(adaptive) if adaptive else None
        self.final_modulation = nn.Linear(adaptive, FINAL_PARTS * config.width) if adaptive else None
        self.draft_head = DraftHead(config) if config.draft_head else None
        self.concepts = None if config.concepts is None else ConceptHeads(config.width, config.concepts)
        self.register_buffer("never", torch.tensor(config.unpredictable_ids, dtype=torch.int64), persistent=False)

    def forward(
        self,
        tokens: Tensor,
        position: Tensor,
        attend: Attention,
        *,
        time: Tensor | None = None,
        wanted: Tensor | None = None,
        drafting: Tensor | None = None,
    ) -> Tensor:
        """Hidden states (..., R, D) of rows whose tokens and positions are int64 (..., R); with `wanted`, only of those
        rows, (..., A, D). `attend` computes attention. `time` is each row's noise level, for a model with `time_input`.
        `drafting`, bool (..., R), are the rows that low-rank weights act on, in a model that has them; None: none.
        """
        assert (time is None) == (not self.config.time_input)
        x = self.embedding(tokens)
        if self.config.embedding_scale != 1:
            x = x * torch.full((), self.config.embedding_scale, dtype=x.dtype, device=x.device)
        if self.draft_embedding is not None and drafting is not None:
            x = torch.where(drafting[..., None], self.draft_embedding.weight[0], x)
        if self.position_embedding is not None:
            x = x + self.position_embedding(position)
        if self.time_input is not None:
            x = x + self.time_input(time)
        level = self.level(time)
        compute = torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype
        x = x.to(compute)
        rotary = self.rotary(position, compute)
        sliding = self.rotary(position, compute, sliding=True) if own_positions(self.config) else rotary
        drafts = draft_rows(drafting) if self.config.draft_rank else None
        for index, layer in enumerate(self.layers):
            x = layer(x, sliding if self.config.is_sliding(index) else rotary, attend, index, drafts, level)
        if wanted is not None:
            x, level = x[..., wanted, :], level[..., wanted, :] if level is not None and time is not None else level
        hidden: Tensor = self.final_norm(x)
        if self.final_modulation is not None:
            hidden = shifted(hidden, *self.final_modulation(level).chunk(FINAL_PARTS, dim=-1))
        return hidden

    def rotary(self, position: Tensor, dtype: torch.dtype, *, sliding: bool = False) -> Rotary | None:
        """The rotations of rows at positions (..., R), of sliding layers or of others; None for a model without."""
        if not self.config.rotary_width:
            return None
        tables = rotary_tables(self.config, position, dtype, sliding=sliding)
        return *tables, query_scale(self.config, position, dtype)

    def level(self, time: Tensor | None) -> Tensor | None:
        """The vectors (..., C) of noise levels (...) from which adaptive norms are computed, or (C,) of level 0 for a
        model without `time_input`; None for a model with plain norms.
        """
        if self.level_embedding is None:
            return None
        levels = torch.zeros((), device=self.embedding.weight.device) if time is None else time
        out: Tensor = self.level_embedding(levels)
        return out

    def present(self, layer: int | None) -> AbstractContextManager[None]:
        """The weights of a layer, or of what is outside of layers, are in memory while this lasts."""
        return nullcontext() if self.deferred is None else self.deferred.present(self, layer)

    @property
    def projection(self) -> Tensor:
        """The matrix of the vocabulary projection, (V, D)."""
        return self.embedding.weight if self.output is None else self.output.weight

    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 logits (..., V) of the given hidden states (..., D); reserved tokens are minus infinity."""
        out = F.linear(hidden, self.projection.to(hidden.dtype)).float()
        if self.output is not None and self.output.bias is not None:
            out = out + self.output.bias.float()
        return out.index_fill(-1, self.never, float("-inf"))  # type: ignore[arg-type]

    def promoted(self, vectors: Tensor) -> Tensor:
        """How far vectors (J, D), added to hidden states, raise each token's logit above the mean of those that can be
        predicted: float32 (J, V), 0 for tokens that cannot be. The vocabulary projection gets no gradient.
        """
        parts = self.projection.detach().split(TOKENS_AT_ONCE)
        raised = torch.cat([F.linear(vectors.float(), part.float()) for part in parts], dim=-1)
        raised = raised.index_fill(-1, self.never, 0.0)  # type: ignore[arg-type]
        mean = raised.sum(dim=-1, keepdim=True) / (raised.shape[-1] - len(self.config.unpredictable_ids))
        return (raised - mean).index_fill(-1, self.never, 0.0)  # type: ignore[arg-type]

    def conditioning(self, logits: Tensor) -> Tensor | None:
        """What self-conditioning keeps of the distributions of logits (A, V), (A, D); None for a model without it."""
        return None

    @torch.no_grad()
    def initialize(self, seed: int, *, zero_outputs: bool = True, scale: float = 1.0) -> Backbone:
        """Seeded normal weights of variance 1/fan-in; output matrices of the residual branches are zero by default.

        Tests pass zero_outputs=False and a scale that makes the mean top probability about one half.
        """
        generator = torch.Generator().manual_seed(seed)
        zero = ZERO_IF_ADAPTIVE if self.config.adaptive_width else ZERO_AT_FIRST
        for name, weight in self.named_parameters():
            if name.endswith("bias"):
                weight.fill_(ACCEPTED if name == "draft_head.confidence.bias" else 0.0)
            elif weight.dim() < 2:
                weight.fill_(1.0)
            elif name.endswith("embedding.weight"):
                weight.normal_(0, scale * self.config.width**-0.5, generator=generator)
            elif zero_outputs and name.endswith(zero):
                weight.zero_()
            else:
                weight.normal_(0, weight.shape[-1] ** -0.5, generator=generator)
        return self

    @property
    def num_parameters(self) -> int:
        return sum(p.numel() for p in self.parameters())
