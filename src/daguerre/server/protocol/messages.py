"""Bodies of Anthropic's messages, and the body of chat completions that each becomes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from daguerre.http.errors import ApiError
from daguerre.server.protocol.chat import ChatBody
from daguerre.server.protocol.common import OWN_FIELDS, Body, Constrained, Diffusion, no_options, validated
from daguerre.server.protocol.shaping import check_stops

NAMES = {
    "stop": "stop_sequences",
    "schema": "output_config.format",
    "lenient": "output_config.format",
    "strict": "output_config.format",
    "parallel_calls": "tool_choice",
}
"""What options of decoding are called in this body."""
UNREAD = ("thinking", "redacted_thinking")
"""Blocks of earlier answers that no later turn reads."""
REFUSED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "mcp_servers": ((None, []), "the server calls no tools: call them yourself"),
    "container": ((None,), "nothing runs on the server: leave it out"),
    "context_management": ((None,), "no message is left out: leave it out"),
    "service_tier": ((None, "auto", "standard_only"), "there is one tier: leave it out"),
    "speed": ((None, "standard"), "there is one speed: leave it out"),
    **OWN_FIELDS,
}
"""Fields that are known and cannot be honored but for these values, and what to do instead."""


class Message(Body):
    """A message: a text, or blocks."""

    role: Literal["user", "assistant", "system"]
    content: str | list[dict[str, Any]]


class CustomTool(Body):
    """A function that the client runs."""

    name: str = Field(min_length=1, max_length=128)
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    type: str | None = None
    strict: bool = False


class Choice(Body):
    """Which tools are called. any: one at least; tool: the one of this name."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class Output(Body):
    """How much effort an answer takes, and its format."""

    effort: Literal["none", "low", "medium", "high", "xhigh", "max"] | None = None
    format: dict[str, Any] | None = None


class CountBody(Constrained):
    """A request of /v1/messages/count_tokens: what the prompt is made of."""

    model: str | None = None
    messages: list[Message] = Field(min_length=1)
    system: str | list[dict[str, Any]] | None = None
    tools: list[CustomTool] = Field(default_factory=list)
    tool_choice: Choice | None = None
    thinking: dict[str, Any] | None = None
    output_config: Output = Field(default_factory=Output)
    output_format: dict[str, Any] | None = None


class MessagesBody(CountBody):
    """A request of /v1/messages. `max_tokens` is at most: the model's own positions may allow fewer."""

    max_tokens: int = Field(ge=1)
    temperature: float | None = Field(None, ge=0, le=1)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=0)
    stop_sequences: list[str] | None = None
    stream: bool = False
    thread: dict[str, Any] | None = None
    daguerre: Diffusion = Field(default_factory=no_options)


def chat_body(body: CountBody) -> ChatBody:
    """The request as a body of OpenAI's chat completions. ApiError, naming the part, for what cannot be honored."""
    chat: dict[str, Any] = {
        "model": body.model,
        "messages": [*_system(body.system), *(one for m in enumerate(body.messages) for one in _messages(*m))],
        "tools": [_tool(tool, number) for number, tool in enumerate(body.tools)],
        "tool_choice": _choice(body.tool_choice, bool(body.tools)),
        "parallel_tool_calls": not (body.tool_choice and body.tool_choice.disable_parallel_tool_use),
        "reasoning_effort": body.output_config.effort,
        "thinking": body.thinking,
        "response_format": _format(body.output_config.format or body.output_format),
    }
    if isinstance(body, MessagesBody):
        check_stops(body.stop_sequences or (), "stop_sequences")
        same = ("max_tokens", "temperature", "top_p", "stream", "daguerre")
        chat |= {name: getattr(body, name) for name in same}
        chat |= {"top_k": body.top_k or None, "stop": body.stop_sequences}
    return validated(ChatBody, chat)


def _system(system: str | list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    text = system if isinstance(system, str) else _texts(system or [], "system")
    return [{"role": "system", "content": text}] if text else []


def _messages(number: int, message: Message) -> Iterator[dict[str, Any]]:
    """The messages that one becomes: results of tools come first, each a message of its own."""
    place = f"messages.{number}.content"
    if isinstance(message.content, str):
        yield {"role": message.role, "content": message.content}
        return
    texts, calls = list[str](), list[dict[str, Any]]()
    for index, block in enumerate(message.content):
        where, kind = f"{place}.{index}", block.get("type")
        if kind == "tool_result" and message.role == "user":
            yield _result(block, where)
        elif kind == "tool_use" and message.role == "assistant":
            calls.append(_call(block, where))
        elif kind not in UNREAD:
            texts.append(_text(block, where))
    if texts or calls or message.role != "user":
        yield {"role": message.role, "content": "".join(texts), **({"tool_calls": calls} if calls else {})}


def _text(block: Any, where: str) -> str:
    kind = block.get("type") if isinstance(block, dict) else None
    text = block.get("text") if kind == "text" else None
    if not isinstance(text, str):
        raise ApiError(f"{where} has the type {kind!r:.40}: this model reads blocks of text", param=where)
    return text


def _texts(blocks: Sequence[Any], where: str) -> str:
    return "".join(_text(block, f"{where}.{number}") for number, block in enumerate(blocks))


def _result(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    content = block.get("content") or ""
    text = content if isinstance(content, str) else _texts(content, f"{where}.content")
    if not isinstance(block.get("tool_use_id"), str):
        raise ApiError(f"{where} needs the tool_use_id of its call", param=f"{where}.tool_use_id")
    marked = f"Error: {text}" if block.get("is_error") else text
    return {"role": "tool", "tool_call_id": block["tool_use_id"], "content": marked}


def _call(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    if not isinstance(block.get("name"), str) or not isinstance(block.get("input"), dict):
        raise ApiError(f"{where} needs the name of a tool, and its input", param=where)
    arguments = json.dumps(block["input"], ensure_ascii=False)
    function = {"name": block["name"], "arguments": arguments}
    return {"id": str(block.get("id", "")), "type": "function", "function": function}


def _tool(tool: CustomTool, number: int) -> dict[str, Any]:
    if tool.type not in (None, "custom"):
        message = f"tools.{number} has the type {tool.type!r:.40}: the server runs no tools; give an input_schema"
        raise ApiError(message, param=f"tools.{number}.type", code="unsupported")
    function = {"name": tool.name, "description": tool.description, "strict": tool.strict}
    return {"type": "function", "function": function | {"parameters": tool.input_schema or {"type": "object"}}}


def _choice(choice: Choice | None, tools: bool) -> Any:
    if choice is None or (choice.type == "auto" and not tools):
        return None
    if choice.type != "tool":
        return {"any": "required"}.get(choice.type, choice.type)
    if not choice.name:
        raise ApiError("tool_choice needs the name of the tool", param="tool_choice.name")
    return {"type": "function", "function": {"name": choice.name}}


def _format(wanted: dict[str, Any] | None) -> dict[str, Any] | None:
    if wanted is None:
        return None
    if wanted.get("type") != "json_schema" or "schema" not in wanted:
        message = 'the format of an answer is {"type": "json_schema", "schema": ...}'
        raise ApiError(message, param="output_config.format")
    return {"type": "json_schema", "json_schema": {"schema": wanted["schema"], "strict": True}}
