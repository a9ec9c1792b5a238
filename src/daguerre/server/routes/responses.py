"""OpenAI's /v1/responses: a turn of chat whose input and output are items, and which can be continued by its id.

Responses are kept in memory, unless `store` is false, up to a bound (`server.stored`). What `instructions` says holds
for one response.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from daguerre.decoding.options import DecodeOptions
from daguerre.decoding.result import Result
from daguerre.http.errors import ApiError, described
from daguerre.http.settings import Settings
from daguerre.models.tokenizer import Tokenizer
from daguerre.server.answers import extras_of, new_id, plain_usage, refuse_fields, usage_of
from daguerre.server.calls import FunctionCall, Said
from daguerre.server.frames import frame_of
from daguerre.server.logprobs import Scored, chat_logprobs
from daguerre.server.models import Served
from daguerre.server.protocol.chat import ChatBody
from daguerre.server.protocol.responses import NAMES, REFUSED, ResponseBody, chat_body, messages_of
from daguerre.server.stored import Item, ResponseStore
from daguerre.server.streams import DONE, event_stream, json_answer, result_of, sse
from daguerre.server.turns import ChoiceDelta, FinishedChoice, Turn, answers, begin_turn, num_tokens, pieces, stopping

router = APIRouter()
Json = dict[str, Any]


@router.post("/v1/responses", response_model=None)
async def respond(request: Request, body: ResponseBody) -> Response:
    """Answer the input."""
    refuse_fields(body, REFUSED)
    if body.daguerre.changeable:
        message = "responses are not changed while they run: use chat completions"
        raise ApiError(message, param="daguerre.changeable")
    store, owner = request.app.state.responses, request.state.owner
    items, chat = _asked(store, owner, body)
    served = await asyncio.to_thread(request.app.state.pool.get, body.model)
    turn = await asyncio.to_thread(_begin, served, chat, owner, request.app.state.settings)
    response = _response(body, served, turn.job.plan.decode)
    if body.stream:
        return event_stream(_events(turn, body, response, (store, owner, items)))
    result = await result_of(request, turn.job, stopping(turn))
    (answer,) = await asyncio.to_thread(answers, turn, result)
    response |= _ended(turn, answer.result, answer.finish, _output(turn, answer), answer.num_thought)
    if body.store:
        store.add(response, owner, items)
    return json_answer(response)


@router.post("/v1/responses/input_tokens", response_model=None)
async def input_tokens(request: Request, body: ResponseBody) -> Json:
    """How many tokens the prompt of a response has."""
    _, chat = _asked(request.app.state.responses, request.state.owner, body)
    served = await asyncio.to_thread(request.app.state.pool.get, body.model)
    return {"object": "response.input_tokens", "input_tokens": await asyncio.to_thread(num_tokens, served, chat)}


@router.get("/v1/responses/{key}", response_model=None)
async def stored(request: Request, key: str) -> Response:
    """A response that was stored."""
    return json_answer(dict(request.app.state.responses.get(key, request.state.owner).response))


@router.get("/v1/responses/{key}/input_items", response_model=None)
async def input_items(request: Request, key: str) -> Json:
    """The items that a response answers."""
    items = [dict(item) for item in request.app.state.responses.get(key, request.state.owner).items]
    ends = [items[0].get("id"), items[-1].get("id")] if items else [None, None]
    return {"object": "list", "data": items, "first_id": ends[0], "last_id": ends[1], "has_more": False}


@router.delete("/v1/responses/{key}", response_model=None)
async def forget(request: Request, key: str) -> Json:
    """Forget a response."""
    request.app.state.responses.delete(key, request.state.owner)
    return {"id": key, "object": "response", "deleted": True}


def _asked(store: ResponseStore, owner: str, body: ResponseBody) -> tuple[list[Item], ChatBody]:
    """All items that are answered, and the turn that they ask for."""
    before: list[Item] = []
    if body.previous_response_id is not None:
        before = store.get(body.previous_response_id, owner, "previous_response_id").history
    own = messages_of(body.items)
    first = [{"role": "developer", "content": body.instructions}] if body.instructions else []
    named = [{"id": new_id("msg_"), "type": "message", **item} for item in body.items]
    return [*before, *named], chat_body(body, [*first, *messages_of(before), *own])


def _begin(served: Served, chat: ChatBody, owner: str, settings: Settings) -> Turn:
    try:
        return begin_turn(served, chat, owner, settings, NAMES)
    except ApiError as error:
        error.param = NAMES.get(error.param or "", error.param)
        raise


def _response(body: ResponseBody, served: Served, decode: DecodeOptions) -> Json:
    """The response before it has any output."""
    given = body.model_dump(by_alias=True)
    extra = body.model_extra or {}
    return {
        "id": new_id("resp_"),
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": None,
        "model": served.name,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": extra.get("prompt_cache_key"),
        "reasoning": {"effort": None if body.reasoning is None else body.reasoning.effort, "summary": None},
        "safety_identifier": extra.get("safety_identifier"),
        "service_tier": "default",
        "store": body.store,
        "temperature": decode.temperature,
        "text": {"format": given["text"]["format"] or {"type": "text"}, "verbosity": "medium"},
        "tool_choice": body.tool_choice,
        "tools": given["tools"],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": decode.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": extra.get("user"),
        "metadata": body.metadata,
    }


def _ended(turn: Turn, result: Result, finish: str, output: list[Json], thought: int) -> Json:
    """The fields that an end changes."""
    whole = finish != "length"
    own: Json = {"ignored": turn.ignored} if turn.ignored else {}
    own |= extras_of(result, turn.body.daguerre.trace).get("daguerre", {})
    return {
        "status": "completed" if whole else "incomplete",
        "completed_at": int(time.time()) if whole else None,
        "incomplete_details": None if whole else {"reason": "max_output_tokens"},
        "output": output,
        "usage": _usage(usage_of([result], turn.job, turn.effort, thought)),
        **({"daguerre": own} if own else {}),
    }


def _usage(usage: Json) -> Json:
    """Usage as responses have it."""
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": usage["prompt_tokens_details"]["cached_tokens"]},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": usage["completion_tokens_details"]["reasoning_tokens"]},
        "total_tokens": usage["total_tokens"],
        **({"daguerre": usage["daguerre"]} if "daguerre" in usage else {}),
    }


def _output(turn: Turn, answer: FinishedChoice) -> list[Json]:
    """The items of an answer that is whole."""
    status = "incomplete" if answer.finish == "length" else "completed"
    out: list[Json] = [reasoning_item(new_id("rs_"), answer.thought)] if answer.thought else []
    if answer.text or not answer.calls:
        logprobs = logprobs_of(answer.tokens, turn.served.model.tokenizer)
        out.append(message_item(new_id("msg_"), [text_part(answer.text, logprobs)], status))
    return out + [call_item(new_id("fc_"), call, "completed") for call in answer.calls]


async def _events(
    turn: Turn, body: ResponseBody, response: Json, kept: tuple[ResponseStore, str, Sequence[Item]]
) -> AsyncIterator[bytes]:
    events = Events(turn.served.model.tokenizer)
    yield events.event("response.created", response=response)
    yield events.event("response.in_progress", response=response)
    waiting: list[Scored] = []
    try:
        async with aclosing(pieces(turn)) as source:  # type: ignore[type-var]
            async for piece in source:
                for event in _news(turn, piece, events, waiting):
                    yield event
                if piece.result is not None and piece.finish is not None:
                    response |= _ended(turn, piece.result, piece.finish, events.output, piece.thought)
        if body.store:
            store, owner, items = kept
            store.add(response, owner, items)
        yield events.event(f"response.{response['status']}", response=response)
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except Exception as error:
        _, described_error = described(error)
        failed = {"code": "server_error", "message": described_error["error"]["message"]}
        usage = _usage(plain_usage(turn.job.plan.num_prompt, 0))
        response |= {"status": "failed", "error": failed, "output": events.output, "usage": usage}
        yield events.event("response.failed", response=response)
    yield DONE


def _news(turn: Turn, piece: ChoiceDelta, events: Events, waiting: list[Scored]) -> Iterator[bytes]:
    """The events of a piece. waiting: tokens whose text is not out yet."""
    waiting += piece.tokens
    for said in piece.said:
        yield from events.said(said, waiting if said.text else ())
        if said.text:
            waiting.clear()
    if turn.body.daguerre.frames and piece.event is not None:
        frame = frame_of(turn.job.plan, piece.event)
        del frame["type"]
        yield events.event("response.diffusion_frame", **frame)
    if piece.result is not None:
        if waiting and not turn.tools:
            yield from events.said(Said(), waiting)
        yield from events.end("incomplete" if piece.finish == "length" else "completed")


def text_part(text: str, logprobs: Sequence[Json] = ()) -> Json:
    """A part of a message that is text."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def message_item(key: str, content: list[Json], status: str) -> Json:
    """A message of the assistant."""
    return {"type": "message", "id": key, "status": status, "role": "assistant", "content": content}


