"""Anthropic's /v1/messages, over a turn of chat; and errors there, as its clients read them: {"type": "error", "error":
{"type", "message"}}.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from daguerre.decoding.result import Result
from daguerre.http import errors
from daguerre.http.settings import Settings
from daguerre.server.answers import extras_of, new_id, refuse_fields, written
from daguerre.server.calls import FunctionCall, Said
from daguerre.server.models import Served
from daguerre.server.prompts import can_think
from daguerre.server.protocol.messages import NAMES, REFUSED, CountBody, MessagesBody, chat_body
from daguerre.server.restated import Restating
from daguerre.server.streams import event_stream, guarded, result_of, sse
from daguerre.server.turns import Turn, answers, begin_turn, num_tokens, pieces, stopping

router = APIRouter()
PATH = "/v1/messages"
THREADS = "thread_unsupported_request"
"""The code by which a client learns to send whole conversations."""
TYPES = {**errors.TYPES, 408: "timeout_error", 413: "request_too_large", 503: "overloaded_error"}


@router.post("/v1/messages", response_model=None)
async def messages(request: Request, body: MessagesBody) -> Response | dict[str, Any]:
    """Answer a conversation."""
    served = await asyncio.to_thread(request.app.state.pool.get, body.model)
    turn = await asyncio.to_thread(_begin, served, body, request.state.owner, request.app.state.settings)
    head = {"id": new_id("msg_"), "type": "message", "role": "assistant", "model": served.name}
    if body.stream:
        return event_stream(guarded(_events(turn, body, head), lambda error: [sse(error_json(error), "error")]))
    result = await result_of(request, turn.job, stopping(turn))
    (answer,) = await asyncio.to_thread(answers, turn, result)
    content: list[dict[str, Any]] = [_thinking(answer.thought)] if answer.thought else []
    content += [{"type": "text", "text": answer.text}] if answer.text else []
    content += [_use(call, _parsed(call.arguments)) for call in answer.calls]
    return {**head, "content": content, **_reason(turn, body, answer.finish), **_last(turn, answer.result)}


@router.post("/v1/messages/count_tokens", response_model=None)
async def count_tokens(request: Request, body: CountBody) -> dict[str, int]:
    """How many tokens the prompt of a conversation has."""
    served = await asyncio.to_thread(request.app.state.pool.get, body.model)
    return {"input_tokens": await asyncio.to_thread(num_tokens, served, chat_body(body))}


def _begin(served: Served, body: MessagesBody, owner: str, settings: Settings) -> Turn:
    if body.thread is not None:
        raise errors.ApiError(
            "messages are not kept: send the whole conversation, without thread", param="thread", code=THREADS
        )
    refuse_fields(body, REFUSED)
    for name in ("changeable", "frames", "trace", "explain"):
        if getattr(body.daguerre, name):
            message = f"messages have no place for {name}: use /v1/chat/completions"
            raise errors.ApiError(message, param=f"daguerre.{name}", code="unsupported")
    if (body.thinking or {}).get("type") == "enabled" and not can_think(served.model):
        raise errors.ApiError("this model does not think apart from its answer: leave out thinking", param="thinking")
    chat = chat_body(body)
    config = served.model.config
    positions = min(config.max_positions, settings.max_context or config.max_positions)
    room = positions - len(config.first) - num_tokens(served, chat)
    most = min(body.max_tokens, room) if room > 0 else body.max_tokens
    return begin_turn(served, chat.model_copy(update={"max_tokens": most}), owner, settings, NAMES)


def _thinking(text: str) -> dict[str, Any]:
    """A block of what was thought; its signature, by which Anthropic knows its own, is empty."""
    return {"type": "thinking", "thinking": text, "signature": ""}


def _use(call: FunctionCall, arguments: Any) -> dict[str, Any]:
    """A block that calls a tool."""
    return {"type": "tool_use", "id": f"toolu_{call.id.removeprefix('call_')}", "name": call.name, "input": arguments}


def _parsed(arguments: str) -> Any:
    """The input of a tool; empty where a deadline cut it."""
    try:
        return json.loads(arguments or "{}")
    except ValueError:
        return {}


def _usage(turn: Turn, result: Result | None) -> dict[str, Any]:
    """Anthropic's usage, in which tokens from the cache are counted apart."""
    prompt, cached = turn.job.plan.num_prompt, min(turn.job.cached_tokens, turn.job.plan.num_prompt)
    return {
        "input_tokens": prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": 0 if result is None else result.usage.completion_tokens,
    }


