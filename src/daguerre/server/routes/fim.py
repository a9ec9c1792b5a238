"""Mercury's route for gaps: fill in the middle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from daguerre.decoding.result import Result
from daguerre.http.errors import ApiError
from daguerre.http.settings import Settings
from daguerre.server.answers import extras_of, finish_of, head_of, naming, refuse_fields, usage_of
from daguerre.server.gaps import EditorGap, GapJob, begin_gap
from daguerre.server.models import Served
from daguerre.server.protocol.common import decode_options
from daguerre.server.protocol.fim import FimBody
from daguerre.server.streams import DONE, event_stream, guarded, result_of, sse

router = APIRouter()
MAX_TOKENS = 512
"""Mercury's default, of completions."""
NO_SUFFIX = "<|endoftext|>"
"""What some editors send where nothing follows."""


@router.post("/v1/fim/completions", response_model=None)
async def fim(request: Request, body: FimBody) -> Response | dict[str, Any]:
    """Fill the gap between a prompt and a suffix, or continue the prompt."""
    served = await asyncio.to_thread(request.app.state.pool.get, body.model)
    gap = await asyncio.to_thread(begin, served, body, request.state.owner, request.app.state.settings)
    head = head_of("text_completion", "cmpl-", served.name)
    if body.stream or body.diffusing:
        return event_stream(guarded(_chunks(gap, body, head), lambda error: [sse(error)]))
    result, trace = gap.result(await result_of(request, gap.job)), body.daguerre.trace
    choices = [{**_choice(index, one.text, one), **extras_of(one, trace)} for index, one in enumerate(result.choices)]
    usage = usage_of(result.choices, gap.job)
    return {**head, "choices": choices, "usage": usage, "daguerre": {"shown": gap.shown()}}


def begin(served: Served, body: FimBody, owner: str, settings: Settings) -> GapJob:
    """The job of a request."""
    refuse_fields(body)
    if body.daguerre.changeable or body.daguerre.frames or body.daguerre.explain:
        message = (
            "changeable, frames and explain are for /v1/completions and chat: leave them out; diffusing has drafts"
        )
        raise ApiError(message, param="daguerre", code="unsupported")
    if body.stream_options is not None and body.stream_options.continuous_usage_stats:
        message = "continuous usage is counted by /v1/completions: leave it out, or set include_usage"
        raise ApiError(message, param="stream_options.continuous_usage_stats", code="unsupported")
    after = "" if body.suffix in (None, NO_SUFFIX) else body.suffix
    assert after is not None
    with naming():
        options = decode_options(body, served) | {"n": body.n} | body.daguerre.running() | {"owner": owner}
        return begin_gap(served, EditorGap(body.prompt, after, body.max_tokens, MAX_TOKENS, options), settings)


async def _chunks(gap: GapJob, body: FimBody, head: dict[str, Any]) -> AsyncIterator[bytes]:
    with_usage = body.stream_options is not None and body.stream_options.include_usage
    none = {"usage": None} if with_usage else {}
    results: list[Result] = []
    async for delta in gap.deltas(every=body.diffusing):
        if body.diffusing and delta.event is not None:
            yield sse({**head, **none, "choices": [_choice(delta.index, delta.event.text)], **_frame(0.0)})
        if delta.result is not None:
            results.append(delta.result)
            text = delta.result.text if body.diffusing else delta.text
            more = _frame(1.0) if body.diffusing else {}
            extra = {**more, **none, "daguerre": {"shown": gap.shown()}}
            choice = _choice(delta.index, text, delta.result) | extras_of(delta.result, body.daguerre.trace)
            yield sse({**head, "choices": [choice], **extra})
        elif delta.text and not body.diffusing:
            yield sse({**head, **none, "choices": [_choice(delta.index, delta.text)]})
    if with_usage:
        yield sse({**head, "choices": [], "usage": usage_of(results, gap.job)})
    yield DONE


def _choice(index: int, text: str, result: Result | None = None) -> dict[str, Any]:
    return {
        "index": index,
        "text": text,
        "logprobs": None,
        "finish_reason": None if result is None else finish_of(result),
    }


def _frame(progress: float) -> dict[str, Any]:
    return {"diffusion_meta": {"diffusion_content": True, "diffusion_progress": progress}}
