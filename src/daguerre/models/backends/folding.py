"""Noise levels for the native backend: at one level each adaptive norm is a weight and a bias, and each gate a vector.

A model without `time_input` has one level, so these become weights: it is packed as a model with plain norms. Otherwise
they are computed for each forward. They are float32, whatever the type of the weights.

Letters: N layers, D width, C width of the vector of the noise level.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from daguerre.models.bits import NumberType, converted, floats
from daguerre.models.core.config import ModelConfig
from daguerre.models.core.parameters import MOST_NOISE, NUM_WAVES
from daguerre.models.model_weights import OUTSIDE, Part, Parts


def silu(x: np.ndarray) -> np.ndarray:
    """x / (1 + e^-x)."""
    with np.errstate(over="ignore"):
        made: np.ndarray = x / (1 + np.exp(-x))
    return made


@dataclass(frozen=True)
class FoldedLinear:
    """A matrix (out, in) and its bias, float32."""

    weight: np.ndarray
    bias: np.ndarray

    @classmethod
    def of(cls, part: Part, name: str) -> FoldedLinear:
        return cls(floats(part[f"{name}.weight"]), floats(part[f"{name}.bias"]))

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return self.weight @ x + self.bias


@dataclass(frozen=True)
class Modulations:
    """What a noise level does to the norms and gates of a model with adaptive norms.

    first, second  the maps of the level's sines and cosines to its vector, (C,)
    maps           (6N + 2) D maps of that: shift, scale and gate of attention and of the MLP in every layer, and shift
                   and scale of the final norm
    norm           weights and biases of the norms, (2N + 1, 2, D)
    """

    first: FoldedLinear
    second: FoldedLinear
    maps: FoldedLinear
    norm: np.ndarray

    @classmethod
    def of(cls, weights: Parts) -> Modulations:
        """Those of a model as its weights are now."""
        outside, layers = weights.part(OUTSIDE), map(weights.part, range(weights.config.num_layers))
        maps, norms = list[FoldedLinear](), list[np.ndarray]()
        for layer in layers:
            maps.append(FoldedLinear.of(layer, "modulation"))
            norms += [_weight_and_bias(layer, name) for name in NORMS]
        maps.append(FoldedLinear.of(outside, "final_modulation"))
        norms.append(_weight_and_bias(outside, "final_norm"))
        every = FoldedLinear(*(np.concatenate([getattr(one, name) for one in maps]) for name in ("weight", "bias")))
        first, second = (FoldedLinear.of(outside, f"level_embedding.{name}") for name in ("first", "second"))
        return cls(first, second, every, np.stack(norms))

    def at(self, level: float) -> tuple[np.ndarray, np.ndarray]:
        """For attention and MLP of every layer, (N, 2, 3, D), the bias and weight of the norm and the gate; and the
        bias and weight of the final norm, (2, D).
        """
        width = self.norm.shape[-1]
        parts = self.maps(silu(self.second(silu(self.first(_waves(level))))))
        layers, final = parts[: -2 * width].reshape(-1, 3, width), parts[-2 * width :].reshape(2, width)
        for part, (weight, bias) in zip([*layers, final], self.norm, strict=True):
            part[0] += bias * (1 + part[1])
            part[1] = weight * (1 + part[1])
        return layers.reshape(-1, 2, 3, width), final


def _waves(level: float) -> np.ndarray:
    """Cosines and sines of the total noise of a level; see `models.core.adaptive`."""
    noise = -np.log1p(-np.minimum(np.float32(level), np.float32(MOST_NOISE)))
    half = NUM_WAVES // 2
    exponent = np.arange(half, dtype=np.float32) / np.float32(half)
    angle = noise * np.exp(np.float32(-math.log(10_000.0)) * exponent)
    return np.concatenate([np.cos(angle), np.sin(angle)])


def _weight_and_bias(part: Part, norm: str) -> np.ndarray:
    weight, bias = floats(part[f"{norm}.weight"]), part.get(f"{norm}.bias")
    return np.stack([weight, np.zeros_like(weight) if bias is None else floats(bias)])


@dataclass(frozen=True)
class LevelVector:
    """The vector that a noise level adds to every row; see `models.core.backbone.TimeInput`."""

    inner: np.ndarray
    out: np.ndarray
    numbers: NumberType

    @classmethod
    def of(cls, weights: Parts, numbers: NumberType | None = None) -> LevelVector:
        """That of a model as its weights are now, rounded to a type; None: the model's."""
        part = weights.part(OUTSIDE)
        inner, out = (floats(part[f"time_input.{name}.weight"]) for name in ("inner", "out"))
        return cls(inner, out, numbers or weights.numbers)

    def at(self, level: float) -> np.ndarray:
        """The vector, float32 (D,), rounded where the model's type rounds it."""
        width = len(self.inner)
        exponent = np.arange(0, width, 2, dtype=np.float32) / np.float32(width)
        angle = np.float32(1000) * np.float32(level) * (10_000.0 ** -exponent.astype(np.float64)).astype(np.float32)
        waves = self._rounded(np.concatenate([np.cos(angle), np.sin(angle)]))
        out = self._rounded(self.out @ self._rounded(silu(self._rounded(self.inner @ waves))))
        scale = 1 / np.sqrt(1 + width * np.square(out).mean())
        return self._rounded(out * self._rounded(np.full(1, scale, np.float32)))

    def _rounded(self, x: np.ndarray) -> np.ndarray:
        return floats(converted(np.asarray(x, np.float32), self.numbers))


NORMS, MATRICES = ("attention_norm", "mlp_norm"), ("attention.out", "mlp.down")


def folded(weights: Parts) -> Parts:
    """The weights of a model at its one noise level, as of one with plain norms; the weights themselves if its norms
    are plain, or if its level is an input.
    """
    config = weights.config
    return FoldedWeights(weights) if config.adaptive_width and not config.time_input else weights


class FoldedWeights(Parts):
    """The weights of a model with adaptive norms at a level, as of one with plain norms; numbers: the type of those
    that the level changes, None: the model's.
    """

    def __init__(self, weights: Parts, level: float = 0.0, numbers: NumberType | None = None) -> None:
        self._weights, self.numbers = weights, numbers or weights.numbers
        self._layers, self._final = Modulations.of(weights).at(level)
        self.config: ModelConfig = replace(
            weights.config, adaptive_width=0, norm_bias=True, out_bias=True, mlp_bias=True
        )

    def part(self, layer: int | None) -> Part:
        """The weights of a part; those that the level does not change are not copied."""
        held = self._weights.part(layer)
        out = {name: x for name, x in held.items() if "modulation" not in name and "level_" not in name}
        if layer is OUTSIDE:
            return out | {"final_norm.bias": self._final[0], "final_norm.weight": self._final[1]}
        for norm, matrix, (bias, weight, gate) in zip(NORMS, MATRICES, self._layers[layer], strict=True):
            out |= {f"{norm}.bias": bias, f"{norm}.weight": weight, **self._gated(held, matrix, gate)}
        if not self._weights.config.mlp_bias:
            up = f"mlp.{'gate_up' if self.config.gated_mlp else 'up'}"
            out[f"{up}.bias"] = np.zeros(len(held[f"{up}.weight"]), np.float32)
        return out

    def _gated(self, held: Part, matrix: str, gate: np.ndarray) -> Part:
        bias = held.get(f"{matrix}.bias")
        return {
            f"{matrix}.weight": converted(floats(held[f"{matrix}.weight"]) * gate[:, None], self.numbers),
            f"{matrix}.bias": np.zeros_like(gate) if bias is None else floats(bias) * gate,
        }
