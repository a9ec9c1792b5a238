"""Adaptive norms for the native backend: at one noise level, each is a weight and a bias, and each gate a vector.

A model without `time_input` has one level, so these become weights: it is packed as a model with plain norms. Otherwise
they are computed for each forward. They are float32, whatever the type of the weights.

Letters: N layers, D width, C width of the vector of the noise level.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from daguerre.models.core.adaptive import LevelEmbedding
from daguerre.models.core.backbone import Backbone, Layer, Norm

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Modulations:
    """What a noise level does to the norms and gates of a backbone.

    matrix, bias   (6N + 2) D maps of the level's vector: shift, scale and gate of attention and of the MLP in every
                   layer, and shift and scale of the final norm
    norm           weights and biases of the norms, (2N + 1, 2, D)
    """

    embedding: LevelEmbedding
    matrix: Tensor
    bias: Tensor
    norm: Tensor

    @classmethod
    @torch.no_grad()
    def of(cls, backbone: Backbone) -> Modulations:
        """Those of a backbone with adaptive norms, as its weights are now."""
        assert backbone.level_embedding is not None and backbone.final_modulation is not None
        layers = [layer for layer in backbone.layers if isinstance(layer, Layer)]
        maps = [layer.modulation for layer in layers if layer.modulation is not None] + [backbone.final_modulation]
        norms = [norm for layer in layers for norm in (layer.attention_norm, layer.mlp_norm)] + [backbone.final_norm]
        return cls(
            copy.deepcopy(backbone.level_embedding).float(),
            torch.cat([one.weight.float() for one in maps]),
            torch.cat([one.bias.float() for one in maps]),
            torch.stack([_weight_and_bias(norm) for norm in norms]),
        )

    @torch.no_grad()
    def at(self, level: float) -> tuple[Tensor, Tensor]:
        """For attention and MLP of every layer, (N, 2, 3, D), the bias and weight of the norm and the gate; and the
        bias and weight of the final norm, (2, D).
        """
        width = self.norm.shape[-1]
        parts = self.matrix @ self.embedding(torch.tensor(level)) + self.bias
        layers, final = parts[: -2 * width].view(-1, 3, width), parts[-2 * width :].view(2, width)
        layers, final = layers.clone(), final.clone()
        for part, (weight, bias) in zip([*layers, final], self.norm, strict=True):
            part[0] += bias * (1 + part[1])
            part[1] = weight * (1 + part[1])
        return layers.view(-1, 2, 3, width), final


def _weight_and_bias(norm: Norm) -> Tensor:
    weight = norm.weight.detach().float()
    return torch.stack([weight, torch.zeros_like(weight) if norm.bias is None else norm.bias.detach().float()])


@torch.no_grad()
def with_plain_norms(backbone: Backbone) -> Backbone:
    """A backbone at its one noise level, as one with plain norms, which shares the weights that stay the same; the
    backbone itself if its norms are plain, or if its level is an input.
    """
    config = backbone.config
    if not config.adaptive_width or config.time_input:
        return backbone
    layers, final = Modulations.of(backbone).at(0.0)
    plain = replace(config, adaptive_width=0, norm_bias=True, out_bias=True, mlp_bias=True)
    weights = {name: weight.detach() for name, weight in backbone.named_parameters()}
    out = {name: weight for name, weight in weights.items() if "modulation" not in name and "level_" not in name}
    out |= {"final_norm.bias": final[0], "final_norm.weight": final[1]}
    for number, branches in enumerate(layers):
        layer = f"layers.{number}."
        for norm, matrix, (bias, weight, gate) in zip(NORMS, MATRICES, branches, strict=True):
            out |= {f"{layer}{norm}.bias": bias, f"{layer}{norm}.weight": weight}
            out |= _gated(weights, layer + matrix, gate)
        if not config.mlp_bias:
            up = f"{layer}mlp.{'gate_up' if config.gated_mlp else 'up'}"
            out[f"{up}.bias"] = torch.zeros(len(weights[f"{up}.weight"]))
    with torch.device("meta"):
        made = Backbone(plain)
    made.load_state_dict(out, assign=True)
    made.never = backbone.never
    return made.requires_grad_(False)


NORMS, MATRICES = ("attention_norm", "mlp_norm"), ("attention.out", "mlp.down")


def _gated(weights: Weights, matrix: str, gate: Tensor) -> Weights:
    weight, bias = weights[f"{matrix}.weight"], weights.get(f"{matrix}.bias")
    return {
        f"{matrix}.weight": (weight.float() * gate[:, None]).to(weight.dtype),
        f"{matrix}.bias": torch.zeros_like(gate) if bias is None else bias.float() * gate,
    }
