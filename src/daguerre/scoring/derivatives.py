"""Derivatives of a core by the embeddings that it is given, in NumPy and float32; the reference is what autograd makes
of `models.core.backbone`. DiffusionGemma's core is not here.

Each step gives its results and a function from the derivatives of a number by the results to those by what the step was
given. Weights take no part in it, and neither does which experts a router chooses.

Letters: B examples, R rows, D width, N heads, H head width, E experts, K experts of a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from daguerre.models.backends.folding import FoldedWeights, LevelVector
from daguerre.models.backends.packing import View
from daguerre.models.core.config import Experts, ModelConfig
from daguerre.models.core.frequencies import query_scale, rotary_tables
from daguerre.models.forward import Forward
from daguerre.models.heads import sigmoid
from daguerre.models.model_weights import OUTSIDE, ModelWeights, Parts

Back = Callable[[np.ndarray], np.ndarray]
Made = tuple[np.ndarray, Back]
Step = Callable[[np.ndarray], Made]
TINY = 1e-20
"""As in `models.core.experts`."""
BEND, TURN = 0.044715, math.sqrt(2 / math.pi)
"""Of GELU by a hyperbolic tangent."""
ERF = 0.3275911, (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
"""Abramowitz and Stegun, 7.1.26: erf to 1.5e-7."""


class Core:
    """The core of a model, as a forward without a cache sees it, from embeddings to the hidden state of its only wanted
    row.
    """

    def __init__(self, weights: ModelWeights, forward: Forward) -> None:
        config = weights.config
        assert config.gemma is None and forward.cache is None and len(forward.wanted) == 1
        self._wanted, self._added = int(forward.wanted[0]), np.zeros((), np.float32)
        parts: Parts = weights
        if config.adaptive_width:
            parts = FoldedWeights(weights, forward.level or 0.0, "float32")
        elif config.time_input:
            self._added = LevelVector.of(weights, "float32").at(forward.level or 0.0)
        self.config = config = parts.config
        self._outside, position = View.of(parts, OUTSIDE), forward.layout.position
        if config.positions == "learned":
            self._added = self._added + self._outside.floats("position_embedding.weight")[position]
        sees = [_Sees(config, forward, sliding) for sliding in (False, True)[: 1 + (config.windows is not None)]]
        self._layers: list[Step] = [
            partial(_layer, config, View.of(parts, number), config.experts_of(number), sees[config.is_sliding(number)])
            for number in range(config.num_layers)
        ]

    def embeddings(self, tokens: np.ndarray) -> np.ndarray:
        """The embeddings of tokens (R,), float32 (R, D)."""
        return np.asarray(self._outside.floats("embedding.weight")[tokens])

    def __call__(self, x: np.ndarray) -> Made:
        """The hidden states (B, D) of the wanted row for embeddings (B, R, D)."""
        scale = np.float32(self.config.embedding_scale)
        out, back = chained(x * scale + self._added, *self._layers, self._row, partial(_norm, self.config, self._final))
        return out, lambda g: back(g) * scale

    @property
    def _final(self) -> View:
        return self._outside.within("final_norm")

    def _row(self, x: np.ndarray) -> Made:
        def back(g: np.ndarray) -> np.ndarray:
            out = np.zeros_like(x)
            out[:, self._wanted] = g
            return out

        return x[:, self._wanted], back


class _Sees:
    """What attention of a layer needs of a forward: which row sees which, and rotary positions."""

    def __init__(self, config: ModelConfig, forward: Forward, sliding: bool) -> None:
        layout, position = forward.layout, forward.layout.position
        if sliding:
            assert config.windows is not None
            layout = layout.within(config.windows.size, 0)
        self.mask = layout.dense(0)
        self.tables: tuple[np.ndarray, ...] | None = None
        if config.rotary_width:
            self.tables = tuple(table[:, None] for table in rotary_tables(config, position, sliding=sliding))
        scale = query_scale(config, position)
        self.scale = np.float32(1) if scale is None else scale[:, None, None]
        if config.attention_scale is not None:
            self.scale = self.scale * np.float32(config.attention_scale * config.head_width**0.5)


def chained(x: np.ndarray, *steps: Step) -> Made:
    """Steps one after another."""
    backs = list[Back]()
    for step in steps:
        x, back = step(x)
        backs.append(back)

    def whole(g: np.ndarray) -> np.ndarray:
        for one in reversed(backs):
            g = one(g)
        return g

    return x, whole


def _beside(steps: list[Step], x: np.ndarray) -> Made:
    """A branch, whose results are added."""
    out, back = chained(x, *steps)
    return x + out, lambda g: g + back(g)


def _layer(config: ModelConfig, layer: View, experts: Experts | None, sees: _Sees, x: np.ndarray) -> Made:
    mlp: Step = partial(_mlp, config, layer.within("mlp"))
    if experts is not None:
        mlp = partial(_mixture, config, experts, layer.within("mlp"))
    branches: list[list[Step]] = [[partial(_attention, config, layer.within("attention"), sees)], [mlp]]
    for branch, name in zip(branches, ("attention_norm", "mlp_norm"), strict=True):
        norm: Step = partial(_norm, config, layer.within(name))
        branch.insert(len(branch) if config.norm_placement == "post" else 0, norm)
        if config.norm_placement == "both":
            branch.append(partial(_norm, config, layer.within(f"after_{name}")))
    return chained(x, *(partial(_beside, branch) for branch in branches))


def _linear(module: View, x: np.ndarray) -> Made:
    out, bias = _product(x, module.floats("weight").T), module.get("bias")
    return out if bias is None else out + bias, lambda g: _product(g, module.floats("weight"))


def _product(x: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """One product for all rows: NumPy makes one for each example, which takes longer."""
    return (x.reshape(-1, x.shape[-1]) @ matrix).reshape(*x.shape[:-1], -1)


def _norm(config: ModelConfig, module: View, x: np.ndarray) -> Made:
    """RMSNorm or LayerNorm of rows."""
    centered = config.norm == "layer"
    return _normed(x, module.floats("weight"), module.get("bias") if centered else None, config.norm_eps, centered)


def _normed(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, eps: float, centered: bool = False) -> Made:
    x = x - x.mean(axis=-1, keepdims=True) if centered else x
    scale = 1 / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + np.float32(eps))
    n = x * scale

    def back(g: np.ndarray) -> np.ndarray:
        g = g * weight
        out: np.ndarray = g - n * (g * n).mean(axis=-1, keepdims=True)
        return scale * (out - g.mean(axis=-1, keepdims=True) if centered else out)

    return n * weight if bias is None else n * weight + bias, back


def _attention(config: ModelConfig, module: View, sees: _Sees, x: np.ndarray) -> Made:
    num, num_kv, width = config.num_heads, config.num_kv_heads, config.head_width
    qkv, of_qkv = _linear(module.within("qkv"), x)
    limit = np.inf if config.clip_qkv is None else np.float32(config.clip_qkv)
    within = np.abs(qkv) <= limit
    heads = qkv.clip(-limit, limit).reshape(*x.shape[:-1], -1, width)
    q, k, v = np.split(heads, [num, num + num_kv], axis=-2)
    q, of_q = chained(q, *_turns(config, module, "q_norm", sees), lambda q: (q * sees.scale, lambda g: g * sees.scale))
    k, of_k = chained(k, *_turns(config, module, "k_norm", sees))
    made, of_heads = _attend(q, k, v, sees.mask)
    out, of_out = _linear(module.within("out"), made.reshape(*x.shape[:-1], -1))

    def back(g: np.ndarray) -> np.ndarray:
        gq, gk, gv = of_heads(of_out(g).reshape(made.shape))
        return of_qkv(np.concatenate([of_q(gq), of_k(gk), gv], axis=-2).reshape(qkv.shape) * within)

    return out, back


def _turns(config: ModelConfig, module: View, name: str, sees: _Sees) -> list[Step]:
    """What is done to queries or keys (B, R, N, H): their norm, and rotations."""
    steps = list[Step]()
    if config.qk_norm:
        steps.append(partial(_norm_of_heads, module.floats(f"{name}.weight"), config.norm_eps))
    if sees.tables is not None:
        cos, sin = sees.tables
        steps.append(lambda x: (_rotated(x, cos, sin), lambda g: _rotated(g, cos, -sin)))
    return steps


def _norm_of_heads(weight: np.ndarray, eps: float, x: np.ndarray) -> Made:
    """A norm of each head, or of all together, if that is the width of the norm."""
    shape = x.shape if len(weight) == x.shape[-1] else (*x.shape[:-2], -1)
    out, back = _normed(x.reshape(shape), weight, None, eps)
    return out.reshape(x.shape), lambda g: back(g.reshape(shape)).reshape(x.shape)


def _rotated(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """As `models.core.rotary.rotate`; with -sin the inverse, and what derivatives become."""
    half = cos.shape[-1]
    a, b = x[..., :half], x[..., half : 2 * half]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, x[..., 2 * half :]], axis=-1)


def _attend(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray
) -> tuple[np.ndarray, Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]]:
    """Attention (B, R, N, H) of queries over keys and values (B, R, kv heads, H), and derivatives by these three."""
    batch, rows, num, width = q.shape
    num_kv, scale = k.shape[2], np.float32(width**-0.5)

    def grouped(x: np.ndarray) -> np.ndarray:
        """Heads (B, R, N, H) by the keys that they read, (B, kv heads, N / kv heads * R, H)."""
        return np.ascontiguousarray(x.transpose(0, 2, 1, 3)).reshape(batch, num_kv, -1, width)

    def apart(x: np.ndarray) -> np.ndarray:
        return x.reshape(batch, -1, rows, width).transpose(0, 2, 1, 3)

    queries, keys, values = grouped(q), grouped(k), grouped(v)
    scores = (queries @ keys.swapaxes(-1, -2) * scale).reshape(batch, num, rows, rows)
    scores = np.where(mask, scores, -np.inf)
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    share = (scores / scores.sum(axis=-1, keepdims=True)).reshape(batch, num_kv, -1, rows)

    def back(g: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        g = grouped(g)
        by_share = g @ values.swapaxes(-1, -2)
        by_scores = share * (by_share - (by_share * share).sum(axis=-1, keepdims=True)) * scale
        by_keys, by_values = by_scores.swapaxes(-1, -2) @ queries, share.swapaxes(-1, -2) @ g
        return apart(by_scores @ keys), apart(by_keys), apart(by_values)

    return apart(share @ values), back


def _mlp(config: ModelConfig, module: View, x: np.ndarray) -> Made:
    inner: Step = partial(_activated, config.activation)
    if config.gated_mlp:
        inner = partial(_gated, inner)
    up, down = (partial(_linear, module.within(name)) for name in ("gate_up" if config.gated_mlp else "up", "down"))
    return chained(x, up, inner, down)


def _gated(activation: Step, x: np.ndarray) -> Made:
    gate, up = np.split(x, 2, axis=-1)
    made, back = activation(gate)
    return made * up, lambda g: np.concatenate([back(g * up), g * made], axis=-1)


def _activated(name: str, x: np.ndarray) -> Made:
    if name == "silu":
        share = sigmoid(x)
        out, slope = x * share, share * (1 + x * (1 - share))
    elif name == "gelu_tanh":
        bent = np.tanh(np.float32(TURN) * (x + np.float32(BEND) * x**3))
        out = x * (1 + bent) / 2
        slope = (1 + bent + x * (1 - bent * bent) * np.float32(TURN) * (1 + np.float32(3 * BEND) * x * x)) / 2
    else:
        below = (1 + _erf(x * np.float32(0.5**0.5))) / 2
        out, slope = x * below, below + x * np.exp(-x * x / 2) * np.float32(TURN / 2)
    return out, lambda g: g * slope


def _erf(x: np.ndarray) -> np.ndarray:
    size = np.abs(x).astype(np.float64)
    t = 1 / (1 + ERF[0] * size)
    made = np.copysign(1 - t * np.polyval(ERF[1][::-1], t) * np.exp(-size * size), x)
    return made.astype(np.float32)


def _mixture(config: ModelConfig, experts: Experts, module: View, x: np.ndarray) -> Made:
    """A mixture of experts, and the MLP that all rows go through, if there is one."""
    routed, back = _routed(config, experts, module, x.reshape(-1, x.shape[-1]))
    out = routed.reshape(x.shape)
    if not experts.shared_width:
        return out, lambda g: back(g.reshape(routed.shape)).reshape(x.shape)
    shared, of_shared = _mlp(config, module.within("shared"), x)
    return out + shared, lambda g: back(g.reshape(routed.shape)).reshape(x.shape) + of_shared(g)


def _routed(config: ModelConfig, experts: Experts, module: View, rows: np.ndarray) -> Made:
    """Weighted sums of what the chosen experts make of each row."""
    chosen, weights, of_weights = _chosen(experts, module, rows)
    made = np.empty((*chosen.shape, rows.shape[-1]), np.float32)
    backs = list[tuple[tuple[np.ndarray, np.ndarray], Back]]()
    for number in np.unique(chosen).tolist():
        place = (chosen == number).nonzero()
        made[place], one = _expert(config, module, number, rows[place[0]])
        backs.append((place, one))

    def back(g: np.ndarray) -> np.ndarray:
        out, parts = of_weights((made * g[:, None]).sum(axis=-1)), weights[..., None] * g[:, None]
        for place, one in backs:
            out[place[0]] += one(parts[place])
        return out

    return (made * weights[..., None]).sum(axis=1), back


def _expert(config: ModelConfig, module: View, number: int, rows: np.ndarray) -> Made:
    def product(name: str, x: np.ndarray) -> Made:
        weight = module.floats(f"{name}.weight")[number]
        return x @ weight.T, lambda g: g @ weight

    inner = partial(_gated, partial(_activated, config.activation))
    return chained(rows, partial(product, "gate_up"), inner, partial(product, "down"))


def _chosen(experts: Experts, module: View, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, Back]:
    """The experts of each row and their weights, (R, K), as `models.core.experts.Mixture.choose`, and derivatives by
    the rows of those by the weights.
    """
    router = module.floats("router.weight")
    logits, softmax = rows @ router.T, experts.score == "softmax"
    raised = np.exp(logits - logits.max(axis=-1, keepdims=True))
    scores = raised / raised.sum(axis=-1, keepdims=True) if softmax else sigmoid(logits)
    bias = module.get("expert_bias")
    chosen = np.sort(_largest(_in_kept_groups(experts, scores if bias is None else scores + bias), experts.per_token))
    weights = np.take_along_axis(scores, chosen, axis=-1)
    total = weights.sum(axis=-1, keepdims=True) + np.float32(TINY) if experts.normalized else np.float32(1)
    weights, scale = weights / total, np.float32(experts.scale)

    def back(g: np.ndarray) -> np.ndarray:
        g = g * scale
        g = (g - (g * weights).sum(axis=-1, keepdims=True) if experts.normalized else g) / total
        every = np.zeros_like(scores)
        np.put_along_axis(every, chosen, g, axis=-1)
        mean = (every * scores).sum(axis=-1, keepdims=True) if softmax else every * scores
        return scores * (every - mean) @ router

    return chosen, weights * scale, back


def _largest(scores: np.ndarray, num: int) -> np.ndarray:
    """The places of the largest numbers of each row, the first of equals first."""
    return np.argsort(-scores, axis=-1, kind="stable")[..., :num]


def _in_kept_groups(experts: Experts, biased: np.ndarray) -> np.ndarray:
    """Scores (R, E), minus infinity outside the groups whose two best scores have the largest sums."""
    if experts.kept_groups == experts.num_groups:
        return biased
    groups = biased.reshape(len(biased), experts.num_groups, -1)
    kept = _largest(np.sort(groups, axis=-1)[..., -2:].sum(axis=-1), experts.kept_groups)
    others = np.ones(groups.shape[:2], np.bool_)
    np.put_along_axis(others, kept, False, axis=-1)
    return np.where(others[..., None], -np.inf, groups).reshape(biased.shape)
