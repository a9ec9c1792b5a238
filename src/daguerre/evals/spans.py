"""Token-span infilling: a span of held-out tokens is taken out and must be filled in again; its length is known.

Prefix and suffix are the real tokens on either side. With the right length and no end to decide, this measures how well
a model fills a gap and, over numbers of steps, what committing tokens in parallel costs. `ar` is the same model's
autoregressive mode, which does not see the suffix. Seconds and forwards leave out the prefill of the text around.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from daguerre.decoding.generate import Request, plan_of
from daguerre.decoding.request import Decode
from daguerre.decoding.sample import Sample, drive
from daguerre.errors import DataError
from daguerre.evals.lines import hashed_order, round_robin
from daguerre.evals.shared import SharedSession
from daguerre.evals.statistics import clustered_wilson, means, shares
from daguerre.evals.workers import ItemProgress, map_examples
from daguerre.heldout import Document
from daguerre.model import Model
from daguerre.models.tokenizer import Tokenizer

LENGTHS = (1, 4, 8, 16)
BEFORE_TOKENS, AFTER_TOKENS = 256, 128
MIN_AROUND = 16


@dataclass(frozen=True)
class MissingSpan:
    """Tokens of a document from `start` on, and the tokens shown around them; no special tokens."""

    document: Document
    start: int
    prefix: tuple[int, ...]
    span: tuple[int, ...]
    suffix: tuple[int, ...]


@dataclass(frozen=True)
class FilledSpan:
    """One span under one method: how many tokens are right, whether all are, and the cost."""

    right: int
    exact: bool
    forwards: int
    seconds: float


@dataclass(frozen=True)
class SpanOutcome:
    """One method on `num` spans of one length. Intervals are of 95%; that of the token accuracy takes the spans of a
    document together.
    """

    method: str
    length: int
    num: int
    exact: float
    exact_interval: tuple[float, float]
    token_accuracy: float
    token_interval: tuple[float, float]
    forwards: float
    seconds: float


def shown_around(room: int) -> tuple[int, int]:
    """Tokens shown before and after a span to a model with `room` positions."""
    return min(BEFORE_TOKENS, room // 2), min(AFTER_TOKENS, room // 4)


def make_spans(
    documents: Sequence[Document],
    tokenizer: Tokenizer,
    length: int,
    limit: int,
    *,
    seed: int = 0,
    shown: tuple[int, int] = (BEFORE_TOKENS, AFTER_TOKENS),
) -> list[MissingSpan]:
    """At most `limit` spans, spread evenly over the documents, at places drawn from `seed` and the document.

    `shown`: the most tokens before and after each; MIN_AROUND is the fewest. DataError when no document is long enough.
    """
    out = round_robin(documents, seed, limit, lambda document: _spans(document, tokenizer, length, seed, shown))
    if not out:
        raise DataError(f"no document has {length + 2 * MIN_AROUND} tokens: give longer ones")
    return out


def _spans(
    document: Document, tokenizer: Tokenizer, length: int, seed: int, shown: tuple[int, int]
) -> Iterator[MissingSpan]:
    ids = tokenizer.encode(document.text)
    rng = np.random.default_rng(int(hashed_order(seed, document.sha256), 16))
    places = np.arange(MIN_AROUND, len(ids) - length - MIN_AROUND + 1)
    for start in rng.permutation(places).tolist():
        end = start + length
        before, after = ids[max(0, start - shown[0]) : start], ids[end : end + shown[1]]
        yield MissingSpan(document, start, tuple(before), tuple(ids[start:end]), tuple(after))


def static(steps: int) -> Decode:
    """The whole gap in `steps` forwards, the most probable tokens first."""
    return Decode(mode="full", policy="confidence", steps=steps)


def span_infilling(
    model: Model,
    spans: Sequence[MissingSpan],
    methods: Mapping[str, Decode],
    *,
    workers: int = 1,
    progress: ItemProgress | None = None,
) -> list[SpanOutcome]:
    """Fill spans of one length by every method; an autoregressive one does not see the suffix."""
    found = map_examples(partial(fill_span, model, list(methods.values())), spans, workers, progress)
    groups = np.array([span.document.sha256 for span in spans])
    length = len(spans[0].span)
    return [_outcome(method, length, [each[i] for each in found], groups) for i, method in enumerate(methods)]


def fill_span(model: Model, decodes: Sequence[Decode], span: MissingSpan) -> list[FilledSpan]:
    """The span under each method. The text around it is computed once, before any method is timed."""
    length = len(span.span)
    plans = []
    for decode in decodes:
        suffix = None if decode.autoregressive else span.suffix
        exactly = replace(decode, min_tokens=length)
        request = Request.of("stream", span.prefix, length, exactly, suffix=suffix, heal=False)
        plans.append(plan_of(model.denoiser, model.tokenizer, request))
    widest = max((plan.canvas for plan in plans), key=len)
    shared = SharedSession(model.denoiser, widest)
    out = []
    for plan in plans:
        (gap,) = plan.canvas.gaps
        shared.prefill(plan)
        started = time.perf_counter()
        *_, last = drive(Sample(shared, plan, 0, None))
        seconds = time.perf_counter() - started
        right = int((last.canvas.tokens[slice(*gap)] == np.array(span.span)).sum())
        out.append(FilledSpan(right, right == length, last.step + 1, seconds))
    return out


def _outcome(method: str, length: int, found: Sequence[FilledSpan], groups: np.ndarray) -> SpanOutcome:
    num, right = len(found), np.array([each.right for each in found], dtype=np.float64)
    return SpanOutcome(
        method=method,
        length=length,
        num=num,
        **shares(found, "exact"),
        token_accuracy=float(right.sum() / (num * length)),
        token_interval=clustered_wilson(right, np.full(num, float(length)), groups),
        **means(found, "forwards", "seconds"),
    )
