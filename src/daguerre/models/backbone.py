"""The backbone: pre-RMSNorm, rotary positions, QK-norm, grouped queries, SwiGLU, tied embeddings.

Letters: B requests, R rows, A asked rows, D width, N heads, H head width, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from daguerre.models.attention import Block, attend, prepare
from daguerre.models.cache import Cache
from daguerre.models.config import ModelConfig
from daguerre.models.draft_head import DraftHead, Step
from daguerre.models.layout import Layout
from daguerre.models.rotary import rotary_tables, rotate

ROWS_TOGETHER, FEW_ROWS = 4, 32
LONG = 1024
"""Inputs of a product; with more of them the library sums a single row in another order than two or more."""


def product(x: Tensor, weight: Tensor) -> Tensor:
    """x W^T of rows x (..., R, D), each with the bits that it has among any other rows.

    In float32 on a CPU the library sums one to three rows in another order than four, and cuts the rows of a product
    among threads, so few rows are made a multiple of four. In bfloat16 one row of more than LONG inputs is made two.
    """
    num = x.shape[:-1].numel()
    multiple = ROWS_TOGETHER if x.dtype == torch.float32 else 2 if num == 1 and x.shape[-1] > LONG else 1
    if x.device.type != "cpu" or num >= FEW_ROWS or num % multiple == 0:
        return F.linear(x, weight)
    padded = F.pad(x.reshape(num, -1), (0, 0, 0, -num % multiple))
    return F.linear(padded, weight)[:num].view(*x.shape[:-1], len(weight))


class Linear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return product(x, self.weight)


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.eps)


class Attention(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        head = config.head_width
        self.heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        self.qkv = Linear(config.width, sum(self.heads) * head, bias=False)
        self.out = Linear(config.width, config.width, bias=False)
        self.q_norm = RMSNorm(head, config.norm_eps)
        self.k_norm = RMSNorm(head, config.norm_eps)

    def forward(
        self,
        x: Tensor,
        rotary: tuple[Tensor, Tensor],
        blocks: list[Block],
        backend: str,
        num_settled: int,
        cache: Cache | None,
        layer: int,
    ) -> Tensor:
        batch, rows, width = x.shape
        qkv = self.qkv(x).view(batch, rows, sum(self.heads), -1)
        q, k, v = qkv.split(self.heads, dim=2)
        q = rotate(self.q_norm(q).transpose(1, 2), *rotary)
        k = rotate(self.k_norm(k).transpose(1, 2), *rotary)
        v = v.transpose(1, 2)
        if cache is not None:
            k, v = cache.extend(layer, k, v, num_settled)
        y = attend(q, k, v, blocks, backend)
        return self.out(y.transpose(1, 2).reshape(batch, rows, width))


class MLP(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_up = Linear(config.width, 2 * config.mlp_width, bias=False)
        self.down = Linear(config.mlp_width, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class Layer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.width, config.norm_eps)
        self.attention = Attention(config)
        self.mlp_norm = RMSNorm(config.width, config.norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, *args, **kwargs) -> Tensor:  # type: ignore[no-untyped-def]
        x = x + self.attention(self.attention_norm(x), *args, **kwargs)
        return x + self.mlp(self.mlp_norm(x))


class TimeInput(nn.Module):
    """A noise level in [0, 1] as a vector: sines and cosines of 1000 t, two products; starts at zero.

    It is no longer than a token's embedding at the start: added to every row alike, a long one drowns the tokens.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.inner = nn.Linear(config.width, config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(self, time_BR: Tensor) -> Tensor:
        width = self.inner.in_features
        exponent = torch.arange(0, width, 2, device=time_BR.device, dtype=torch.float32) / width
        angle = 1000.0 * time_BR[..., None].float() * 10_000.0**-exponent
        waves = torch.cat([angle.cos(), angle.sin()], dim=-1).to(self.inner.weight.dtype)
        told = self.out(F.silu(self.inner(waves)))
        return told * torch.rsqrt(1 + width * told.float().square().mean(-1, keepdim=True)).to(told.dtype)


class Backbone(nn.Module):
    """Tokens and a layout to hidden states; the vocabulary projection is a separate call, on asked rows only."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.final_norm = RMSNorm(config.width, config.norm_eps)
        self.time_input = TimeInput(config) if config.time_input else None
        self.draft_head = DraftHead(config) if config.draft_head else None
        self.register_buffer("never", torch.tensor(config.unpredictable_ids), persistent=False)

    def forward(
        self,
        tokens_BR: Tensor,
        layout: Layout,
        cache: Cache | None = None,
        backend: str = "sdpa",
        time_BR: Tensor | None = None,
        asked_A: Tensor | None = None,
    ) -> Tensor:
        """Hidden states (B, R, D), or those of the asked rows (B, A, D).

        With a cache, reads its rows as keys and stores this forward's settled rows. `time_BR` is the noise level of
        each row, for a model with `time_input` and no other.
        """
        assert (time_BR is None) == (self.time_input is None)
        x = self.embedding(tokens_BR)
        if self.time_input is not None:
            x = x + self.time_input(time_BR)
        compute = torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype
        x = x.to(compute)
        rotary = rotary_tables(layout.rows.position, self.config.head_width, self.config.rope_theta, compute)
        blocks = prepare(layout.blocks(None if cache is None else cache.rows), compute, backend, x.device)
        for index, layer in enumerate(self.layers):
            x = layer(x, rotary, blocks, backend, layout.num_settled, cache, index)
        if cache is not None and layout.num_settled:
            cache.commit(layout.rows[: layout.num_settled])
        return self.final_norm(x if asked_A is None else x[:, asked_A])

    def drafting(self, rows: Tensor) -> Step | None:
        """The draft head's steps over the hidden states (A, D) of `rows`; None without one."""
        head, embedding = self.draft_head, self.embedding.weight
        if head is None:
            return None

        def step(place: int, token: int, state: Tensor) -> tuple[Tensor, Tensor]:
            state = head(rows[place : place + 1], embedding[token : token + 1], state)
            return state, self.logits(state)

        return step

    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 logits (..., V) of the given hidden states (..., D); reserved tokens are minus infinity."""
        out = product(hidden, self.embedding.weight.to(hidden.dtype)).float()
        return out.index_fill(-1, self.never, float("-inf"))  # type: ignore[arg-type]

    @torch.no_grad()
    def initialize(self, seed: int, *, zero_outputs: bool = True, scale: float = 1.0) -> Backbone:
        """Seeded normal weights of variance 1/fan-in; outputs of the residual branches start at zero for training.

        Tests pass zero_outputs=False and a scale that makes the mean top probability about one half.
        """
        generator = torch.Generator().manual_seed(seed)
        for name, weight in self.named_parameters():
            if weight.dim() < 2:
                weight.fill_(1.0)
            elif name == "embedding.weight":
                weight.normal_(0, scale * self.config.width**-0.5, generator=generator)
            elif zero_outputs and name.endswith(("out.weight", "down.weight")):
                weight.zero_()
            else:
                weight.normal_(0, weight.shape[1] ** -0.5, generator=generator)
        return self

    @property
    def num_parameters(self) -> int:
        return sum(p.numel() for p in self.parameters())
