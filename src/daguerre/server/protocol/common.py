"""What the bodies of all surfaces share: the options of decoding, and how they reach the engine."""

from __future__ import annotations

import math
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator

from daguerre.canvas import Canvas
from daguerre.decoding.effort import effort_options
from daguerre.decoding.options import DecodeOptions
from daguerre.decoding.pins import Pin
from daguerre.decoding.request import Decode
from daguerre.errors import InputError, UnsupportedError
from daguerre.http.errors import ApiError
from daguerre.kinds import Option, options_of
from daguerre.models.catalog import Catalog
from daguerre.server.models import Served
from daguerre.server.protocol.shaping import MAX_STOPS, check_stops, shaped

B = TypeVar("B", bound=BaseModel)
EFFORTS = {"none": "instant", "minimal": "instant", "xhigh": "high", "max": "high"}
EFFORTS |= {name: name for name in ("instant", "low", "medium", "high")}
"""Words of OpenAI's and Mercury's clients, as efforts of `decoding.effort`."""
Effort = Literal["none", "minimal", "instant", "low", "medium", "high", "xhigh", "max"]
MAX_STEERED = 128
"""The most concepts that a request may steer, each counted as often as an operation names it."""
OWN_FIELDS: Mapping[str, tuple[tuple[Any, ...], str]] = {
    name: ((None, False), f'put it into the object daguerre: {{"daguerre": {{"{name}": ...}}}}')
    for name in ("explain", "steer", "forbid", "forbid_exactly")
}
"""Fields of the `daguerre` object that a body cannot have at its top, and what to do instead."""
MAX_BIAS = 100.0
"""The largest bias of a token in OpenAI's API; its negative bans the token."""


class Body(BaseModel):
    """A body of a request. Fields that are not known are let through, as OpenAI's API does; null is absent."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        return {key: held for key, held in value.items() if held is not None} if isinstance(value, dict) else value


@dataclass(frozen=True)
class Penalties:
    """OpenAI's penalties: a token that the new text has c times, c > 0, loses frequency * c + presence.

    The text is all that is committed at that moment, whether before or after the position; `ends`, which no text has,
    are not counted.
    """

    frequency: float
    presence: float
    ends: tuple[int, ...] = ()

    def __call__(self, canvas: Canvas, positions: np.ndarray, logits: np.ndarray) -> np.ndarray:
        """What is added to the logits, float32 (1, V)."""
        written = canvas.tokens[canvas.in_gap & ~canvas.open]
        counts = np.bincount(written, minlength=logits.shape[-1]).astype(np.float32)
        counts[list(self.ends)] = 0
        return -(np.float32(self.frequency) * counts + np.float32(self.presence) * (counts > 0))[None]


def validated(kind: type[B], raw: dict[str, Any]) -> B:
    """A body that was made of another one. RequestValidationError, as for one that was sent."""
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        raise RequestValidationError(error.errors(include_url=False, include_context=False)) from None


class Constrained(Body):
    """A body whose constraints may have the names that other servers give them (`protocol.shaping`)."""

    @model_validator(mode="before")
    @classmethod
    def _shaped(cls, value: Any) -> Any:
        return shaped(value, cls.model_fields)


LEFT_OUT = ("scorer", "tools", "tool_choice", "parallel_calls", "chat_format")
"""Options of decoding that are code, or that other fields of a body say."""


def field_of_option(name: str, declared: Option) -> tuple[Any, Any]:
    """An option of decoding as a field of the `daguerre` object. What it may be is in the description alone: `Decode`
    refuses the rest, in its words.
    """
    kind = replace(declared.kind, none=True)  # which is as if it were left out
    alias = name if name == "schema" else None  # a name that pydantic has itself
    said = Field(None, alias=alias, description=declared.says, json_schema_extra=kind.limits)
    return (list[dict[str, Any]] if name == "pins" else kind.json) | None, said


def options_model(besides: Collection[str]) -> Any:
    """A model with the options of decoding as fields, but for those that a body has `besides`."""
    declared = {name: one for name, one in options_of(DecodeOptions).items() if name not in {*LEFT_OUT, *besides}}
    fields = {"schema_" if name == "schema" else name: field_of_option(name, one) for name, one in declared.items()}
    return create_model("DecodingFields", __config__=ConfigDict(extra="forbid"), **fields)  # type: ignore[call-overload]


class StreamOptions(Body):
    """include_usage: a last chunk has the usage; continuous_usage_stats: every chunk has it."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class OpenAiSampling(Constrained):
    """The fields of OpenAI's bodies that say how an answer is drawn."""

    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = None
    min_p: float | None = Field(None, ge=0, le=1)
    n: int = Field(1, ge=1, le=128)
    seed: int | None = None
    stop: str | list[str] | None = None
    logit_bias: dict[str, float] | None = None
    repetition_penalty: float | None = Field(None, gt=0)
    no_repeat_ngram_size: int | None = Field(None, ge=0)


