"""Bodies of Ollama's API, and the bodies of chat completions that its conversations become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from daguerre.http.errors import ApiError
from daguerre.server.protocol.chat import ChatBody, Tool
from daguerre.server.protocol.common import OWN_FIELDS, Body, Constrained, Diffusion, Sampling, no_options, validated
from daguerre.server.protocol.shaping import MOST_STOPS, check_stops

NAMES = {
    "max_tokens": "options.num_predict",
    "stop": "options.stop",
    "repetition_penalty": "options.repeat_penalty",
    **{name: f"options.{name}" for name in ("temperature", "top_p", "top_k", "min_p", "seed")},
    "schema": "format",
    "lenient": "format",
    "strict": "format",
    "scorer": "options.frequency_penalty",
}
"""What options of decoding are called in these bodies."""
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "mirostat": (None, 0),
    "typical_p": (None, 1),
    "tfs_z": (None, 1),
    "penalize_newline": (None, True),
}
"""Options that change what is drawn and cannot be honored, and the values that ask for nothing."""
REFUSED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    **{f"options.{name}": (able, "leave it out") for name, able in NEUTRAL.items()},
    "images": ((None, []), "this model reads text: leave it out"),
    "template": ((None, ""), "the model has its own template: leave it out, or write the prompt yourself, with raw"),
    "context": ((None, []), "conversations are not kept as tokens: send all messages to /api/chat"),
    "logprobs": ((None, False), "use /v1/chat/completions, which has them"),
    "top_logprobs": ((None, 0), "use /v1/chat/completions, which has them"),
    **OWN_FIELDS,
}
"""Fields that are known and cannot be honored but for these values, and what to do instead."""
MOST_TOLD = 32
"""Names of options without a meaning here that an answer lists."""


class OllamaOptions(Body):
    """How an answer is drawn. Any other option is of the machine, which is the operator's, or is not known here: the
    answer lists it in `daguerre.ignored`. num_ctx is one: the context is as long as the model's, or `--max-context`.

    num_predict     the most new tokens; 0 and below: as many as there is room for
    seed            -1: any
    repeat_penalty  of all tokens of the text, so that repeat_last_n may be -1, or 0, which turns it off
    """

    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = None
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = None
    num_predict: int | None = None
    stop: str | list[str] | None = None
    repeat_penalty: float | None = Field(None, gt=0)
    repeat_last_n: int | None = None
    frequency_penalty: float = Field(0, ge=-2, le=2)
    presence_penalty: float = Field(0, ge=-2, le=2)

    @property
    def stops(self) -> list[str]:
        """The strings that end the text."""
        return [stop for stop in ([self.stop] if isinstance(self.stop, str) else self.stop or []) if stop]

    @property
    def unread(self) -> list[str]:
        """The options that change nothing."""
        others = [name for name in self.model_extra or {} if name not in NEUTRAL]
        return [f"options.{name[:60]}" for name in others[:MOST_TOLD]]

    def sampling(self) -> dict[str, Any]:
        """The fields of `Sampling` but for stop strings, which may be more here. ApiError for what is not honored."""
        check_stops(self.stops, "options.stop", MOST_STOPS)
        penalty = None if self.repeat_last_n == 0 else self.repeat_penalty
        if penalty not in (None, 1) and self.repeat_last_n not in (None, -1):
            message = "options.repeat_last_n may be -1 or 0: the penalty is of the whole text, so leave it out"
            raise ApiError(message, param="options.repeat_last_n", code="unsupported_value")
        same = ("temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty")
        return {name: getattr(self, name) for name in same} | {
            "top_k": self.top_k if (self.top_k or 0) > 0 else None,
            "seed": None if self.seed == -1 else self.seed,
            "repetition_penalty": penalty,
        }


def plain_options() -> OllamaOptions:
    """The options of a body that has none."""
    return OllamaOptions.model_validate({})


class OllamaBody(Constrained):
    """What conversations and completions share.

    stream      lines of JSON, as is the default; false: one object
    format      "json", any object, or a JSON Schema
    think       whether the model thinks first, where its template has a switch for it; or how much
    keep_alive  accepted: how long a model stays in memory is the operator's
    """

    model: str | None = None
    stream: bool = True
    format: Literal["", "json"] | dict[str, Any] | None = None  # Ollama's name
    options: OllamaOptions = Field(default_factory=plain_options)
    think: bool | Literal["low", "medium", "high"] | None = None
    keep_alive: str | float | None = None
    daguerre: Diffusion = Field(default_factory=no_options)

    @property
    def unloads(self) -> bool:
        """Whether a body without a text asks for the model to be unloaded."""
        return self.keep_alive in (0, "0", "0s")

    @property
    def ignored(self) -> list[str]:
        """What was asked for and changes nothing."""
        return [*self.options.unread, *([] if self.keep_alive is None else ["keep_alive"])]

    def shape(self) -> dict[str, Any]:
        """The options of decoding that the format asks for."""
        if not self.format:
            return {}
        return {"schema": {"type": "object"} if self.format == "json" else self.format, "lenient": True}


class OllamaMessage(Body):
    """A message. A result of a tool has the `tool_name` of its function."""

    role: str
    content: str = ""
    thinking: str | None = None
    images: list[Any] = Field(default_factory=list)
    tool_calls: list[dict[str, Any]] = Field(default_factory=list)
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaChatBody(OllamaBody):
    """A request of /api/chat. Without messages the model is loaded."""

    messages: list[OllamaMessage] = Field(default_factory=list)
    tools: list[Tool] = Field(default_factory=list)


class OllamaGenerateBody(OllamaBody):
    """A request of /api/generate: a message of the user, to a model with a chat template; a text to continue, with
    `raw`, and to any other; or a gap, before a `suffix`. Without a prompt the model is loaded.
    """

    prompt: str = ""
    suffix: str | None = None
    system: str | None = None
    raw: bool = False


class OllamaEmbedBody(Body):
    """A request of /api/embed. truncate: texts longer than the model's context are cut; else they are refused."""

    model: str | None = None
    input: str | list[str] = Field(default_factory=list)
    truncate: bool = True
    dimensions: int | None = Field(None, ge=1)


