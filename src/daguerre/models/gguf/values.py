"""Values of a GGUF file's metadata, each of the kind that it has to be, and its rotary scaling."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np

from daguerre.errors import CheckpointError, UnsupportedError, shown
from daguerre.models.core.limits import MOST_LAYERS, MOST_POSITIONS
from daguerre.models.gguf.file import GgufFile
from daguerre.models.gguf.header import Header

SCALE = "rope.scaling."
ROPE_FACTORS = "rope_freqs.weight"
"""What frequencies are divided by, for Llama 3's scaling: read as a part of the config."""
SHORT_FACTORS, LONG_FACTORS = "rope_factors_short.weight", "rope_factors_long.weight"
"""What frequencies are divided by for longrope."""


class GgufMetadata:
    """The metadata of a file. Keys without a prefix are those of its architecture."""

    def __init__(self, header: Header) -> None:
        self.header = header

    @cached_property
    def arch(self) -> str:
        found = self.header.text("general.architecture")
        if found is None:
            raise CheckpointError(f"{self.header.path} has no general.architecture: copy it again")
        return found

    def get(self, key: str) -> Any:
        """The value of a key of the architecture, or None."""
        return self.header.scalar(f"{self.arch}.{key}")

    def error(self, key: str, kind: str, value: Any) -> CheckpointError:
        if value is None:
            return CheckpointError(f"{self.header.path} has no {key}: copy it again, or convert the model again")
        return CheckpointError(f"{self.header.path}: {key} must be {kind}, not {shown(value)}: copy it again")

    def whole(self, key: str, default: int | None = None) -> int:
        """A size, 1 or more. UnsupportedError for a list of one for each layer, unless all are the same."""
        value = self.header.metadata.get(f"{self.arch}.{key}")
        value = default if value is None else value
        if isinstance(value, np.ndarray):
            if len({*value.tolist()}) != 1:
                raise UnsupportedError(
                    f"{self.header.path}: {key} of single layers is not supported: use another model"
                )
            value = value.tolist()[0]
        most = MOST_LAYERS if key == "block_count" else MOST_POSITIONS
        if type(value) is not int or not 1 <= value <= most:
            raise self.error(f"{self.arch}.{key}", f"a whole number from 1 to {most:,}", value)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A number above 0."""
        value = self.get(key)
        value = default if value is None else value
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
            raise self.error(f"{self.arch}.{key}", "a number above 0", value)
        return float(str(np.float32(value)))  # the shortest number that is stored so: 1e-06

    def flag(self, key: str, default: bool | None = None) -> bool | None:
        """True or False of any key, with its prefix."""
        value = self.header.scalar(key)
        value = default if value is None else value
        if value is not None and type(value) is not bool:
            raise self.error(key, "true or false", value)
        return value

    def token(self, name: str) -> int | None:
        """The id of a special token, such as "eos"; None where the file names none."""
        key = f"tokenizer.ggml.{name}_token_id"
        value = self.header.scalar(key)
        if value is not None and (type(value) is not int or value < 0):
            raise self.error(key, "the number of a token", value)
        return value

    def tokens(self, name: str) -> list[int]:
        """A list of the ids of tokens; empty where the file has none."""
        key = f"tokenizer.ggml.{name}"
        value = self.header.metadata.get(key)
        if value is None:
            return []
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "iu" or value.min(initial=0) < 0:
            raise self.error(key, "a list of the numbers of tokens", value)
        return list(map(int, value))


def rope_scaling(values: GgufMetadata, head_width: int, theta: float) -> dict[str, Any] | None:
    """The rotary scaling of a file, as `rope_scaling` of a config.json; None: there is none."""
    where = values.header.path
    kind = values.header.text(f"{values.arch}.{SCALE}type") or "linear"
    factor = values.number(f"{SCALE}factor", values.number("rope.scale_linear", 1.0))
    if ROPE_FACTORS in values.header.entries:
        if kind != "none" and (kind, factor) != ("linear", 1):
            raise UnsupportedError(f"{where}: rope scaling {shown(kind)} with {ROPE_FACTORS} is not supported")
        return _llama3(values, head_width, theta)
    if kind == "none" or (kind == "linear" and factor == 1):
        return None
    if kind == "longrope" and values.arch == "phi3" and LONG_FACTORS in values.header.entries:
        return None  # `cores` reads it
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind != "yarn":
        raise UnsupportedError(f"{where}: rope scaling {shown(kind)} is not supported: use another model")
    if values.get(f"{SCALE}yarn_ext_factor") not in (None, 1.0) or values.get(f"{SCALE}yarn_log_multiplier"):
        raise UnsupportedError(f"{where}: this kind of rope scaling 'yarn' is not supported: use another model")
    log = 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
    attention = values.number(f"{SCALE}attn_factor", 1.0)
    return {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": values.whole(
            f"{SCALE}original_context_length", values.whole("context_length")
        ),
        "beta_fast": values.number(f"{SCALE}yarn_beta_fast", 32.0),
        "beta_slow": values.number(f"{SCALE}yarn_beta_slow", 1.0),
        **({"attention_factor": attention * log} if attention != 1 else {}),
    }


def _llama3(values: GgufMetadata, head_width: int, theta: float) -> dict[str, Any] | None:
    """Llama 3's scaling, from what each frequency is divided by: it keeps short waves, divides long ones by a factor,
    and the share of both is linear in 1/length between. Two factors between are enough to tell where it begins and
    ends.
    """
    where = values.header.path
    divisors = GgufFile(values.header).floats(ROPE_FACTORS)
    divisors = np.where(abs(divisors - 1) < 1e-5, 1.0, divisors)
    turns = theta ** -(np.arange(0, head_width, 2) / head_width)
    if divisors.shape != turns.shape or not np.isfinite(divisors).all() or divisors.min() < 1:
        raise CheckpointError(f"{where}: {ROPE_FACTORS} does not fit heads of width {head_width}: copy it again")
    factor = float(divisors.max())
    if factor == 1:
        return None
    waves = 2 * math.pi / turns
    shares = (1 / divisors - 1 / factor) / (1 - 1 / factor)
    original = values.whole(f"{SCALE}original_context_length", 8192)
    low, high = _ends(waves, shares, original)
    made = ((original / waves - low) / (high - low)).clip(0, 1)
    if not np.allclose(1 / (made + (1 - made) / factor), divisors, rtol=1e-4):
        raise UnsupportedError(f"{where}: {ROPE_FACTORS} is not Llama 3's scaling, the only one that is read")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


def _ends(waves: np.ndarray, shares: np.ndarray, original: int) -> tuple[float, float]:
    """The factors (low, high) of Llama 3's scaling for so many original positions: 1/length, times those, where the
    share is 0 and 1.
    """
    turns = np.array([math.inf, *(1 / waves), 0.0])
    between = 1 + np.flatnonzero((shares > 1e-6) & (shares < 1 - 1e-6))
    if not len(between):
        after = 1 + int((shares > 0.5).sum())
        start, end = turns[after], turns[after - 1] if after > 1 else 2 * turns[after]
    else:
        first, last = between[0], between[-1]
        share, turn = shares[first - 1], turns[first]
        if len(between) > 1:
            slope = (share - shares[last - 1]) / (turn - turns[last])
        else:  # one line of many through the point, that leaves its neighbors at 1 and 0
            slope = max((1 - share) / (turns[first - 1] - turn), share / (turn - turns[first + 1]))
        start, end = turn - share / slope, turn + (1 - share) / slope
    return round(float(original * start), 6), round(float(original * end), 6)
