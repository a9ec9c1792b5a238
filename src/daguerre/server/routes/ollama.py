"""Ollama's /api/chat and /api/generate: lines of JSON, of which the last has counts, and times in nanoseconds.

A conversation is a turn of chat; a prompt is one, too, where the model has a chat template. With `raw`, without a
template, or before a `suffix`, it is a text to continue or a gap, as an editor asks for one (`server.gaps`).
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import orjson
from fastapi import APIRouter, Request
from fastapi.responses import Response

from daguerre.decoding.result import Result
from daguerre.engine.job import Job
from daguerre.http.errors import ApiError
from daguerre.http.settings import Settings
from daguerre.model import CHAT_TOKENS
from daguerre.server.answers import extras_of, finish_of, naming, refuse_fields
from daguerre.server.bounds import check_tokens
from daguerre.server.calls import FunctionCall, Said, joined
from daguerre.server.edits import can_converse
from daguerre.server.gaps import EditorGap, GapJob, begin_gap
from daguerre.server.models import ModelPool, Served
from daguerre.server.prompts import can_think
from daguerre.server.protocol.common import decode_options
from daguerre.server.protocol.ollama import (
    NAMES,
    REFUSED,
    OllamaBody,
    OllamaChatBody,
    OllamaGenerateBody,
    chat_body,
    sampling_of,
)
from daguerre.server.restated import Restating
from daguerre.server.streams import ClosedStream, guarded, json_answer, result_of
from daguerre.server.turns import Turn, answers, begin_turn, num_tokens, pieces, stopping

router = APIRouter()
LATEST = ":latest"
"""The tag of a name without one, as Ollama's clients write it."""
LINES = "application/x-ndjson"


@dataclass(frozen=True)
class OllamaPart:
    """What is new of an answer; result and finish: in the last part."""

    text: str = ""
    thought: str = ""
    calls: Sequence[FunctionCall] = ()
    result: Result | None = None
    finish: str = ""


@dataclass(eq=False)
class OllamaAnswer:
    """An answer under way.

    name           of the model, as the client wrote it
    chats          whether it is a message, or the text of a completion
    ignored        what was asked for and changes nothing
    began, loaded  seconds on the clock `time.perf_counter`: when the request was there, and when its model was
    """

    name: str
    chats: bool
    began: float
    loaded: float
    ignored: list[str] = field(default_factory=list)

    def line(self, part: OllamaPart, **more: Any) -> dict[str, Any]:
        """An object of the answer; more: what the last one has beside the text."""
        thought = {"thinking": part.thought} if part.thought else {}
        if self.chats:
            calls = {"tool_calls": [_call(call) for call in part.calls]} if part.calls else {}
            said: dict[str, Any] = {"message": {"role": "assistant", "content": part.text, **thought, **calls}}
        else:
            said = {"response": part.text, **thought}
        return {"model": self.name, "created_at": stamped(time.time()), **said, "done": False, **more}

    def ending(self, job: Job, part: OllamaPart) -> dict[str, Any]:
        """The fields of the last object. The prompt's time is the one from the request's first step until tokens were
        final, and the text's the one after it; of a text that came at once, all of it.
        """
        assert job.finished is not None and part.result is not None
        started = job.submitted if job.started is None else job.started
        first = started if job.first in (None, job.finished) else job.first
        own = extras_of(part.result, trace=False).get("daguerre", {})
        own |= {"ignored": self.ignored} if self.ignored else {}
        return {
            "done": True,
            "done_reason": "length" if part.finish == "length" else "stop",
            **self.times(),
            "prompt_eval_count": job.plan.num_prompt,
            "prompt_eval_duration": nanoseconds(first - started),
            "eval_count": part.result.usage.completion_tokens,
            "eval_duration": nanoseconds(job.finished - first),
            **({"daguerre": own} if own else {}),
        }

    def times(self) -> dict[str, int]:
        """How long the request took until now, and its model to be there."""
        now = time.perf_counter()
        return {
            "total_duration": nanoseconds(now - self.began),
            "load_duration": nanoseconds(self.loaded - self.began),
        }


