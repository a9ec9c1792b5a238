"""Packs a backbone for the native backend: its shape, options and weights as `native/model.h` reads them.

The weights of a norm are no part of the matrix behind it: rows are multiplied by them. In its columns they would decide
the scale of its 8-bit numbers, and those of some models (Gemma 3) are of all magnitudes. What the matrix makes of the
norm's bias is part of its own bias.
"""

from __future__ import annotations

import ctypes
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from daguerre.models.backends import library as interface
from daguerre.models.backends.folding import with_plain_norms
from daguerre.models.backends.panels import COLUMNS, PRODUCTS, QUARTER, Packing, gates, interleaved, round_up
from daguerre.models.core.backbone import MLP, Backbone, Layer, Norm
from daguerre.models.core.concept_heads import ConceptHeads
from daguerre.models.core.config import ModelConfig
from daguerre.models.core.draft_head import DraftHead
from daguerre.models.core.experts import Mixture
from daguerre.models.core.low_rank import LowRank
from daguerre.models.core.rotary import own_positions, query_scale, rotary_tables

CONFIDENCE_BIAS = ctypes.c_float * 2
ACTIVATIONS = {"silu": 0, "gelu": 1, "gelu_tanh": 2}
NORMED = {"head": 1, "all": 2}


def pack(backbone: Backbone, packing: Packing) -> interface.ModelStruct:
    """The shape, options and packed weights of a backbone."""
    backbone = with_plain_norms(backbone)
    model, layers = pack_around(backbone, packing), list[interface.LayerStruct]()
    for number, layer in enumerate(backbone.layers):
        with backbone.present(number):
            layers.append(_layer(backbone.config, number, cast(Layer, layer), packing))
    return with_layers(model, layers)


def with_layers(model: interface.ModelStruct, layers: list[interface.LayerStruct]) -> interface.ModelStruct:
    """The model with these packed layers."""
    model.layers = (interface.LayerStruct * len(layers))(*layers)
    return model


def pack_around(backbone: Backbone, packing: Packing) -> interface.ModelStruct:
    """The same without layers."""
    with backbone.present(None):
        return _around(backbone, packing)


def _around(backbone: Backbone, packing: Packing) -> interface.ModelStruct:
    config, weight, hold = backbone.config, backbone.embedding.weight.detach(), packing.hold
    final, learned = backbone.final_norm, backbone.position_embedding
    never = torch.zeros(config.vocab_size)
    never[list(config.unpredictable_ids)] = float("-inf")
    if backbone.output is not None and backbone.output.bias is not None:
        never += backbone.output.bias.detach().float()
    bias = F.pad(never, (0, -len(never) % COLUMNS), value=float("-inf"))
    projection, head, tokens = backbone.projection.detach(), backbone.draft_head, None
    confidence, confidence_bias = None, CONFIDENCE_BIAS()
    if head is not None:
        tokens = hold(_products_of_tokens(head, weight))
        if head.confidence is not None:
            confidence = hold(head.confidence.weight.detach().float())
            confidence_bias = CONFIDENCE_BIAS(*head.confidence.bias.tolist())
    rounds = packing.numbers in ("int8", "int4")
    small = packing.of("int8") if rounds else packing
    exact = _head(config, head, projection, bias, small)
    apart = config.gemma is not None or not (rounds or config.tied)
    embedding = interface.LinearStruct()
    if not apart:
        embedding = exact.logits if config.tied else small.linear(weight)
    drafting = interface.HeadStruct()
    if head is not None:
        drafting = exact if rounds else _head(config, head, projection, bias, packing.of("int8"))
    return interface.ModelStruct(
        *(config.width, config.num_heads, config.num_kv_heads, config.head_width, config.rotary_width),
        *(_inner(config), config.num_layers, config.vocab_size, config.max_positions),
        *(PRODUCTS[packing.numbers], int(weight.dtype == torch.bfloat16), int(config.gated_mlp)),
        *(ACTIVATIONS[config.activation], int(config.norm == "layer")),
        *(NORMED[config.qk_norm_scope] if config.qk_norm else 0, int(config.norm_placement != "post")),
        *(int(config.norm_placement != "pre"), int(config.adaptive_width > 0)),
        *(0 if config.windows is None else config.windows.size, config.norm_eps, config.clip_qkv or 0.0),
        config.embedding_scale,
        _experts(config, packing),
        hold(weight) if apart else None,
        embedding,
        None if learned is None else hold(learned.weight.detach().float()),
        hold(final.weight.detach().float()),
        None if final.bias is None else hold(final.bias.detach().float()),
        *_rotary(config, packing),
        None,
        *(exact, drafting, tokens, confidence, confidence_bias),
        None if backbone.concepts is None else _concepts(backbone.concepts, packing.of("float32")),
    )


