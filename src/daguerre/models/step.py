"""One forward of few rows behind a cache, as a function without a choice in it: what is compiled.

The weights are its own, those of the norms before a product multiplied in; everything else is an argument. Norms,
rotations and softmax are in float32, scores in the dtype of the weights, as in `models.lean`.

Letters: R rows, A asked rows, C keys, D width, N heads, K key-value heads, G query heads for each of those, H head
width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from daguerre.models.backbone import Backbone, Layer
from daguerre.models.rotary import rotary_tables, rotate


def _unit(x: Tensor, eps: float) -> Tensor:
    """Float32 x / sqrt(mean x^2 + eps) over the last dimension: an RMSNorm without its weight."""
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def _scaled(weight: Tensor, norm: Tensor) -> nn.Parameter:
    """The matrix (out, D) that takes `_unit` in place of an RMSNorm of weight `norm` (D,)."""
    return _fixed((weight.detach().float() * norm.detach().float()).to(weight.dtype))


def _fixed(weight: Tensor) -> nn.Parameter:
    return nn.Parameter(weight.detach(), requires_grad=False)


class StepLayer(nn.Module):
    """One layer."""

    def __init__(self, layer: Layer, eps: float) -> None:
        super().__init__()
        attention, mlp = layer.attention, layer.mlp
        self.heads, self.head, self.eps = attention.heads, attention.q_norm.weight.shape[0], eps
        num_heads, num_kv, _ = self.heads
        q_weight, k_weight = attention.q_norm.weight.float() * self.head**-0.5, attention.k_norm.weight.float()
        self.qk_weight = _fixed(torch.cat([q_weight.expand(num_heads, -1), k_weight.expand(num_kv, -1)]))
        self.qkv = _scaled(attention.qkv.weight, layer.attention_norm.weight)
        self.gate_up = _scaled(mlp.gate_up.weight, layer.mlp_norm.weight)
        self.out, self.down = _fixed(attention.out.weight), _fixed(mlp.down.weight)

    def attend(
        self, x: Tensor, rotary: tuple[Tensor, Tensor], place: Tensor, bias: Tensor, keys: Tensor, values: Tensor
    ) -> Tensor:
        """What attention gives (R, N * H) to hidden states (R, D), whose keys and values are written at `place`."""
        num_heads, num_kv, _ = self.heads
        num, (rows, num_keys), groups = num_heads + num_kv, bias.shape, num_heads // num_kv
        qkv = F.linear(_unit(x, self.eps).to(x.dtype), self.qkv).view(rows, num + num_kv, self.head)
        qk = rotate(_unit(qkv[:, :num], self.eps) * self.qk_weight, *rotary).to(x.dtype)
        keys.index_copy_(1, place, qk[:, num_heads:].transpose(0, 1))
        values.index_copy_(1, place, qkv[:, num:].transpose(0, 1))
        q = qk[:, :num_heads].view(rows, num_kv, groups, self.head).permute(1, 2, 0, 3)
        scores = torch.bmm(q.reshape(num_kv, groups * rows, self.head), keys[:, :num_keys].mT)
        seen = scores.view(num_kv, groups, rows, num_keys) + bias
        weights = torch.softmax(seen.float(), dim=-1).to(x.dtype).view(num_kv, groups * rows, num_keys)
        y = torch.bmm(weights, values[:, :num_keys]).view(num_kv, groups, rows, self.head)
        return y.permute(2, 0, 1, 3).reshape(rows, num_heads * self.head)

    def finish(self, x: Tensor, y: Tensor) -> Tensor:
        """Hidden states (rows, D) behind the layer, from those before it and what attention gave."""
        x = x + F.linear(y, self.out)
        gate, up = F.linear(_unit(x, self.eps).to(x.dtype), self.gate_up).chunk(2, dim=-1)
        return x + F.linear(F.silu(gate) * up, self.down)


class Step(nn.Module):
    """A backbone's forward of rows of one request behind its cache."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        config = backbone.config
        self.eps = config.norm_eps
        self.embedding = _fixed(backbone.embedding.weight)
        self.layers = nn.ModuleList(StepLayer(layer, self.eps) for layer in backbone.layers)  # type: ignore[arg-type]
        self.final = _fixed(backbone.final_norm.weight.float())
        position = torch.arange(config.max_positions, device=self.embedding.device)[None]
        cos, sin = rotary_tables(position, config.head_width, config.rope_theta, torch.float32)
        self.cos, self.sin = _fixed(cos[0, 0]), _fixed(sin[0, 0])

    def forward(
        self, tokens: Tensor, position: Tensor, place: Tensor, bias: Tensor, asked: Tensor, stored: list[Tensor]
    ) -> Tensor:
        """Hidden states (A, D) of the asked rows.

        tokens, position, place  int64 (R,): what each row reads, where it stands, where in the cache it is written
        bias                     (R, C): what is added to its scores on the first C of the keys stored
        asked                    int64 (A,)
        stored                   keys and values of each layer in turn, (K, capacity, H), capacity at least C
        """
        rotary = self.cos[position][:, None], self.sin[position][:, None]
        x = self.embedding[tokens]
        for index, layer in enumerate(self.layers):
            y = layer.attend(x, rotary, place, bias, stored[2 * index], stored[2 * index + 1])  # type: ignore[operator]
            if index == len(self.layers) - 1:
                x, y = x[asked], y[asked]
            x = layer.finish(x, y)  # type: ignore[operator]
        return (_unit(x, self.eps) * self.final).to(x.dtype)
