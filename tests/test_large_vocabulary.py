"""A vocabulary of 262,144 tokens: its tables are made once, and everything works on it."""

from __future__ import annotations

import re

import pytest

import made_tokenizers as mt
from daguerre.decoding.healing import Vocabulary, num_to_take_back
from daguerre.decoding.pins import Pin
from daguerre.sampling.constraints import Budget
from daguerre.sampling.constraints.indices import NONE
from daguerre.sampling.constraints.regex import regex_dfa
from daguerre.sampling.constraints.tokens import VocabularyBytes, lift
from daguerre.scoring.decisions import Choice
from main_path import fill
from published_runs import SCHEMA, model_of, run, tokens_of

pytestmark = pytest.mark.slow


def test_its_tables_are_made_once() -> None:
    tokenizer = mt.made("synthetic")
    vocabulary, tokens = Vocabulary(tokenizer), VocabularyBytes.make(tokenizer)
    assert Vocabulary.make(tokenizer) is Vocabulary.make(tokenizer.sized(tokenizer.vocab_size))
    assert VocabularyBytes.make(tokenizer) is tokens
    scan = [t for t in range(tokenizer.vocab_size) if tokenizer.token_bytes(t).startswith(b" th")]
    assert sorted(vocabulary.beginning_with(b" th")) == scan and len(scan) > 300
    assert num_to_take_back(tokenizer.encode("the "), vocabulary) == 1


@pytest.mark.parametrize("pattern", ["[^]*", r"\w+( \w+){0,3}\.", "(é|日本){2,5}", "={3,9}"])
def test_a_token_does_what_its_bytes_do(pattern: str) -> None:
    tokenizer, dfa = mt.made("synthetic"), regex_dfa(pattern, Budget())
    automaton = lift(dfa, VocabularyBytes.make(tokenizer), Budget())
    for token in range(0, tokenizer.vocab_size, 97):
        text = tokenizer.token_bytes(token)
        states = [dfa.table.run(text, state) for state in range(len(dfa))] if text else [NONE] * len(dfa)
        assert [automaton.step(state, token) for state in range(len(dfa))] == states


def test_constraints_stop_strings_healing_pins_and_decisions_work_on_it() -> None:
    model = model_of("synthetic")
    assert re.fullmatch(
        r"\d{4}-\d\d|é{2,3}", run("synthetic", "Date: ", 16, regex=r"\d{4}-\d\d|é{2,3}", temperature=1.0).text
    )
    assert run("synthetic", "x = ", 60, schema=SCHEMA, temperature=1.0).text.startswith('{"name":')
    whole = run("synthetic", "x = ", 12, temperature=1.0, heal=False).text
    assert (
        run("synthetic", "x = ", 12, temperature=1.0, heal=False, stop=[whole[4:7]]).text
        == whole[: whole.index(whole[4:7])]
    )
    healed = run("synthetic", "x = [1, 2] wor", 4, temperature=1.0)
    assert model.tokenizer.decode_bytes(tokens_of(healed)).startswith(b"x = [1, 2] wor" + healed.text[:3].encode())
    pinned = run("synthetic", "a b", 12, context="full", pins=[Pin("é<|mask|>", 2)], min_tokens=12, mode="block")
    assert "é<|mask|>" in model.tokenizer.decode(tokens_of(pinned))
    text = run("synthetic", "a <|mask|> b<gap> c", 3, context="full", call=fill, min_tokens=3, heal=False)
    assert text.text.startswith("a <|mask|> b") and text.text.endswith(" c")
    (answer,) = model.decide("It is ", [Choice(before="", labels=["so", "not so"])])
    assert answer.answer in ("so", "not so")