def _rotary(config: ModelConfig, packing: Packing) -> tuple[int | None, ...]:
    """Cosines and sines of all positions, (positions, W/2) each, of most layers and of sliding ones; and the scales of
    queries.
    """
    if not config.rotary_width or config.gemma is not None:
        return (None,) * 5
    hold, positions = packing.hold, torch.arange(config.max_positions)
    tables = tuple(hold(x[:, 0]) for x in rotary_tables(config, positions, torch.float32))
    sliding = tables
    if own_positions(config):
        sliding = tuple(hold(x[:, 0]) for x in rotary_tables(config, positions, torch.float32, sliding=True))
    scale = query_scale(config, positions, torch.float32)
    return *tables, *sliding, None if scale is None else hold(scale)


def _concepts(heads: ConceptHeads, packing: Packing) -> ctypes.Array[interface.ConceptHeadStruct]:
    """The heads of known and of discovered concepts."""
    shape, known, found = heads.shape, heads.known_predictor, heads.discovered_up
    down, num = heads.discovered_down.weight.detach(), shape.known
    return (interface.ConceptHeadStruct * 2)(
        interface.ConceptHeadStruct(interface.LinearStruct(), _rows(known, num, packing), 0, num, shape.kept_known),
        interface.ConceptHeadStruct(
            packing.linear(down),
            _rows(found, shape.discovered, packing),
            *(num, shape.discovered, shape.kept_discovered),
        ),
    )


def _rows(linear: torch.nn.Linear, num: int, packing: Packing) -> interface.LinearStruct:
    """The first `num` outputs of a matrix and its bias."""
    bias = None if linear.bias is None else linear.bias.detach().float()[:num]
    return packing.linear(linear.weight.detach()[:num], bias)


def _inner(config: ModelConfig) -> int:
    """The inner width of MLPs; 0 if all layers have experts in their place."""
    return 0 if config.experts_of(0) and config.gemma is None else config.mlp_width


def _experts(config: ModelConfig, packing: Packing) -> interface.ExpertsStruct:
    """The shape of the mixtures of experts."""
    experts = config.experts_of(config.num_layers - 1)
    if experts is None:
        return interface.ExpertsStruct()
    return interface.ExpertsStruct(
        *(experts.num, experts.per_token, experts.width, experts.shared_width, experts.num_groups, experts.kept_groups),
        *(int(experts.score == "sigmoid"), int(experts.normalized), experts.scale),
        int(packing.experts is not None),
    )


def _layer(config: ModelConfig, number: int, layer: Layer, packing: Packing) -> interface.LayerStruct:
    attention, hold = layer.attention, packing.hold
    q_weight = torch.full((config.head_width,), config.attention_scale or config.head_width**-0.5)
    k_weight = torch.ones(config.head_width)
    if attention.q_norm is not None and attention.k_norm is not None:
        q_weight = q_weight * attention.q_norm.weight.detach().float().view(-1, config.head_width)
        k_weight = attention.k_norm.weight.detach().float().view(-1, config.head_width)
    both = torch.cat([q_weight.expand(config.num_heads, -1), k_weight.expand(config.num_kv_heads, -1)])
    norms: list[Norm | None] = [None, None]
    post_norms = [layer.after_attention_norm, layer.after_mlp_norm]
    if config.norm_placement == "post":
        post_norms = [layer.attention_norm, layer.mlp_norm]
    elif not config.adaptive_width:
        norms = [layer.attention_norm, layer.mlp_norm]
    mixture = layer.mlp if isinstance(layer.mlp, Mixture) else None
    mlp = cast(MLP | None, layer.mlp if mixture is None else mixture.shared)
    return interface.LayerStruct(
        packing.linear(*behind(norms[0], attention.qkv)),
        packing.linear(*behind(None, attention.out)),
        *pack_mlp(mlp, norms[1], packing),
        _low_rank(attention.qkv_draft, norms[0], packing),
        _low_rank(attention.out_draft, None, packing),
        _low_rank(None if mlp is None else mlp.down_draft, None, packing),
        hold(both),
        *(None if norm is None else hold(weight_of(norm)) for norm in norms),
        *(
            None if norm is None or x is None else hold(x.detach().float())
            for norm in post_norms
            for x in ((None, None) if norm is None else (norm.weight, norm.bias))
        ),
        *(() if mixture is None else _mixture(mixture, norms[1], packing)),
        sliding=config.is_sliding(number),
    )


