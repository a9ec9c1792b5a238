"""Requests of the library, watched step by step and changed while they run; and the candidates of a position."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import orjson
from fastapi import APIRouter
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse, Response

from daguerre.canvas import Canvas, Decision
from daguerre.decoding.effort import effort_options
from daguerre.decoding.generate import Request, plan_of
from daguerre.decoding.plan import Plan
from daguerre.decoding.result import OPEN
from daguerre.decoding.running import pinned, reopened, unpinned
from daguerre.decoding.sample import Sample
from daguerre.engine.job import Job
from daguerre.errors import InputError, UnsupportedError
from daguerre.http.errors import ApiError
from daguerre.http.settings import Settings
from daguerre.models.forward import Logits
from daguerre.models.session import compute
from daguerre.sampling.logits import softmax
from daguerre.server.models import Served
from daguerre.server.protocol.requests import CandidatesBody, ChangeBody, RequestBody
from daguerre.server.streams import event_stream, guarded, result_of, sse
from daguerre.server.watching import Registry, Watched

router = APIRouter()


@router.post("/v1/daguerre/requests", response_model=None)
async def begin(request: HttpRequest, body: RequestBody) -> Response:
    """Begin a request. Server-sent events: "begin" (id, mode, first tokens), a "step" for each step with the draft, and
    "end" with the result, or "error". With `stream` false, the result alone. It is cancelled once nobody watches it,
    unless `detach` is true.
    """
    check_limits(body, request.app.state.settings)
    served = await asyncio.to_thread(request.app.state.pool.get, body.model)
    job = await asyncio.to_thread(_job, served, body, request.state.owner)
    one = request.app.state.requests.add(Watched(job, served, body.kind, body.changeable))
    if body.detach:
        return JSONResponse({"id": one.id, "object": "daguerre.request", "status": one.status}, 202)
    if not body.stream:
        return await _result(request, one)
    return _events(one, body.drafts == "whole", ends=True)


@router.get("/v1/daguerre/requests/{key}", response_model=None)
async def watch(request: HttpRequest, key: str, drafts: str = "whole") -> Response:
    """Stream the events of a request from its start, whether it still runs or is done."""
    if drafts not in ("whole", "changes"):
        raise ApiError(f"drafts is whole or changes, not {drafts!r:.40}", 400, "drafts")
    return _events(request.app.state.requests.get(key, request.state.owner), drafts == "whole", ends=False)


@router.post("/v1/daguerre/requests/{key}/change")
async def change(request: HttpRequest, key: str, body: ChangeBody) -> dict[str, Any]:
    """Pin a text, or open tokens again, between two steps of a running request."""
    one: Watched = request.app.state.requests.get(key, request.state.owner)
    if one.ended is not None:
        raise ApiError("this request is done: start another one", 409, "id", "request_done")
    if not one.changeable:
        raise ApiError("this request cannot be changed: begin it with changeable true", 400, "changeable")

    def decision(sample: Sample) -> Decision:
        if body.pin is not None:
            return pinned(sample, one.served.model.tokenizer, body.pin.at, body.pin.text)
        if body.unpin is not None:
            return unpinned(sample, *body.unpin)
        assert body.remask is not None
        return reopened(sample, *body.remask)

    event = await asyncio.wrap_future(one.job.change(decision))
    return {"id": one.id, "object": "daguerre.change", "step": event.step}


@router.delete("/v1/daguerre/requests/{key}")
async def cancel(request: HttpRequest, key: str) -> dict[str, Any]:
    """Cancel a request that runs, and forget it."""
    registry: Registry = request.app.state.requests
    one = registry.get(key, request.state.owner)
    was = one.status
    one.cancel()
    registry.forget(one)
    return {"id": one.id, "object": "daguerre.request", "deleted": True, "status": was}


@router.post("/v1/daguerre/candidates")
async def candidates(request: HttpRequest, body: CandidatesBody) -> dict[str, Any]:
    """The most likely tokens of a position, given all others, by one forward."""
    if body.id is not None:
        one: Watched = request.app.state.requests.get(body.id, request.state.owner)
        served, (plan, canvas, position) = one.served, await asyncio.to_thread(_place_in, one, body)
    else:
        served = await asyncio.to_thread(request.app.state.pool.get, body.model)
        plan, canvas, position = await asyncio.to_thread(_place_of, served, body)
    return await asyncio.to_thread(_candidates, served, plan, canvas, position, body.top)


def check_limits(body: RequestBody, settings: Settings) -> None:
    """ApiError for a constraint that is too large; the engine has the other bounds."""
    for name in ("schema", "regex", "tools", "choices", "steer", "forbid"):
        if len(orjson.dumps(body.options.get(name))) > settings.max_schema:
            raise ApiError(f"{name} is larger than {settings.max_schema} bytes: shorten it", 413, f"options.{name}")


def _job(served: Served, body: RequestBody, owner: str) -> Job:
    """The job of a request. Compiles constraints: not for the event loop."""
    options, model = body.decode(), served.model
    if body.effort is not None:
        options = effort_options(body.effort, model.config, model.defaults, options) | options
    options |= body.own() | {"timeout": body.timeout, "priority": body.priority, "owner": owner}
    if isinstance(body.max_tokens, list) and body.kind in ("generate", "infill"):
        raise InputError("max_tokens is one number for a request with one gap")
    if body.max_tokens is not None and (body.max_tokens or body.kind != "generate"):
        options["max_tokens"] = body.max_tokens
    texts, engine = body.texts(), served.engine
    if not body.changeable:
        job: Job = getattr(engine, body.kind)(*texts, **options)
        return job
    options |= {"suffix": texts[1]} if body.kind == "infill" else {}
    unasked = ("heal", "search_length")
    return engine.start_request(texts[0], **{name: value for name, value in options.items() if name not in unasked})


async def _result(request: HttpRequest, one: Watched) -> Response:
    """The result of a request, in one answer. It is cancelled if the client goes away."""
    await result_of(request, one.job)
    await one.recording
    return Response(one.summary(), media_type="application/json")


def _events(one: Watched, whole: bool, ends: bool) -> Response:
    """The events of a request. ends: it is cancelled if nobody watches it any more."""

    async def items() -> AsyncIterator[bytes]:
        try:
            async with aclosing(one.watch(whole)) as source:  # type: ignore[type-var]
                async for item in source:
                    yield item
        finally:
            if ends and not one.num_watching:
                one.cancel()

    headers = {"X-Daguerre-Request": one.id}
    return event_stream(guarded(items(), lambda error: [sse(error, "error")]), headers)


# Candidates


def _place_in(one: Watched, body: CandidatesBody) -> tuple[Plan, Canvas, int]:
    """The canvas of a request after a step, and the position in it. ApiError where there is none."""
    num = len(one.history)
    if body.event is not None and body.event >= num:
        raise ApiError(f"the request has {num} steps, from 0: name one of them", 400, "event")
    canvas = one.history.last if body.event is None else next(islice(one.history, body.event, None)).canvas
    if body.gap >= len(canvas.gaps):
        raise ApiError(f"the request has {len(canvas.gaps)} gaps, from 0: name one of them", 400, "gap")
    start, end = canvas.gaps[body.gap]
    if body.position >= end - start:
        raise ApiError(f"the gap has {end - start} positions, from 0: name one of them", 400, "position")
    if not one.plan.healed(canvas):
        raise ApiError("the word before the gap is being drawn again: ask about a later step", 400, "event")
    return one.plan, canvas, start + body.position


def _place_of(served: Served, body: CandidatesBody) -> tuple[Plan, Canvas, int]:
    """The canvas of a text with open positions, and the position in it. InputError for a text without any."""
    assert body.text is not None
    runs = [len(run) for run in re.findall(f"{OPEN}+", body.text)]
    if body.position >= sum(runs):
        raise ApiError(f"the text has {sum(runs)} open positions, from 0: name one of them", 400, "position")
    pieces, model = re.split(f"{OPEN}+", body.text), served.model
    kind: dict[str, Any] = {"heal": False, "mode": "block", "context": "whole", "defaults": model.defaults}
    if len(runs) == 1 and not pieces[1]:
        if model.config.context != "block":
            kind["block_size"] = runs[0]
        plan = plan_of(model.denoiser, model.tokenizer, Request.of("generate", pieces[0], runs[0], **kind))
    else:
        template = OPEN.join(pieces)
        asked = Request.of("fill", template, runs, min_tokens=runs, mark=OPEN, search_length=False, **kind)
        plan = plan_of(model.denoiser, model.tokenizer, asked)
    return plan, plan.canvas, int(np.flatnonzero(plan.canvas.open)[body.position])


def _candidates(served: Served, plan: Plan, canvas: Canvas, position: int, top: int) -> dict[str, Any]:
    """The most likely tokens of a canvas' position, which is opened for it, at temperature 1."""
    denoiser, tokenizer = served.engine.model.denoiser, served.model.tokenizer
    had = None if canvas.open[position] else int(canvas.tokens[position])
    shown = _opened(plan, canvas, position)
    asking = denoiser.session(shown, "auto").ask(shown, np.array([position]), Logits())
    answer = compute(asking, denoiser.backend)
    assert answer.logits is not None
    probs = softmax(answer.logits)[0]
    best = np.argsort(-probs, kind="stable")[:top]
    some = probs[probs > 0]

    def said(token: int) -> dict[str, Any]:
        text = tokenizer.decode([token])
        special = None if text else "end" if token in served.model.config.ends else "special"
        return {"id": token, "text": text, "special": special, "probability": float(probs[token])}

    return {
        "object": "daguerre.candidates",
        "model": served.name,
        "position": position - next(start for start, end in canvas.gaps if start <= position < end),
        "candidates": [said(token) for token in best.tolist()],
        "drawn": None if had is None else {**said(had), "rank": int((probs > probs[had]).sum())},
        "entropy": float(-(some * np.log(some)).sum()),
        "forwards": 1,
    }


def _opened(plan: Plan, canvas: Canvas, position: int) -> Canvas:
    """The canvas with the position open, and its span active. UnsupportedError where the model cannot see it so."""
    opened = canvas.open.copy()
    opened[position] = True
    shown = replace(canvas, open=opened, pins=canvas.pins[canvas.pins != position])
    start, end = next(((a, b) for a, b in plan.spans(shown) if a <= position < b), (position, position + 1))
    before = np.flatnonzero(opened[:start])
    if before.size and plan.config.context == "block":
        raise UnsupportedError(
            "an earlier block is still open, and this model reads blocks in order: ask once it is done"
        )
    return shown.at((int(before[0]) if before.size and canvas.continues else start, end))
