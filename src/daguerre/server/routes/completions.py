"""OpenAI's /v1/completions, with a suffix and echo.

Choices are in OpenAI's order: all of the first prompt, then all of the second. A token's log-probability is that of the
forward that committed it; a prompt's tokens have theirs from left to right (`server.logprobs`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from daguerre.decoding.result import Result
from daguerre.engine.job import Job
from daguerre.http.errors import ApiError
from daguerre.server.answers import (
    effort_of,
    extras_of,
    finish_of,
    head_of,
    join_usages,
    naming,
    plain_usage,
    refuse_fields,
)
from daguerre.server.frames import frame_of
from daguerre.server.logprobs import LogprobRecorder, Scored, TokenLog, legacy_logprobs, score_prompt, scored
from daguerre.server.models import Served
from daguerre.server.protocol.common import decode_options
from daguerre.server.protocol.completions import CompletionBody
from daguerre.server.streams import Chunks, deltas, event_stream, guarded, json_answer, result_of

router = APIRouter()
MAX_TOKENS = 16
"""OpenAI's default."""
MAX_PROMPTS = 256


@dataclass(eq=False)
class PromptJob:
    """One prompt of a request: its text if it is echoed, its tokens scored if that is asked for, and its job, which
    there is unless no new token is asked for.
    """

    served: Served
    num_tokens: int
    echo: str = ""
    prompt: Sequence[Scored] = ()
    job: Job | None = None
    recorder: LogprobRecorder | None = None
    results: list[Result] = field(default_factory=list)


@router.post("/v1/completions", response_model=None)
async def completions(request: Request, body: CompletionBody) -> Response:
    """Continue prompts, or fill the gap before a suffix."""
    served = await asyncio.to_thread(request.app.state.pool.get, body.model)
    asked = await asyncio.to_thread(begin, served, body, request.state.owner)
    head = head_of("text_completion", "cmpl-", served.name)
    if body.stream:
        return event_stream(guarded(_chunks(asked, body, head)))
    for one in asked:
        if one.job is not None:
            one.results = list((await result_of(request, one.job)).choices)
    choices = await asyncio.to_thread(_choices, asked, body)
    return json_answer({**head, "choices": choices, "usage": _usage(asked, body)})


def begin(served: Served, body: CompletionBody, owner: str) -> list[PromptJob]:
    """The jobs of a request. Compiles constraints: not for the event loop."""
    refuse_fields(body)
    if body.best_of not in (None, body.n):
        raise ApiError(f"best_of must be n, here {body.n}: choices are not ranked", param="best_of")
    if body.max_tokens == 0 and not body.echo:
        raise ApiError("max_tokens=0 asks for nothing: ask for a token, or for the prompt by echo", param="max_tokens")
    if not 0 < len(body.prompts) <= MAX_PROMPTS:
        message = f"there must be 1 to {MAX_PROMPTS} prompts, not {len(body.prompts)}"
        raise ApiError(message, param="prompt")
    if body.daguerre.changeable:
        message = "completions are not changed while they run: use /v1/daguerre/requests, or chat completions"
        raise ApiError(message, param="daguerre.changeable")
    out: list[PromptJob] = []
    try:
        with naming({"schema": "daguerre.schema", "draft": "daguerre.draft"}):
            out += (_ask(served, body, prompt, owner) for prompt in body.prompts)
    except Exception:
        for one in out:
            if one.job is not None:
                one.job.cancel()
        raise
    return out


def _ask(served: Served, body: CompletionBody, prompt: str | list[int], owner: str) -> PromptJob:
    model = served.engine.model
    ids = model.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
    asked = PromptJob(served, len(ids))
    if body.echo:
        asked.echo = prompt if isinstance(prompt, str) else model.tokenizer.decode(ids)
        if body.logprobs is not None:
            with served.engine.beside.taken(owner):
                asked.prompt = score_prompt(model, ids, body.logprobs)
    if body.max_tokens == 0:
        return asked
    options = decode_options(body, served) | {"n": body.n}
    if body.logprobs:
        asked.recorder = LogprobRecorder(body.logprobs, options.get("scorer"), options.get("logit_bias") or {})
        options["scorer"] = asked.recorder
    more: dict[str, Any] = options | body.daguerre.running() | {"owner": owner, "context": "whole"}
    if body.suffix:
        asked.job = served.engine.infill(prompt, body.suffix, body.max_tokens, **more)
    else:
        asked.job = served.engine.generate(prompt, body.max_tokens or MAX_TOKENS, **more)
    return asked


