"""The core of DiffusionGemma: one set of weights with two roles (transformers, `models/diffusion_gemma`).

Clean rows, the text so far, are computed as by a causal language model. Noisy rows are those of the canvas. They hold
tokens of which many are random, see all clean rows and one another, and are told what the model made of them in the
step before: the mean embedding of each row's distribution (self-conditioning; Chen et al., arXiv 2208.04202).

What differs from `Backbone`:

* Most layers are sliding (`Windows`), with heads of their own. Global layers see all keys, with wider heads of which a
  part is rotated, and their values are their keys before norm and rotation.
* Queries, keys and values are normalized, and scores are not scaled. Every branch is normalized before and after.
* Experts are beside an MLP. Their router reads the row with a norm of its own.
* The results of a layer are multiplied by a number, of which the two roles have one each.
* Embeddings are multiplied by sqrt(D), and logits are capped.

Letters: R rows, Q noisy rows, N heads, H head width, D width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from daguerre.models.core.attention import Attention
from daguerre.models.core.backbone import ACTIVATIONS, MLP, Backbone, Norm
from daguerre.models.core.config import ModelConfig
from daguerre.models.core.experts import Mixture
from daguerre.models.core.gemma_shape import gemma_of, turns
from daguerre.models.core.rotary import rotate

Tables = tuple[Tensor, Tensor]
"""Cosines and sines (R, 1, H/2)."""


@dataclass(frozen=True, eq=False, slots=True)
class CanvasRows:
    """Which rows are noisy, bool (R,), and their conditioning, (Q, D); a row of zeros is that of a first step."""

    noisy: Tensor
    conditioning: Tensor


class GemmaAttention(nn.Module):
    """Attention of a sliding or a global layer."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        num_kv, self.head = config.key_shapes[layer]
        self.heads = [config.num_heads, num_kv, num_kv] if config.is_sliding(layer) else [config.num_heads, num_kv]
        self.qkv = nn.Linear(config.width, sum(self.heads) * self.head, bias=False)
        self.out = nn.Linear(config.num_heads * self.head, config.width, bias=False)
        self.q_norm, self.k_norm = Norm(self.head, config.norm_eps), Norm(self.head, config.norm_eps)

    def forward(self, x: Tensor, tables: Tables, attend: Attention, layer: int) -> Tensor:
        """Results (R, D) of rows (R, D)."""
        parts = self.qkv(x).unflatten(-1, (sum(self.heads), self.head)).split(self.heads, dim=-2)
        q, k, v = parts[0], parts[1], parts[-1]
        v = F.rms_norm(v, (self.head,), None, self.k_norm.eps)
        q, k = rotate(self.q_norm(q), *tables), rotate(self.k_norm(k), *tables)
        out: Tensor = self.out(attend(layer, q, k, v).flatten(-2))
        return out


class GemmaExperts(nn.Module):
    """Experts, and a router that reads the same rows with a norm of its own."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.experts is not None
        self.norm = Norm(config.width, config.norm_eps)
        self.mixture = Mixture(config.width, config.experts, ACTIVATIONS[config.activation], None)
        self.scale = nn.Parameter(torch.ones(config.width))
        self.expert_scale = nn.Parameter(torch.ones(config.experts.num))

    def forward(self, x: Tensor) -> Tensor:
        """Results (R, D) of rows (R, D). The weight of a chosen expert is multiplied by a number of that expert."""
        read = F.rms_norm(x, x.shape[-1:], None, self.norm.eps) * self.scale * x.shape[-1] ** -0.5
        chosen, weights = self.mixture.choose(read)
        return self.mixture.routed(self.norm(x), chosen, weights * self.expert_scale[chosen])


class GemmaLayer(nn.Module):
    """A layer. `scalars` are what its results are multiplied by, in clean rows and in noisy ones."""

    scalars: Tensor

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        width, eps = config.width, config.norm_eps
        self.attention = GemmaAttention(config, layer)
        self.mlp, self.experts = MLP(config, config.mlp_width), GemmaExperts(config)
        self.attention_norm, self.after_attention_norm = Norm(width, eps), Norm(width, eps)
        self.mlp_norm, self.after_mlp_norm = Norm(width, eps), Norm(width, eps)
        self.after_experts_norm, self.after_norm = Norm(width, eps), Norm(width, eps)
        self.register_buffer("scalars", torch.ones(2))

    def forward(self, x: Tensor, tables: Tables, attend: Attention, layer: int, role: Tensor) -> Tensor:
        """Rows (R, D) after the layer; role, int64 (R,), is 0 of clean rows and 1 of noisy ones."""
        x = x + self.after_attention_norm(self.attention(self.attention_norm(x), tables, attend, layer))
        branches = self.after_mlp_norm(self.mlp(self.mlp_norm(x))) + self.after_experts_norm(self.experts(x))
        return (x + self.after_norm(branches)) * self.scalars.to(x.dtype)[role, None]


class SelfConditioning(nn.Module):
    """Mixes the embeddings of noisy rows with their conditioning."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm, self.mlp = Norm(config.width, config.norm_eps), MLP(config, config.mlp_width)

    def forward(self, x: Tensor, conditioning: Tensor) -> Tensor:
        """What the first layer reads, (Q, D), from embeddings and conditioning, (Q, D)."""
        return F.rms_norm(x + self.mlp(self.norm(conditioning)), x.shape[-1:], None, self.norm.eps)


