"""Packs the weights of a model for the native backend: its shape, options and weights as `native/model.h` reads them.

The weights of a norm are no part of the matrix behind it: rows are multiplied by them. In its columns they would decide
the scale of its 8-bit numbers, and those of some models (Gemma 3) are of all magnitudes. What the matrix makes of the
norm's bias is part of its own bias.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import numpy as np

from daguerre.models.backends import library as interface
from daguerre.models.backends.folding import folded
from daguerre.models.backends.panels import (
    COLUMNS,
    PRODUCTS,
    QUARTER,
    Matrix,
    Packing,
    gates,
    interleaved,
    padded,
    round_up,
)
from daguerre.models.bits import floats
from daguerre.models.block_rows import BlockRows, in_q8_0
from daguerre.models.core.config import ModelConfig
from daguerre.models.core.frequencies import own_positions, query_scale, rotary_tables
from daguerre.models.core.parameters import Shapes, part_shapes
from daguerre.models.core.shapes import ConceptShape
from daguerre.models.model_weights import OUTSIDE, Parts, give_back

CONFIDENCE_BIAS = ctypes.c_float * 2
ACTIVATIONS = {"silu": 0, "gelu": 1, "gelu_tanh": 2}
NORMED = {"head": 1, "all": 2}
TINY = float(np.finfo(np.float32).eps)


class View:
    """The weights of a module within a part, those whose names begin with its own; the part is read when one is asked
    for.
    """

    def __init__(self, shapes: Shapes, read: Callable[[], Mapping[str, Any]], name: str = "") -> None:
        self._shapes, self._read, self._name = shapes, read, name

    @classmethod
    def of(cls, weights: Parts, layer: int | None) -> View:
        """A part of a model's weights."""
        return cls(part_shapes(weights.config, layer), cache(partial(weights.part, layer)))

    def within(self, name: str) -> View:
        """A module of this one."""
        return View(self._shapes, self._read, f"{self._name}{name}.")

    def has(self, name: str) -> bool:
        """Whether there is a module or a weight of this name."""
        whole = self._name + name
        return whole in self._shapes or any(key.startswith(f"{whole}.") for key in self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a weight."""
        return self._shapes[self._name + name]

    def __getitem__(self, name: str) -> Any:
        """An array, or `BlockRows`."""
        return self._read()[self._name + name]

    def floats(self, name: str) -> np.ndarray:
        """A weight as float32."""
        return in_floats(self[name])

    def get(self, name: str) -> np.ndarray | None:
        """A weight as float32; None where there is none."""
        return self.floats(name) if self.has(name) else None


def pack(weights: Parts, packing: Packing) -> interface.ModelStruct:
    """The shape, options and packed weights of a model. Parts of weights are read one at a time."""
    weights = folded(weights)
    model = pack_around(weights, View.of(weights, OUTSIDE), packing)
    layers = list[interface.LayerStruct]()
    for number in range(weights.config.num_layers):
        layers.append(_layer(weights.config, number, View.of(weights, number), packing))
        give_back()
    return with_layers(model, layers)


def with_layers(model: interface.ModelStruct, layers: list[interface.LayerStruct]) -> interface.ModelStruct:
    """The model with these packed layers."""
    model.layers = (interface.LayerStruct * len(layers))(*layers)
    return model


def pack_around(weights: Parts, part: View, packing: Packing) -> interface.ModelStruct:
    """The model without its layers; `part`: what is outside of them."""
    config, hold, final = weights.config, packing.hold, part.within("final_norm")
    head = part.within("draft_head") if config.draft_head else None
    tokens, confidence, confidence_bias = None, None, CONFIDENCE_BIAS()
    if head is not None:
        if config.mask_id is not None:
            tokens = hold(lambda: _products_of_tokens(head.floats("up.weight"), part.floats("embedding.weight")))
        if head.has("confidence"):
            confidence = hold(lambda: head.floats("confidence.weight"))
            confidence_bias = CONFIDENCE_BIAS(*packing.kept(lambda: head.floats("confidence.bias")).tolist())
    rounds = packing.numbers in ("int8", "int4")
    small = packing.of("int8") if rounds else packing
    exact = _head(config, part, small)
    apart = config.gemma is not None or not (rounds or config.tied or packing.numbers == "stored")
    rows = interface.LinearStruct()
    if not apart:
        rows = exact.logits if config.tied else small.linear(lambda: (part["embedding.weight"], None))
    drafting = interface.HeadStruct()
    if head is not None or config.draft_tokens:
        same = rounds and not config.draft_tokens
        drafting = exact if same else _head(config, part, packing.of("int8"), config.draft_tokens)
    return interface.ModelStruct(
        *(config.width, config.num_heads, config.num_kv_heads, config.head_width, config.rotary_width),
        *(_inner(config), config.num_layers, config.vocab_size, config.max_positions),
        *(PRODUCTS[packing.numbers], int(weights.numbers == "bfloat16"), int(config.gated_mlp)),
        *(ACTIVATIONS[config.activation], int(config.norm == "layer")),
        *(NORMED[config.qk_norm_scope] if config.qk_norm else 0, int(config.norm_placement != "post")),
        *(int(config.norm_placement != "pre"), int(config.adaptive_width > 0)),
        *(0 if config.windows is None else config.windows.size, config.norm_eps, config.clip_qkv or 0.0),
        config.embedding_scale,
        _experts(config, packing),
        hold(lambda: part["embedding.weight"]) if apart else None,
        rows,
        held(part, "draft_embedding.weight", packing),
        held(part, "position_embedding.weight", packing),
        held(final, "weight", packing),
        held(final, "bias", packing),
        *_rotary(config, packing),
        None,
        *(exact, drafting, tokens, confidence, confidence_bias),
        None if config.concepts is None else _concepts(config.concepts, part.within("concepts"), packing.of("float32")),
    )


def held(module: View, name: str, packing: Packing) -> int | None:
    """The address of a weight in float32, which is kept alive; None where there is none."""
    return packing.hold(lambda: module.floats(name)) if module.has(name) else None


def _rotary(config: ModelConfig, packing: Packing) -> tuple[int | None, ...]:
    """Cosines and sines of all positions, (positions, W/2) each, of most layers and of sliding ones; and the scales of
    queries.
    """
    if not config.rotary_width or config.gemma is not None:
        return (None,) * 5
    positions = np.arange(config.max_positions)

    def tables(sliding: bool) -> list[int]:
        both = packing.kept(lambda: np.stack(rotary_tables(config, positions, sliding=sliding)))
        return [table.ctypes.data for table in both]

    most = tables(False)
    scale = config.rope_scaling is not None and config.rope_scaling.query_beta
    scaled = packing.hold(lambda: _given(query_scale(config, positions))) if scale else None
    return *most, *(tables(True) if own_positions(config) else most), scaled


def _given(x: np.ndarray | None) -> np.ndarray:
    assert x is not None
    return x


def _concepts(shape: ConceptShape, heads: View, packing: Packing) -> ctypes.Array[interface.ConceptHeadStruct]:
    """The heads of known and of discovered concepts."""
    num = shape.known
    return (interface.ConceptHeadStruct * 2)(
        interface.ConceptHeadStruct(
            interface.LinearStruct(), _rows(heads.within("known_predictor"), num, packing), 0, num, shape.kept_known
        ),
        interface.ConceptHeadStruct(
            packing.linear(lambda: (heads["discovered_down.weight"], None)),
            _rows(heads.within("discovered_up"), shape.discovered, packing),
            *(num, shape.discovered, shape.kept_discovered),
        ),
    )


def _rows(linear: View, num: int, packing: Packing) -> interface.LinearStruct:
    """The first `num` outputs of a matrix and its bias."""

    def rows() -> Matrix:
        bias = linear.get("bias")
        return linear["weight"][:num], None if bias is None else bias[:num]

    return packing.linear(rows)


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


def _layer(config: ModelConfig, number: int, layer: View, packing: Packing) -> interface.LayerStruct:
    attention = layer.within("attention")
    before: list[View | None] = [None, None]
    after = [layer.within(name) if layer.has(name) else None for name in ("after_attention_norm", "after_mlp_norm")]
    norms = layer.within("attention_norm"), layer.within("mlp_norm")
    if config.norm_placement == "post":
        after = [*norms]
    elif not config.adaptive_width:
        before = [*norms]
    has_experts = config.experts_of(number) is not None
    mixture = layer.within("mlp")
    mlp = mixture.within("shared") if has_experts else mixture
    return interface.LayerStruct(
        packing.linear(lambda: behind(before[0], attention.within("qkv"))),
        packing.linear(lambda: behind(None, attention.within("out"))),
        *pack_mlp(mlp, before[1], packing),
        _low_rank(attention, "qkv_draft", before[0], packing),
        _low_rank(attention, "out_draft", None, packing),
        _low_rank(mlp, "gate_up_draft", before[1], packing, gates),
        _low_rank(mlp, "down_draft", None, packing),
        packing.hold(lambda: _weights_of_heads(config, attention)),
        *(None if norm is None else held(norm, "weight", packing) for norm in before),
        *(None if norm is None else held(norm, name, packing) for norm in after for name in ("weight", "bias")),
        *(_mixture(mixture, before[1], packing) if has_experts else ()),
        sliding=config.is_sliding(number),
    )


def _weights_of_heads(config: ModelConfig, attention: View) -> np.ndarray:
    """The weights of the norms of queries and keys, (heads, H), with the scale of scores in those of queries."""
    scale = config.attention_scale or config.head_width**-0.5
    q_weight = np.full((1, config.head_width), scale, np.float32)
    k_weight = np.ones((1, config.head_width), np.float32)
    if config.qk_norm:
        q_weight = q_weight * attention.floats("q_norm.weight").reshape(-1, config.head_width)
        k_weight = attention.floats("k_norm.weight").reshape(-1, config.head_width)
    shapes = (config.num_heads, config.head_width), (config.num_kv_heads, config.head_width)
    return np.concatenate([np.broadcast_to(x, shape) for x, shape in zip((q_weight, k_weight), shapes, strict=True)])


def as_it_is(weight: np.ndarray) -> np.ndarray:
    """The same."""
    return weight


def _in_q8_0(weight: np.ndarray) -> BlockRows:
    """A matrix rounded to blocks."""
    return in_q8_0(in_floats(weight))


def unordered(weight: Any, bias: np.ndarray | None) -> Matrix:
    """A matrix and its bias as they are."""
    return weight, bias


def _low_rank(
    module: View, name: str, norm: View | None, packing: Packing, order: Callable[..., Matrix] = unordered
) -> interface.LowRankStruct:
    """Low-rank weights behind a norm, of a matrix whose rows are put in an order; empty ones where there are none."""
    if not module.has(name):
        return interface.LowRankStruct()
    weights = module.within(name)
    rows = _in_q8_0 if packing.numbers == "stored" else as_it_is  # of one kind with the matrix that they are added to
    return interface.LowRankStruct(
        packing.linear(lambda: (rows(weights["a.weight"]), behind(norm, weights.within("a"))[1])),
        packing.linear(lambda: order(rows(weights["b.weight"]), None), narrow=True),
        round_up(min(weights.shape("a.weight")[0], COLUMNS), QUARTER) // QUARTER,
    )


def pack_mlp(mlp: View, norm: View | None, packing: Packing) -> tuple[interface.LinearStruct, interface.LinearStruct]:
    """The matrices of an MLP behind a norm; empty ones without an MLP."""
    if not mlp.has("down"):
        return interface.LinearStruct(), interface.LinearStruct()
    up = "gate_up" if mlp.has("gate_up") else "up"

    def first() -> Matrix:
        matrix = behind(norm, mlp.within(up))
        return gates(*matrix) if up == "gate_up" else matrix

    return packing.linear(first), packing.linear(lambda: behind(None, mlp.within("down")))


def _mixture(mixture: View, norm: View | None, packing: Packing) -> tuple[Any, ...]:
    """The router, in float32, the bias of experts, and the matrices of each expert."""
    num = mixture.shape("gate_up.weight")[0]
    matrices = interface.LinearStruct * num

    def up(number: int) -> Matrix:
        weight = mixture["gate_up.weight"][number]
        return gates(weight, shift(norm, weight))

    return (
        packing.of("float32").linear(lambda: behind(norm, mixture.within("router"))),
        held(mixture, "expert_bias", packing),
        matrices(*(packing.expert(partial(up, number)) for number in range(num))),
        matrices(*(packing.expert(partial(_row, mixture, "down.weight", number)) for number in range(num))),
    )


def _row(module: View, name: str, number: int) -> Matrix:
    """One matrix of several."""
    return module[name][number], None


def _head(config: ModelConfig, part: View, packing: Packing, tokens: tuple[int, ...] = ()) -> interface.HeadStruct:
    """The vocabulary projection, or only that of some tokens; and the matrices of the draft head, applied to a row, to
    the previous state, to the embedding of the previous token, and to their activations.
    """
    matrix = part.within("embedding" if config.tied else "output")
    if tokens:
        logits = packing.linear(lambda: _some_tokens(config, part, matrix["weight"], np.array(tokens)))
        ids = packing.hold(lambda: np.array(tokens, np.int32))
    else:
        logits, ids = packing.linear(lambda: (matrix["weight"], _never(config, part))), None
    if not config.draft_head:
        return interface.HeadStruct(logits, ids=ids, num=len(tokens))
    head, width = part.within("draft_head"), config.width

    def columns(start: int) -> Matrix:
        return interleaved(head["up.weight"])[:, start : start + width], None

    row, state = (packing.linear(partial(columns, start)) for start in (0, 2 * width))
    before = packing.linear(partial(columns, width)) if config.mask_id is None else interface.LinearStruct()
    down = packing.linear(lambda: (head["down.weight"], None))
    return interface.HeadStruct(logits, row, state, before, down, ids, len(tokens))


def _some_tokens(config: ModelConfig, part: View, matrix: np.ndarray | BlockRows, tokens: np.ndarray) -> Matrix:
    """The rows of some tokens of the vocabulary projection, and their bias."""
    rows = in_floats(matrix)[tokens]
    return rows, padded(_never(config, part)[tokens], round_up(len(tokens), COLUMNS), -np.inf)


def _never(config: ModelConfig, part: View) -> np.ndarray:
    """The bias of the vocabulary projection: minus infinity for tokens that are not predicted, and for padding."""
    never, bias = np.zeros(config.vocab_size, np.float32), part.get("output.bias")
    never[list(config.unpredictable_ids)] = -np.inf
    return padded(never if bias is None else never + bias, round_up(len(never), COLUMNS), -np.inf)


def _products_of_tokens(up: np.ndarray, embedding: np.ndarray) -> np.ndarray:
    """The products of the draft head's first matrix and every token, float32 (V, 2I padded)."""
    width, rows = embedding.shape[1], interleaved(up)
    normed = embedding / np.sqrt(np.square(embedding).mean(axis=1, keepdims=True) + TINY)
    products = normed @ rows[:, width : 2 * width].T
    return np.pad(products, ((0, 0), (0, -len(rows) % COLUMNS)))


def behind(norm: View | None, linear: View) -> Matrix:
    """A matrix (out, in), and its bias with what it makes of the bias of the norm before it."""
    weight, bias = linear["weight"], linear.get("bias")
    more = shift(norm, weight)
    return weight, more if bias is None else bias if more is None else bias + more


def shift(norm: View | None, weight: np.ndarray | BlockRows) -> np.ndarray | None:
    """What a matrix (out, in) makes of the bias of the norm before it; None if there is none."""
    bias = None if norm is None else norm.get("bias")
    return None if bias is None else in_floats(weight) @ bias


def in_floats(weight: np.ndarray | BlockRows) -> np.ndarray:
    """The numbers of a weight as float32."""
    return weight.numbers() if isinstance(weight, BlockRows) else floats(weight)