def _last(turn: Turn, result: Result) -> dict[str, Any]:
    """The fields that the end of an answer brings."""
    return {"usage": _usage(turn, result), **extras_of(result, trace=False)}


def _reason(turn: Turn, body: MessagesBody, finish: str) -> dict[str, Any]:
    """Why an answer ended, and by which stop sequence."""
    if finish == "tool_calls":
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if finish == "length":
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    stop = _stop_in(turn, body.stop_sequences or ())
    return {"stop_reason": "end_turn" if stop is None else "stop_sequence", "stop_sequence": stop}


def _stop_in(turn: Turn, stops: Sequence[str]) -> str | None:
    """Which of the stop sequences ended the text; None where something else did."""
    if not stops:
        return None
    text, every = written(turn.job), (*turn.stops, *turn.job.plan.decode.stop, *stops)
    found = [(place, stop not in stops, stop) for stop in every if (place := text.find(stop)) >= 0]
    _, own, stop = min(found, default=(0, True, ""))
    return None if own else stop


async def _events(turn: Turn, body: MessagesBody, head: dict[str, Any]) -> AsyncIterator[bytes]:
    nothing: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
    yield _event("message_start", message={**head, **nothing, "usage": _usage(turn, None)})
    yield _event("ping")
    blocks = Blocks()
    async with aclosing(pieces(turn)) as source:  # type: ignore[type-var]
        async for piece in source:
            for said in piece.said:
                for event in blocks.events(said):
                    yield event
            if piece.result is None:
                continue
            for event in blocks.close():
                yield event
            delta = _reason(turn, body, piece.finish or "stop")
            yield _event("message_delta", delta=delta, **_last(turn, piece.result))
    yield _event("message_stop")


class Blocks:
    """The blocks of a streamed answer: text, and calls of tools, one after the other."""

    def __init__(self) -> None:
        self._number, self._open = -1, ""

    def events(self, said: Said) -> list[bytes]:
        """The events of a piece of news."""
        if said.call is not None:
            return self._begin(_use(said.call, {}))
        if said.arguments:
            return [self._delta({"type": "input_json_delta", "partial_json": said.arguments})]
        if said.thought:
            begin = [] if self._open == "thinking" else self._begin(_thinking(""))
            return [*begin, self._delta({"type": "thinking_delta", "thinking": said.thought})]
        begin = [] if self._open == "text" else self._begin({"type": "text", "text": ""})
        return [*begin, self._delta({"type": "text_delta", "text": said.text})]

    def close(self) -> list[bytes]:
        """The event that ends the block that is open."""
        ended = [_event("content_block_stop", index=self._number)] if self._open else []
        self._open = ""
        return ended

    def _begin(self, block: dict[str, Any]) -> list[bytes]:
        ended = self.close()
        self._number, self._open = self._number + 1, block["type"]
        return [*ended, _event("content_block_start", index=self._number, content_block=block)]

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._number, delta=delta)


def _event(kind: str, **fields: Any) -> bytes:
    return sse({"type": kind, **fields}, kind)


def error_json(body: Any, status: int | None = None, request_id: str | None = None) -> dict[str, Any]:
    """OpenAI's error object as Anthropic's. status: that of the answer; None in a stream, which has none."""
    error = body["error"]
    kind = error["type"] if status is None else TYPES.get(status, "invalid_request_error")
    if kind == "server_error" or (status is not None and status >= 500 and status not in TYPES):
        kind = "api_error"
    named = {} if request_id is None else {"request_id": request_id}
    details = {"details": {"error_code": THREADS}} if error.get("code") == THREADS else {}
    return {"type": "error", "error": {"type": kind, "message": error["message"], **details}, **named}


RESTATED = Restating(error_json, "request-id")
