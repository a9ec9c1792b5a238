"""Packs DiffusionGemma's weights into the layout that `native/gemma.h` reads.

Letters: D width, N query heads, K key heads, H head width, V vocabulary.
"""

from __future__ import annotations

import ctypes
from typing import cast

import torch
from torch import Tensor

from daguerre.models.backends import library as interface
from daguerre.models.backends.packing import behind, pack_around, pack_mlp, weight_of, with_layers
from daguerre.models.backends.panels import TYPES, Packing, gates
from daguerre.models.core.gemma import GemmaAttention, GemmaBackbone, GemmaExperts, GemmaLayer, gemma_of

TOKENS = 1024
"""Tokens of each matrix of mean embeddings, so that it stays in the processor's cache for all rows."""


def pack_gemma(backbone: GemmaBackbone, packing: Packing) -> interface.ModelStruct:
    """The shape, options and packed weights of a backbone."""
    layers = [cast(GemmaLayer, layer) for layer in backbone.layers]
    model = with_layers(pack_around(backbone, packing), [_layer(layer, packing) for layer in layers])
    model.gemma = ctypes.pointer(_gemma(backbone, layers, packing))
    return model


def _gemma(backbone: GemmaBackbone, layers: list[GemmaLayer], packing: Packing) -> interface.GemmaStruct:
    config, mixing = backbone.config, backbone.self_conditioning
    shape, weight = gemma_of(config), backbone.embedding.weight.detach()
    turns = [kind[kind != 0] for kind in backbone.turns(weight.device)]
    exact = packing.of(TYPES[weight.dtype])
    mean = [exact.linear(part.T) for part in weight.split(TOKENS)]
    beyond = (interface.GemmaLayerStruct * len(layers))()
    for is_global, numbers in enumerate(config.layers_by_kind):
        for place, number in enumerate(numbers):
            beyond[number] = _beyond(layers[number], bool(is_global), place, packing)
    return interface.GemmaStruct(
        beyond,
        (ctypes.c_void_p * 2)(*map(packing.hold, turns)),
        (interface.LinearStruct * len(mean))(*mean),
        packing.hold(weight_of(mixing.norm)),
        *pack_mlp(mixing.mlp, mixing.norm, packing),
        (ctypes.c_int32 * 2)(*map(len, turns)),
        *(shape.global_kv_heads, shape.global_head_width, TOKENS),
        *(float(backbone.scale), shape.softcap),
    )


def _beyond(layer: GemmaLayer, is_global: bool, number: int, packing: Packing) -> interface.GemmaLayerStruct:
    """What a layer has beyond those of other models; `number`: its place among those of its kind."""
    norms = layer.experts.norm, layer.after_experts_norm, layer.after_norm
    weights = [packing.hold(weight_of(norm)) for norm in norms]
    return interface.GemmaLayerStruct(*weights, (ctypes.c_float * 2)(*layer.scalars.tolist()), is_global, number)


def _layer(layer: GemmaLayer, packing: Packing) -> interface.LayerStruct:
    attention, no_draft, hold = layer.attention, interface.LowRankStruct(), packing.hold
    return interface.LayerStruct(
        packing.linear(*behind(layer.attention_norm, attention.qkv)),
        packing.linear(*behind(None, attention.out)),
        *pack_mlp(layer.mlp, layer.mlp_norm, packing),
        *(no_draft, no_draft, no_draft),
        hold(_weights_of_heads(attention)),
        *(hold(weight_of(layer.attention_norm)), hold(weight_of(layer.mlp_norm))),
        *(hold(weight_of(layer.after_attention_norm)), None, hold(weight_of(layer.after_mlp_norm)), None),
        *_experts(layer.experts, packing),
    )


def _weights_of_heads(attention: GemmaAttention) -> Tensor:
    """The weights of the norms of queries and keys, (N + K, H)."""
    num_queries, num_keys = attention.heads[:2]
    queries, keys = (weight_of(norm) for norm in (attention.q_norm, attention.k_norm))
    return torch.cat([queries.expand(num_queries, -1), keys.expand(num_keys, -1)])


def _experts(
    experts: GemmaExperts, packing: Packing
) -> tuple[interface.LinearStruct, None, ctypes.Array[interface.LinearStruct], ctypes.Array[interface.LinearStruct]]:
    """The router, in float32, no bias of experts, and the matrices of each expert, with its scale in the last one."""
    mixture = experts.mixture
    router = mixture.router.weight.detach().float() * experts.scale.detach().float() * len(experts.scale) ** -0.5
    scales, matrices = experts.expert_scale.detach().float(), interface.LinearStruct * mixture.experts.num
    return (
        packing.of("float32").linear(router),
        None,
        matrices(*(packing.expert(*gates(x, None)) for x in mixture.gate_up.weight.detach())),
        matrices(
            *(packing.expert(x.float() * scale) for x, scale in zip(mixture.down.weight.detach(), scales, strict=True))
        ),
    )