class GemmaBackbone(Backbone):
    """A `Backbone` of DiffusionGemma. Its rows are those of one packed batch: there are no leading dimensions."""

    layer_class = GemmaLayer

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.self_conditioning = SelfConditioning(config)

    def forward(
        self,
        tokens: Tensor,
        position: Tensor,
        attend: Attention,
        *,
        time: Tensor | None = None,
        wanted: Tensor | None = None,
        drafting: Tensor | None = None,
        canvas: CanvasRows | None = None,
    ) -> Tensor:
        """Hidden states; see `Backbone`. `attend` does not scale scores. canvas: the noisy rows, if there are any."""
        assert time is None and drafting is None
        x, role = self.embedded(tokens), torch.zeros_like(tokens)
        if canvas is not None:
            role = canvas.noisy.long()
            x = x.index_put((canvas.noisy,), self.self_conditioning(x[canvas.noisy], canvas.conditioning))
        sliding, everywhere = self.tables(position, x.dtype)
        for index, layer in enumerate(self.layers):
            x = layer(x, sliding if self.config.is_sliding(index) else everywhere, attend, index, role)
        hidden: Tensor = self.final_norm(x if wanted is None else x[wanted])
        return hidden

    def embedded(self, tokens: Tensor) -> Tensor:
        """The embeddings (..., D) of tokens (...), times sqrt(D)."""
        return self.embedding(tokens) * self.scale

    @property
    def scale(self) -> Tensor:
        """sqrt(D) in the type of the weights, as it was in training."""
        weight = self.embedding.weight
        return torch.full((), self.config.width**0.5, dtype=weight.dtype, device=weight.device)

    def turns(self, device: torch.device) -> list[Tensor]:
        """`gemma_shape.turns` on a device."""
        return [torch.from_numpy(kind).to(device) for kind in turns(self.config)]

    def tables(self, position: Tensor, dtype: torch.dtype) -> tuple[Tables, Tables]:
        """The rotations of sliding and of global layers at positions (R,), computed in float32."""
        angles = [position[:, None, None].float() * turns for turns in self.turns(position.device)]
        sliding, everywhere = ((angle.cos().to(dtype), angle.sin().to(dtype)) for angle in angles)
        return sliding, everywhere

    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 logits (..., V), capped; see `Backbone`."""
        cap = gemma_of(self.config).softcap
        return torch.tanh(super().logits(hidden) / cap).mul_(cap).index_fill(-1, self.never, float("-inf"))  # type: ignore[arg-type]

    def conditioning(self, logits: Tensor) -> Tensor:
        """The mean embeddings (A, D), times sqrt(D), of the distributions of logits (A, V)."""
        weight = self.embedding.weight
        probs = logits.to(weight.dtype).softmax(-1, dtype=torch.float32).to(weight.dtype)
        return (probs @ weight) * self.scale
