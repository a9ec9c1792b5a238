"""OpenAI's /v1/chat/completions, with Mercury's fields.

A model with a chat template gets its template; a base model continues a plain transcript (`server.prompts`). A stream
has text that never changes. Drafts come only to those who ask: as frames beside the text (`daguerre.frames`), or as
Mercury's snapshots in its place (`diffusing`). A token's log-probability is that of the forward that committed it
(`server.logprobs`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

import daguerre
from daguerre.decoding.result import Result
from daguerre.http.errors import ApiError
from daguerre.server.answers import extras_of, head_of, plain_usage
from daguerre.server.calls import call_json, delta_of
from daguerre.server.frames import frame_of, refuse_beside_snapshots, snapshots, summary_of
from daguerre.server.logprobs import chat_logprobs
from daguerre.server.protocol.chat import ChatBody
from daguerre.server.streams import Chunks, event_stream, guarded, json_answer, result_of
from daguerre.server.turns import ChoiceDelta, FinishedChoice, Turn, answers, begin_turn, pieces, stopping
from daguerre.server.watching import Watched

router = APIRouter()


@router.post("/v1/chat/completions", response_model=None)
async def chat(request: Request, body: ChatBody) -> Response:
    """Answer a conversation."""
    if body.store:
        raise ApiError("completions are not stored: leave out store", param="store")
    if body.diffusing:
        refuse_beside_snapshots(body)
    state = request.app.state
    served = await asyncio.to_thread(state.pool.get, body.model)
    turn = await asyncio.to_thread(begin_turn, served, body, request.state.owner, state.settings)
    streams = body.stream or body.diffusing
    head = head_of(f"chat.completion{'.chunk' if streams else ''}", "chatcmpl-", served.name)
    head["system_fingerprint"] = f"daguerre-{daguerre.__version__}"
    if body.diffusing:
        return event_stream(guarded(snapshots(turn, head)))
    if body.stream:
        own = _own(turn)
        if body.daguerre.changeable:
            watched = request.app.state.requests.add(Watched(turn.job, served, "generate", True))
            own["request"] = watched.id
        return event_stream(guarded(_chunks(turn, head, own)))
    result = await result_of(request, turn.job, stopping(turn))
    whole = await asyncio.to_thread(answers, turn, result)
    choices = [_choice(turn, index, answer) for index, answer in enumerate(whole)]
    more = {"daguerre": _own(turn)} if _own(turn) else {}
    usage = turn.usage(
        {index: answer.result for index, answer in enumerate(whole)}, sum(answer.num_thought for answer in whole)
    )
    return json_answer({**head, "choices": choices, "usage": usage, **more, **summary_of(body)})


def _own(turn: Turn) -> dict[str, Any]:
    """The object `daguerre` of an answer."""
    return {"ignored": turn.ignored} if turn.ignored else {}


def _choice(turn: Turn, index: int, answer: FinishedChoice) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
    if answer.thought:
        message["reasoning_content"] = answer.thought
    if answer.calls:
        message["content"] = answer.text or None
        message["tool_calls"] = [call_json(call) for call in answer.calls]
    tokenizer = turn.served.model.tokenizer
    return {
        "index": index,
        "message": message,
        "logprobs": chat_logprobs(answer.tokens, tokenizer) if turn.body.logprobs else None,
        "finish_reason": answer.finish,
        **extras_of(answer.result, turn.body.daguerre.trace),
    }


async def _chunks(turn: Turn, head: dict[str, Any], own: dict[str, Any]) -> AsyncIterator[bytes]:
    writer, results = Chunks(head, turn.body.stream_options), dict[int, Result]()
    counts, thought, calls = [0] * turn.body.n, 0, [0] * turn.body.n

    def chunk(choice: dict[str, Any], **more: Any) -> bytes:
        usage = plain_usage(turn.job.plan.num_prompt, sum(counts)) if writer.continuous else None
        return writer.chunk(choice, usage=usage, **more)

    for index in range(turn.body.n):
        first = {"daguerre": own} if own else {}
        yield chunk(_part(index, {"role": "assistant", "content": "", "refusal": None}), **first)
    async with aclosing(pieces(turn)) as source:  # type: ignore[type-var]
        async for piece in source:
            counts[piece.index] = piece.count
            for part in _parts(turn, piece, calls):
                yield chunk(part)
            if turn.body.daguerre.frames and piece.event is not None:
                yield chunk(_part(piece.index, {}), **frame_of(turn.job.plan, piece.event))
            if piece.result is not None:
                results[piece.index], thought = piece.result, thought + piece.thought
                extras = extras_of(piece.result, turn.body.daguerre.trace)
                yield chunk({**_part(piece.index, {}, finish=piece.finish), **extras}, **summary_of(turn.body))
    yield writer.end(lambda: turn.usage(results, thought))


def _parts(turn: Turn, piece: ChoiceDelta, calls: list[int]) -> list[dict[str, Any]]:
    """The choices of the chunks that a piece makes. calls: how many each choice has begun."""
    parts = []
    for said in piece.said:
        calls[piece.index] += said.call is not None
        parts.append(_part(piece.index, delta_of(said, calls[piece.index] - 1)))
    if piece.tokens:
        parts = parts or [_part(piece.index, {"content": ""})]
        parts[0]["logprobs"] = chat_logprobs(piece.tokens, turn.served.model.tokenizer)
    return parts


def _part(index: int, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