class Diffusion(options_model(OpenAiSampling.model_fields)):  # type: ignore[misc] # whose fields are made
    """The `daguerre` object of a request: the options of decoding that the body does not have itself, and how the
    request runs. Unknown fields are errors; an operation of `steer` is an object with the fields of `Operation`.
    """

    timeout: float | None = Field(None, description="Seconds by which the text is finished (anytime).")
    priority: int = Field(0, description="Lower goes first.")
    heal: bool | None = Field(None, description="Whether the last word of the prompt is drawn again.")
    draft: str | None = Field(None, description="The likely text.")
    special_tokens: bool | None = Field(
        None,
        description="Whether names of special tokens in texts stand for them: by default in prompts of completions, "
        "and not in messages and around gaps.",
    )
    changeable: bool = Field(False, description="The request may be changed while it runs, by its id.")
    frames: bool = Field(False, description="Whether a stream also has frames of the draft.")
    trace: bool = Field(False, description="Whether the answer has the trace of all decisions.")

    def options(self) -> dict[str, Any]:
        """The fields that were given and are options of decoding."""
        out = {name.rstrip("_"): value for name, value in self if name not in OF_RUNS and value is not None}
        return out | ({} if self.pins is None else {"pins": [pin_of(one, "daguerre.pins") for one in self.pins]})

    def running(self) -> dict[str, Any]:
        """What the engine takes beside options: the deadline, the priority, and how the text begins."""
        own = {"timeout": self.timeout, "priority": self.priority, "heal": self.heal, "draft": self.draft}
        return own if self.special_tokens is None else own | {"special_tokens": self.special_tokens}


OF_RUNS = frozenset(vars(Diffusion)["__annotations__"])
"""Fields of the `daguerre` object that are no options of decoding."""


def no_options() -> Diffusion:
    """The object of a body that has none."""
    return Diffusion.model_validate({})


class Sampling(OpenAiSampling):
    """The options that OpenAI's surfaces share. most_stops: the most stop strings of a request."""

    most_stops: ClassVar[int] = MAX_STOPS
    model: str | None = None
    max_tokens: int | None = Field(None, ge=1)
    frequency_penalty: float = Field(0, ge=-2, le=2)
    presence_penalty: float = Field(0, ge=-2, le=2)
    stream: bool = False
    stream_options: StreamOptions | None = None
    reasoning_effort: Effort | None = None
    daguerre: Diffusion = Field(default_factory=no_options)
    user: str | None = None


def decode_options(body: Sampling, served: Served) -> dict[str, Any]:
    """The options of `Engine`'s requests that a body asks for. InputError for values that no model can honor.

    Without a seed each request has another one, which its usage names.
    """
    options: dict[str, Any] = {"seed": secrets.randbits(63) if body.seed is None else body.seed % 2**64}
    for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "no_repeat_ngram_size"):
        if getattr(body, name) is not None:
            options[name] = getattr(body, name)
    if body.stop:
        options["stop"] = [body.stop] if isinstance(body.stop, str) else body.stop
        check_stops(options["stop"], "stop", body.most_stops)
    if body.logit_bias:
        options["logit_bias"] = {token_of(key): _bias(bias) for key, bias in body.logit_bias.items()}
    if body.frequency_penalty or body.presence_penalty:
        options["scorer"] = Penalties(body.frequency_penalty, body.presence_penalty, tuple(served.model.config.ends))
    check_concepts(body.daguerre, served)
    options |= body.daguerre.options()
    return options | _effort(body, served, options)


