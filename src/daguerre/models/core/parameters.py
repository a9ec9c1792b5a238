"""The parameters of a backbone, by name, and their shapes: those of `models.core.backbone` and `models.core.gemma`.

Names are those of `Backbone.state_dict()`. Nothing here needs PyTorch: files are compared with these shapes, and packed
for the native backend by these names.

Letters of shapes: (out, in).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from daguerre.models.core.config import ModelConfig
from daguerre.models.core.shapes import ConceptShape, Experts

Shapes = dict[str, tuple[int, ...]]
NUM_WAVES = 256
"""Sines and cosines of a noise level, for adaptive norms."""
MOST_NOISE = 0.999
"""The highest noise level of training of models with adaptive norms: 1 - epsilon of the published schedules."""
ROUND = 64
"""Rows of keys and values that are allocated, stored and shared are a multiple of it."""
PARTS, FINAL_PARTS = 6, 2
"""Vectors of a layer with adaptive norms: shift, scale and gate of attention, then of the MLP; and of the final norm:
shift and scale.
"""


def parameter_shapes(config: ModelConfig) -> Shapes:
    """The shape of every parameter of a model."""
    out = _outside(config)
    for number in range(config.num_layers):
        out |= within(f"layers.{number}", layer_shapes(config, number))
    return out


def num_parameters(config: ModelConfig) -> int:
    """How many weights a model has, without the `scalars` of DiffusionGemma, which no training changes."""
    shapes = parameter_shapes(config).items()
    return sum(math.prod(shape) for name, shape in shapes if not name.endswith(".scalars"))


def part_shapes(config: ModelConfig, layer: int | None) -> Shapes:
    """The shapes of a layer, by the names within it; of what is outside of layers for None."""
    return _outside(config) if layer is None else layer_shapes(config, layer)


def within(name: str, shapes: Mapping[str, tuple[int, ...]]) -> Shapes:
    """The same names behind that of a module."""
    return {f"{name}.{inner}": shape for inner, shape in shapes.items()}


def linear(num_in: int, num_out: int, bias: bool = False) -> Shapes:
    """A matrix, and its bias."""
    out: Shapes = {"weight": (num_out, num_in)}
    return out | {"bias": (num_out,)} if bias else out


def _norm(config: ModelConfig) -> Shapes:
    """A norm of whole rows."""
    out: Shapes = {"weight": (config.width,)}
    return out | {"bias": (config.width,)} if config.norm == "layer" and config.norm_bias else out


def _outside(config: ModelConfig) -> Shapes:
    """What belongs to no layer."""
    width, adaptive = config.width, config.adaptive_width
    out: Shapes = {"embedding.weight": (config.vocab_size, width)}
    if config.draft_rows == "learned":
        out["draft_embedding.weight"] = 1, width
    if config.positions == "learned":
        out["position_embedding.weight"] = config.max_positions, width
    out |= within("final_norm", _norm(config))
    if not config.tied:
        out |= within("output", linear(width, config.vocab_size, config.output_bias))
    if config.time_input and not adaptive:
        out |= within("time_input.inner", linear(width, width)) | within("time_input.out", linear(width, width))
    if adaptive:
        out |= within("level_embedding.first", linear(NUM_WAVES, adaptive, True))
        out |= within("level_embedding.second", linear(adaptive, adaptive, True))
        out |= within("final_modulation", linear(adaptive, FINAL_PARTS * width, True))
    if config.draft_head:
        out |= within("draft_head.up", linear(3 * width, 2 * config.draft_head))
        out |= within("draft_head.down", linear(config.draft_head, width))
        out |= within("draft_head.confidence", linear(width + 1, 2, True)) if config.has_confidence else {}
    if config.concepts is not None:
        out |= within("concepts", _concepts(width, config.concepts))
    if config.gemma is not None:
        out |= {"self_conditioning.norm.weight": (width,)}
        out |= within("self_conditioning.mlp", _mlp(config, config.mlp_width))
    return out


def _concepts(width: int, shape: ConceptShape) -> Shapes:
    known, discovered = shape.known + shape.spare_known, shape.discovered + shape.spare_discovered
    return {
        **within("known_predictor", linear(width, known, shape.bias)),
        "known_embedding.weight": (known, width),
        **within("discovered_down", linear(width, shape.rank)),
        **within("discovered_up", linear(shape.rank, discovered, shape.bias)),
        "discovered_coefficients.weight": (discovered, shape.rank),
        **within("discovered_basis", linear(shape.rank, width)),
        **(within("read_predictor", linear(width, known, shape.bias)) if shape.reads else {}),
    }


def layer_shapes(config: ModelConfig, number: int) -> Shapes:
    """What a layer has, by the names within it."""
    if config.gemma is not None:
        return _gemma_layer(config, number)
    norms = ["attention_norm", "mlp_norm"]
    norms += ["after_attention_norm", "after_mlp_norm"] if config.norm_placement == "both" else []
    out = {name: shape for norm in norms for name, shape in within(norm, _norm(config)).items()}
    out |= within("attention", _attention(config)) | within("mlp", _mlp_of(config, number))
    if config.adaptive_width:
        out |= within("modulation", linear(config.adaptive_width, PARTS * config.width, True))
    return out


def _attention(config: ModelConfig) -> Shapes:
    head, width = config.head_width, config.width
    heads, num_out = config.num_heads + 2 * config.num_kv_heads, config.num_heads * head
    out = within("qkv", linear(width, heads * head, config.qkv_bias))
    out |= within("out", linear(num_out, width, config.out_bias))
    if config.qk_norm:
        together = (config.num_heads, config.num_kv_heads) if config.qk_norm_scope == "all" else (1, 1)
        out |= {"q_norm.weight": (together[0] * head,), "k_norm.weight": (together[1] * head,)}
    out |= _low_rank(config, "qkv", width, heads * head)
    return out | _low_rank(config, "out", num_out, width)


def _low_rank(config: ModelConfig, matrix: str, num_in: int, num_out: int) -> Shapes:
    rank = config.draft_rank_of(matrix)
    return {f"{matrix}_draft.a.weight": (rank, num_in), f"{matrix}_draft.b.weight": (num_out, rank)} if rank else {}


def _mlp_of(config: ModelConfig, number: int) -> Shapes:
    """The MLP of a layer, or its mixture of experts."""
    experts = config.experts_of(number)
    if experts is None:
        return _mlp(config, config.mlp_width)
    shared = within("shared", _mlp(config, experts.shared_width)) if experts.shared_width else {}
    return _mixture(config, experts) | shared


def _mixture(config: ModelConfig, experts: Experts) -> Shapes:
    bias: Shapes = {"expert_bias": (experts.num,)} if experts.bias else {}
    return {
        "router.weight": (experts.num, config.width),
        **bias,
        "gate_up.weight": (experts.num, 2 * experts.width, config.width),
        "down.weight": (experts.num, config.width, experts.width),
    }


def _mlp(config: ModelConfig, inner: int) -> Shapes:
    up, num = ("gate_up", 2 * inner) if config.gated_mlp else ("up", inner)
    out = within(up, linear(config.width, num, config.mlp_bias))
    out |= within("down", linear(inner, config.width, config.mlp_bias))
    out |= _low_rank(config, "gate_up", config.width, num) if config.gated_mlp else {}
    return out | _low_rank(config, "down", inner, config.width)


def _gemma_layer(config: ModelConfig, number: int) -> Shapes:
    assert config.experts is not None
    width, (num_kv, head) = config.width, config.key_shapes[number]
    heads = config.num_heads + (2 * num_kv if config.is_sliding(number) else num_kv)
    norms = ("attention_norm", "after_attention_norm", "mlp_norm", "after_mlp_norm", "after_experts_norm", "after_norm")
    return {
        "scalars": (2,),
        **within("attention.qkv", linear(width, heads * head)),
        **within("attention.out", linear(config.num_heads * head, width)),
        "attention.q_norm.weight": (head,),
        "attention.k_norm.weight": (head,),
        **within("mlp", _mlp(config, config.mlp_width)),
        "experts.scale": (width,),
        "experts.expert_scale": (config.experts.num,),
        "experts.norm.weight": (width,),
        **within("experts.mixture", _mixture(config, config.experts)),
        **{f"{norm}.weight": (width,) for norm in norms},
    }
