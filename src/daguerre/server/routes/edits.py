"""Mercury's routes for editors: fill in the middle; and apply and next edit, by models that were trained on them
(`extra.tasks`) or have a chat template, which also carry out instructions.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from daguerre.decoding.result import Result
from daguerre.editing.rewriting import Asked, how_written
from daguerre.engine.job import Job
from daguerre.http.errors import ApiError
from daguerre.http.settings import Settings
from daguerre.server.answers import extras_of, finish_of, head_of, naming, plain_usage, refuse_fields, usage_of
from daguerre.server.edits import (
    EditPrompt,
    can_converse,
    edit_asked,
    instruction_asked,
    merge_asked,
    merged_exactly,
)
from daguerre.server.gaps import EditorGap, GapJob, begin_gap
from daguerre.server.models import Served
from daguerre.server.protocol.common import decode_options
from daguerre.server.protocol.completions import ApplyBody, EditBody, FimBody
from daguerre.server.streams import Chunks, deltas, event_stream, guarded, json_answer, result_of

router = APIRouter()
MAX_TOKENS = 512
"""Mercury's default, of completions."""
NO_SUFFIX = "<|endoftext|>"
"""What some editors send where nothing follows."""
TASKS = {"apply": merge_asked, "next_edit": edit_asked}
WHAT = {"apply": "merge a snippet into a file", "next_edit": "predict the next edit"}
INSTEAD = {
    "apply": "/v1/fim/completions fills a gap in it",
    "next_edit": "/v1/fim/completions fills a gap at the cursor",
}


@router.post("/v1/edit/completions", response_model=None)
async def edit(request: Request, body: EditBody) -> Response:
    """Predict the next edit of a file, or carry out an instruction: the region as it should be, or "None"."""
    if body.instruction is not None:
        return await _instructed(request, body, body.instruction)
    return await _answer(request, body, "next_edit")


@router.post("/v1/apply/completions", response_model=None)
async def apply(request: Request, body: ApplyBody) -> Response:
    """Merge a snippet into a file: the whole merged file. No model is asked where the lines alone say what it is."""
    if body.instruction is not None:
        raise ApiError("an instruction is for /v1/edit/completions: leave it out", param="instruction")
    return await _answer(request, body, "apply")


async def _answer(request: Request, body: EditBody, task: str) -> Response:
    served = await asyncio.to_thread(request.app.state.pool.get, body.model)
    if task not in served.model.tasks:
        refuse_fields(body)
        exact = await asyncio.to_thread(merged_exactly, str(body.messages[0]["content"])) if task == "apply" else None
        if exact is not None:
            return _said(body, served, exact, "stop", plain_usage(0, 0))
        if not can_converse(served.model):
            message = (
                f"the model {served.name!r} was not trained to {WHAT[task]}: {INSTEAD[task]}; a model that can has a "
                f'chat template, or "{task}" in the tasks of its config.json (docs/editing.md)'
            )
            raise ApiError(message, 400, "model", "unsupported")
    asked, job = await asyncio.to_thread(_begin, served, body, task, request.state.owner)
    if body.stream:
        return event_stream(guarded(_edit_chunks(asked, job, body, _head(body, served))))
    result = await result_of(request, job)
    content = asked.content(result.text, result.finish_reason == "stop")
    return _said(body, served, content, finish_of(result), usage_of(result.choices, job))


def _head(body: EditBody, served: Served) -> dict[str, Any]:
    return head_of(f"chat.completion{'.chunk' if body.stream else ''}", "chatcmpl-", served.name)


def _said(body: EditBody, served: Served, content: str, finish: str, usage: dict[str, Any]) -> Response:
    """An answer that is there at once, whole or as a stream."""
    head, said = _head(body, served), {"role": "assistant", "content": content, "refusal": None}
    if body.stream:
        return event_stream(guarded(_at_once(Chunks(head, body.stream_options), said, finish, usage)))
    choice = {"index": 0, "message": said, "logprobs": None, "finish_reason": finish}
    return json_answer({**head, "choices": [choice], "usage": usage})


