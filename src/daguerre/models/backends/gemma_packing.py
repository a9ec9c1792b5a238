"""Packs DiffusionGemma's weights into the layout that `native/gemma.h` reads.

Letters: D width, N query heads, K key heads, H head width, V vocabulary.
"""

from __future__ import annotations

import ctypes
from functools import partial

import numpy as np

from daguerre.models.backends import library as interface
from daguerre.models.backends.packing import View, behind, held, pack_around, pack_mlp, with_layers
from daguerre.models.backends.panels import Matrix, Packing, gates
from daguerre.models.bits import converted, floats
from daguerre.models.core.config import ModelConfig
from daguerre.models.core.gemma_shape import gemma_of, turns
from daguerre.models.model_weights import OUTSIDE, Parts

TOKENS = 1024
"""Tokens of each matrix of mean embeddings, so that it stays in the processor's cache for all rows."""


def pack_gemma(weights: Parts, packing: Packing) -> interface.ModelStruct:
    """The shape, options and packed weights of a model."""
    config, outside = weights.config, View.of(weights, OUTSIDE)
    layers, beyond = list[interface.LayerStruct](), list[interface.GemmaLayerStruct]()
    places = {number: place for numbers in config.layers_by_kind for place, number in enumerate(numbers)}
    model = pack_around(weights, outside, packing)
    for number in range(config.num_layers):
        layer = View.of(weights, number)
        layers.append(_layer(config, number, layer, packing))
        beyond.append(_beyond(layer, not config.is_sliding(number), places[number], packing))
    model = with_layers(model, layers)
    model.gemma = ctypes.pointer(_gemma(weights, outside, beyond, packing))
    return model


def _gemma(
    weights: Parts, outside: View, beyond: list[interface.GemmaLayerStruct], packing: Packing
) -> interface.GemmaStruct:
    config, mixing, hold = weights.config, outside.within("self_conditioning"), packing.hold
    shape, exact, rotated = gemma_of(config), packing.of(weights.numbers), turns(config)
    rotated = [kind[kind != 0] for kind in rotated]
    scale = floats(converted(np.array([config.width**0.5], np.float32), weights.numbers))

    def tokens(start: int) -> Matrix:
        return outside["embedding.weight"][start : start + TOKENS].T, None

    mean = [exact.linear(partial(tokens, start)) for start in range(0, config.vocab_size, TOKENS)]
    return interface.GemmaStruct(
        (interface.GemmaLayerStruct * len(beyond))(*beyond),
        (ctypes.c_void_p * 2)(*(hold(lambda kind=kind: kind) for kind in rotated)),  # type: ignore[misc]
        (interface.LinearStruct * len(mean))(*mean),
        held(mixing, "norm.weight", packing),
        *pack_mlp(mixing.within("mlp"), mixing.within("norm"), packing),
        (ctypes.c_int32 * 2)(*map(len, rotated)),
        *(shape.global_kv_heads, shape.global_head_width, TOKENS),
        *(float(scale[0]), shape.softcap),
    )


def _beyond(layer: View, is_global: bool, number: int, packing: Packing) -> interface.GemmaLayerStruct:
    """What a layer has beyond those of other models; `number`: its place among those of its kind."""
    norms = "experts.norm.weight", "after_experts_norm.weight", "after_norm.weight"
    weights = [held(layer, norm, packing) for norm in norms]
    scalars = (ctypes.c_float * 2)(*packing.kept(lambda: layer.floats("scalars")).tolist())
    return interface.GemmaLayerStruct(*weights, scalars, is_global, number)


def _layer(config: ModelConfig, number: int, layer: View, packing: Packing) -> interface.LayerStruct:
    attention, no_draft = layer.within("attention"), interface.LowRankStruct()

    def weight(norm: str) -> int | None:
        return held(layer, f"{norm}.weight", packing)

    return interface.LayerStruct(
        packing.linear(lambda: behind(layer.within("attention_norm"), attention.within("qkv"))),
        packing.linear(lambda: behind(None, attention.within("out"))),
        *pack_mlp(layer.within("mlp"), layer.within("mlp_norm"), packing),
        *(no_draft, no_draft, no_draft, no_draft),
        packing.hold(lambda: _weights_of_heads(config.num_heads, config.key_shapes[number][0], attention)),
        *(weight("attention_norm"), weight("mlp_norm")),
        *(weight("after_attention_norm"), None, weight("after_mlp_norm"), None),
        *_experts(layer.within("experts"), packing),
    )


def _weights_of_heads(num_queries: int, num_keys: int, attention: View) -> np.ndarray:
    """The weights of the norms of queries and keys, (N + K, H)."""
    queries, keys = attention.floats("q_norm.weight"), attention.floats("k_norm.weight")
    return np.concatenate([np.tile(queries, (num_queries, 1)), np.tile(keys, (num_keys, 1))])


def _experts(
    experts: View, packing: Packing
) -> tuple[interface.LinearStruct, None, ctypes.Array[interface.LinearStruct], ctypes.Array[interface.LinearStruct]]:
    """The router, in float32, no bias of experts, and the matrices of each expert, with its scale in the last one."""
    mixture, num = experts.within("mixture"), experts.shape("expert_scale")[0]
    matrices = interface.LinearStruct * num

    def router() -> Matrix:
        scale = experts.floats("scale")
        return mixture.floats("router.weight") * scale * np.float32(len(scale) ** -0.5), None

    def up(number: int) -> Matrix:
        return gates(mixture["gate_up.weight"][number], None)

    def down(number: int) -> Matrix:
        return floats(mixture["down.weight"][number]) * experts.floats("expert_scale")[number], None

    return (
        packing.of("float32").linear(router),
        None,
        matrices(*(packing.expert(partial(up, number)) for number in range(num))),
        matrices(*(packing.expert(partial(down, number)) for number in range(num))),
    )