def nanoseconds(seconds: float) -> int:
    """At least 1: clients divide by it."""
    return max(1, round(seconds * 1e9))


def stamped(seconds: float) -> str:
    """A time since 1970 as RFC 3339 has it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


async def begun(request: Request, name: str | None, chats: bool = False) -> tuple[Served, OllamaAnswer]:
    """A model by a name that may end in ":latest", and what is written of it. See `ModelPool.get`."""
    pool: ModelPool = request.app.state.pool
    began = time.perf_counter()
    served = await asyncio.to_thread(pool.get, known_name(pool, name))
    return served, OllamaAnswer(name or served.name, chats, began, time.perf_counter())


def known_name(pool: ModelPool, name: str | None) -> str | None:
    """A model's name in the pool, which may have no tag."""
    return name if name is None or name in pool.names else name.removesuffix(LATEST)


@router.post("/api/chat", response_model=None)
async def chat(request: Request, body: OllamaChatBody) -> Response:
    """Answer a conversation."""
    served, answer = await begun(request, body.model, chats=True)
    if not body.messages:
        return _loaded(answer, body)
    return await _answered(request, served, answer, body)


@router.post("/api/generate", response_model=None)
async def generate(request: Request, body: OllamaGenerateBody) -> Response:
    """Answer a prompt, continue a text, or fill the gap before a suffix."""
    served, answer = await begun(request, body.model)
    if not body.prompt and not body.suffix:
        return _loaded(answer, body)
    return await _answered(request, served, answer, body)


def _loaded(answer: OllamaAnswer, body: OllamaBody) -> Response:
    """The answer to a body without a text: the model is there."""
    refuse_fields(body, REFUSED)
    if body.unloads:
        message = "models are not unloaded by requests, but where others need their memory (serve --memory)"
        raise ApiError(f"{message}: leave out keep_alive", param="keep_alive", code="unsupported_value")
    whole = answer.line(OllamaPart(), done=True, done_reason="load", **answer.times())
    return _lines(_each(whole)) if body.stream else json_answer(whole)


async def _each(*items: dict[str, Any]) -> AsyncIterator[bytes]:
    for item in items:
        yield line_of(item)


async def _answered(request: Request, served: Served, answer: OllamaAnswer, body: OllamaBody) -> Response:
    owner, settings = request.state.owner, request.app.state.settings
    asked = await asyncio.to_thread(_begin, served, body, owner, settings)
    constraint = asked.job.plan.constraint
    answer.ignored = [*body.ignored, *(() if constraint is None else constraint.ignored)]
    if body.stream:
        return _lines(_stream(answer, asked))
    if isinstance(asked, Turn):
        result = await result_of(request, asked.job, stopping(asked))
        (one,) = await asyncio.to_thread(answers, asked, result)
        part = OllamaPart(one.text, one.thought, one.calls, one.result, one.finish)
    else:
        cut = asked.result(await result_of(request, asked.job))
        part = OllamaPart(cut.text, result=cut, finish=finish_of(cut))
    return json_answer(answer.line(part, **answer.ending(asked.job, part)))


async def _stream(answer: OllamaAnswer, asked: Turn | GapJob) -> AsyncIterator[bytes]:
    async with aclosing(_of_turn(asked) if isinstance(asked, Turn) else _of_gap(asked)) as source:  # type: ignore[type-var]
        async for part in source:
            if part.text or part.thought or part.calls:
                yield line_of(answer.line(part))
            if part.result is not None:
                yield line_of(answer.line(OllamaPart(), **answer.ending(asked.job, part)))


async def _of_turn(turn: Turn) -> AsyncIterator[OllamaPart]:
    """The parts of a turn. A call comes as a whole, once all of it is there."""
    calls = list[Said]()
    async with aclosing(pieces(turn)) as source:  # type: ignore[type-var]
        async for piece in source:
            calls += [one for one in piece.said if one.call is not None or one.arguments]
            begun_at = max((at for at, one in enumerate(calls) if one.call is not None), default=0)
            end = len(calls) if piece.result is not None else begun_at
            whole, calls = joined(calls[:end])[1], calls[end:]
            text = "".join(one.text for one in piece.said)
            thought = "".join(one.thought for one in piece.said)
            yield OllamaPart(text, thought, whole, piece.result, piece.finish or "")