def _effort(body: Sampling, served: Served, options: Mapping[str, Any]) -> dict[str, Any]:
    """What an effort adds to options. Where the mode of a completion leaves it nothing to set, which is so for modes
    that have the tokens of the model, "high" is what they do, and less effort takes mode "block"; a model that has no
    other modes does what it can.
    """
    config, defaults = served.model.config, served.model.defaults
    if body.reasoning_effort is None or (config.mask_id is None and config.process == "absorbing"):
        return {}
    effort, block = EFFORTS[body.reasoning_effort], {"mode": "block"}
    try:
        return effort_options(effort, config, defaults, options)
    except UnsupportedError as error:
        if "mode" in options:
            raise ApiError(str(error), param="reasoning_effort", code="unsupported") from None
        return {} if effort == "high" else block | effort_options(effort, config, defaults, {**options, **block})
    except InputError as error:
        raise ApiError(str(error), param="reasoning_effort") from None


def catalog_of(served: Served, param: str) -> Catalog:
    """The concepts of a model. ApiError, naming the field, where it has no concept heads."""
    catalog = served.model.concepts
    if catalog is None:
        message = f"the model {served.name!r} has no concept heads: ask one whose concepts in /v1/models are not null"
        raise ApiError(message, param=param, code="unsupported")
    return catalog


def check_concepts(own: Diffusion, served: Served) -> None:
    """ApiError, naming the field, for concepts that a model cannot explain or steer."""
    asked = [name for name in ("explain", "steer", "forbid") if getattr(own, name)]
    if not asked:
        return
    catalog = catalog_of(served, f"daguerre.{asked[0]}")
    check_steered(own.steer, own.forbid, "daguerre.")
    for name in asked:
        try:
            Decode(**{name: getattr(own, name)}).steering.resolved(catalog)
        except InputError as error:
            raise ApiError(" ".join(str(error).split()), param=f"daguerre.{name}") from None


def check_steered(steer: object, forbid: object, prefix: str) -> None:
    """ApiError for more concepts than a request may steer. prefix: of the fields' names."""
    given = steer if isinstance(steer, list) else []
    named = [one.get("concepts") if isinstance(one, dict) else None for one in given]
    numbers = {
        "steer": sum(len(one) if isinstance(one, list) and one else 1 for one in named),
        "forbid": len(forbid) if isinstance(forbid, list) else 0,
    }
    for name, num in numbers.items():
        if num > MAX_STEERED:
            raise ApiError(f"{name} may name at most {MAX_STEERED} concepts, not {num}", param=f"{prefix}{name}")


def pin_of(one: object, param: str) -> Pin:
    """The pin of an object, in the field `param`. ApiError for what is none."""
    given = one if isinstance(one, dict) else {}
    texts = [name for name in ("text", "tokens") if name in given]
    if len(texts) != 1 or not {"at"} <= set(given) <= {*texts, "at", "gap"}:
        message = (
            'a pin has a "text" (or "tokens"), a position "at" and, of several gaps, its "gap": {"text": "x", "at": 3}'
        )
        raise ApiError(message, param=param)
    return Pin(given[texts[0]], given["at"], given.get("gap"))


def _bias(bias: float) -> float:
    """A bias in OpenAI's range, of which the lowest bans a token."""
    if not -MAX_BIAS <= bias <= MAX_BIAS:
        raise ApiError(f"logit_bias may be from -{MAX_BIAS:g} to {MAX_BIAS:g}, not {bias}", param="logit_bias")
    return -math.inf if bias == -MAX_BIAS else bias


def token_of(key: str) -> int:
    """The token id that a key of JSON stands for. InputError for what is none."""
    try:
        return int(key)
    except ValueError:
        raise InputError(f"logit_bias is from token ids to numbers, and {key!r:.40} is no token id") from None
