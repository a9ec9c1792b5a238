"""Log-probabilities of an answer's tokens.

A token's log-probability is the one that it had in the forward that committed it, in nats, at temperature 1 over the
whole vocabulary, penalties and biases included. In modes that commit several tokens in a forward it is given only what
was committed before, not the tokens to its left. `commit_step` is the number of that forward, from 0. A token that was
pinned, or kept from a draft, has log-probability 0 and step -1.

There is an entry for each token of the answer; its name is `Tokenizer.token_name`. The tokens of a prompt, for answers
that echo it, have theirs from left to right: of models with causal context, by the autoregressive distribution.

Letters: A wanted positions, V vocabulary, K alternatives.
"""

from __future__ import annotations

import codecs
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from daguerre.canvas import Canvas, Decision
from daguerre.decoding.plan import Plan
from daguerre.decoding.result import Reader, Result
from daguerre.engine.job import Job
from daguerre.errors import ContextError, UnsupportedError
from daguerre.model import Model
from daguerre.models.forward import Forward, Layout, Logits
from daguerre.models.guidance import Scorer
from daguerre.models.tokenizer import Tokenizer, bytes_name
from daguerre.sampling.logits import log_softmax
from daguerre.server.streams import Delta
from daguerre.trace import Event

Alternatives = list[tuple[int, float]]
LEAST = -9999.0
"""What stands for minus infinity, as in OpenAI's API."""
ROWS = 128
"""Rows of a prompt whose logits are held at once."""


@dataclass(eq=False)
class LogprobRecorder:
    """Adds what `inner` adds, and notes the K most likely tokens of each position of each forward.

    Their log-probabilities are those at temperature 1 over the vocabulary, `bias` and penalties included. They are kept
    by what the canvas had, so samples of a request may share one recorder.
    """

    num: int
    inner: Scorer | None = None
    bias: Mapping[int, float] = field(default_factory=dict)
    _seen: dict[bytes, dict[int, tuple[np.ndarray, np.ndarray]]] = field(default_factory=dict)

    def __call__(self, canvas: Canvas, positions: np.ndarray, logits: np.ndarray) -> np.ndarray:
        """What `inner` adds; else 0."""
        added = np.zeros((1, 1), np.float32) if self.inner is None else self.inner(canvas, positions, logits)
        with np.errstate(invalid="ignore"):
            logp = logits + added
        for token, bias in self.bias.items():
            logp[:, token] += bias
        logp = log_softmax(logp)
        num = min(self.num, logp.shape[-1])
        best = np.argpartition(-logp, num - 1, axis=-1)[:, :num]
        best = np.take_along_axis(best, np.argsort(-np.take_along_axis(logp, best, axis=-1), axis=-1), axis=-1)
        found = self._seen.setdefault(_key(canvas), {})
        for row, position in enumerate(positions.tolist()):
            found[position] = best[row].astype(np.int32), logp[row, best[row]].astype(np.float32)
        return added

    def alternatives(self, canvas: Canvas, decision: Decision, place: int) -> Alternatives:
        """The alternatives to commit number `place` of a decision about a canvas: (token, log-probability), the most
        likely first. Empty for a token that no forward was asked for.

        A decision of mode "speculative" has tokens of which each was drawn given those before it.
        """
        position = int(decision.positions[place])
        for num in dict.fromkeys((0, place)):
            kept = np.zeros(len(decision), dtype=bool)
            kept[:num] = True
            before = canvas if num == 0 else canvas.apply(decision.keep(kept))
            found = self._seen.get(_key(before), {}).get(position)
            if found is not None:
                ids, logp = found
                able = np.isfinite(logp)
                return list(zip(ids[able].tolist(), logp[able].tolist(), strict=True))
        return []


def _key(canvas: Canvas) -> bytes:
    """Equal for canvases that have the same tokens at the same positions, and nothing elsewhere."""
    return hashlib.blake2b(np.where(canvas.open, -1, canvas.tokens).tobytes(), digest_size=16).digest()