async def _of_gap(gap: GapJob) -> AsyncIterator[OllamaPart]:
    async with aclosing(gap.deltas()) as source:  # type: ignore[type-var]
        async for delta in source:
            yield OllamaPart(
                delta.text, result=delta.result, finish="" if delta.result is None else finish_of(delta.result)
            )


def _begin(served: Served, body: OllamaBody, owner: str, settings: Settings) -> Turn | GapJob:
    """Begin a request. Compiles constraints: not for the event loop."""
    given = {f"options.{name}": value for name, value in (body.options.model_extra or {}).items()}
    refuse_fields({**dict(body), **(body.model_extra or {}), **given}, REFUSED)
    for name in ("changeable", "frames", "trace", "explain"):
        if getattr(body.daguerre, name):
            message = f"this API has no place for {name}: use /v1/chat/completions"
            raise ApiError(message, param=f"daguerre.{name}", code="unsupported")
    if body.think and not can_think(served.model):
        raise ApiError("this model does not think apart from its answer: leave out think", param="think")
    check_tokens("options.num_predict", body.options.num_predict, settings.max_tokens)
    plain = isinstance(body, OllamaGenerateBody) and (body.suffix or body.raw or not can_converse(served.model))
    return _gap(served, body, owner, settings) if plain else _turn(served, body, owner, settings)


def _turn(served: Served, body: OllamaBody, owner: str, settings: Settings) -> Turn:
    asked, chat = body.options.num_predict, chat_body(body)
    if asked is None:
        return begin_turn(served, chat, owner, settings, NAMES)
    config = served.model.config
    positions = min(config.max_positions, settings.max_context or config.max_positions)
    room = max(1, positions - len(config.first) - num_tokens(served, chat))
    most = min(asked, room) if asked > 0 else min(room, settings.max_tokens or room)
    return begin_turn(served, chat.model_copy(update={"max_tokens": most}), owner, settings, NAMES)


def _gap(served: Served, body: OllamaBody, owner: str, settings: Settings) -> GapJob:
    assert isinstance(body, OllamaGenerateBody)
    if body.system:
        message = "this is a text to continue, without a template: put the system's text into the prompt"
        raise ApiError(message, param="system", code="unsupported")
    asked = body.options.num_predict
    with naming(NAMES):
        options = decode_options(sampling_of(body), served) | body.daguerre.running() | body.shape()
        options |= {"owner": owner} | ({"stop": body.options.stops} if body.options.stops else {})
        limit = asked if asked is not None and asked > 0 else None
        return begin_gap(served, EditorGap(body.prompt, body.suffix or "", limit, CHAT_TOKENS, options), settings)


def _call(call: FunctionCall) -> dict[str, Any]:
    """A call of a tool, whose arguments are an object: an empty one where a deadline cut it."""
    try:
        arguments = json.loads(call.arguments or "{}")
    except ValueError:
        arguments = {}
    return {"id": call.id, "function": {"index": call.index, "name": call.name, "arguments": arguments}}


def line_of(item: Any) -> bytes:
    """A line of an answer."""
    return orjson.dumps(item) + b"\n"


def _lines(items: AsyncIterator[bytes]) -> Response:
    return line_stream(guarded(items, lambda error: [line_of(error_line(error))]))


def line_stream(items: AsyncIterator[bytes]) -> Response:
    """A response of lines, none of which a proxy holds back."""
    return ClosedStream(items, media_type=LINES, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})


def error_line(body: Any, status: int | None = None, request_id: str | None = None) -> dict[str, Any]:
    """OpenAI's error object as Ollama's, whose error is a text; its field and code stand beside it."""
    error = body["error"]
    more = {name: error[name] for name in ("param", "code") if error.get(name) is not None}
    return {"error": error["message"], **more}


RESTATED = Restating(error_line)