def _choices(asked: Sequence[PromptJob], body: CompletionBody) -> list[dict[str, Any]]:
    """The choices of jobs that are done."""
    out: list[dict[str, Any]] = []
    for one in asked:
        for index in range(body.n):
            text, finish, extras, tokens = one.echo, "length", dict[str, Any](), list(one.prompt)
            if one.job is not None:
                result = one.results[index]
                text, finish, extras = text + result.text, finish_of(result), extras_of(result, body.daguerre.trace)
                tokens += scored(one.job, index, one.recorder) if body.logprobs is not None else []
            out.append({**_choice(body, one, len(out), text, tokens, 0), "finish_reason": finish, **extras})
    return out


def _choice(
    body: CompletionBody, asked: PromptJob, index: int, text: str, tokens: Sequence[Scored], start: int
) -> dict[str, Any]:
    """A choice, or a part of one whose text begins at `start` characters."""
    logprobs = None
    if body.logprobs is not None:
        logprobs = legacy_logprobs(tokens, asked.served.model.tokenizer, start)
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": None}


def _usage(asked: Sequence[PromptJob], body: CompletionBody) -> dict[str, Any]:
    parts = [(one.results, one.job) for one in asked if one.job is not None]
    if parts:
        return join_usages(parts, effort_of(body))
    return plain_usage(sum(one.num_tokens for one in asked), 0)


async def _chunks(asked: Sequence[PromptJob], body: CompletionBody, head: dict[str, Any]) -> AsyncIterator[bytes]:
    writer, results = Chunks(head, body.stream_options), [dict[int, Result]() for _ in asked]
    follows = body.logprobs is not None or writer.continuous
    jobs = [one.job for one in asked if one.job is not None]  # of all prompts, or of none
    logs = [[TokenLog(job.plan, one.recorder) for _ in job.samples] for one, job in zip(asked, jobs, strict=False)]

    def chunk(choice: dict[str, Any], **more: Any) -> bytes:
        new = sum(log.num_told for several in logs for log in several)
        usage = plain_usage(sum(one.num_tokens for one in asked), new) if writer.continuous else None
        return writer.chunk(choice, usage=usage, **more)

    for place in range(body.n * len(asked) if body.echo else 0):
        one, ends = asked[place // body.n], {} if jobs else {"finish_reason": "length"}
        yield chunk({**_choice(body, one, place, one.echo, one.prompt, 0), **ends})
    async with aclosing(deltas(jobs, follows or body.daguerre.frames)) as source:  # type: ignore[type-var]
        async for delta in source:
            one, log = asked[delta.number], logs[delta.number][delta.index]
            place, start, result = delta.number * body.n + delta.index, len(one.echo) + log.end, delta.result
            tokens = log.follow(delta) if follows or result is not None else []
            finish: dict[str, Any] = {"finish_reason": None if result is None else finish_of(result)}
            if delta.text or result is not None or (tokens and body.logprobs is not None):
                extras = {} if result is None else extras_of(result, body.daguerre.trace)
                yield chunk({**_choice(body, one, place, delta.text, tokens, start), **finish, **extras})
            if body.daguerre.frames and delta.event is not None:
                frame = frame_of(jobs[delta.number].plan, delta.event)
                yield chunk(_choice(body, one, place, "", [], start), **frame)
            if result is not None:
                results[delta.number][delta.index] = result
    for one, found in zip(asked, results, strict=True):
        one.results = [found[index] for index in sorted(found)]
    yield writer.end(lambda: _usage(asked, body))