@dataclass(frozen=True)
class Scored:
    """A token of an answer, the forward that committed it, and the most likely tokens there."""

    text: str
    id: int
    logprob: float | None
    step: int = -1
    alternatives: Sequence[tuple[int, float]] = ()


class TokenLog:
    """Follows the events of one sample of a plan with one gap, and tells its tokens as their texts become final.

    num_told, end  how many tokens have been told, and how many characters their texts have
    """

    def __init__(self, plan: Plan, recorder: LogprobRecorder | None = None) -> None:
        self._plan, self._recorder, self._canvas = plan, recorder, plan.canvas
        self._facts: dict[int, tuple[float, int, Alternatives]] = {}
        self._reader = Reader(plan)
        self.num_told = self.end = self._length = 0

    def follow(self, delta: Delta) -> list[Scored]:
        """The tokens that are new with a delta; those of deltas before it were followed, too, unless it is the last."""
        self._length += len(delta.text)
        if delta.result is not None:
            return self.last(delta.result)
        step = None if delta.event is None else delta.event.step
        return [] if step is None else self.after(step, self._length)

    def after(self, event: Event, num_final: int) -> list[Scored]:
        """The tokens that are new in the first `num_final` characters of the text after an event."""
        self.note(event)
        return self._new(self._canvas, num_final, done=False)

    def last(self, result: Result) -> list[Scored]:
        """The tokens that have not been told of a text that is whole."""
        return self._new(self._canvas, len(result.text), done=True)

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
        end, out, texts = self.end, list[Scored](), list(reading.texts)
        while texts and not texts[-1] and not done:  # of half a character, which may not become whole
            texts.pop()
        for position, text in islice(zip(reading.positions, texts, strict=False), self.num_told, None):
            end += len(text)
            if end > num_final:
                break
            facts = self._facts.get(position, (0.0, -1, []))
            out.append(Scored(text, int(canvas.tokens[position]), *facts))
            self.end = end
        self.num_told += len(out)
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


def score_prompt(model: Model, ids: list[int], num: int) -> list[Scored]:
    """Each token of a prompt with `num` alternatives; the first of a model without <bos> has no log-probability.

    UnsupportedError for a model without an autoregressive distribution; ContextError for a prompt that is longer than
    the model's context.
    """
    config = model.config
    if len(config.first) + len(ids) > config.max_positions:
        raise ContextError(
            f"the prompt has {len(ids)} tokens and the model {config.max_positions} positions: shorten it"
        )
    texts = token_texts(model.tokenizer, ids)
    if config.context != "causal" or not config.shift:
        raise UnsupportedError(
            "this model has no probabilities from left to right for a prompt: leave out echo, or logprobs"
        )
    out = [] if config.first else [Scored(text, token, None) for text, token in zip(texts[:1], ids[:1], strict=True)]
    tokens = np.array([*config.first, *ids], dtype=np.int64)
    backend, num_rows = model.denoiser.backend, len(tokens) - 1
    cache = backend.cache(max(1, num_rows))
    for start in range(0, num_rows, ROWS):
        rows = np.arange(start, min(num_rows, start + ROWS))
        layout = Layout(rows, (rows + 1).astype(np.int32), len(rows))
        ask = Forward(tokens[rows], layout, cache, np.arange(len(rows), dtype=np.int32), Logits())
        (answer,) = backend.forward([ask])
        assert answer.logits is not None
        logp = log_softmax(answer.logits)
        for row, place in enumerate(rows - len(config.first) + 1):
            out.append(_scored(texts[place], ids[place], logp[row], num))
    return out


def _scored(text: str, token: int, logp: np.ndarray, num: int) -> Scored:
    best = np.argsort(-logp, kind="stable")[:num]
    found = [(int(one), float(logp[one])) for one in best if np.isfinite(logp[one])]
    return Scored(text, token, max(LEAST, float(logp[token])), -1, found)


def token_texts(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """The texts of tokens, which join to the text of all: half a character's comes with its last token."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    texts = [decoder.decode(tokenizer.token_bytes(token)) for token in ids]
    if texts:
        texts[-1] += decoder.decode(b"", final=True)
    return texts
