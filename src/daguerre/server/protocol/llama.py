"""Bodies of llama.cpp's own routes, as editors' plugins send them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pydantic import ConfigDict, Field

from daguerre.http.errors import ApiError
from daguerre.server.protocol.common import Body, Constrained, Diffusion, Sampling, no_options, validated

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "repeat_penalty": (None, 1),
    "mirostat": (None, 0),
    "logit_bias": (None, [], {}, False),
    "n_probs": (None, 0),
    "ignore_eos": (None, False),
    "lora": (None, []),
    "image_data": (None, []),
    "dry_multiplier": (None, 0),
    "return_tokens": (None, False),
}
"""Fields that change what is drawn, or what the answer has, and cannot be honored; the values that ask for nothing."""
CUTTING: Mapping[str, tuple[Any, ...]] = {
    "typical_p": (None, 1),
    "top_n_sigma": (None, -1),
    "xtc_probability": (None, 0),
    "dynatemp_range": (None, 0),
}
"""Fields that change what is drawn unless the temperature is 0, and the values that ask for nothing."""


class Extra(Body):
    """A text beside the file: another file, or a snippet. Its name is shown to models with tokens for it."""

    text: str
    filename: str | None = None


class CompletionBody(Constrained):
    """A request of /completion.

    temperature           0 unless said otherwise, at which top_k, top_p, min_p and the samplers' order change nothing
    samplers, cache_prompt, id_slot, n_keep, t_max_prompt_ms   accepted: there is nothing to choose
    t_max_predict_ms      the deadline of the whole text, in milliseconds; of a model that writes from the left it
                          counts from the first token, and the first line is never cut, a later one may be
    n_indent              the text ends before a line with less white space than this
    response_fields       the only fields of the answer, each a path such as "timings/prompt_n"
    """

    model_config = ConfigDict(extra="allow", protected_namespaces=(), allow_inf_nan=False)

    prompt: str = ""
    model: str | None = None
    n_predict: int | None = Field(None, ge=-2)
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    frequency_penalty: float = 0
    presence_penalty: float = 0
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool = False
    samplers: Any = None
    cache_prompt: bool = True
    id_slot: int = -1
    n_keep: int = 0
    n_indent: int = Field(0, ge=0)
    t_max_prompt_ms: float | None = None
    t_max_predict_ms: float | None = None
    response_fields: list[str] | None = None
    daguerre: Diffusion = Field(default_factory=no_options)

    @property
    def asked(self) -> int | None:
        """The most new tokens; None where there is no limit."""
        return None if self.n_predict is None or self.n_predict < 0 else self.n_predict

    @property
    def stops(self) -> list[str]:
        """The strings that end the text."""
        return [stop for stop in ([self.stop] if isinstance(self.stop, str) else self.stop or []) if stop]

    def sampling(self) -> Sampling:
        """The options that all surfaces share, but for stop strings, which may be many here. ApiError for what cannot
        be honored.
        """
        drawn = {} if not self.temperature or self.temperature < 0 else CUTTING
        for name, able in {**NEUTRAL, **drawn}.items():
            given = (self.model_extra or {}).get(name)
            if given not in able:
                message = f"{name} cannot be {given!r:.40}: leave it out, or use /v1/completions"
                raise ApiError(message, param=name, code="unsupported_value")
        values: dict[str, Any] = {
            "temperature": max(0.0, self.temperature or 0.0),
            "top_k": self.top_k if (self.top_k or 0) > 0 else None,
            "top_p": None if self.top_p is None else min(1.0, max(0.0, self.top_p)),
            "min_p": None if self.min_p is None else min(1.0, max(0.0, self.min_p)),
            "seed": None if self.seed in (None, -1, 2**32 - 1) else self.seed,
            "frequency_penalty": self.frequency_penalty,
            "presence_penalty": self.presence_penalty,
            "daguerre": self.daguerre,
        }
        return validated(Sampling, values)

    def timeout(self, longest: float | None, by_lines: bool) -> float | None:
        """Seconds by which the text is finished. longest: what t_max_predict_ms is lowered to; by_lines: that is no
        deadline, but `line_seconds`.
        """
        asked = self.t_max_predict_ms or 0
        if self.daguerre.timeout is not None or asked <= 0 or by_lines:
            return self.daguerre.timeout
        return min(asked / 1000, longest or asked)

    @property
    def line_seconds(self) -> float:
        """How long after its first token a text that has a line's end goes on."""
        asked = self.t_max_predict_ms or 0
        return asked / 1000 if asked > 0 else math.inf


class InfillBody(CompletionBody):
    """A request of /infill: the text between `input_prefix` followed by `prompt`, and `input_suffix`."""

    input_prefix: str = ""
    input_suffix: str = ""
    input_extra: list[Extra] = Field(default_factory=list)