def call_item(key: str, call: FunctionCall, status: str) -> Json:
    """A call of a function."""
    fields = {"call_id": call.id, "name": call.name, "arguments": call.arguments}
    return {"type": "function_call", "id": key, **fields, "status": status}


def reasoning_item(key: str, text: str) -> Json:
    """What was thought before the answer."""
    return {"type": "reasoning", "id": key, "summary": [], "content": [{"type": "reasoning_text", "text": text}]}


def logprobs_of(tokens: Sequence[Scored], tokenizer: Tokenizer) -> list[Json]:
    """The log-probabilities of tokens, as responses have them."""
    content: list[Json] = chat_logprobs(tokens, tokenizer)["content"]
    return content


class Events:
    """Writes the events of a stream, and has the items so far in `output`. They are in the order of OpenAI's API:

    response.created, response.in_progress
    for the text      response.output_item.added, response.content_part.added, response.output_text.delta ...,
                      response.output_text.done, response.content_part.done, response.output_item.done
    for a thought     response.output_item.added, response.reasoning_text.delta ..., response.reasoning_text.done,
                      response.output_item.done
    for each call     response.output_item.added, response.function_call_arguments.delta ...,
                      response.function_call_arguments.done, response.output_item.done
    response.completed, response.incomplete or response.failed
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.output: list[Json] = []
        self._tokenizer, self._number = tokenizer, 0
        self._text, self._logprobs, self._arguments = "", list[Json](), ""
        self._open: str | None = None
        self._call = FunctionCall(0, "", "")

    def event(self, kind: str, **fields: Any) -> bytes:
        """One event, with its number."""
        self._number += 1
        return sse({"type": kind, "sequence_number": self._number - 1, **fields}, kind)

    def said(self, said: Said, tokens: Sequence[Scored] = ()) -> Iterator[bytes]:
        """The events of a piece of news; `tokens` are those of its text."""
        if said.call is not None:
            yield from self.close("completed")
            yield from self._begin_call(said.call)
        elif said.arguments:
            self._arguments += said.arguments
            yield self._event("function_call_arguments.delta", delta=said.arguments)
        elif said.thought:
            if self._open != "thought":
                yield from self._begin_thought()
            self._text += said.thought
            yield self._event("reasoning_text.delta", content_index=0, delta=said.thought)
        elif said.text or tokens:
            if self._open != "message":
                yield from self.close("completed")
                yield from self._begin_message()
            logprobs = logprobs_of(tokens, self._tokenizer)
            self._text, self._logprobs = self._text + said.text, self._logprobs + logprobs
            yield self._event("output_text.delta", content_index=0, delta=said.text, logprobs=logprobs)

    def end(self, status: str) -> Iterator[bytes]:
        """The events that end the last item; an answer of nothing is an empty message."""
        if not self.output:
            yield from self._begin_message()
        yield from self.close(status)

    def close(self, status: str) -> Iterator[bytes]:
        """The events that end the item that is open."""
        if self._open == "message":
            part = text_part(self._text, self._logprobs)
            yield self._event("output_text.done", content_index=0, text=self._text, logprobs=self._logprobs)
            yield self._event("content_part.done", content_index=0, part=part)
            self.output[-1] = message_item(self.output[-1]["id"], [part], status)
        elif self._open == "thought":
            yield self._event("reasoning_text.done", content_index=0, text=self._text)
            self.output[-1] = reasoning_item(self.output[-1]["id"], self._text)
        elif self._open == "call":
            whole = FunctionCall(0, self._call.id, self._call.name, self._arguments)
            yield self._event("function_call_arguments.done", name=whole.name, arguments=whole.arguments)
            self.output[-1] = call_item(self.output[-1]["id"], whole, status)
        if self._open is not None:
            self._open = None
            yield self.event("response.output_item.done", output_index=len(self.output) - 1, item=self.output[-1])

    def _begin_message(self) -> Iterator[bytes]:
        self._open, self._text, self._logprobs = "message", "", []
        yield self._added(message_item(new_id("msg_"), [], "in_progress"))
        yield self._event("content_part.added", content_index=0, part=text_part(""))

    def _begin_thought(self) -> Iterator[bytes]:
        self._open, self._text = "thought", ""
        yield self._added(reasoning_item(new_id("rs_"), ""))

    def _begin_call(self, call: FunctionCall) -> Iterator[bytes]:
        self._open, self._call, self._arguments = "call", call, ""
        yield self._added(call_item(new_id("fc_"), call, "in_progress"))

    def _added(self, item: Json) -> bytes:
        self.output.append(item)
        return self.event("response.output_item.added", output_index=len(self.output) - 1, item=item)

    def _event(self, kind: str, **fields: Any) -> bytes:
        """An event of the item that is open."""
        place = {"item_id": self.output[-1]["id"], "output_index": len(self.output) - 1}
        return self.event(f"response.{kind}", **place, **fields)