def _low_rank(weights: LowRank | None, norm: Norm | None, packing: Packing) -> interface.LowRankStruct:
    """Low-rank weights behind a norm; without weights both are empty."""
    if weights is None:
        return interface.LowRankStruct()
    return interface.LowRankStruct(
        packing.linear(*behind(norm, weights.a)),
        packing.linear(weights.b.weight.detach(), narrow=True),
        round_up(min(weights.a.out_features, COLUMNS), QUARTER) // QUARTER,
    )


def pack_mlp(
    mlp: MLP | None, norm: Norm | None, packing: Packing
) -> tuple[interface.LinearStruct, interface.LinearStruct]:
    """The matrices of an MLP behind a norm; empty ones without an MLP."""
    if mlp is None:
        return interface.LinearStruct(), interface.LinearStruct()
    up = behind(norm, mlp.gate_up if mlp.gated else mlp.up)
    return packing.linear(*(gates(*up) if mlp.gated else up)), packing.linear(*behind(None, mlp.down))


def _mixture(mixture: Mixture, norm: Norm | None, packing: Packing) -> tuple[Any, ...]:
    """The router, in float32, the bias of experts, and the matrices of each expert."""
    matrices = interface.LinearStruct * mixture.experts.num
    return (
        packing.of("float32").linear(*behind(norm, mixture.router)),
        None if mixture.expert_bias is None else packing.hold(mixture.expert_bias.detach().float()),
        matrices(*(packing.expert(*gates(x, shift(norm, x))) for x in mixture.gate_up.weight.detach())),
        matrices(*(packing.expert(x) for x in mixture.down.weight.detach())),
    )


def _head(
    config: ModelConfig, head: DraftHead | None, projection: Tensor, bias: Tensor, packing: Packing
) -> interface.HeadStruct:
    """The vocabulary projection; and the matrices of the draft head, applied to a row, to the previous state and
    to their activations.
    """
    logits = packing.linear(projection, bias)
    if head is None:
        return interface.HeadStruct(logits)
    of_row, _, of_state = interleaved(head.up.weight.detach()).split(config.width, dim=1)
    return interface.HeadStruct(logits, *(packing.linear(x) for x in (of_row, of_state, head.down.weight.detach())))


def _products_of_tokens(head: DraftHead, embedding: Tensor) -> Tensor:
    """The products of the draft head's first matrix and every token, float32 (V, 2I padded)."""
    up, width = interleaved(head.up.weight.detach()).float(), embedding.shape[1]
    products = F.rms_norm(embedding.float(), (width,)) @ up[:, width : 2 * width].T
    return F.pad(products, (0, -len(up) % COLUMNS))


def behind(norm: Norm | None, linear: torch.nn.Linear) -> tuple[Tensor, Tensor | None]:
    """A matrix (out, in), and its bias with what it makes of the bias of the norm before it."""
    weight, more = linear.weight.detach(), shift(norm, linear.weight.detach())
    if linear.bias is None:
        return weight, more
    bias = linear.bias.detach().float()
    return weight, bias if more is None else bias + more


def shift(norm: Norm | None, weight: Tensor) -> Tensor | None:
    """What a matrix (out, in) makes of the bias of the norm before it; None if there is none."""
    return None if norm is None or norm.bias is None else weight.float() @ norm.bias.detach().float()


def weight_of(norm: Norm) -> Tensor:
    """The weights (D,) of a norm."""
    return norm.weight.detach().float()
