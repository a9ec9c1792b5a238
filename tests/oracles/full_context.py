"""A model with full context as a function of whole sequences: every row sees every row, and nothing is left out.

Letters: B sequences, L positions, D width, H heads, V vocabulary.
"""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from daguerre.models.core.backbone import Backbone


class FullContext:
    """Logits of a backbone's parameters, without its code: RMSNorm, rotary positions, norms of queries and keys, gated
    MLP. Called as models of `transformers` are: tokens (B, L), with 0 in `attention_mask` where there is padding.

    bias  numbers that are added to the logits of tokens
    """

    def __init__(self, backbone: Backbone, bias: dict[int, float] | None = None) -> None:
        self.config = backbone.config
        assert self.config.context == "full"
        self._weights = {name: weight.detach() for name, weight in backbone.named_parameters()}
        self._added = torch.zeros(self.config.vocab_size)
        for token, number in (bias or {}).items():
            self._added[token] = number
        self._added[list(self.config.unpredictable_ids)] = -math.inf

    def __call__(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> SimpleNamespace:
        return self.forward(input_ids, attention_mask)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> SimpleNamespace:
        """Its `logits`, float32 (B, L, V); 0 where there is padding."""
        out = torch.zeros(*input_ids.shape, self.config.vocab_size)
        for row, tokens in enumerate(input_ids):
            kept = torch.ones_like(tokens) if attention_mask is None else attention_mask[row]
            out[row, kept.bool()] = self._logits(tokens[kept.bool()])
        return SimpleNamespace(logits=out)

    def of(self, tokens: np.ndarray) -> np.ndarray:
        """Logits of the token at each position, float64 (L, V), of one sequence (L,). With a shift they are those of
        the row before it; position 0 has its own row's.
        """
        logits = self._logits(torch.from_numpy(tokens)).double().numpy()
        return np.concatenate([logits[:1], logits[:-1]]) if self.config.shift else logits

    def _logits(self, tokens: Tensor) -> Tensor:
        x = self._weights["embedding.weight"][tokens]
        for layer in range(self.config.num_layers):
            name = f"layers.{layer}."
            x = x + self._attention(self._normed(x, f"{name}attention_norm"), f"{name}attention.")
            gate, up = (self._normed(x, f"{name}mlp_norm") @ self._weights[f"{name}mlp.gate_up.weight"].T).chunk(2, -1)
            x = x + (F.silu(gate) * up) @ self._weights[f"{name}mlp.down.weight"].T
        return self._normed(x, "final_norm") @ self._weights["embedding.weight"].T + self._added

    def _normed(self, x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self._weights[f"{name}.weight"], self.config.norm_eps)

    def _attention(self, x: Tensor, name: str) -> Tensor:
        config = self.config
        sizes = config.num_heads, config.num_kv_heads, config.num_kv_heads
        heads = (x @ self._weights[f"{name}qkv.weight"].T).view(len(x), sum(sizes), config.head_width)
        q, k, v = (part.transpose(0, 1) for part in heads.split(sizes, dim=1))
        q, k = (self._rotated(self._normed(part, f"{name}{which}_norm")) for part, which in ((q, "q"), (k, "k")))
        out = F.scaled_dot_product_attention(q[None], k[None], v[None], enable_gqa=True)[0]
        return out.transpose(0, 1).reshape(len(x), -1) @ self._weights[f"{name}out.weight"].T

    def _rotated(self, x: Tensor) -> Tensor:
        """Heads (H, L, width) whose halves are pairs that turn."""
        half = self.config.head_width // 2
        angle = torch.outer(torch.arange(x.shape[1]), self.config.rope_theta ** -(torch.arange(half) / half))
        first, second = x[..., :half], x[..., half:]
        return torch.cat([first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()], -1)
