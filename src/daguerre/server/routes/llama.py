"""llama.cpp's own routes, so that plugins of editors work: /infill, /completion, and what they ask about a server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

import daguerre
from daguerre.decoding.result import Result
from daguerre.http.errors import ApiError
from daguerre.http.settings import Settings
from daguerre.server.answers import extras_of, naming, refuse_fields, written
from daguerre.server.gaps import EditorGap, GapJob, begin_gap
from daguerre.server.models import Served
from daguerre.server.protocol.common import OWN_FIELDS, decode_options
from daguerre.server.protocol.llama import CompletionBody, InfillBody
from daguerre.server.streams import event_stream, guarded, result_of, sse

router = APIRouter()
MAX_TOKENS = 128
"""New tokens of a completion without a limit."""
NAMES = {"max_tokens": "n_predict", "suffix": "input_suffix", "timeout": "t_max_predict_ms"}
"""What options of decoding are called in these bodies."""


@router.post("/infill", response_model=None)
async def infill(request: Request, body: InfillBody) -> Response:
    """Fill the gap between two texts, or continue the first."""
    return await _serve(request, body)


@router.post("/completion", response_model=None)
@router.post("/completions", response_model=None)
async def completion(request: Request, body: CompletionBody) -> Response:
    """Continue a text, of which the last lines are shown."""
    return await _serve(request, body)


async def _serve(request: Request, body: CompletionBody) -> Response:
    served = await asyncio.to_thread(request.app.state.pool.get, body.model)
    if body.asked == 0:  # plugins send their snippets ahead; there is nothing to keep of them
        return JSONResponse(_chosen(_nothing(served, body), body))
    gap = await asyncio.to_thread(_begin, served, body, request.state.owner, request.app.state.settings)
    if body.stream:
        return event_stream(guarded(_chunks(served, gap, body)))
    reading = _end_by_lines(gap, body.line_seconds) if _by_lines(served) else None
    result = gap.result(await result_of(request, gap.job, reading))
    return JSONResponse(_chosen(_whole(served, gap, result, body), body))


def _begin(served: Served, body: CompletionBody, owner: str, settings: Settings) -> GapJob:
    """The job of a request."""
    own = body.daguerre
    refuse_fields(body, OWN_FIELDS)
    if own.changeable or own.frames or own.trace or own.explain:
        message = "changeable, frames, trace and explain are for /v1/completions and chat: leave them out"
        raise ApiError(message, param="daguerre", code="unsupported")
    before, after, extra = body.prompt, "", None
    if isinstance(body, InfillBody):
        before, after = body.input_prefix + body.prompt, body.input_suffix
        extra = tuple((one.filename or "tmp", one.text) for one in body.input_extra)
    sampling = body.sampling()
    with naming(NAMES):
        options = decode_options(sampling, served) | own.running() | {"owner": owner}
        options |= {"timeout": body.timeout(settings.timeout, _by_lines(served)), "stop": body.stops}
        gap = EditorGap(before, after, body.asked, MAX_TOKENS, options, extra, body.n_indent)
        return begin_gap(served, gap, settings)


def _by_lines(served: Served) -> bool:
    """Whether a model writes from the left, line by line."""
    config = served.model.config
    return config.mask_id is None and config.process == "absorbing"


async def _end_by_lines(gap: GapJob, seconds: float) -> None:
    """End a text once it has a line's end, and it is so many seconds after its first token."""
    async for event in gap.job.stream(every=False):
        _end_late(gap, seconds, event.text)


def _end_late(gap: GapJob, seconds: float, text: str) -> None:
    """End a text that has a line's end, if it is so many seconds after its first token."""
    first = gap.job.first
    if "\n" in text and first is not None and time.perf_counter() > first + seconds and not gap.job.done:
        gap.job.stop(0)


async def _chunks(served: Served, gap: GapJob, body: CompletionBody) -> AsyncIterator[bytes]:
    part = {"index": 0, "id_slot": max(0, body.id_slot), "tokens": [], "stop": False}
    async with aclosing(gap.deltas()) as source:  # type: ignore[type-var]
        async for delta in source:
            if delta.event is not None and _by_lines(served):
                _end_late(gap, body.line_seconds, delta.event.text)
            if delta.text:
                yield sse({**part, "content": delta.text, "tokens_evaluated": gap.job.plan.num_prompt})
            if delta.result is not None:
                whole = await asyncio.to_thread(_whole, served, gap, delta.result, body)
                yield sse({**_chosen({**whole, "content": ""}, body), "stop": True})