async def _at_once(writer: Chunks, said: dict[str, Any], finish: str, usage: dict[str, Any]) -> AsyncIterator[bytes]:
    for delta, reason in ((said, None), ({}, finish)):
        yield writer.chunk({"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason})
    yield writer.end(lambda: usage)


async def _instructed(request: Request, body: EditBody, instruction: str) -> Response:
    """The region of a message, or its file, with an instruction carried out: as the model says, at most twice."""
    refuse_fields(body)
    served = await asyncio.to_thread(request.app.state.pool.get, body.model)
    with naming():
        told = await asyncio.to_thread(instruction_asked, served.model, str(body.messages[0]["content"]), instruction)
    results, job = list[Result](), None
    while told.asked is not None:
        job = await asyncio.to_thread(_write, served, body, told.asked, request.state.owner)
        results.append(await result_of(request, job))
        await asyncio.to_thread(told.read, results[-1])
    assert job is not None
    return _said(body, served, told.content, finish_of(results[-1]), usage_of(results, job))


def _write(served: Served, body: EditBody, asked: Asked, owner: str) -> Job:
    """The job of an answer to an instruction."""
    with naming():
        options = how_written(served.model.config, asked, _drawn(body))
        max_tokens = asked.max_tokens if body.max_tokens is None else min(asked.max_tokens, body.max_tokens)
        return served.engine.generate(asked.prompt, max_tokens, owner=owner, **options)


def _drawn(body: EditBody) -> dict[str, Any]:
    return {"temperature": body.temperature} | ({} if body.seed is None else {"seed": body.seed % 2**64})


def _begin(served: Served, body: EditBody, task: str, owner: str) -> tuple[EditPrompt, Job]:
    refuse_fields(body)
    with naming():
        asked = TASKS[task](served.model, str(body.messages[0]["content"]))
        max_tokens = asked.max_tokens if body.max_tokens is None else min(asked.max_tokens, body.max_tokens)
        options: dict[str, Any] = {"regex": asked.pattern, "heal": False, **_drawn(body)}
        return asked, served.engine.generate(asked.prompt, max_tokens, owner=owner, **options)


async def _edit_chunks(asked: EditPrompt, job: Job, body: EditBody, head: dict[str, Any]) -> AsyncIterator[bytes]:
    """A merge comes as it is written, a next edit at once."""
    writer = Chunks(head, body.stream_options)

    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        return writer.chunk({"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish})

    yield chunk({"role": "assistant", "content": "", "refusal": None})
    written, sent, result = "", "", None
    async with aclosing(deltas([job], every=False)) as source:  # type: ignore[type-var]
        async for delta in source:
            written, result = written + delta.text, delta.result
            whole = sent
            if result is not None:
                whole = asked.content(result.text, result.finish_reason == "stop")
            elif asked.grows and "\n" in delta.text:
                whole = asked.content(written, False)
            if (more := whole[len(sent) :]) and (result is not None or more.strip("\n")):
                sent = whole
                yield chunk({"content": more})
    assert isinstance(result, Result)
    yield chunk({}, finish_of(result))
    yield writer.end(lambda: usage_of([result], job))


@router.post("/v1/fim/completions", response_model=None)
async def fim(request: Request, body: FimBody) -> Response | dict[str, Any]:
    """Fill the gap between a prompt and a suffix, or continue the prompt."""
    served = await asyncio.to_thread(request.app.state.pool.get, body.model)
    gap = await asyncio.to_thread(begin, served, body, request.state.owner, request.app.state.settings)
    head = head_of("text_completion", "cmpl-", served.name)
    if body.stream or body.diffusing:
        return event_stream(guarded(_chunks(gap, body, head)))
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
    writer, results, shown = Chunks(head, body.stream_options), list[Result](), {"daguerre": {"shown": gap.shown()}}
    async for delta in gap.deltas(every=body.diffusing):
        if body.diffusing and delta.event is not None:
            yield writer.chunk(_choice(delta.index, delta.event.text), **_frame(0.0))
        if delta.result is not None:
            results.append(delta.result)
            text = delta.result.text if body.diffusing else delta.text
            choice = _choice(delta.index, text, delta.result) | extras_of(delta.result, body.daguerre.trace)
            yield writer.chunk(choice, **(_frame(1.0) if body.diffusing else {}), **shown)
        elif delta.text and not body.diffusing:
            yield writer.chunk(_choice(delta.index, delta.text))
    yield writer.end(lambda: usage_of(results, gap.job))


def _choice(index: int, text: str, result: Result | None = None) -> dict[str, Any]:
    finish = None if result is None else finish_of(result)
    return {"index": index, "text": text, "logprobs": None, "finish_reason": finish}


def _frame(progress: float) -> dict[str, Any]:
    return {"diffusion_meta": {"diffusion_content": True, "diffusion_progress": progress}}
