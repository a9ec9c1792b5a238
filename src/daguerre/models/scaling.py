"""Rotary positions that are scaled when a model is loaded, so that it reads longer texts than it was trained on.

A model's positions become `factor` times as many. No weight changes; how well the model reads what is behind its
trained positions is another question, which only a measurement answers (docs/long-context.md).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from daguerre.errors import CheckpointError, InputError, UnsupportedError, shown, unknown
from daguerre.kinds import WRONG, Kind
from daguerre.models.core.config import ModelConfig, RopeScaling

KEYS = {
    "rope_type": "kind",
    "type": "kind",
    "kind": "kind",
    "factor": "factor",
    "original_max_position_embeddings": "original_positions",
    "original_positions": "original_positions",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
    "attention_factor": "attention_factor",
}
"""What a mapping may have: the names of transformers' config.json, and ours; and our name of each."""


def _none(config: ModelConfig, factor: float) -> ModelConfig:
    """Positions as they are, beyond the trained ones too: what scaling is compared with."""
    return config


def _ntk(config: ModelConfig, factor: float) -> ModelConfig:
    """NTK-aware (YaRN, arXiv 2309.00071, section 3.1): the base becomes theta f^(W/(W-2)), so that the slowest pair
    turns f times as slowly and the fastest as before.
    """
    width = config.rotary_width
    if width < 4:
        raise UnsupportedError("rope_scaling ntk needs heads of which four numbers or more are rotated: take linear")
    return replace(config, rope_theta=config.rope_theta * factor ** (width / (width - 2)))


BASES: dict[str, Callable[[ModelConfig, float], ModelConfig]] = {"none": _none, "ntk": _ntk}
"""Kinds that are no `RopeScaling`: they leave the formula as it is."""
SHORT = "longrope"
"""The kind that takes the short factors of a model that has longrope, with the positions that these are for."""
KINDS = (*BASES, "linear", "yarn", "llama3", SHORT)
LENGTH_DEPENDENT = ("dynamic",)
"""Kinds of transformers whose angles depend on how long the text has become."""


@dataclass(frozen=True)
class Extension:
    """A kind of scaling, by how much, and what else `RopeScaling` has of it."""

    kind: str
    factor: float
    others: Mapping[str, Any]

    def __call__(self, config: ModelConfig) -> ModelConfig:
        """The config of the same model with scaled positions. UnsupportedError for a model that has none to scale."""
        if config.positions != "rotary" or config.gemma is not None:
            raise UnsupportedError("rope_scaling is for models with one kind of rotary positions: leave it out")
        if self.kind == SHORT:
            return _short(config, self.factor)
        if config.rope_scaling is not None:
            raise UnsupportedError(
                f"the positions of this model are scaled already ({config.rope_scaling.kind}, "
                f"{config.rope_scaling.factor:g}): leave out rope_scaling"
            )
        trained = self.others.get("original_positions", config.max_positions)
        try:
            longer = replace(config, max_positions=math.floor(trained * self.factor))
            if self.kind in BASES:
                return BASES[self.kind](longer, self.factor)
            scaling = RopeScaling(
                **{"kind": self.kind, "factor": self.factor, "original_positions": trained, **self.others}
            )
            return replace(longer, rope_scaling=scaling)
        except CheckpointError as error:
            raise InputError(f"rope_scaling: {error}") from None


def _short(config: ModelConfig, factor: float) -> ModelConfig:
    scaling = config.rope_scaling
    if scaling is None or scaling.kind != SHORT or factor != 1:
        raise UnsupportedError(
            f"rope_scaling {SHORT}:1 takes the short factors of a model that has {SHORT}: leave it out, or take yarn"
        )
    return replace(config, max_positions=scaling.original_positions)


def read_scaling(given: object) -> Extension:
    """An extension as a user gives it: "yarn:4", or a mapping with the names of transformers' `rope_scaling`, also as
    JSON. InputError for what is none.
    """
    if isinstance(given, str) and given.lstrip().startswith("{"):
        try:
            given = json.loads(given)
        except ValueError as error:
            raise InputError(f"rope_scaling is not valid JSON ({error}): write KIND:FACTOR, such as yarn:4") from None
    if isinstance(given, str):
        kind, _, factor = given.partition(":")
        try:
            given = {"kind": kind, "factor": float(factor)}
        except ValueError:
            raise InputError(f"rope_scaling must be KIND:FACTOR, such as yarn:4, not {shown(given)}") from None
    if not isinstance(given, Mapping):
        raise InputError(f"rope_scaling must be KIND:FACTOR, such as yarn:4, or a mapping, not {shown(given)}")
    return _of_mapping(given)


def _of_mapping(given: Mapping[Any, Any]) -> Extension:
    values: dict[str, Any] = {}
    for key, value in given.items():
        if key not in KEYS:
            raise InputError(f"rope_scaling: {unknown('key', str(key), KEYS)}")
        values[KEYS[key]] = value
    kind, factor = values.pop("kind", None), values.pop("factor", None)
    if kind in LENGTH_DEPENDENT:
        raise UnsupportedError(f"rope_scaling {kind}: {NOT_EXACT}; take ntk or yarn")
    if kind not in KINDS:
        raise InputError(f"rope_scaling: {unknown('kind', str(kind), KINDS)}")
    if type(factor) not in (int, float) or not 1 <= factor < math.inf:
        raise InputError(f"rope_scaling: factor must be a number from 1 up, not {shown(factor)}")
    if kind in (*BASES, SHORT) and values:
        raise InputError(f"rope_scaling {kind} has a factor and nothing else: leave out {', '.join(values)}")
    original = values.get("original_positions", 1)
    if type(original) is not int or original < 1:
        raise InputError(f"rope_scaling: the original positions must be a whole number above 0, not {shown(original)}")
    return Extension(kind, float(factor), values)


def published_scaling(scaling: RopeScaling) -> dict[str, Any]:
    """The content of transformers' `rope_scaling`."""
    values: dict[str, Any] = {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.kind == "llama3":
        values |= {"low_freq_factor": scaling.low_freq_factor, "high_freq_factor": scaling.high_freq_factor}
    if scaling.kind == "longrope":
        values |= {"short_factor": list(scaling.short), "long_factor": list(scaling.long)}
    if scaling.kind == "yarn":
        values |= {"beta_fast": scaling.beta_fast, "beta_slow": scaling.beta_slow}
    if scaling.kind in ("yarn", "longrope"):
        values |= {} if scaling.attention_factor is None else {"attention_factor": scaling.attention_factor}
    return values | ({"original_max_position_embeddings": scaling.original_positions} if len(values) > 2 else {})


NOT_EXACT = "its angles change with the length of the text, so cached keys would be those of a shorter one"
"""Why no kind of LENGTH_DEPENDENT is supported."""


@dataclass(frozen=True, kw_only=True)
class Scaling(Kind):
    """The argument `rope_scaling`: an `Extension`, read by `read_scaling`."""

    words: ClassVar[str] = "KIND:FACTOR, such as yarn:4, or a mapping,"

    def read(self, name: str, value: Any) -> Any:
        if isinstance(value, Extension):
            return value
        return read_scaling(value) if isinstance(value, str | Mapping) else WRONG
