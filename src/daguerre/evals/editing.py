"""Edit locality: random spans of held-out text are written anew; what is outside them must come back byte for byte.

A text is a run of top-level statements of a document, so that it is Python by itself. Of it, spans are drawn that may
begin and end anywhere, inside words too: one, or several at once. The whole spans are drawn again (strength 1), or
part of their tokens (strength below 1, the others kept as a draft).

    changed  bytes outside the spans that are not as they were: 0, or an edit is not local
    parses   the edited text is Python
    equal    the edited text is the original: the model found what had stood there
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from daguerre.editing import Span, split_at
from daguerre.errors import DataError
from daguerre.evals.frozen import Document
from daguerre.evals.lines import hashed_order, parse, take_in_turn
from daguerre.evals.statistics import wilson
from daguerre.evals.workers import Tell, map_examples
from daguerre.model import Model
from daguerre.models.tokenizer import Tokenizer

STRENGTHS = (1.0, 0.5)
NUM_SPANS = (1, 3)
MOST_CHARACTERS = 24
"""A span's length is drawn from 1 to this."""
LEAST_TOKENS, MOST_TOKENS = 64, 384


@dataclass(frozen=True)
class Passage:
    """Whole statements of a document, and places in it: NUM_SPANS[-1] spans, ascending and apart."""

    document: Document
    text: str
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Edited:
    """One edit: bytes changed outside its spans, what it left, and what it took."""

    changed: int
    parses: bool
    equal: bool
    forwards: int
    seconds: float


@dataclass(frozen=True)
class EditOutcome:
    """All edits of one strength and number of spans; intervals are of 95% (Wilson)."""

    strength: float
    spans: int
    num: int
    changed: int
    parses: float
    parses_interval: tuple[float, float]
    equal: float
    equal_interval: tuple[float, float]
    forwards: float
    seconds: float


def make_passages(
    documents: Sequence[Document], tokenizer: Tokenizer, limit: int, *, seed: int = 0, most: int = MOST_TOKENS
) -> list[Passage]:
    """At most `limit` passages of at most `most` tokens, as evenly over the documents as they allow, drawn from `seed`.

    DataError when no document has one.
    """
    out = take_in_turn(documents, seed, limit, lambda document: _passages(document, tokenizer, seed, most))
    if not out:
        raise DataError(f"no document has statements of {LEAST_TOKENS} to {most} tokens to edit: give longer files")
    return out


def _passages(document: Document, tokenizer: Tokenizer, seed: int, most: int) -> Iterator[Passage]:
    rng = np.random.default_rng(int(hashed_order(seed, document.sha256), 16))
    texts = list(_statements(document.text, tokenizer, most))
    for index in rng.permutation(len(texts)).tolist():
        yield Passage(document, texts[index], _draw_spans(len(texts[index]), rng))


def _statements(text: str, tokenizer: Tokenizer, most: int) -> Iterator[str]:
    """Runs of top-level statements of LEAST_TOKENS to `most` tokens, one behind the other, line breaks as they are."""
    tree = parse(text)
    if tree is None or "\f" in text or "\r" in text.replace("\r\n", ""):
        return
    lines = text.split("\n")
    starts = [_first_line(node) for node in tree.body]
    begin = 0
    for index, end in enumerate([*starts[1:], len(lines)], 1):
        run = "\n".join(lines[starts[begin] : end])
        following = "\n".join(lines[starts[begin] : starts[index + 1]]) if index + 1 < len(starts) else None
        if following is not None and len(tokenizer.encode(following)) <= most:
            continue
        if LEAST_TOKENS <= len(tokenizer.encode(run)) <= most and parse(run) is not None:
            yield run
        begin = index


def _first_line(node: ast.stmt) -> int:
    """The line, from 0, that a statement begins in, its decorators included."""
    return min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))]) - 1


def _draw_spans(length: int, rng: np.random.Generator) -> tuple[Span, ...]:
    """Spans in equal shares of a text of `length` characters, so that they never overlap; not in order of the draw."""
    edges = np.linspace(0, length, NUM_SPANS[-1] + 1).astype(int).tolist()
    spans = []
    for low, high in zip(edges, edges[1:], strict=False):
        size = int(rng.integers(1, min(MOST_CHARACTERS, high - low) + 1))
        start = int(rng.integers(low, high - size + 1))
        spans.append((start, start + size))
    return tuple(spans)


def edit_locality(
    model: Model, passages: Sequence[Passage], *, seed: int = 0, workers: int = 1, tell: Tell | None = None
) -> list[EditOutcome]:
    """Edit every passage at each strength, at one of its spans and at all of them."""
    ways = [(strength, num) for num in NUM_SPANS for strength in STRENGTHS]
    found = map_examples(partial(edit_passage, model, ways, seed), passages, workers, tell)
    return [_outcome(*way, [each[index] for each in found]) for index, way in enumerate(ways)]


def edit_passage(model: Model, ways: Sequence[tuple[float, int]], seed: int, passage: Passage) -> list[Edited]:
    """The passage edited in each way (strength, number of spans): the first spans in an order hashed from `seed`."""
    order = sorted(passage.spans, key=lambda span: hashed_order(seed, passage.document.sha256, span))
    out = []
    for strength, num in ways:
        spans = sorted(order[:num])
        result = model.edit(passage.text, spans, strength=strength, seed=seed)
        changed = num_changed(passage.text, spans, result.text, result.spans)
        is_python, usage = parse(result.text) is not None, result.usage
        out.append(Edited(changed, is_python, result.text == passage.text, usage.forwards, usage.seconds))
    return out


def num_changed(before: str, spans: Sequence[Span], after: str, written: Sequence[Span]) -> int:
    """Bytes outside `spans` of `before` that are not the same outside the `written` spans of `after`."""
    total = 0
    for old, new in zip(split_at(before, spans), split_at(after, written), strict=True):
        a, b = old.encode(), new.encode()
        total += sum(x != y for x, y in zip(a, b, strict=False)) + abs(len(a) - len(b))
    return total


def _outcome(strength: float, spans: int, found: Sequence[Edited]) -> EditOutcome:
    num = len(found)
    parses, equal = sum(each.parses for each in found), sum(each.equal for each in found)
    return EditOutcome(
        strength=strength,
        spans=spans,
        num=num,
        changed=sum(each.changed for each in found),
        parses=parses / num,
        parses_interval=wilson(parses, num),
        equal=equal / num,
        equal_interval=wilson(equal, num),
        forwards=sum(each.forwards for each in found) / num,
        seconds=sum(each.seconds for each in found) / num,
    )
