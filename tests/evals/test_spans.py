"""Token spans: where they are, what is shown around them, and what counts as right."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from daguerre.decoding.request import Decode
from daguerre.errors import DataError
from daguerre.evals.spans import MIN_AROUND, fill_span, make_spans, span_infilling, static
from daguerre.heldout import Document
from daguerre.model import Model
from daguerre.models.tokenizer import Tokenizer

METHODS = {"default": Decode(mode="block"), "one shot": static(1), "four": static(4), "ar": Decode(mode="ar")}


def document(text: str) -> Document:
    return Document("p", "1", "", "a.py", hashlib.sha256(text.encode()).hexdigest(), text)


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    return [document("".join(f"value_{i} = compute_{j}({i}, {j})\n" for i in range(30))) for j in range(3)]


def test_a_span_and_what_is_around_it_are_the_documents_tokens(documents: list[Document], tokenizer: Tokenizer) -> None:
    spans = make_spans(documents, tokenizer, 8, 9, shown=(40, 20))

    assert len(spans) == 9
    assert len({span.document.sha256 for span in spans[:3]}) == 3, "one of each document before a second"
    assert len({(span.document.sha256, span.start) for span in spans}) == 9
    for span in spans:
        ids = tokenizer.encode(span.document.text)
        place = span.start - len(span.prefix)
        shown = [*span.prefix, *span.span, *span.suffix]
        assert ids[place : place + len(shown)] == shown
        assert len(span.span) == 8
        assert MIN_AROUND <= len(span.prefix) <= 40
        assert MIN_AROUND <= len(span.suffix) <= 20
    assert make_spans(documents, tokenizer, 8, 9, shown=(40, 20)) == spans
    assert make_spans(documents, tokenizer, 8, 9, shown=(40, 20), seed=1) != spans


def test_text_that_is_too_short_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(DataError, match="no document has 40 tokens"):
        make_spans([document("x = 1\n")], tokenizer, 8, 1)


def test_a_span_is_filled_as_an_ordinary_request_would(
    causal: Model, documents: list[Document], tokenizer: Tokenizer
) -> None:
    for span in make_spans(documents, tokenizer, 6, 3, shown=(60, 30)):
        exactly: dict[str, Any] = {"min_tokens": 6, "heal": False}
        filled = fill_span(causal, list(METHODS.values()), span)
        for one, (name, decode) in zip(filled, METHODS.items(), strict=True):
            if name == "ar":
                result = causal.generate(span.prefix, 6, decode, **exactly)
            else:
                result = causal.infill(span.prefix, span.suffix, 6, decode, **exactly)
            ids = [token.id for token in result.tokens]
            assert len(ids) == 6
            assert one.right == sum(a == b for a, b in zip(ids, span.span, strict=True))
            assert one.forwards == result.usage.forwards


def test_figures_by_hand(scripted: Callable[..., Any], documents: list[Document], tokenizer: Tokenizer) -> None:
    """A model that is right with a suffix, and without one at the first token only."""
    (span,) = make_spans(documents, tokenizer, 4, 1, shown=(30, 20))
    start = 1 + len(span.prefix)

    def says(canvas: Any, position: int) -> dict[int, float]:
        right = not canvas.continues or position == start
        return {span.span[position - start] if right else 500: 20.0}

    oracle = scripted(says, max_positions=256)
    model: Any = SimpleNamespace(config=oracle.config, tokenizer=tokenizer, denoiser=oracle)

    outcomes = {outcome.method: outcome for outcome in span_infilling(model, [span, span], METHODS)}

    assert {name: outcome.exact for name, outcome in outcomes.items()} == dict.fromkeys(METHODS, 1.0) | {"ar": 0.0}
    assert outcomes["ar"].token_accuracy == 0.25
    assert {name: outcome.forwards for name, outcome in outcomes.items()} == {
        "default": 1.0,
        "one shot": 1.0,
        "four": 4.0,
        "ar": 4.0,
    }
    assert outcomes["default"].token_interval[1] == 1.0
    assert (outcomes["ar"].length, outcomes["ar"].num) == (4, 2)
