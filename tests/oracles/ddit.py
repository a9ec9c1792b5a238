"""The diffusion transformer of SEDD, MDLM, BD3-LM and Duo, restated from its description as plain functions of weights
under their published names (SEDD, arXiv 2310.16834, appendix C; MDLM, arXiv 2406.07524, appendix C; DiT, arXiv
2212.09748, section 3.2 and figure 3).

Letters: B texts, L positions, D width, C width of the vector of the noise level, N heads, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

Weights = dict[str, Tensor]
LENGTH = 24


def published_config(kind: str, **changes: Any) -> dict[str, Any]:
    """A tiny `config.json` in the publisher's format: of "mdlm", "bd3lm", "duo", "sedd" or "ar"."""
    sizes = {"hidden_dim": 32, "cond_dim": 12, "n_blocks": 3, "n_heads": 4, "vocab_size": 58, "model_length": LENGTH}
    if kind == "sedd":
        model = {"hidden_size": 32, "cond_dim": 12, "n_blocks": 3, "n_heads": 4, "length": LENGTH}
        model |= {"name": "small", "type": "ddit", "scale_by_sigma": True, "dropout": 0.1}
        noise = {"type": "loglinear", "sigma_min": 1e-4, "sigma_max": 20}
        return {"tokens": 57, "ngpus": 8, "model": model, "graph": {"type": "absorb"}, "noise": noise} | changes
    own: dict[str, dict[str, Any]] = {
        "mdlm": {"architectures": ["MDLM"], "model_type": "mdlm", "time_conditioning": False},
        "bd3lm": {"architectures": ["BD3LM"], "model_type": "bd3lm", "time_conditioning": False, "block_size": 4},
        "duo": {"architectures": ["DUO"], "model_type": "DUO", "time_conditioning": True, "causal": False},
        "ar": {"architectures": ["BD3LM"], "model_type": "bd3lm", "time_conditioning": False, "causal": True},
    }
    more = {"bd3lm": {"cross_attn": True, "adaln": True}, "ar": {"cross_attn": False, "adaln": False}}
    return sizes | own[kind] | more.get(kind, {}) | {"dropout": 0.1} | changes


def published_weights(config: Mapping[str, Any], seed: int = 0) -> Weights:
    """Random weights under their published names. The mean top probability is about one half."""
    random = torch.Generator().manual_seed(seed)
    model = config.get("model", config)
    width, vectors = model.get("hidden_dim", model.get("hidden_size")), model["cond_dim"]
    size = config["vocab_size"] if "vocab_size" in config else config["tokens"] + 1

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return scale * torch.randn(shape, generator=random) * (shape[-1] ** -0.5 if len(shape) > 1 else 1.0)

    def linear(name: str, num_out: int, num_in: int, scale: float = 1.0) -> Weights:
        return {f"{name}.weight": normal(num_out, num_in, scale=scale), f"{name}.bias": normal(num_out, scale=0.3)}

    out = {"vocab_embed.embedding": normal(size, width, scale=width**0.5)}
    adaptive = config.get("adaln", True)
    if adaptive:
        out |= linear("sigma_map.mlp.0", vectors, 256, 2.0) | linear("sigma_map.mlp.2", vectors, vectors, 2.0)
    for layer in range(model["n_blocks"]):
        own: Weights = {"norm1.weight": 1 + normal(width, scale=0.3), "norm2.weight": 1 + normal(width, scale=0.3)}
        own |= {"attn_qkv.weight": normal(3 * width, width, scale=1.5), "attn_out.weight": normal(width, width)}
        own |= linear("mlp.0", 4 * width, width) | linear("mlp.2", width, 4 * width)
        if adaptive:
            own |= linear("adaLN_modulation", 6 * width, vectors, 0.7)
        out |= {f"blocks.{layer}.{name}": weight for name, weight in own.items()}
    out["output_layer.norm_final.weight"] = 1 + normal(width, scale=0.3)
    out |= linear("output_layer.linear", size, width, 2.0 if adaptive else 3.0)
    if adaptive:
        out |= linear("output_layer.adaLN_modulation", 2 * width, vectors, 0.7)
    return out if "model" in config else {f"backbone.{name}": weight for name, weight in out.items()}


def product(weights: Weights, name: str, x: Tensor) -> Tensor:
    out = x @ weights[f"{name}.weight"].T
    return out + weights[f"{name}.bias"] if f"{name}.bias" in weights else out


