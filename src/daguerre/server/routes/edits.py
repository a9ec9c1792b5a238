"""Mercury's routes for whole edits: apply and next edit, by models that were trained on them (`extra.tasks`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from daguerre.decoding.result import Result
from daguerre.engine.job import Job
from daguerre.http.errors import ApiError
from daguerre.server.answers import finish_of, head_of, naming, refuse_fields, usage_of
from daguerre.server.edits import EditPrompt, edit_asked, merge_asked
from daguerre.server.models import Served
from daguerre.server.protocol.fim import ApplyBody, EditBody
from daguerre.server.streams import DONE, deltas, event_stream, guarded, json_answer, result_of, sse

router = APIRouter()
TASKS = {"apply": merge_asked, "next_edit": edit_asked}
WHAT = {"apply": "merge a snippet into a file", "next_edit": "predict the next edit"}
INSTEAD = {
    "apply": "/v1/fim/completions fills a gap in it",
    "next_edit": "/v1/fim/completions fills a gap at the cursor",
}


@router.post("/v1/edit/completions", response_model=None)
async def edit(request: Request, body: EditBody) -> Response:
    """Predict the next edit of a file: the region as it should be, or "None"."""
    return await _answer(request, body, "next_edit")


@router.post("/v1/apply/completions", response_model=None)
async def apply(request: Request, body: ApplyBody) -> Response:
    """Merge a snippet into a file: the whole merged file."""
    return await _answer(request, body, "apply")


async def _answer(request: Request, body: EditBody, task: str) -> Response:
    served = await asyncio.to_thread(request.app.state.pool.get, body.model)
    if task not in served.model.tasks:
        message = (
            f"the model {served.name!r} was not trained to {WHAT[task]}: {INSTEAD[task]}; a model that was has "
            f'"{task}" in the tasks of its config.json (docs/instructions.md)'
        )
        raise ApiError(message, 400, "model", "unsupported")
    asked, job = await asyncio.to_thread(_begin, served, body, task, request.state.owner)
    head = head_of(f"chat.completion{'.chunk' if body.stream else ''}", "chatcmpl-", served.name)
    if body.stream:
        return event_stream(guarded(_chunks(asked, job, body, head), lambda error: [sse(error)]))
    result = await result_of(request, job)
    content = asked.content(result.text, result.finish_reason == "stop")
    said = {"role": "assistant", "content": content, "refusal": None}
    choice = {"index": 0, "message": said, "logprobs": None, "finish_reason": finish_of(result)}
    return json_answer({**head, "choices": [choice], "usage": usage_of(result.choices, job)})


def _begin(served: Served, body: EditBody, task: str, owner: str) -> tuple[EditPrompt, Job]:
    refuse_fields(body)
    with naming():
        asked = TASKS[task](served.model, str(body.messages[0]["content"]))
        max_tokens = asked.max_tokens if body.max_tokens is None else min(asked.max_tokens, body.max_tokens)
        options: dict[str, Any] = {
            "temperature": body.temperature,
            "heal": False,
            "owner": owner,
            "regex": asked.pattern,
        }
        options |= {} if body.seed is None else {"seed": body.seed % 2**64}
        generate = partial(served.engine.generate, asked.prompt, max_tokens)
        return asked, generate(**options)


async def _chunks(asked: EditPrompt, job: Job, body: EditBody, head: dict[str, Any]) -> AsyncIterator[bytes]:
    """A merge comes as it is written, a next edit at once."""

    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        part = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return sse({**head, "choices": [part]})

    yield chunk({"role": "assistant", "content": "", "refusal": None})
    written, sent, result = "", "", None
    async with aclosing(deltas(job, every=False)) as source:  # type: ignore[type-var]
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
    if body.stream_options is not None and body.stream_options.include_usage:
        yield sse({**head, "choices": [], "usage": usage_of([result], job)})
    yield DONE