class OllamaPromptBody(Body):
    """A request of /api/embeddings, which is older."""

    model: str | None = None
    prompt: str = ""


class OllamaNameBody(Body):
    """A request about a model; name: an older name of the field."""

    model: str | None = None
    name: str | None = None
    stream: bool = True

    @property
    def named(self) -> str:
        """The model's name. ApiError without one."""
        found = self.model or self.name
        if not found:
            raise ApiError("model is missing: name one", param="model")
        return found


class OllamaTurn(ChatBody):
    """A conversation of Ollama's, which may have more stop strings than one of OpenAI's."""

    most_stops: ClassVar[int] = MOST_STOPS


def sampling_of(body: OllamaBody) -> Sampling:
    """The options of a completion that all surfaces share."""
    return validated(Sampling, body.options.sampling() | {"daguerre": body.daguerre})


def chat_body(body: OllamaBody) -> OllamaTurn:
    """A conversation, or the message of a prompt, as a body of OpenAI's. ApiError, naming the part, for what cannot be
    honored.
    """
    chat = body.options.sampling() | {"daguerre": body.daguerre, "stop": body.options.stops, "stream": body.stream}
    if isinstance(body, OllamaChatBody):
        chat |= {"messages": _messages(body.messages), "tools": body.tools}
    elif isinstance(body, OllamaGenerateBody):
        system = [{"role": "system", "content": body.system}] if body.system else []
        chat["messages"] = [*system, {"role": "user", "content": body.prompt}]
    if body.format == "json":
        chat["response_format"] = {"type": "json_object"}
    elif body.format:
        chat["response_format"] = {"type": "json_schema", "json_schema": {"schema": body.format}}
    chat |= {"thinking": bool(body.think)} if body.think is not None else {}
    chat |= {"reasoning_effort": body.think} if isinstance(body.think, str) else {}
    return validated(OllamaTurn, chat)


def _messages(messages: Sequence[OllamaMessage]) -> list[dict[str, Any]]:
    """Messages as OpenAI's API has them, in which calls have ids, and results those of their calls."""
    out, waiting = list[dict[str, Any]](), list[tuple[str, str]]()
    for number, one in enumerate(messages):
        if one.images:
            where = f"messages.{number}.images"
            raise ApiError(f"{where} has images, and this model reads text: leave them out", param=where)
        new: dict[str, Any] = {"role": one.role, "content": one.content}
        if one.thinking:
            new["reasoning_content"] = one.thinking
        if one.tool_calls:
            new["tool_calls"] = [_call(call, number, n) for n, call in enumerate(one.tool_calls)]
            waiting = [(call["id"], call["function"].get("name")) for call in new["tool_calls"]]
        if one.role == "tool":
            found = [key for key, name in waiting if one.tool_name in (None, name)] or [key for key, _ in waiting]
            key = one.tool_call_id or next(iter(found), None)
            waiting = [each for each in waiting if each[0] != key]
            new |= {} if key is None else {"tool_call_id": key}
        out.append(new)
    return out


def _call(call: Mapping[str, Any], number: int, index: int) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, Mapping):
        where = f"messages.{number}.tool_calls.{index}.function"
        raise ApiError(f"{where} must be an object with a name and arguments", param=where)
    key = call.get("id")
    named = {name: function[name] for name in ("name", "arguments") if name in function}
    return {"id": key if isinstance(key, str) and key else f"call_{number}_{index}", "type": "function"} | {
        "function": {"arguments": {}} | named
    }
