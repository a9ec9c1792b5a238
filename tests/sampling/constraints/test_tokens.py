"""The automaton over tokens against the one over bytes, on a vocabulary of ours and on a tiny one."""

from __future__ import annotations

import random

import pytest

from daguerre.errors import InputError
from daguerre.models.tokenizer import Tokenizer
from daguerre.sampling.constraints import Budget, compile_choices, compile_grammar, compile_regex, compile_schema
from daguerre.sampling.constraints.indices import DEAD, NONE
from daguerre.sampling.constraints.regex import regex_dfa
from daguerre.sampling.constraints.tokens import VocabularyBytes, lift

PATTERNS = ("[a-z]+(_[a-z]+)*", "def \\w+\\(\\):\n    return \\d{1,3}", "(é|日本){2,5}.?", "\\s*x{3}")


def test_a_token_does_what_its_bytes_do(tokenizer: Tokenizer, subtests: pytest.Subtests) -> None:
    for pattern in PATTERNS:
        with subtests.test(pattern):
            dfa = regex_dfa(pattern, Budget())
            automaton = lift(dfa, VocabularyBytes.make(tokenizer), Budget())

            edges = automaton.edges
            # every byte is a token, so no state is lost, and their order is kept
            assert automaton.num_states == len(dfa)
            for state in range(len(dfa)):
                for token in range(tokenizer.vocab_size):
                    text = tokenizer.token_bytes(token)
                    wanted = dfa.table.run(text, state) if text else DEAD
                    found = automaton.class_of_token[token]
                    run = slice(edges.first[state], edges.first[state + 1])
                    if found == NONE:
                        assert wanted == DEAD
                    elif token % 7 == 0:
                        assert automaton.step(state, token) == wanted
                    else:
                        assert (wanted != DEAD) == (found in edges.cls[run])


def test_every_way_to_write_a_text_is_accepted(tokenizer: Tokenizer) -> None:
    rng = random.Random(0)
    automaton = compile_regex("(def|class) [a-z_]{3,20}:\n    pass", tokenizer)
    text = b"def quick_sort:\n    pass"
    pieces: dict[bytes, int] = {tokenizer.token_bytes(t): t for t in range(tokenizer.vocab_size)}
    for _ in range(50):
        tokens, at = [], 0
        while at < len(text):
            size = rng.choice([k for k in range(1, 9) if text[at : at + k] in pieces])
            tokens.append(pieces[text[at : at + size]])
            at += len(text[at : at + size])
        assert automaton.accepts(tokens)
        assert not automaton.accepts([*tokens, tokenizer.eos_id])
        assert automaton.with_filler(tokenizer.eos_id).accepts([*tokens, tokenizer.eos_id, tokenizer.eos_id])
        assert not automaton.with_filler(tokenizer.eos_id).accepts([*tokens[:-1], tokenizer.eos_id])


def test_tokens_of_a_class_act_alike_and_classes_differ(tokenizer: Tokenizer) -> None:
    automaton = compile_schema({"type": "object", "properties": {"name": {"type": "string"}}}, tokenizer)
    columns, edges = {}, automaton.edges
    for cls in range(automaton.num_classes):
        chosen = edges.cls == cls
        columns[cls] = tuple(sorted(zip(edges.src[chosen].tolist(), edges.dst[chosen].tolist(), strict=True)))

    assert len(set(columns.values())) == automaton.num_classes
    assert automaton.num_classes < tokenizer.vocab_size / 10
    assert {automaton.class_of_token[token] for token in tokenizer.special_ids} == {NONE}
    assert automaton.fewest_tokens() == 1 if b"{}" in map(tokenizer.token_bytes, range(tokenizer.vocab_size)) else 2


def test_states_that_a_vocabulary_cannot_reach_are_left_out() -> None:
    dfa = regex_dfa("ab|cd", Budget())

    automaton = lift(dfa, VocabularyBytes.of([b"", b"a", b"ab", b"b", b"c"]), Budget())

    assert automaton.class_of_token.tolist().count(NONE) == 2  # the special one, and c, after which nothing is possible
    assert automaton.num_states == 3
    with pytest.raises(InputError, match="no text that this vocabulary can write"):
        lift(dfa, VocabularyBytes.of([b"a", b"c"]), Budget())


def test_choices_and_grammars_compile(tokenizer: Tokenizer) -> None:
    choices = compile_choices(["yes", "no", "né"], tokenizer)
    grammar = compile_grammar({"sum": "(?&term)(\\+(?&term))*", "term": "[0-9]|\\((?&sum)\\)"}, "sum", tokenizer)

    assert all(choices.accepts(tokenizer.encode(text)) for text in ("yes", "no", "né"))
    assert not choices.accepts(tokenizer.encode("yesno"))
    assert grammar.accepts(tokenizer.encode("(1+2)+3")) and not grammar.accepts(tokenizer.encode("(1+2"))
    with pytest.raises(InputError, match="no choices"):
        compile_choices([], tokenizer)
    with pytest.raises(InputError, match="depth must be a whole number from 1"):
        compile_grammar({"a": "b"}, "a", tokenizer, depth=0)


def test_too_many_edges_are_an_error(tokenizer: Tokenizer) -> None:
    with pytest.raises(InputError, match="edges over this vocabulary"):
        compile_regex("[a-z]{1,200}", tokenizer, budget=Budget(max_edges=1000))


def test_a_language_without_texts_is_an_error(tokenizer: Tokenizer) -> None:
    with pytest.raises(InputError, match="contradicts itself"):
        compile_regex("[]", tokenizer)
