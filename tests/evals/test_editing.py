"""Edit locality: what is edited, and that what changes outside is seen."""

from __future__ import annotations

import dataclasses
import hashlib

import pytest

from daguerre.errors import DataError
from daguerre.evals.editing import NUM_SPANS, STRENGTHS, edit_locality, edit_passage, make_passages, num_changed
from daguerre.evals.lines import parse
from daguerre.heldout import Document
from daguerre.model import Model
from daguerre.models.tokenizer import Tokenizer

SOURCE = "".join(f"@cache\ndef area_{i}(width, höhe):\n    return width * {i}  # ß\n\n\n" for i in range(12))


def document(text: str) -> Document:
    return Document("p", "1", "MIT", "a.py", hashlib.sha256(text.encode()).hexdigest(), text)


@pytest.mark.parametrize("text", [SOURCE, SOURCE.replace("\n", "\r\n")])
def test_passages_are_whole_statements_with_spans_apart(text: str, tokenizer: Tokenizer) -> None:
    passages = make_passages([document(text)], tokenizer, 10, max_tokens=128)
    assert len(passages) > 1
    assert len({passage.text for passage in passages}) == len(passages)
    for passage in passages:
        assert passage.text in text
        assert passage.text.startswith("@cache")
        assert parse(passage.text) is not None
        assert 64 <= len(tokenizer.encode(passage.text)) <= 128
        assert len(passage.spans) == NUM_SPANS[-1]
        edges = [edge for span in passage.spans for edge in span]
        assert edges == sorted(edges)
        assert edges[0] >= 0
        assert edges[-1] <= len(passage.text)
        assert all(start < end for start, end in passage.spans)
    assert passages == make_passages([document(text)], tokenizer, 10, max_tokens=128)
    with pytest.raises(DataError, match="no document has statements"):
        make_passages([document("x = 1\n")], tokenizer, 10)


def test_bytes_that_change_outside_are_counted() -> None:
    text, spans = "abcdef", [(1, 2), (4, 5)]
    assert num_changed(text, spans, "aXXcdYf", [(1, 3), (5, 6)]) == 0
    assert num_changed(text, spans, "aXXcDYf", [(1, 3), (5, 6)]) == 1
    assert num_changed(text, spans, "aXXcdYfé", [(1, 3), (5, 6)]) == 2
    assert num_changed(text, spans, "bXXdYf", [(1, 3), (4, 5)]) == 3


@pytest.mark.parametrize("name", ["causal", "full"])
def test_edits_in_every_setting_are_local(models: dict[str, Model], name: str, tokenizer: Tokenizer) -> None:
    passages = make_passages([document(SOURCE), document(SOURCE.replace("\n", "\r\n"))], tokenizer, 2, max_tokens=100)
    outcomes = edit_locality(models[name], passages)
    assert [(o.strength, o.spans) for o in outcomes] == [(s, n) for n in NUM_SPANS for s in STRENGTHS]
    assert [o.changed for o in outcomes] == [0] * len(outcomes)
    assert all(o.num == 2 and o.forwards >= 1 for o in outcomes)


def test_what_is_found_again_is_equal(causal: Model, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    (passage,) = make_passages([document(SOURCE)], tokenizer, 1, max_tokens=100)
    edit = causal.edit

    def as_it_was(text: str, spans: object, **options: object) -> object:
        return dataclasses.replace(edit(text, spans, **options), text=text, spans=tuple(spans))  # type: ignore[arg-type, call-overload]

    monkeypatch.setattr(causal, "edit", as_it_was)
    (found,) = edit_passage(causal, [(1.0, 1)], 0, passage)
    assert (found.changed, found.equal, found.parses) == (0, True, True)
