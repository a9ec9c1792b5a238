"""Drafts of an answer for those who ask: frames beside the text, and Mercury's snapshots in its place."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from daguerre.decoding.plan import Plan
from daguerre.decoding.result import StreamEvent
from daguerre.server.answers import usage_of
from daguerre.server.calls import Call, Said
from daguerre.server.streams import DONE, sse
from daguerre.server.turns import Piece, Turn, pieces


def frame_of(plan: Plan, event: StreamEvent) -> dict[str, Any]:
    """The fields of a chunk that is a frame: the whole draft, with "░" at open positions; the forward, from 0; the
    span that it worked on, from 0, and how many spans the text has at most.
    """
    assert event.step is not None
    canvas = event.step.canvas
    span, spans = canvas.span, plan.spans(canvas)
    start = 0 if span is None else span[0]
    block = max((number for number, (first, _) in enumerate(spans) if first <= start), default=0)
    frame = {"type": "diffusion_frame", "block": block, "step": event.step.step, "total": len(spans)}
    shown, committed = plan.plain(event.text), plan.plain(event.committed)
    return {**frame, "text": shown, "committed": len(committed)}


async def snapshots(turn: Turn, head: dict[str, Any]) -> AsyncIterator[bytes]:
    """A stream of drafts, each the whole text: content replaces what came before. Calls of functions are appended, as
    in any stream, and the text beside them is the final part of it. The last snapshot of a choice has progress 1 and
    the reason for the end; a closing chunk without content follows.
    """
    options, results = turn.body.stream_options, {}
    with_usage = options is not None and options.include_usage
    said: list[list[Said]] = [[] for _ in range(turn.body.n)]

    def chunk(index: int, delta: dict[str, Any], finish: str | None, **more: Any) -> bytes:
        choice = {"index": index, "delta": delta, "finish_reason": finish}
        return sse({**head, "choices": [choice], **({"usage": None} if with_usage else {}), **more})

    async with aclosing(pieces(turn)) as source:  # type: ignore[type-var]
        async for piece in source:
            index, before = piece.index, len(said[piece.index])
            said[index] += piece.said
            delta = {"role": "assistant", "content": _snapshot(turn, piece, said[index])}
            calls = _calls(said[index], before)
            last = piece.result is not None
            if piece.result is not None:
                results[index] = piece.result
            meta = {"diffusion_content": True, "diffusion_progress": 1.0 if last else 0.0}
            more = {"diffusion_meta": meta, "reasoning_summary": None}
            for call in calls:
                yield chunk(index, {**delta, "tool_calls": [call]}, None, **more)
            if last or not calls:
                yield chunk(index, {**delta, "tool_calls": []}, piece.finish, **more)
            if last:
                yield chunk(index, {}, piece.finish)
    if with_usage:
        each = [results[index] for index in range(turn.body.n)]
        yield sse({**head, "choices": [], "usage": usage_of(each, turn.job, turn.effort)})
    yield DONE


def _snapshot(turn: Turn, piece: Piece, said: list[Said]) -> str:
    """The draft; where calls or stop strings are read out of the text, and at the end, the final part of it."""
    if piece.event is not None and not turn.tools and not turn.stops and turn.thinks is None:
        text = turn.job.plan.plain(piece.event.text)
        return text.lstrip(" ") if turn.strip else text
    return "".join(one.text for one in said)


def _calls(said: list[Said], first: int) -> list[dict[str, Any]]:
    """The news of calls from number `first` on, as OpenAI's deltas."""
    out: list[dict[str, Any]] = []
    number = sum(one.call is not None for one in said[:first]) - 1
    for one in said[first:]:
        if one.call is not None:
            number += 1
            out.append({"index": number, "id": one.call.id, "type": "function", "function": _begun(one.call)})
        elif one.arguments:
            out.append({"index": number, "type": "function", "function": {"arguments": one.arguments}})
    return out


def _begun(call: Call) -> dict[str, Any]:
    return {"name": call.name, "arguments": ""}
