"""The backbone as formulas, one row and one head at a time, from the parameters alone."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from daguerre.models.core.backbone import Backbone
from daguerre.models.core.config import ModelConfig, RopeScaling

Weights = dict[str, Tensor]


def normed(x: Tensor, weights: Weights, name: str, eps: float) -> Tensor:
    """RMSNorm (Zhang and Sennrich 2019, eq. 4), or LayerNorm (Ba and others 2016, eq. 4) where there is a bias."""
    weight, bias = weights[f"{name}.weight"], weights.get(f"{name}.bias")
    if bias is None:
        return x / (x.square().mean() + eps).sqrt() * weight
    return (x - x.mean()) / ((x - x.mean()).square().mean() + eps).sqrt() * weight + bias


def turns(config: ModelConfig) -> tuple[list[float], float]:
    """Radians a position of each pair of a head, and what rotations are scaled by."""
    width, scaling = config.rotary_width, config.rope_scaling
    out = [config.rope_theta ** (-2 * pair / width) for pair in range(width // 2)]
    if scaling is None:
        return out, 1.0
    if scaling.kind == "linear":  # positions are divided
        return [turn / scaling.factor for turn in out], 1.0
    if scaling.kind == "llama3":
        return [_llama3(turn, scaling) for turn in out], 1.0
    return _yarn(out, scaling, width, config.rope_theta)


def _llama3(turn: float, scaling: RopeScaling) -> float:
    """As in Meta's code for Llama 3.1 (`apply_scaling`)."""
    wavelength = 2 * math.pi / turn
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    if wavelength < scaling.original_positions / high:
        return turn
    if wavelength > scaling.original_positions / low:
        return turn / scaling.factor
    smooth = (scaling.original_positions / wavelength - low) / (high - low)
    return (1 - smooth) * turn / scaling.factor + smooth * turn


