"""Rotary positions (RoFormer, arXiv 2104.09864) as tables of numbers: attention scores depend on the distance of query
and key.

Letters: R rows, W rotated width.
"""

from __future__ import annotations

import math

import numpy as np

from daguerre.errors import UnsupportedError
from daguerre.models.core.config import ModelConfig
from daguerre.models.core.shapes import RopeScaling


def frequencies(config: ModelConfig, *, sliding: bool = False) -> tuple[np.ndarray, float]:
    """Radians by which each pair of numbers of a head is rotated from one position to the next, float32 (W/2,):
    theta^(-2i/W) (RoFormer, eq. 15), or modified by `rope_scaling`; and the scale of all cosines and sines. With
    `sliding`, those of sliding layers, if they have positions of their own (`own_positions`).
    """
    width = config.rotary_width
    exponent = np.arange(0, width, 2, dtype=np.float32) / np.float32(width)
    if sliding and own_positions(config):
        assert config.windows is not None and config.windows.rope_theta is not None
        return np.float32(config.windows.rope_theta) ** -exponent, 1.0
    turns = np.float32(config.rope_theta) ** -exponent
    scaling = config.rope_scaling
    if scaling is None:
        return turns, 1.0
    if scaling.kind == "linear":
        return turns / np.float32(scaling.factor), 1.0
    if scaling.kind == "llama3":
        return _llama3(turns, scaling), 1.0
    if scaling.kind == "longrope":
        return _longrope(turns, scaling, config.max_positions)
    return _yarn(turns, scaling, width, config.rope_theta)


def own_positions(config: ModelConfig) -> bool:
    """Whether sliding layers have rotary positions of their own."""
    return config.windows is not None and config.windows.rope_theta is not None


def _longrope(turns: np.ndarray, scaling: RopeScaling, max_positions: int) -> tuple[np.ndarray, float]:
    """Each frequency is divided by its own number. Of the two lists of these a model has one for all texts, whatever
    their lengths, so that no cached key is out of date.
    """
    original, factor = scaling.original_positions, scaling.attention_factor
    divisors = scaling.long if max_positions > original else scaling.short
    if factor is None:
        factor = math.sqrt(1 + math.log(scaling.factor) / math.log(original)) if scaling.factor > 1 else 1.0
    return turns / np.array(divisors, np.float32), factor


def _llama3(turns: np.ndarray, scaling: RopeScaling) -> np.ndarray:
    """Frequencies with wavelengths above original/low are divided by the factor, those below original/high are kept,
    and those between are interpolated linearly in 1/wavelength.
    """
    length = np.float32(2 * math.pi) / turns
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    share = ((scaling.original_positions / length - low) / (high - low)).clip(0, 1)
    made: np.ndarray = (1 - share) * turns / scaling.factor + share * turns
    return made.astype(np.float32)


def _yarn(turns: np.ndarray, scaling: RopeScaling, width: int, theta: float) -> tuple[np.ndarray, float]:
    """Pairs that turn more than beta_fast times within the original positions are kept, those that turn less than
    beta_slow times are divided by the factor, with a linear ramp over the pair's index between (YaRN, section 3.2).
    """

    def pair(rotations: float) -> float:
        return width * math.log(scaling.original_positions / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    first = max(math.floor(pair(scaling.beta_fast)), 0)
    last = min(math.ceil(pair(scaling.beta_slow)), width - 1)
    number = np.arange(len(turns), dtype=np.float32)
    kept = 1 - ((number - first) / max(last - first, 1e-3)).clip(0, 1)
    factor = scaling.attention_factor
    scale = factor if factor is not None else 0.1 * math.log(scaling.factor) + 1 if scaling.factor > 1 else 1.0
    made: np.ndarray = turns / scaling.factor * (1 - kept) + turns * kept
    return made.astype(np.float32), scale


def rotary_tables(
    config: ModelConfig, positions: np.ndarray, *, sliding: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines, float32 (R, W/2), of the angles at positions (R,); `sliding`: those of sliding layers."""
    turns, scale = frequencies(config, sliding=sliding)
    angle = positions[:, None].astype(np.float32) * turns
    return np.cos(angle) * np.float32(scale), np.sin(angle) * np.float32(scale)


def query_scale(config: ModelConfig, positions: np.ndarray) -> np.ndarray | None:
    """What queries are multiplied by, float32 (R,), so that attention stays sharp over many keys (as in Llama 4):
    1 + beta ln(1 + floor(position / original positions)); None: they stay as they are.
    """
    scaling = config.rope_scaling
    if scaling is None or not scaling.query_beta:
        return None
    times = np.floor(positions.astype(np.float32) / scaling.original_positions)
    return (1 + scaling.query_beta * np.log1p(times)).astype(np.float32)


def refuse_to_move(config: ModelConfig) -> None:
    """UnsupportedError for a model with windows: its rows see less or more once the text before them moves."""
    if config.windows is not None:
        raise UnsupportedError("cached rows of sliding layers cannot be moved: use a model without them")
