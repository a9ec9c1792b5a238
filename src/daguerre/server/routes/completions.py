"""OpenAI's /v1/completions, with a suffix and echo.

Choices are in OpenAI's order: all of the first prompt, then all of the second. A token's log-probability is that of the
forward that committed it (`server.logprobs`); a prompt's tokens have theirs from left to right
(`server.prompt_scores`).
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
    usage_of,
)
from daguerre.server.frames import frame_of
from daguerre.server.logprobs import Scored, TokenLog, legacy_logprobs, scored
from daguerre.server.models import Served
from daguerre.server.prompt_scores import score_prompt
from daguerre.server.protocol.common import decode_options
from daguerre.server.protocol.completions import CompletionBody
from daguerre.server.scorers import LogprobRecorder
from daguerre.server.streams import DONE, Delta, deltas, event_stream, guarded, json_answer, result_of, sse

__all__ = ["finish_of", "router", "usage_of"]
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
        return event_stream(guarded(_chunks(asked, body, head), lambda error: [sse(error)]))
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


async def _news(asked: Sequence[PromptJob], every: bool) -> AsyncIterator[tuple[int, Delta]]:
    """The news of all jobs, each with the number of its prompt, as they come; `every`: see `streams.deltas`."""
    queue = asyncio.Queue[tuple[int, Delta] | BaseException | None](1)

    async def follow(number: int, job: Job) -> None:
        try:
            async with aclosing(deltas(job, every)) as source:  # type: ignore[type-var]
                async for delta in source:
                    await queue.put((number, delta))
            await queue.put(None)
        except Exception as error:
            await queue.put(error)

    jobs = [(number, one.job) for number, one in enumerate(asked) if one.job is not None]
    followers = [asyncio.create_task(follow(*each)) for each in jobs]
    try:
        left = len(followers)
        while left:
            news = await queue.get()
            if isinstance(news, BaseException):
                raise news
            left -= news is None
            if news is not None:
                yield news
    finally:
        for follower in followers:
            follower.cancel()
        for _, job in jobs:
            if not job.done:
                job.cancel()


async def _chunks(asked: Sequence[PromptJob], body: CompletionBody, head: dict[str, Any]) -> AsyncIterator[bytes]:
    options = body.stream_options
    with_usage = options is not None and options.include_usage
    continuous = options is not None and options.continuous_usage_stats
    follows = body.logprobs is not None or continuous
    states = {(number, index): _State(one, body, index) for number, one in enumerate(asked) for index in range(body.n)}

    def chunk(choice: dict[str, Any], **more: Any) -> bytes:
        usage = None
        if continuous:
            new = sum(state.log.num_told for state in states.values() if state.log is not None)
            usage = plain_usage(sum(one.num_tokens for one in asked), new)
        return sse({**head, "choices": [choice], **({"usage": usage} if continuous or with_usage else {}), **more})

    for number, index in states:
        one, place = asked[number], number * body.n + index
        if body.echo:
            ends = {"finish_reason": "length"} if one.job is None else {}
            yield chunk({**_choice(body, one, place, one.echo, one.prompt, 0), **ends})
    async with aclosing(_news(asked, follows or body.daguerre.frames)) as source:  # type: ignore[type-var]
        async for number, delta in source:
            one, place, state = asked[number], number * body.n + delta.index, states[number, delta.index]
            start, tokens = state.end, state.after(delta) if follows or delta.result is not None else []
            finish: dict[str, Any] = {"finish_reason": None if delta.result is None else finish_of(delta.result)}
            if delta.text or delta.result is not None or (tokens and body.logprobs is not None):
                extras = {} if delta.result is None else extras_of(delta.result, body.daguerre.trace)
                yield chunk({**_choice(body, one, place, delta.text, tokens, start), **finish, **extras})
            if body.daguerre.frames and delta.event is not None and one.job is not None:
                yield chunk(_choice(body, one, place, "", [], start), **frame_of(one.job.plan, delta.event))
            if delta.result is not None:
                state.result = delta.result
    if with_usage:
        for number, one in enumerate(asked):
            each = [states[number, index].result for index in range(body.n)]
            one.results = [result for result in each if result is not None]
        yield sse({**head, "choices": [], "usage": _usage(asked, body)})
    yield DONE


class _State:
    """A choice of a stream: its tokens so far, and the characters of the tokens that were told."""

    def __init__(self, asked: PromptJob, body: CompletionBody, index: int) -> None:
        self.log = None if asked.job is None else TokenLog(asked.job.plan, asked.recorder)
        self.end, self._length, self.result = len(asked.echo), 0, None

    result: Result | None

    def after(self, delta: Delta) -> list[Scored]:
        """The tokens that are new with a delta."""
        assert self.log is not None
        self._length += len(delta.text)
        tokens: list[Scored] = []
        if delta.result is not None:
            tokens = self.log.last(delta.result)
        elif delta.event is not None and delta.event.step is not None:
            tokens = self.log.after(delta.event.step, self._length)
        self.end += sum(len(token.text) for token in tokens)
        return tokens
