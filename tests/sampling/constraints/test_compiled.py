"""The compiled library of automata against the slow reference: the same automata, to the last number."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest

from daguerre.errors import InputError
from daguerre.models.tokenizer import Tokenizer
from daguerre.sampling.constraints import Budget, compiled
from daguerre.sampling.constraints.answers import tools_dfa
from daguerre.sampling.constraints.compile import schema_dfa
from daguerre.sampling.constraints.dfa import Dfa, intersect, subtract, unite
from daguerre.sampling.constraints.regex import regex_dfa
from daguerre.sampling.constraints.text import literals
from daguerre.sampling.constraints.tokens import FIELDS, PAIRS, TokenAutomaton, VocabularyBytes, lift
from daguerre.sampling.constraints.wording import Wording, wording_dfa

PATTERNS = (
    "",
    "a",
    "(a|b)*a(a|b){4}",
    "^a$|b|^c",
    "(^x|y)*z(b$|c)?",
    "[^a-z]{0,3}é|日本+.?",
    "(a{0,3}){2,5}",
    "(foo|fob|bar){1,3}|[^]*x",
    "\\d{4}-\\d{2}|[\\w.]+@\\w+",
)
SCHEMAS: tuple[object, ...] = (
    True,
    {"type": "string", "maxLength": 7},
    {"enum": ["a", "ab\n", 'q"', 1, 2.5, None, {"x": [1]}]},
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"$ref": "#"}}, "required": ["a"]},
    {"type": "array", "items": {"type": "number", "minimum": -2, "exclusiveMaximum": 17.5}, "maxItems": 3},
    {"patternProperties": {"^x-": {"type": "null"}}, "properties": {"x-a": True}, "additionalProperties": False},
    {"type": "integer", "multipleOf": 7},
)


@contextmanager
def without_library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(compiled, "library", lambda: None)
        yield


def equal(a: Dfa, b: Dfa) -> bool:
    first, second = a.table, b.table
    return all(
        np.array_equal(getattr(first, name), getattr(second, name)) for name in ("delta_QK", "class_of_byte", "accept")
    )


def assert_equal(a: TokenAutomaton, b: TokenAutomaton) -> None:
    for name in FIELDS:
        assert np.array_equal(getattr(a, name), getattr(b, name)), name
    for name in PAIRS:
        first, second = getattr(a.pairs, name), getattr(b.pairs, name)
        assert np.array_equal(first, second) and first.dtype == second.dtype, name


def both_ways(make: Callable[[], Dfa], monkeypatch: pytest.MonkeyPatch) -> tuple[Dfa, Dfa]:
    assert compiled.library() is not None
    fast = make()
    with without_library(monkeypatch):
        return fast, make()


def pattern_dfa(pattern: str, search: bool) -> Dfa:
    return regex_dfa(pattern, Budget(), search=search)


def test_a_pattern_gives_the_same_automaton(monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests) -> None:
    for pattern in PATTERNS:
        with subtests.test(pattern):
            for search in (False, True):
                make = partial(pattern_dfa, pattern, search)
                assert equal(*both_ways(make, monkeypatch))


def test_random_products_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(0)
    for _ in range(30):
        words = [["".join(rng.choices("abc", k=rng.randint(0, 5))) for _ in range(8)] for _ in range(2)]
        stars = [f"({'|'.join(rng.sample(['a', 'ab', 'bc', 'c', 'ca'], 3))})*" for _ in range(2)]
        combine = rng.choice([intersect, subtract, unite])

        def make(words: list[list[str]] = words, stars: list[str] = stars, combine: object = combine) -> Dfa:
            parts = [
                unite(literals(held, Budget()), regex_dfa(star, Budget()), Budget())
                for held, star in zip(words, stars, strict=True)
            ]
            return combine(*parts, Budget())  # type: ignore[operator]

        fast, slow = both_ways(make, monkeypatch)
        assert equal(fast, slow)
        assert fast.is_empty == slow.is_empty


def test_a_schema_gives_the_same_automaton_over_tokens(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    for schema in SCHEMAS:
        with subtests.test(str(schema)):
            fast, slow = both_ways(lambda schema=schema: schema_dfa(schema, Budget(), any_depth=1)[0], monkeypatch)
            assert equal(fast, slow)
            vocabulary = VocabularyBytes.make(tokenizer)
            first = lift(fast, vocabulary, Budget())
            with without_library(monkeypatch):
                second = lift(slow, vocabulary, Budget())
            assert_equal(first, second)


def test_tools_and_wordings_give_the_same_automata(monkeypatch: pytest.MonkeyPatch) -> None:
    tools = [{"name": "add", "parameters": {"type": "object", "properties": {"x": {"type": "boolean"}}}}]
    marks = ("<call>", "</call>")
    assert equal(*both_ways(lambda: tools_dfa(tools, "auto", marks, 1, Budget())[0], monkeypatch))
    wording = Wording(keywords=("ab",), forbidden=("ba", "cc"), ending="x", before=b"b", after=b"a")
    assert equal(*both_ways(lambda: wording_dfa(wording, Budget()), monkeypatch))


def test_a_small_vocabulary_loses_the_same_states(monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = VocabularyBytes.of([b"", b"a", b"ab", b"abc", b"b", b"ca", b"\xc3", b"\xa9"])
    for pattern in ("(abc|d)*", "a+|é", "(ca|b){2}", "cab?"):
        first = lift(regex_dfa(pattern, Budget()), vocabulary, Budget())
        with without_library(monkeypatch):
            second = lift(regex_dfa(pattern, Budget()), vocabulary, Budget())
        assert_equal(first, second)


@pytest.mark.parametrize(
    "pattern",
    ["(a|[b-d]x|é){0,300}", '[^"\\\\]{0,600}("|\\\\n)?', "([a-z]{0,300}[0-9]|[a-f]{7}){2}|(z.){300}", "(a{299}b)*c"],
)
def test_many_states_that_bytes_change_alike_lift_to_the_same(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their functions are long lists, for which bytes that act alike are looked for."""
    rng = random.Random(0)
    words = ["".join(rng.choices('abcxz09é"\\n', k=rng.randint(1, 5))).encode() for _ in range(400)]
    texts = [bytes([byte]) for byte in range(256)] + words + words[:9]
    vocabulary = VocabularyBytes.of(rng.sample(texts, len(texts)))
    first = lift(made := regex_dfa(pattern, Budget()), vocabulary, Budget())
    with without_library(monkeypatch):
        second = lift(made, vocabulary, Budget())
    assert len(made.table.accept) > 290
    assert_equal(first, second)


ENDED: list[tuple[dict[str, Any], str]] = [
    ({"max_states": 50}, "(a|b)*a(a|b){9}"),
    ({"max_steps": 100}, "[a-z]{200}"),
    ({"max_bytes": 1 << 16}, "(.{1,100}|a){1,100}"),
    ({"seconds": 0.0}, "(a{1,30}){1,30}"),
]


def test_a_budget_ends_a_compilation(subtests: pytest.Subtests) -> None:
    for limits, pattern in ENDED:
        with subtests.test(str(limits)), pytest.raises(InputError, match=r"too large: more than|took longer than"):
            regex_dfa(pattern, Budget(**limits))
