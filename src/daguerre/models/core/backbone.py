"""The backbone: a transformer decoder configured by a `ModelConfig`.

By default pre-RMSNorm, rotary positions, QK-norm, grouped queries, SwiGLU and tied embeddings.

Letters: R rows of a forward, A wanted rows, D width, N heads, H head width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from daguerre.models.core.attention import Attention
from daguerre.models.core.config import ModelConfig
from daguerre.models.core.draft_head import ACCEPTED, DraftHead
from daguerre.models.core.low_rank import DraftRows, LowRank, add_low_rank, draft_rows
from daguerre.models.core.rotary import rotary_tables, rotate

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


ZERO_AT_FIRST = ("out.weight", "down.weight", "_draft.b.weight", "confidence.weight")
"""Ends of the names of the matrices that are zero at initialization."""


class Norm(nn.Module):
    """RMSNorm, or LayerNorm if there is a bias, in the type of its input."""

    def __init__(self, width: int, eps: float, centered: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if centered else None
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.to(x.dtype)
        if self.bias is None:
            return F.rms_norm(x, (x.shape[-1],), weight, self.eps)
        return F.layer_norm(x, (x.shape[-1],), weight, self.bias.to(x.dtype), self.eps)


def low_rank(matrix: nn.Linear, rank: int) -> LowRank | None:
    """Low-rank weights beside a matrix; None for rank 0."""
    return LowRank(matrix.in_features, matrix.out_features, rank) if rank else None


class SelfAttention(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        head = config.head_width
        self.heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        self.qkv = nn.Linear(config.width, sum(self.heads) * head, bias=config.qkv_bias)
        self.out = nn.Linear(config.num_heads * head, config.width, bias=config.out_bias)
        self.q_norm = Norm(head, config.norm_eps) if config.qk_norm else None
        self.k_norm = Norm(head, config.norm_eps) if config.qk_norm else None
        self.qkv_draft = low_rank(self.qkv, config.draft_rank)
        self.out_draft = low_rank(self.out, config.draft_rank)

    def forward(
        self, x: Tensor, rotary: tuple[Tensor, Tensor] | None, attend: Attention, layer: int, drafts: DraftRows = None
    ) -> Tensor:
        qkv = add_low_rank(self.qkv(x), x, self.qkv_draft, drafts).unflatten(-1, (sum(self.heads), -1))
        q, k, v = qkv.split(self.heads, dim=-2)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if rotary is not None:
            q, k = rotate(q, *rotary), rotate(k, *rotary)
        x = attend(layer, q, k, v).flatten(-2)
        return add_low_rank(self.out(x), x, self.out_draft, drafts)


class MLP(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[config.activation]
        if config.gated_mlp:
            self.gate_up = nn.Linear(config.width, 2 * config.mlp_width, bias=config.mlp_bias)
        else:
            self.up = nn.Linear(config.width, config.mlp_width, bias=config.mlp_bias)
        self.gated = config.gated_mlp
        self.down = nn.Linear(config.mlp_width, config.width, bias=config.mlp_bias)
        self.down_draft = low_rank(self.down, config.draft_rank)

    def forward(self, x: Tensor, drafts: DraftRows = None) -> Tensor:
        if self.gated:
            gate, up = self.gate_up(x).chunk(2, dim=-1)
            x = self.activation(gate) * up
        else:
            x = self.activation(self.up(x))
        return add_low_rank(self.down(x), x, self.down_draft, drafts)


class Layer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.post = config.norm_placement == "post"
        self.attention_norm = Norm(config.width, config.norm_eps, config.norm == "layer")
        self.attention = SelfAttention(config)
        self.mlp_norm = Norm(config.width, config.norm_eps, config.norm == "layer")
        self.mlp = MLP(config)

    def forward(
        self, x: Tensor, rotary: tuple[Tensor, Tensor] | None, attend: Attention, layer: int, drafts: DraftRows = None
    ) -> Tensor:
        if self.post:
            x = x + self.attention_norm(self.attention(x, rotary, attend, layer, drafts))
            return x + self.mlp_norm(self.mlp(x, drafts))
        x = x + self.attention(self.attention_norm(x), rotary, attend, layer, drafts)
        return x + self.mlp(self.mlp_norm(x), drafts)


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


class Backbone(nn.Module):
    """Tokens to hidden states; the vocabulary projection is a separate call, on wanted rows only."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        learned = config.positions == "learned"
        self.position_embedding = nn.Embedding(config.max_positions, config.width) if learned else None
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.final_norm = Norm(config.width, config.norm_eps, config.norm == "layer")
        self.output = None if config.tied else nn.Linear(config.width, config.vocab_size, bias=False)
        self.time_input = TimeInput(config) if config.time_input else None
        self.draft_head = DraftHead(config) if config.draft_head else None
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
        assert (time is None) == (self.time_input is None)
        x = self.embedding(tokens)
        if self.position_embedding is not None:
            x = x + self.position_embedding(position)
        if self.time_input is not None:
            x = x + self.time_input(time)
        compute = torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype
        x = x.to(compute)
        rotary = rotary_tables(self.config, position, compute) if self.config.rotary_width else None
        drafts = draft_rows(drafting) if self.config.draft_rank else None
        for index, layer in enumerate(self.layers):
            x = layer(x, rotary, attend, index, drafts)
        return self.final_norm(x if wanted is None else x[..., wanted, :])

    @property
    def projection(self) -> Tensor:
        """The matrix of the vocabulary projection, (V, D)."""
        return self.embedding.weight if self.output is None else self.output.weight

    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 logits (..., V) of the given hidden states (..., D); reserved tokens are minus infinity."""
        out = F.linear(hidden, self.projection.to(hidden.dtype)).float()
        return out.index_fill(-1, self.never, float("-inf"))  # type: ignore[arg-type]

    @torch.no_grad()
    def initialize(self, seed: int, *, zero_outputs: bool = True, scale: float = 1.0) -> Backbone:
        """Seeded normal weights of variance 1/fan-in; output matrices of the residual branches are zero by default.

        Tests pass zero_outputs=False and a scale that makes the mean top probability about one half.
        """
        generator = torch.Generator().manual_seed(seed)
        for name, weight in self.named_parameters():
            if name.endswith("bias"):
                weight.fill_(ACCEPTED if name == "draft_head.confidence.bias" else 0.0)
            elif weight.dim() < 2:
                weight.fill_(1.0)
            elif name.endswith("embedding.weight"):
                weight.normal_(0, scale * self.config.width**-0.5, generator=generator)
            elif zero_outputs and name.endswith(ZERO_AT_FIRST):
                weight.zero_()
            else:
                weight.normal_(0, weight.shape[1] ** -0.5, generator=generator)
        return self

    @property
    def num_parameters(self) -> int:
        return sum(p.numel() for p in self.parameters())
