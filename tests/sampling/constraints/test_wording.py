"""Keywords, forbidden strings, endings and intervals, each against all strings of a small alphabet."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from daguerre.errors import InputError
from daguerre.models.tokenizer import Tokenizer
from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.dfa import Dfa
from daguerre.sampling.constraints.product import intersect_tokens, table
from daguerre.sampling.constraints.regex import regex_dfa
from daguerre.sampling.constraints.tokens import TokenAutomaton, VocabularyBytes, lift
from daguerre.sampling.constraints.wording import (
    Wording,
    avoiding,
    compile_wording,
    counted,
    ending_with,
    holding,
    matcher,
    wording_dfa,
)

TEXTS = [bytes(text) for size in range(8) for text in product(b"ab", repeat=size)]
VOCABULARY = VocabularyBytes.of([b"", b"a", b"b", b"ab", b"ba", b"c"])
ROWS = [list(row) for size in range(5) for row in product(range(6), repeat=size)]


def word(rng: np.random.Generator, least: int, most: int) -> bytes:
    return bytes(rng.choice([97, 98], rng.integers(least, most + 1)).tolist())


def test_each_word_is_held_or_ended_with() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        one = word(rng, 1, 5)
        held, ending = holding(one, Budget()), ending_with(one, Budget())
        for text in TEXTS:
            assert held.accepts(text) == (one in text)
            assert ending.accepts(text) == text.endswith(one)


def seen(one: bytes, text: bytes, around: Wording) -> bool:
    """Whether a word occurs in part or in whole in the text, or begins in or before it and may end in the next gap."""
    whole, start = around.before + text + around.after, len(around.before)
    for at in range(len(whole) - len(one) + 1):
        if whole[at : at + len(one)] == one and at + len(one) > start and at < start + len(text):
            return True
    reaching = any(whole.endswith(one[:k]) for k in range(len(around.after) + 1, len(one)))
    return around.followed and reaching


def test_nothing_forbidden_is_in_the_text_nor_across_its_edges() -> None:
    rng, num = np.random.default_rng(1), 0
    for _ in range(150):
        one = word(rng, 1, 4)
        around = Wording(before=word(rng, 0, 4), after=word(rng, 0, 4), followed=bool(rng.integers(2)))
        kept = avoiding(one, around, Budget())
        for text in TEXTS[:64]:
            assert kept.accepts(text) == (not seen(one, text, around)), (one, text, around)
            num += kept.accepts(text)
    assert num > 500


def test_what_is_asked_together_holds_together() -> None:
    rng, num = np.random.default_rng(2), 0
    for _ in range(60):
        keywords, forbidden = ([word(rng, 1, 3).decode() for _ in range(rng.integers(3))] for _ in range(2))
        ending = word(rng, 0, 2).decode()
        try:
            wording = Wording(tuple(keywords), tuple(forbidden), ending, before=word(rng, 0, 2), after=word(rng, 0, 2))
        except InputError as error:
            assert "forbidden" in str(error)  # noqa: PT017
            continue
        dfa = wording_dfa(wording, Budget())
        for text in TEXTS[:128]:
            right = text.endswith(ending.encode()) and all(w.encode() in text for w in keywords)
            right &= not any(seen(w.encode(), text, wording) for w in forbidden)
            assert dfa.accepts(text) == right, (wording, text)
            num += right
    assert num > 100


def lifted(dfa: Dfa) -> TokenAutomaton:
    return lift(dfa, VOCABULARY, Budget())


def test_the_intersection_of_token_automata_is_that_of_their_languages() -> None:
    rng = np.random.default_rng(3)
    patterns = ["(a|b)*", "(ab|ba|c)*", "a[^]*b", "(abc)*|b+", "a{2,3}c?"]
    for _ in range(12):
        first = lifted(regex_dfa(str(rng.choice(patterns)), Budget()))
        second = lifted(holding(word(rng, 1, 2), Budget()))
        try:
            both = intersect_tokens(first, second, Budget())
        except InputError:
            assert not any(first.accepts(row) and second.accepts(row) for row in ROWS)
            continue
        for row in ROWS:
            assert both.accepts(row) == (first.accepts(row) and second.accepts(row))


def test_an_intersection_keeps_to_its_budget() -> None:
    first, second = lifted(regex_dfa("(a|b){40}", Budget())), lifted(holding(b"abab", Budget()))
    with pytest.raises(InputError, match="too large"):
        intersect_tokens(first, second, Budget(max_states=50))


def test_intervals_count_tokens() -> None:
    rng, num = np.random.default_rng(4), 0
    texts = [VOCABULARY.text[o : o + n].tobytes() for o, n in zip(VOCABULARY.offsets, VOCABULARY.lengths, strict=True)]
    for _ in range(25):
        start = int(rng.integers(3))
        end, one = start + int(rng.integers(1, 4)), word(rng, 1, 3)
        inner = lifted(holding(one, Budget()))
        automaton = counted(table(inner), inner.class_of_token, start, end, Budget())
        for row in ROWS:
            right = 0 not in row and one in b"".join(texts[token] for token in row[start:end])
            assert automaton.accepts(row) == right, (one, start, end, row)
            num += right
    assert num > 500


def test_tokens_in_an_interval_are_those_tokens() -> None:
    delta, column = matcher([1, 3, 1], 6, Budget())
    automaton = counted(delta, column, 1, 4, Budget())
    for row in ROWS:
        assert automaton.accepts(row) == (row[1:4] == [1, 3, 1])


def test_a_wording_compiles_for_a_real_vocabulary(tokenizer: Tokenizer) -> None:
    wording = Wording(("while", "née"), ("x", "if"), "\n", ((("def"), 0, 3), (tuple(tokenizer.encode("import")), 2, 9)))
    automaton = compile_wording(wording, tokenizer)
    right = tokenizer.encode("def ") + tokenizer.encode("import") + tokenizer.encode(" while née\n")
    assert automaton.accepts(right)
    assert not automaton.accepts(tokenizer.encode("x def import while née\n"))
    assert not automaton.accepts(right[:-1])
    with pytest.raises(InputError, match="no text has all"):  # every text that ends with b goes on as bc
        compile_wording(Wording(forbidden=("bc",), ending="b", after=b"c"), tokenizer)
