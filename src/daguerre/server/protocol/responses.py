"""Bodies of OpenAI's responses, and what they mean as a turn of chat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from daguerre.http.errors import ApiError
from daguerre.server.prompts import ROLES, content_text
from daguerre.server.protocol.chat import ChatBody
from daguerre.server.protocol.common import OWN_FIELDS, Body, Constrained, Diffusion, Effort, no_options, validated

REFUSED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "background": ((None, False), "answers are not made in the background: leave it out"),
    "conversation": ((None,), "conversations are not kept: use previous_response_id"),
    "prompt": ((None,), "no prompts are kept: send instructions and input"),
    "truncation": ((None, "disabled"), "nothing is left out of the input: send less"),
    "max_tool_calls": ((None,), "it is about tools of the server, which has none: leave it out"),
    "service_tier": ((None, "auto", "default"), "there is one tier: leave it out"),
    "context_management": ((None, []), "nothing is left out of the input: send less"),
    **OWN_FIELDS,
}
"""Fields with values that cannot be honored but for these, and what to do instead."""
LOGPROBS = "message.output_text.logprobs"
INCLUDED = (LOGPROBS, "reasoning.encrypted_content")
"""What may be included; no answer has reasoning."""
NAMES = {
    "schema": "text.format",
    "lenient": "text.format",
    "strict": "text.format",
    "draft": "daguerre.draft",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "messages": "input",
}
"""What options, and fields of chat completions, are called here."""


class Reasoning(Body):
    """How much effort. A summary may be asked for, and there is none."""

    effort: Effort | None = None
    summary: str | None = None
    generate_summary: str | None = None


class Format(Body):
    """The format of the text, as in chat completions but flat."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    schema_: dict[str, Any] | bool | None = Field(None, alias="schema")
    strict: bool = False


class TextOptions(Body):
    """The format of the text, and how long it is, which cannot be chosen."""

    format: Format | None = None
    verbosity: Literal["low", "medium", "high"] = "medium"


class ResponseTool(Body):
    """A function that may be called, as in chat completions but flat."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = False


class ResponseBody(Constrained):
    """A request of /v1/responses. seed and daguerre are extensions, as in chat completions."""

    model: str | None = None
    input: str | list[dict[str, Any]] = ""
    instructions: str | None = None
    tools: list[ResponseTool] = Field(default_factory=list)
    tool_choice: Literal["auto", "none", "required"] | dict[str, Any] = "auto"
    parallel_tool_calls: bool = True
    text: TextOptions = Field(default_factory=TextOptions)
    stream: bool = False
    store: bool = True
    previous_response_id: str | None = None
    reasoning: Reasoning | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    top_logprobs: int | None = Field(None, ge=0, le=20)
    include: list[str] = Field(default_factory=list)
    metadata: dict[str, str] = Field(default_factory=dict)
    seed: int | None = None
    daguerre: Diffusion = Field(default_factory=no_options)

    @property
    def items(self) -> list[dict[str, Any]]:
        """The input as items."""
        return [{"role": "user", "content": self.input}] if isinstance(self.input, str) else self.input


def chat_body(body: ResponseBody, messages: Sequence[dict[str, Any]]) -> ChatBody:
    """The request as a body of chat completions. ApiError, naming the field, for what cannot be honored."""
    for name in body.include:
        if name not in INCLUDED:
            raise ApiError(f"include cannot have {name!r:.60}: leave it out", param="include", code="unsupported_value")
    if body.text.verbosity != "medium":
        message = "the length of an answer follows from max_output_tokens alone: leave out verbosity"
        raise ApiError(message, param="text.verbosity", code="unsupported_value")
    if not messages:
        raise ApiError("there is nothing to answer: give input", param="input")
    logprobs = LOGPROBS in body.include or bool(body.top_logprobs)
    value = {
        "model": body.model,
        "messages": list(messages),
        "tools": [_tool(tool, number) for number, tool in enumerate(body.tools)],
        "tool_choice": _choice(body.tool_choice),
        "parallel_tool_calls": body.parallel_tool_calls,
        "response_format": _format(body.text.format),
        "max_completion_tokens": body.max_output_tokens,
        "reasoning_effort": None if body.reasoning is None else body.reasoning.effort,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "seed": body.seed,
        "logprobs": logprobs,
        "top_logprobs": body.top_logprobs,
        "stream": body.stream,
        "daguerre": body.daguerre,
    }
    return validated(ChatBody, value)


def _tool(tool: ResponseTool, number: int) -> dict[str, Any]:
    if tool.type != "function" or not tool.name:
        what = (
            "functions, each with a name" if tool.type == "function" else f"functions, and none of type {tool.type!r}"
        )
        raise ApiError(f"tools[{number}]: the tools here are {what}", param=f"tools[{number}]", code="unsupported")
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": {**function, "strict": tool.strict}}


def _choice(choice: str | dict[str, Any]) -> str | dict[str, Any]:
    if isinstance(choice, str):
        return choice
    if choice.get("type") != "function" or not isinstance(choice.get("name"), str):
        message = 'tool_choice is auto, none, required or {"type": "function", "name": ...}'
        raise ApiError(message, param="tool_choice", code="unsupported_value")
    return {"type": "function", "function": {"name": choice["name"]}}


def _format(wanted: Format | None) -> dict[str, Any] | None:
    if wanted is None or wanted.type != "json_schema":
        return None if wanted is None else {"type": wanted.type}
    if wanted.schema_ is None:
        raise ApiError("text.format of type json_schema needs a schema", param="text.format.schema")
    return {"type": "json_schema", "json_schema": {"schema": wanted.schema_, "strict": wanted.strict}}


def messages_of(items: Sequence[Mapping[str, Any]], field: str = "input") -> list[dict[str, Any]]:
    """Items as messages of chat completions. ApiError, naming the item, for what is none."""
    out: list[dict[str, Any]] = []
    for number, item in enumerate(items):
        place, kind = f"{field}[{number}]", item.get("type", "message")
        if kind == "message" and item.get("role") in ROLES:
            content = content_text(item.get("content"), f"{place}.content")
            out.append({"role": item["role"], "content": content or ""})
        elif kind == "function_call" and all(isinstance(item.get(x), str) for x in ("call_id", "name", "arguments")):
            function = {"name": item["name"], "arguments": item["arguments"]}
            call = {"id": item["call_id"], "type": "function", "function": function}
            if out and out[-1]["role"] == "assistant":
                out[-1].setdefault("tool_calls", []).append(call)
            else:
                out.append({"role": "assistant", "content": None, "tool_calls": [call]})
        elif kind == "function_call_output" and isinstance(item.get("call_id"), str):
            output = content_text(item.get("output"), f"{place}.output")
            out.append({"role": "tool", "tool_call_id": item["call_id"], "content": output or ""})
        elif kind != "reasoning":  # there is none to go on from
            able = "a message with a role, a function_call, or a function_call_output"
            raise ApiError(f"{place} is none of these: {able}", param=place, code="unsupported_content")
    return out
