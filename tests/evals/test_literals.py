"""Literals and arguments: what is taken out, what counts as valid, and that a constraint keeps the type."""

from __future__ import annotations

import hashlib
import re

import pytest

from daguerre.errors import DataError
from daguerre.evals.literals import METHODS, PATTERNS, constrained_filling, is_valid, make_literals
from daguerre.heldout import Document
from daguerre.model import Model
from daguerre.models.tokenizer import Tokenizer

SOURCE = '''\
import os

NAMES = ["a", 'b', 3]


def area(width, höhe=-2.5, *, sure=True):
    """A docstring."""
    text = f"{width!r:>{10}} {'x'}"
    print("größe", width * 2, os.path.join("a", NAMES[0]), sep=text)
    return width(höhe)(None)
'''


def document(text: str) -> Document:
    return Document("p", "1", "MIT", "a.py", hashlib.sha256(text.encode()).hexdigest(), text)


def test_literals_are_taken_out_where_they_stand(tokenizer: Tokenizer) -> None:
    examples = make_literals([document(SOURCE)], tokenizer, 20)
    found = {kind: {example.text for example in examples if example.kind == kind} for kind in PATTERNS}
    assert found["number"] == {"3", "2.5", "2", "0"}
    assert found["string"] == {'"a"', "'b'", '"größe"'}
    assert found["constant"] == {"True", "None"}
    assert found["list"] == {"""["a", 'b', 3]"""}
    assert found["arguments"] == {'"a", NAMES[0]', "None"}
    for example in examples:
        assert example.before + example.text + example.after == SOURCE
        assert SOURCE.count(example.prefix + example.text + example.suffix) == 1
        assert re.fullmatch(PATTERNS[example.kind], example.text)
        assert is_valid(example.kind, example.text)
    assert examples == make_literals([document(SOURCE)], tokenizer, 20)
    with pytest.raises(DataError, match="no literal"):
        make_literals([document("x = y\n")], tokenizer, 20)


def test_what_counts_as_valid() -> None:
    for kind, right, wrong in (
        ("string", "'a'", "1"),
        ("string", '"\\n"', "'a') + ('b'.x"),
        ("number", "-1.5e3", "True"),
        ("constant", "None", "0"),
        ("list", "[1, 'a']", "[x]"),
        ("arguments", "a, b=c(1)[2]", "a)(b"),
        ("arguments", "", "a, )\nx = ("),
    ):
        assert is_valid(kind, right), right
        assert not is_valid(kind, wrong), wrong


def test_the_constraint_keeps_the_type_and_methods_are_compared_in_pairs(causal: Model, tokenizer: Tokenizer) -> None:
    examples = make_literals([document(SOURCE)], tokenizer, 2, shown=(64, 32))
    result = constrained_filling(causal, examples)
    assert [(o.kind, o.method) for o in result.outcomes] == [(kind, m) for kind in PATTERNS for m in METHODS]
    assert set(result.compile_seconds) == set(PATTERNS)
    for outcome in result.outcomes:
        if outcome.method == "constrained":
            assert outcome.exact_difference == outcome.parses_difference == 0.0
            if outcome.kind != "arguments":
                assert outcome.valid == 1.0
    for example, texts in zip(examples, result.written, strict=True):
        assert set(texts) == set(METHODS)
        assert re.fullmatch(PATTERNS[example.kind], texts["constrained"])
        assert texts["healed"] == causal.infill(example.prefix, example.suffix, 16, mode="block").text
