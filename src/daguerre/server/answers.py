"""What the answers of all surfaces share: ids, reasons for the end, usage, and errors that name a field of the body."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import orjson

from daguerre.decoding.explanation import Explanation
from daguerre.decoding.result import Result, read
from daguerre.engine.job import Job
from daguerre.errors import ContextError, InputError, UnsupportedError
from daguerre.http.errors import ApiError
from daguerre.server.protocol.common import EFFORTS, OWN_FIELDS, Diffusion, Sampling

FIELDS = {
    "schema": "response_format",
    "tools": "tools",
    "parameters": "tools",
    "each": "tools",
    "tool_choice": "tool_choice",
    "function": "tool_choice",
    "parallel_calls": "parallel_tool_calls",
    "lenient": "response_format",
    "strict": "response_format",
    "stop": "stop",
    "draft": "prediction",
    "scorer": "frequency_penalty",
    "logit_bias": "logit_bias",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "n": "n",
    "seed": "seed",
    "max_tokens": "max_tokens",
    "suffix": "suffix",
    "infill": "suffix",
}
"""The field of a body for each option of `Decode`, or word of its errors: what an error of a request names."""
HARMLESS_TIERS = (None, "auto", "default")
REFUSED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "audio": ((None,), "no audio is made: leave it out"),
    "modalities": ((None, ["text"]), "the answers are text: leave it out"),
    "moderation": ((None,), "nothing is moderated: leave it out"),
    "web_search_options": ((None,), "nothing is searched: leave it out"),
    "functions": ((None,), "functions are given as tools: use tools"),
    "function_call": ((None,), "functions are chosen by tool_choice: use it"),
    "service_tier": (HARMLESS_TIERS, "there is one tier: leave it out"),
    "verbosity": ((None, "medium"), "the length of an answer follows from max_tokens alone: leave it out"),
    **OWN_FIELDS,
}
"""Fields that are known and cannot be honored but for these values, and what to do instead."""


def new_id(prefix: str) -> str:
    """A new id, such as "chatcmpl-5f...": the prefix and 32 hexadecimal digits."""
    return prefix + uuid.uuid4().hex


def head_of(kind: str, prefix: str, model: str) -> dict[str, Any]:
    """The fields that every answer, and every chunk of one, begins with."""
    return {"id": new_id(prefix), "object": kind, "created": int(time.time()), "model": model}


def finish_of(result: Result) -> str:
    """OpenAI's reason for the end: "stop" or "length"; what a deadline cut is "length"."""
    return "stop" if result.finish_reason == "stop" else "length"


def usage_of(results: Sequence[Result], job: Job, effort: str | None = None, thought: int = 0) -> dict[str, Any]:
    """OpenAI's usage of all choices of a job. `daguerre` has what diffusion adds: the mode that ran, forwards, and the
    effort if the request named one. thought: how many tokens were thought before the answers.
    """
    return join_usages([(results, job)], effort, thought)


def join_usages(
    parts: Sequence[tuple[Sequence[Result], Job]], effort: str | None = None, thought: int = 0
) -> dict[str, Any]:
    """OpenAI's usage, as of `usage_of`, of several jobs together, each with its results."""
    each = [one.usage for results, _ in parts for one in results]
    forwards, new = sum(one.forwards for one in each), sum(one.completion_tokens for one in each)
    usage = plain_usage(
        sum(job.plan.num_prompt for _, job in parts),
        new,
        cached=sum(job.cached_tokens for _, job in parts),
        accepted=sum(one.accepted_prediction_tokens for one in each),
        rejected=sum(one.rejected_prediction_tokens for one in each),
        thought=thought,
    )
    seed = {"seed": parts[0][1].plan.decode.seed} if parts else {}
    facts = {"mode": each[0].mode if each else "", "forwards": forwards, "tokens_per_forward": new / max(1, forwards)}
    return usage | {"daguerre": {**facts, **seed, **({} if effort is None else {"effort": effort})}}


def plain_usage(
    prompt: int, new: int, cached: int = 0, accepted: int = 0, rejected: int = 0, thought: int = 0
) -> dict[str, Any]:
    """OpenAI's usage of these numbers of tokens."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": new,
        "total_tokens": prompt + new,
        "prompt_tokens_details": {"cached_tokens": cached, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": thought,
            "audio_tokens": 0,
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": rejected,
        },
    }


def effort_of(body: Sampling) -> str | None:
    """The effort that was chosen for a body, in Daguerre's words; None where it names none."""
    return None if body.reasoning_effort is None else EFFORTS[body.reasoning_effort]


def refuse_fields(body: Any, refused: Mapping[str, tuple[tuple[Any, ...], str]] = REFUSED) -> None:
    """ApiError for a field with a value that cannot be honored."""
    given = body if isinstance(body, dict) else {**(body.model_extra or {}), **dict(body)}
    for name, (able, instead) in refused.items():
        if given.get(name) not in able:
            raise ApiError(f"{name} cannot be {given[name]!r:.60}: {instead}", param=name, code="unsupported_value")


@contextmanager
def naming(fields: Mapping[str, str] | None = None, default: str | None = None) -> Iterator[None]:
    """Errors about options become errors about the fields of a body, of which the message names one; `fields`: what
    options are called in this body.
    """
    try:
        yield
    except (ApiError, ContextError):
        raise
    except InputError as error:
        code = "unsupported" if isinstance(error, UnsupportedError) else None
        message = " ".join(str(error).split())
        raise ApiError(message, error.http_status, field_of(message, fields or {}) or default, code) from error


def field_of(message: str, fields: Mapping[str, str]) -> str | None:
    """The field of a body that an error's message is about: the first option that it names."""
    known = {name.rstrip("_"): f"daguerre.{name}" for name in Diffusion.model_fields} | FIELDS | dict(fields)
    return next((known[word] for word in re.findall(r"\w+", message) if word in known), None)


def extras_of(result: Result, trace: bool) -> dict[str, Any]:
    """The object `daguerre` of a choice: the trace and the concepts of its tokens, as far as they were asked for, and
    why it stopped where it looped. Empty where there is nothing to say.
    """
    own: dict[str, Any] = {"trace": orjson.loads(result.trace.to_json())} if trace else {}
    if result.looped:
        own["stopped"] = "loop"
    if result.concepts is not None:
        own["concepts"] = concepts_of(result.concepts)
    return {"daguerre": own} if own else {}


def concepts_of(explanation: Explanation) -> dict[str, Any]:
    """An explanation as JSON: `Explanation.to_dict`, and `num_known`, the number from which on concepts are discovered
    ones.
    """
    return {"num_known": explanation.catalog.num_known, **explanation.to_dict()}


def written(job: Job, index: int = 0) -> str:
    """The text of a choice of a job that is done, with the stop string that ended it and what came after that."""
    events = job.samples[index].events
    if not len(events):
        return ""
    bare = replace(job.plan, decode=replace(job.plan.decode, stop=()))
    return read(bare, events.last, done=True).gaps[0].text
