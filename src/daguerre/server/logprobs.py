"""Log-probabilities of an answer's tokens.

A token's log-probability is the one that it had in the forward that committed it, in nats, at temperature 1 over the
whole vocabulary, penalties and biases included. In modes that commit several tokens in a forward it is given only what
was committed before, not the tokens to its left. `commit_step` is the number of that forward, from 0. A token that was
pinned, or kept from a draft, has log-probability 0 and step -1.

There is an entry for each token of the answer; its name is `Tokenizer.token_name`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from daguerre.canvas import Canvas
from daguerre.decoding.plan import Plan
from daguerre.decoding.result import Reader, Result
from daguerre.engine.job import Job
from daguerre.models.tokenizer import Tokenizer, bytes_name
from daguerre.server.scorers import Alternatives, LogprobRecorder
from daguerre.trace import Event

LEAST = -9999.0
"""What stands for minus infinity, as in OpenAI's API."""


@dataclass(frozen=True)
class Scored:
    """A token of an answer, the forward that committed it, and the most likely tokens there."""

    text: str
    id: int
    logprob: float | None
    step: int = -1
    alternatives: Sequence[tuple[int, float]] = ()


class TokenLog:
    """Follows the events of one sample of a plan with one gap, and tells its tokens as their texts become final."""

    def __init__(self, plan: Plan, recorder: LogprobRecorder | None = None) -> None:
        self._plan, self._recorder, self._canvas = plan, recorder, plan.canvas
        self._facts: dict[int, tuple[float, int, Alternatives]] = {}
        self._reader = Reader(plan)
        self._told = self._end = 0

    def after(self, event: Event, num_final: int) -> list[Scored]:
        """The tokens that are new in the first `num_final` characters of the text after an event."""
        self.note(event)
        return self._new(self._canvas, num_final, done=False)

    def last(self, result: Result) -> list[Scored]:
        """The tokens that have not been told of a text that is whole."""
        return self._new(self._canvas, len(result.text), done=True)

    @property
    def num_told(self) -> int:
        """How many tokens have been told."""
        return self._told

    def note(self, event: Event) -> None:
        """Keep the facts of an event's tokens."""
        decision = event.decision
        for place, (position, probability) in enumerate(
            zip(decision.positions.tolist(), decision.probabilities.tolist(), strict=True)
        ):
            logprob = math.log(probability) if probability > 0 else LEAST
            seen = [] if self._recorder is None else self._recorder.alternatives(self._canvas, decision, place)
            self._facts[position] = min(0.0, logprob), event.step, seen
        for position in decision.pin.tolist():
            self._facts.pop(position, None)
        self._canvas = event.canvas

    def _new(self, canvas: Canvas, num_final: int, done: bool) -> list[Scored]:
        reading = self._reader.read(canvas, done=done).gaps[0]
        end, out, texts = self._end, list[Scored](), list(reading.texts)
        while texts and not texts[-1] and not done:  # of half a character, which may not become whole
            texts.pop()
        for position, text in islice(zip(reading.positions, texts, strict=False), self._told, None):
            end += len(text)
            if end > num_final:
                break
            facts = self._facts.get(position, (0.0, -1, []))
            out.append(Scored(text, int(canvas.tokens[position]), *facts))
            self._end = end
        self._told += len(out)
        return out


def scored(job: Job, index: int, recorder: LogprobRecorder | None = None) -> list[Scored]:
    """The tokens of a choice of a job that is done."""
    log = TokenLog(job.plan, recorder)
    for event in job.samples[index].events:
        log.note(event)
    return log.last(job.result_of(index))


def chat_logprobs(tokens: Sequence[Scored], tokenizer: Tokenizer) -> dict[str, Any]:
    """The object `logprobs` of chat completions, with the extension `commit_step`."""
    return {"content": [_chat_entry(one, tokenizer) for one in tokens], "refusal": None}


def _chat_entry(one: Scored, tokenizer: Tokenizer) -> dict[str, Any]:
    shown = _shown_bytes(one, tokenizer)
    return {
        "token": bytes_name(shown) or tokenizer.token_name(one.id),
        "logprob": one.logprob,
        "bytes": list(shown),
        "top_logprobs": [_alternative(token, logprob, tokenizer) for token, logprob in one.alternatives],
        "commit_step": one.step,
    }


def _alternative(token: int, logprob: float, tokenizer: Tokenizer) -> dict[str, Any]:
    return {"token": tokenizer.token_name(token), "logprob": logprob, "bytes": list(tokenizer.token_bytes(token))}


def _shown_bytes(one: Scored, tokenizer: Tokenizer) -> bytes:
    """The bytes of a token, without those that were healed away."""
    own, text = tokenizer.token_bytes(one.id), one.text.encode()
    return text if text and own.endswith(text) else own


def legacy_logprobs(tokens: Sequence[Scored], tokenizer: Tokenizer, start: int = 0) -> dict[str, Any]:
    """The object `logprobs` of completions: columns, and the offset of each token in the text, which begins at `start`
    characters. A token is one of its alternatives; where several have the same name, the most likely stays.
    """
    out: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": [], "commit_step": []}
    for one in tokens:
        own, top = bytes_name(_shown_bytes(one, tokenizer)) or tokenizer.token_name(one.id), dict[str, float]()
        for token, logprob in one.alternatives:
            top.setdefault(own if token == one.id else tokenizer.token_name(token), logprob)
        if top and one.logprob is not None:
            top[own] = one.logprob
        for column, value in zip(out.values(), (own, one.logprob, top or None, start, one.step), strict=True):
            column.append(value)
        start += len(one.text)
    return out
