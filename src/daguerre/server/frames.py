"""Drafts of an answer for those who ask: frames beside the text, and Mercury's snapshots in its place."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from daguerre.decoding.plan import Plan
from daguerre.decoding.result import Result, StreamEvent
from daguerre.http.errors import ApiError
from daguerre.sampling.constraints.tools import OPENING
from daguerre.server.calls import Said, delta_of
from daguerre.server.protocol.chat import ChatBody
from daguerre.server.streams import Chunks
from daguerre.server.turns import ChoiceDelta, Turn, pieces


def summary_of(body: ChatBody) -> dict[str, Any]:
    """Mercury's summary of reasoning for those who ask; none is made."""
    return {"reasoning_summary": {"content": None, "status": "unavailable"}} if body.reasoning_summary else {}


def refuse_beside_snapshots(body: ChatBody) -> None:
    """ApiError for what snapshots have no place for."""
    options, own = body.stream_options, body.daguerre
    continuous = options is not None and options.continuous_usage_stats
    if own.trace or own.explain or own.changeable or body.logprobs or continuous:
        what = "trace, explain, changeable, logprobs and continuous_usage_stats"
        message = f"snapshots have no place for {what}: leave out diffusing, or these"
        raise ApiError(message, param="diffusing", code="unsupported")


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
    """A stream of drafts, each the whole text: content replaces what came before. Calls of functions and thoughts are
    appended, as in any stream, each beside the draft. The last snapshot of a choice has progress 1 and the reason for
    the end; a closing chunk without content follows.
    """
    writer, results, thought = Chunks(head, turn.body.stream_options), dict[int, Result](), 0
    said, calls = [list[Said]() for _ in range(turn.body.n)], [0] * turn.body.n

    def chunk(index: int, delta: dict[str, Any], finish: str | None, **more: Any) -> bytes:
        return writer.chunk({"index": index, "delta": delta, "finish_reason": finish}, **more)

    async with aclosing(pieces(turn)) as source:  # type: ignore[type-var]
        async for piece in source:
            index = piece.index
            said[index] += piece.said
            delta = {"role": "assistant", "content": _snapshot(turn, piece, said[index])}
            thoughts, appended = "".join(one.thought for one in piece.said), list[dict[str, Any]]()
            for one in piece.said:
                calls[index] += one.call is not None
                appended += [delta_of(one, calls[index] - 1)] if one.call is not None or one.arguments else []
            if thoughts:
                appended.insert(0, {"tool_calls": [], "reasoning_content": thoughts})
            last = piece.result is not None
            if piece.result is not None:
                results[index], thought = piece.result, thought + piece.thought
            meta = {"diffusion_content": True, "diffusion_progress": 1.0 if last else 0.0}
            more = {"diffusion_meta": meta, "reasoning_summary": None}
            for news in appended:
                yield chunk(index, {**delta, **news}, None, **more)
            more |= summary_of(turn.body) if last else {}
            if last or not appended:
                yield chunk(index, {**delta, "tool_calls": []}, piece.finish, **more)
            if last:
                yield chunk(index, {}, piece.finish)
    yield writer.end(lambda: turn.usage(results, thought))


def _snapshot(turn: Turn, piece: ChoiceDelta, said: list[Said]) -> str:
    """The text of the draft, up to the first sign of a call and without thoughts; behind the beginning of a call, where
    one is forced, and at the end: the final text.
    """
    forced = turn.body.tool_choice not in (None, "auto", "none")
    if piece.event is not None and not forced and not any(one.call for one in said):
        draft, signs = piece.event.text, (OPENING,) if turn.form is None else turn.form.call_signs
        ends = [draft.find(sign) for sign in signs if turn.tools and sign in draft]
        said = turn.reader().feed(draft[: min(ends, default=len(draft))])
    return "".join(one.text for one in said)