def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def gelu(x: Tensor) -> Tensor:
    """Hendrycks and Gimpel's approximation with tanh."""
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def unit(x: Tensor) -> Tensor:
    centered = x - x.mean(-1, keepdim=True)
    return centered / (centered.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def level_vector(weights: Weights, sigma_B: Tensor) -> Tensor:
    """(B, C): 128 cosines and as many sines of sigma, at frequencies from 1 down to nearly 1/10000."""
    frequency = torch.tensor([10_000 ** -(i / 128) for i in range(128)])
    angle = sigma_B[:, None] * frequency
    waves = torch.cat([torch.cos(angle), torch.sin(angle)], dim=1)
    return silu(product(weights, "sigma_map.mlp.2", silu(product(weights, "sigma_map.mlp.0", waves))))


def turned(x_BLNH: Tensor) -> Tensor:
    """Rotary positions: pairs half a head apart, as complex numbers."""
    half = x_BLNH.shape[-1] // 2
    turn = torch.tensor([10_000 ** -(i / half) for i in range(half)])
    angle = torch.arange(x_BLNH.shape[1])[:, None] * turn
    pairs = torch.complex(x_BLNH[..., :half], x_BLNH[..., half:]) * torch.polar(torch.ones_like(angle), angle)[:, None]
    return torch.cat([pairs.real, pairs.imag], dim=-1)


def attention(weights: Weights, layer: str, x_BLD: Tensor, num_heads: int, seen_LL: Tensor) -> Tensor:
    batch, length, width = x_BLD.shape
    three = product(weights, f"{layer}.attn_qkv", x_BLD).view(batch, length, 3, num_heads, width // num_heads)
    q, k, v = turned(three[:, :, 0]), turned(three[:, :, 1]), three[:, :, 2]
    scores = torch.einsum("binh,bjnh->bnij", q, k) / math.sqrt(width // num_heads)
    chance = scores.masked_fill(~seen_LL, -math.inf).softmax(-1)
    return product(weights, f"{layer}.attn_out", torch.einsum("bnij,bjnh->binh", chance, v).flatten(2))


def ddit(
    config: Mapping[str, Any], weights: Weights, tokens_BL: Tensor, sigma_B: Tensor | None, seen_LL: Tensor
) -> Tensor:
    """The output (B, L, V). `sigma_B` is None for a model without adaptive norms; `seen_LL`: who sees whom."""
    weights = {name.removeprefix("backbone."): weight for name, weight in weights.items()}
    model = config.get("model", config)
    ones, zeros = torch.ones(()), torch.zeros(())
    vector = None if sigma_B is None else level_vector(weights, sigma_B)

    def parts(name: str, num: int) -> list[Tensor]:
        if vector is None:
            return [zeros, zeros, ones] * (num // 3) or [zeros, zeros]
        return [part[:, None] for part in product(weights, name, vector).chunk(num, dim=1)]

    x = weights["vocab_embed.embedding"][tokens_BL]
    for number in range(model["n_blocks"]):
        layer = f"blocks.{number}"
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = parts(f"{layer}.adaLN_modulation", 6)
        read = unit(x) * weights[f"{layer}.norm1.weight"] * (1 + scale) + shift
        x = x + gate * attention(weights, layer, read, model["n_heads"], seen_LL)
        read = unit(x) * weights[f"{layer}.norm2.weight"] * (1 + mlp_scale) + mlp_shift
        x = x + mlp_gate * product(weights, f"{layer}.mlp.2", gelu(product(weights, f"{layer}.mlp.0", read)))
    shift, scale = parts("output_layer.adaLN_modulation", 2)
    read = unit(x) * weights["output_layer.norm_final.weight"] * (1 + scale) + shift
    return product(weights, "output_layer.linear", read)


def sedd_log_score(output_BLV: Tensor, tokens_BL: Tensor, sigma_B: Tensor) -> Tensor:
    """SEDD's log-score from its network's output: less the logarithms of e^sigma - 1 and of V - 1, and 0 at the token
    itself (arXiv 2310.16834, section 4 and appendix C).
    """
    score = output_BLV - torch.log(torch.expm1(sigma_B))[:, None, None] - math.log(output_BLV.shape[-1] - 1)
    return score.scatter(-1, tokens_BL[..., None], 0.0)