def _whole(served: Served, gap: GapJob, result: Result, body: CompletionBody) -> dict[str, Any]:
    """The answer: llama.cpp's, and what was shown under `daguerre`."""
    window, prompt, new = gap.window, gap.job.plan.num_prompt, result.usage.completion_tokens
    complete = window.shown_before.complete and window.shown_after.complete
    word = next((stop for stop in body.stops if _followed(gap, result, stop)), "")
    return {
        "index": 0,
        "content": result.text,
        "tokens": [],
        "id_slot": max(0, body.id_slot),
        "stop": True,
        "model": served.name,
        "tokens_predicted": new,
        "tokens_evaluated": prompt,
        "tokens_cached": prompt + new,
        "generation_settings": _settings(served, body, gap.max_tokens),
        "prompt": window.prefix,
        "has_new_line": "\n" in result.text,
        "truncated": not complete,
        "stop_type": "limit" if result.finish_reason != "stop" else "word" if word else "eos",
        "stopping_word": word,
        "timings": _timings(gap, new),
        "daguerre": {"shown": gap.shown(), **extras_of(result, trace=False).get("daguerre", {})},
    }


def _followed(gap: GapJob, result: Result, stop: str) -> bool:
    """Whether the text ended where a stop string began."""
    whole = written(gap.job)
    return bool(stop) and result.finish_reason == "stop" and whole[len(result.text) :].startswith(stop)


def _timings(gap: GapJob, new: int) -> dict[str, Any]:
    """Times in milliseconds. The prompt's is the one until the first tokens were final."""
    job = gap.job
    assert job.finished is not None
    first = job.first or job.finished
    times = {"prompt": first - job.submitted, "predicted": job.finished - first}
    counts = {"prompt": job.plan.num_prompt - min(job.cached_tokens, job.plan.num_prompt), "predicted": new}
    out: dict[str, Any] = {"cache_n": job.cached_tokens}
    for name, seconds in times.items():
        out |= {
            f"{name}_n": counts[name],
            f"{name}_ms": 1000 * seconds,
            f"{name}_per_token_ms": 1000 * seconds / max(1, counts[name]),
            f"{name}_per_second": counts[name] / max(seconds, 1e-6),
        }
    return out


def _settings(served: Served, body: CompletionBody, max_tokens: int) -> dict[str, Any]:
    return {
        "n_ctx": served.model.config.max_positions,
        "n_predict": max_tokens,
        "temperature": body.temperature or 0.0,
        "stop": body.stops,
        "stream": body.stream,
    }


def _nothing(served: Served, body: CompletionBody) -> dict[str, Any]:
    """The answer to a request for no tokens."""
    counts = {"tokens_predicted": 0, "tokens_evaluated": 0, "tokens_cached": 0}
    text = {"index": 0, "content": "", "tokens": [], "stop": True, "stop_type": "limit", "stopping_word": ""}
    settings = _settings(served, body, 0)
    more = {"truncated": False, "model": served.name, "id_slot": max(0, body.id_slot), "timings": {}}
    return {**text, **counts, **more, "generation_settings": settings}


def _chosen(answer: dict[str, Any], body: CompletionBody) -> dict[str, Any]:
    """The fields of an answer that the request names, by their paths."""
    if body.response_fields is None:
        return answer
    out: dict[str, Any] = {}
    for path in body.response_fields:
        value: Any = answer
        for name in path.split("/"):
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:
            out[path] = value
    return out


@router.get("/v1/health")
async def health() -> dict[str, str]:
    """Whether the process answers."""
    return {"status": "ok"}


@router.get("/props")
async def props(request: Request, model: str | None = None) -> dict[str, Any]:
    """What a plugin asks about a server before it begins."""
    served = await asyncio.to_thread(request.app.state.pool.get, model)
    template = getattr(served.model.tokenizer, "chat_template", None)
    return {
        "default_generation_settings": _settings(served, CompletionBody.model_validate({}), MAX_TOKENS),
        "total_slots": served.engine.limits.max_running,
        "model_path": served.name,
        "model_alias": served.name,
        "chat_template": "" if template is None else next(iter(template.sources.values()), ""),
        "modalities": {"vision": False, "audio": False},
        "build_info": f"daguerre-{daguerre.__version__}",
        "is_sleeping": False,
    }


@router.get("/slots")
async def slots(request: Request, model: str | None = None) -> list[dict[str, Any]]:
    """The places for running requests, and which of them are taken."""
    served = await asyncio.to_thread(request.app.state.pool.get, model)
    running, n_ctx = served.engine.stats().running, served.model.config.max_positions
    return [
        {"id": number, "n_ctx": n_ctx, "speculative": False, "is_processing": number < running}
        for number in range(served.engine.limits.max_running)
    ]