def _yarn(turns: list[float], scaling: RopeScaling, width: int, theta: float) -> tuple[list[float], float]:
    """As in the code of YaRN (arXiv 2309.00071, section 3.2): pairs that turn often within the original positions are
    kept, those that turn seldom divided, those between by a ramp over their numbers.
    """

    def number(rotations: float) -> float:
        return width * math.log(scaling.original_positions / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = math.floor(number(scaling.beta_fast)), math.ceil(number(scaling.beta_slow))
    low, high = max(low, 0), min(high, width - 1)
    out = []
    for pair, turn in enumerate(turns):
        ramp = min(max((pair - low) / (high - low), 0.0), 1.0)
        out.append(turn / scaling.factor * ramp + turn * (1 - ramp))
    return out, scaling.attention_factor or 0.1 * math.log(scaling.factor) + 1


def rotated(x: Tensor, position: int, config: ModelConfig) -> Tensor:
    """A head whose first numbers are turned, each pair half a width apart."""
    half = config.rotary_width // 2
    if not half:
        return x
    radians, scale = turns(config)
    angle = torch.tensor([position * turn for turn in radians])
    pairs = torch.complex(x[:half], x[half : 2 * half]) * torch.polar(torch.full((half,), scale), angle)
    return torch.cat([pairs.real, pairs.imag, x[2 * half :]])


def written_out(backbone: Backbone, tokens: Tensor, level: float | None = None) -> Tensor:
    """Logits (R, V) of one causal sequence (R,); at a noise level of a sequence whose rows all see each other."""
    config, weights = backbone.config, dict(backbone.named_parameters())
    xs = [weights["embedding.weight"][token] for token in tokens]
    if config.positions == "learned":
        xs = [x + weights["position_embedding.weight"][row] for row, x in enumerate(xs)]
    if level is not None:
        assert backbone.time_input is not None
        xs = [x + backbone.time_input(torch.tensor(level)) for x in xs]
    for layer in range(config.num_layers):
        prefix = f"layers.{layer}."
        own = {name.removeprefix(prefix): weight for name, weight in weights.items() if name.startswith(prefix)}
        experts = config.experts is not None and layer >= config.experts.first_layer
        for name, branch in (("attention_norm", _attention), ("mlp_norm", _mixture if experts else _mlp)):
            if config.norm_placement == "pre":
                made = branch([normed(x, own, name, config.norm_eps) for x in xs], own, config)
            else:  # OLMo 2 (arXiv 2501.00656, section 3): what a branch makes is normed, not what it reads
                made = [normed(y, own, name, config.norm_eps) for y in branch(xs, own, config)]
            xs = [x + y for x, y in zip(xs, made, strict=True)]
    hidden = torch.stack([normed(x, weights, "final_norm", config.norm_eps) for x in xs])
    out = hidden @ weights["embedding.weight" if config.tied else "output.weight"].T
    out[:, [i for i in config.reserved_ids if i not in (config.eos_id, config.null_id)]] = -math.inf
    return out


def _product(x: Tensor, own: Weights, name: str) -> Tensor:
    out = own[f"{name}.weight"] @ x
    return out + own[f"{name}.bias"] if f"{name}.bias" in own else out


def _attention(xs: list[Tensor], own: Weights, config: ModelConfig) -> list[Tensor]:
    queries, keys, values = list[list[Tensor]](), list[list[Tensor]](), list[list[Tensor]]()
    num, num_kv = config.num_heads, config.num_kv_heads
    for row, x in enumerate(xs):
        made = _product(x, own, "attention.qkv")
        made = made if config.clip_qkv is None else made.clamp(-config.clip_qkv, config.clip_qkv)
        heads = list(made.split(config.head_width))
        if config.qk_norm:
            names = ["attention.q_norm"] * num + ["attention.k_norm"] * num_kv
            if config.qk_norm_scope == "head":
                heads[: num + num_kv] = [normed(h, own, n, config.norm_eps) for h, n in zip(heads, names, strict=False)]
            else:  # OLMo 2: all heads of a row are one vector
                q, k = torch.cat(heads[:num]), torch.cat(heads[num : num + num_kv])
                q = normed(q, own, "attention.q_norm", config.norm_eps)
                k = normed(k, own, "attention.k_norm", config.norm_eps)
                heads[: num + num_kv] = torch.cat([q, k]).split(config.head_width)
        heads[: num + num_kv] = [rotated(head, row, config) for head in heads[: num + num_kv]]
        queries.append(heads[:num])
        keys.append(heads[num : num + num_kv])
        values.append(heads[num + num_kv :])
    out = []
    for row, own_queries in enumerate(queries):
        mixed = []
        for head, query in enumerate(own_queries):
            kv, seen = head // (num // num_kv), len(xs) if config.context == "full" else row + 1
            scores = torch.stack([query @ keys[c][kv] for c in range(seen)]) / config.head_width**0.5
            mixed.append(sum((w * values[c][kv] for c, w in enumerate(scores.softmax(0))), torch.zeros(())))
        out.append(_product(torch.cat(mixed), own, "attention.out"))
    return out


def _activation(x: Tensor, config: ModelConfig) -> Tensor:
    if config.activation == "silu":
        return x * x.sigmoid()
    return F.gelu(x, approximate="tanh" if config.activation == "gelu_tanh" else "none")


def _mlp(xs: list[Tensor], own: Weights, config: ModelConfig, name: str = "mlp") -> list[Tensor]:
    out = []
    for x in xs:
        if config.gated_mlp:
            gate, up = _product(x, own, f"{name}.gate_up").chunk(2)
            inner = _activation(gate, config) * up
        else:
            inner = _activation(_product(x, own, f"{name}.up"), config)
        out.append(_product(inner, own, f"{name}.down"))
    return out


def _mixture(xs: list[Tensor], own: Weights, config: ModelConfig) -> list[Tensor]:
    """A mixture of experts, one row and one expert at a time (Shazeer and others 2017, eq. 1, with the scores, groups
    and biases of DeepSeek-V3).
    """
    experts = config.experts
    assert experts is not None
    out = []
    for x in xs:
        logits = (own["mlp.router.weight"] @ x).tolist()
        total = sum(math.exp(y) for y in logits)
        scores = [math.exp(y) / total if experts.score == "softmax" else 1 / (1 + math.exp(-y)) for y in logits]
        bias = own["mlp.expert_bias"].tolist() if experts.bias else [0.0] * experts.num
        biased = [one + other for one, other in zip(scores, bias, strict=True)]
        size = experts.num // experts.num_groups
        groups = [range(first, first + size) for first in range(0, experts.num, size)]
        if experts.num_groups > 1:
            groups.sort(key=lambda group: -sum(sorted(biased[i] for i in group)[-2:]))
        allowed = [i for group in groups[: experts.kept_groups] for i in group]
        chosen = sorted(allowed, key=lambda i: -biased[i])[: experts.per_token]
        share = experts.scale / (sum(scores[i] for i in chosen) if experts.normalized else 1)
        made = torch.zeros_like(x)
        for i in chosen:
            gate, up = (own["mlp.gate_up.weight"][i] @ x).chunk(2)
            made += share * scores[i] * (own["mlp.down.weight"][i] @ (_activation(gate, config) * up))
        out.append(made + _mlp([x], own, config, "mlp.shared")[0] if experts.shared_width else made)
    return out
