"""Bodies of chat completions: OpenAI's, with Mercury's fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from daguerre.http.errors import ApiError
from daguerre.server.prompts import Templating
from daguerre.server.protocol.common import Body, Sampling
from daguerre.server.protocol.shaping import schema_of

OF_REQUESTS = (
    *("messages", "tools", "special_tokens", "add_generation_prompt", "continue_final_message", "name", "now"),
    *("self", "tokenizer", "template"),
)
"""Names that a request cannot give to values of its template, since they have a meaning of their own."""


class Named(Body):
    """The name of a function."""

    name: str = Field(min_length=1, max_length=64)


class Function(Named):
    """A function that may be called. strict: every keyword of its schema holds, or the request is refused."""

    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = False


class Tool(Body):
    """A tool; functions are the only kind."""

    type: Literal["function"] = "function"
    function: Function


class ToolChoice(Body):
    """The one function to call."""

    type: Literal["function"] = "function"
    function: Named


class JsonSchema(Body):
    """A JSON Schema. strict: every keyword holds, or the request is refused; else what cannot hold is reported."""

    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | bool = Field(True, alias="schema")
    strict: bool = False


FORMATS = ("json_object", "json_schema")


class ResponseFormat(Body):
    """What the answer is: text, any JSON object, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="before")
    @classmethod
    def _beside(cls, value: Any) -> Any:
        """The schema where llama.cpp, Together and others have it: beside the type."""
        if not isinstance(value, dict) or value.get("json_schema") or value.get("type") not in FORMATS:
            return value
        held = schema_of(value) if {"schema", "value"} & {*value} else None
        return value if held is None else {"type": "json_schema", "json_schema": {"schema": held}}

    @model_validator(mode="after")
    def _has_schema(self) -> ResponseFormat:
        if self.type == "json_schema" and self.json_schema is None:
            raise ValueError('type "json_schema" needs a json_schema')
        return self


class Prediction(Body):
    """The likely answer."""

    type: Literal["content"] = "content"
    content: str | list[Any]


class Templated(Body):
    """A conversation, and how it is written, as in vLLM's API; without the last two, a last message of the assistant is
    continued.
    """

    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None

    @field_validator("chat_template_kwargs")
    @classmethod
    def _no_others(cls, values: dict[str, Any]) -> dict[str, Any]:
        for name in values:
            if name in OF_REQUESTS:
                raise ValueError(
                    f"{name} is no value of a template here: send it as a field of the body, or leave it out"
                )
        return values

    @property
    def template(self) -> Templating:
        """How the conversation is written."""
        return Templating(
            self.chat_template_kwargs,
            continue_final=self.continue_final_message,
            add_prompt=self.add_generation_prompt,
        )


class ChatBody(Sampling, Templated):
    """A request of /v1/chat/completions.

    max_completion_tokens   holds where max_tokens is given, too
    diffusing               Mercury's frames: a stream of drafts, each of which replaces the last
    realtime                accepted; answers begin with the first text that is final in any case
    reasoning_summary       no summary is made of what a model thinks: it is "unavailable"
    thinking                whether the model thinks first, where its template has a switch for it: true or false, or an
                            object as in Anthropic's and others' APIs, {"type": "enabled"} or {"type": "disabled"}
    """

    messages: list[dict[str, Any]] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)
    response_format: ResponseFormat | None = None
    tools: list[Tool] = Field(default_factory=list)
    tool_choice: Literal["auto", "none", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool = True
    prediction: Prediction | None = None
    diffusing: bool = False
    realtime: bool = False
    reasoning_summary: bool | None = None
    reasoning_summary_wait: bool = False
    store: bool = False
    thinking: bool | dict[str, Any] | None = None

    @model_validator(mode="after")
    def _one_schema(self) -> ChatBody:
        """The schema of the object `daguerre` is the format's."""
        own = self.daguerre
        if own.schema_ is None:
            return self
        if self.response_format is not None and self.response_format.type != "text":
            message = "response_format and daguerre.schema are two constraints: leave out one of the two"
            raise ApiError(message, param="response_format")
        wanted = JsonSchema(schema=own.schema_, strict=bool(own.strict))
        self.response_format = ResponseFormat(type="json_schema", json_schema=wanted)
        self.daguerre = own.model_copy(update={"schema_": None, "strict": None, "lenient": None})
        return self

    @property
    def template(self) -> Templating:
        """How the conversation is written."""
        thinking = self.thinking.get("type") != "disabled" if isinstance(self.thinking, dict) else self.thinking
        own = self.daguerre.special_tokens
        return replace(super().template, effort=self.reasoning_effort, thinking=thinking, special_tokens=own)

    @property
    def most_tokens(self) -> int | None:
        """The most new tokens that are asked for."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def usable_tools(self) -> list[Tool]:
        """The functions that may be called."""
        return [] if self.tool_choice == "none" else self.tools


def tool_json(tool: Tool) -> dict[str, Any]:
    """A tool as templates know it."""
    return tool.model_dump(exclude_none=True, exclude={"function": {"strict"}})


def tool_option(tool: Tool) -> Mapping[str, Any]:
    """A tool as `Decode` knows it."""
    parameters = {} if tool.function.parameters is None else {"parameters": tool.function.parameters}
    return {"name": tool.function.name, **parameters}
