"""Edit locality: random spans of held-out text are rewritten; what is outside them must come back byte for byte.

A text is a run of top-level statements of a document, so it is Python by itself. One or several spans of it are drawn,
which may begin and end anywhere, also inside words. All tokens of the spans are drawn again (strength 1), or some of
them (strength below 1, the others kept as a draft).

    changed  bytes outside the spans that differ: 0, or an edit is not local
    parses   the edited text is Python
    equal    the edited text is the original: the model found what had been there
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from daguerre.decoding.text_spans import CharSpan, split_at
from daguerre.errors import DataError
from daguerre.evals.lines import first_line_number, hashed_order, parse, round_robin
from daguerre.evals.statistics import means, shares
from daguerre.evals.workers import ItemProgress, map_examples
from daguerre.heldout import Document
from daguerre.model import Model
from daguerre.models.tokenizer import Tokenizer

STRENGTHS = (1.0, 0.5)
NUM_SPANS = (1, 3)
MAX_CHARACTERS = 24
"""A span's length is drawn from 1 to this."""
MIN_TOKENS, MAX_TOKENS = 64, 384


@dataclass(frozen=True)
class Passage:
    """Whole statements of a document, and NUM_SPANS[-1] spans of their text, ascending, that do not overlap."""

    document: Document
    text: str
    spans: tuple[CharSpan, ...]


@dataclass(frozen=True)
class Edited:
    """One edit: bytes changed outside its spans, what the result is, and the cost."""

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
    documents: Sequence[Document], tokenizer: Tokenizer, limit: int, *, seed: int = 0, max_tokens: int = MAX_TOKENS
) -> list[Passage]:
    """At most `limit` passages of at most `max_tokens` tokens, spread evenly over the documents.

    They are drawn from `seed`. DataError when no document has one.
    """
    out = round_robin(documents, seed, limit, lambda document: _passages(document, tokenizer, seed, max_tokens))
    if not out:
        raise DataError(f"no document has statements of {MIN_TOKENS} to {max_tokens} tokens to edit: give longer files")
    return out


def _passages(document: Document, tokenizer: Tokenizer, seed: int, max_tokens: int) -> Iterator[Passage]:
    rng = np.random.default_rng(int(hashed_order(seed, document.sha256), 16))
    texts = list(_statements(document.text, tokenizer, max_tokens))
    for index in rng.permutation(len(texts)).tolist():
        yield Passage(document, texts[index], _draw_spans(len(texts[index]), rng))


def _statements(text: str, tokenizer: Tokenizer, max_tokens: int) -> Iterator[str]:
    """Runs of top-level statements of MIN_TOKENS to `max_tokens` tokens that do not overlap, line breaks unchanged."""
    tree = parse(text)
    if tree is None or "\f" in text or "\r" in text.replace("\r\n", ""):
        return
    lines = text.split("\n")
    starts = [first_line_number(node) for node in tree.body]
    begin = 0
    for index, end in enumerate([*starts[1:], len(lines)], 1):
        run = "\n".join(lines[starts[begin] : end])
        following = "\n".join(lines[starts[begin] : starts[index + 1]]) if index + 1 < len(starts) else None
        if following is not None and len(tokenizer.encode(following)) <= max_tokens:
            continue
        if MIN_TOKENS <= len(tokenizer.encode(run)) <= max_tokens and parse(run) is not None:
            yield run
        begin = index


def _draw_spans(length: int, rng: np.random.Generator) -> tuple[CharSpan, ...]:
    """One span in each of NUM_SPANS[-1] equal parts of a text of `length` characters, so that spans never overlap."""
    edges = np.linspace(0, length, NUM_SPANS[-1] + 1).astype(int).tolist()
    spans = []
    for low, high in zip(edges, edges[1:], strict=False):
        size = int(rng.integers(1, min(MAX_CHARACTERS, high - low) + 1))
        start = int(rng.integers(low, high - size + 1))
        spans.append((start, start + size))
    return tuple(spans)


def edit_locality(
    model: Model, passages: Sequence[Passage], *, seed: int = 0, workers: int = 1, progress: ItemProgress | None = None
) -> list[EditOutcome]:
    """Edit every passage at each strength, at one of its spans and at all of them."""
    settings = [(strength, num) for num in NUM_SPANS for strength in STRENGTHS]
    found = map_examples(partial(edit_passage, model, settings, seed), passages, workers, progress)
    return [_outcome(*setting, [each[index] for each in found]) for index, setting in enumerate(settings)]


def edit_passage(model: Model, settings: Sequence[tuple[float, int]], seed: int, passage: Passage) -> list[Edited]:
    """The passage in each setting (strength, number of spans): its first spans in an order hashed from `seed`."""
    order = sorted(passage.spans, key=lambda span: hashed_order(seed, passage.document.sha256, span))
    out = []
    for strength, num in settings:
        spans = sorted(order[:num])
        result = model.edit(passage.text, spans, mode="block", strength=strength, seed=seed)
        changed = num_changed(passage.text, spans, result.text, result.spans)
        is_python, usage = parse(result.text) is not None, result.usage
        out.append(Edited(changed, is_python, result.text == passage.text, usage.forwards, usage.seconds))
    return out


def num_changed(before: str, spans: Sequence[CharSpan], after: str, written: Sequence[CharSpan]) -> int:
    """Bytes outside `spans` of `before` that differ from those outside the `written` spans of `after`."""
    total = 0
    for old, new in zip(split_at(before, spans), split_at(after, written), strict=True):
        a, b = old.encode(), new.encode()
        total += sum(x != y for x, y in zip(a, b, strict=False)) + abs(len(a) - len(b))
    return total


def _outcome(strength: float, spans: int, found: Sequence[Edited]) -> EditOutcome:
    return EditOutcome(
        strength=strength,
        spans=spans,
        num=len(found),
        changed=sum(each.changed for each in found),
        **shares(found, "parses", "equal"),
        **means(found, "forwards", "seconds"),
    )
