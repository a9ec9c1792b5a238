r"""The dialect against Python's `re` where the two agree, and what it refuses."""

from __future__ import annotations

import random
import re

import pytest

from daguerre.errors import InputError
from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.regex import grammar_dfa, regex_dfa

ALPHABET = "abcx z8.@-é日'\t"
PATTERNS = (
    "a*b+c?",
    "(foo|ab|ba){2,3}x?",
    "^$|(^(?:\\S+\\s+){0,9}\\S+$)",
    "(z|8){2,4}$",
    "^(a)|(b)|('.*')+$",
    "[^a-y]{3}",
    "(a|b)*a(a|b){4}",
    "[é-ü]+|日{2}",
    "x{0}y|a{2,}?",
    "(?:^a|c)b|(?P<name>zz)",
    "[\\w.-]+@[^\\d]",
    "[\\]x-]+",
    "",
)


def texts(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    narrow = [ALPHABET[:k] for k in (2, 3, 8, len(ALPHABET))]
    return ["".join(rng.choices(rng.choice(narrow), k=rng.randrange(9))) for _ in range(count)]


def test_a_pattern_means_what_python_says(subtests: pytest.Subtests) -> None:
    for pattern in PATTERNS:
        with subtests.test(pattern):
            inside = re.compile(pattern, re.ASCII)
            whole, somewhere = regex_dfa(pattern, Budget()), regex_dfa(pattern, Budget(), search=True)
            found = set()
            for text in texts(len(pattern), 400):
                wanted = (inside.fullmatch(text) is not None, inside.search(text) is not None)
                assert (whole.accepts(text.encode()), somewhere.accepts(text.encode())) == wanted, text
                found.add(wanted)
            assert len(found) > 1


def test_only_whole_characters_match() -> None:
    dfa = regex_dfa(".", Budget())

    assert dfa.accepts("\U0010ffff".encode()) and dfa.accepts("日".encode())
    for bad in (b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90\x80\x80", b"\n"):
        assert not dfa.accepts(bad)


def test_escapes_stand_for_their_characters() -> None:
    for pattern, text in (("\\x41\\u00e9\\u{1F600}", "Aé\U0001f600"), ("\\t\\0[\\b]", "\t\0\b"), ("\\$\\{\\/", "${/")):
        assert regex_dfa(pattern, Budget()).accepts(text.encode())


CASES = ["(?i)ab[c-z]*", "a(?i:b)", "(?i)[^ab]+", "^(?=.*8)(?!.*zz).{2,5}$", "^(?!a|b)", "^(?=a)(?:a|b)"]


def test_letters_of_either_case_and_lookahead_at_the_start_mean_what_python_says(subtests: pytest.Subtests) -> None:
    for pattern in CASES:
        with subtests.test(pattern):
            inside = re.compile(pattern, re.ASCII)
            whole, somewhere = regex_dfa(pattern, Budget()), regex_dfa(pattern, Budget(), search=True)
            found = set()
            for text in [text.swapcase() if k % 2 else text for k, text in enumerate(texts(len(pattern), 400))]:
                wanted = (inside.fullmatch(text) is not None, inside.search(text) is not None)
                assert (whole.accepts(text.encode()), somewhere.accepts(text.encode())) == wanted, text
                found.add(wanted)
            assert len(found) > 1


def test_letters_that_languages_fold_differently_are_in_neither_a_set_nor_its_opposite() -> None:
    for pattern in ("(?i)k", "(?i)[^k]"):
        assert not regex_dfa(pattern, Budget()).accepts("\u212a".encode())


def test_a_general_category_is_that_of_unicode() -> None:
    letters, others = regex_dfa("\\p{L}+", Budget()), regex_dfa("[\\P{L}]", Budget())

    assert letters.accepts("aé日".encode()) and not letters.accepts(b"a1")
    assert others.accepts(b"1") and not others.accepts("é".encode())
    assert not others.accepts("\U0003fffd".encode())  # a later Unicode may make a letter of what is not assigned


def test_a_class_reads_like_in_ecma_262_where_languages_differ() -> None:
    anything, never = regex_dfa("[^]a]", Budget()), regex_dfa("[]a]", Budget())

    assert anything.accepts(b"xa]") and not anything.accepts(b"x")
    assert never.is_empty


def test_characters_that_languages_disagree_on_are_neither_white_space_nor_its_opposite() -> None:
    for pattern in ("\\s", "\\S"):
        assert not regex_dfa(pattern, Budget()).accepts("\ufeff".encode())


LACKING = [
    ("(a)\\1", "a back-reference"),
    ("(?P<n>a)(?P=n)", "a back-reference"),
    ("a(?=b)", "lookahead"),
    ("(?<!a)b", "lookbehind"),
    ("\\bword", "a word boundary"),
    ("(?s)a", "flags other than i"),
    ("a(?i)b", r"\(\?i\) behind the start; write \(\?i:"),
    ("(?>a)", "an atomic group"),
    ("a++", "a possessive repetition"),
    ("\\p{Greek}", "a Unicode property"),
    ("^a(?=b)cccccccc", r"lookahead behind the start, \(\?=\.\.\.\), which .* at character 2, "),
    ("(?=a)b|c", "a choice beside lookahead"),
    ("\\Aa\\z", r"\\A, which ECMA-262 does not have; write \^"),
    ("(a", "a group that is not closed at character 0"),
    ("a)", "a closing parenthesis"),
    ("[a", "a class that is not closed"),
    ("[z-a]", "a range whose ends"),
    ("a{3,2}", "at least 3 and at most 2"),
    ("*a", "a repetition of nothing"),
    ("a**", "a repetition of a repetition"),
    ("^*", "a repeated anchor"),
    ("a{x}", "an opening brace"),
    ("\\q", "unknown escape"),
    ("\\ud800", "U\\+D800, which is no character"),
    ("a\\", "an end that comes too soon"),
    ("(" * 200 + ")" * 200, "more than 100 groups inside one another, which no option raises"),
    ("a{1,10000000000}", "a repetition count of more than 9 digits, which no option raises"),
]


def test_what_the_dialect_lacks_is_an_error_that_names_it(subtests: pytest.Subtests) -> None:
    for pattern, complaint in LACKING:
        with subtests.test(pattern, complaint=complaint), pytest.raises(InputError, match=complaint):
            regex_dfa(pattern, Budget())


HOSTILE = ["((a{100}){100}){100}", "(a|b)*a(a|b){30}", "a{999999999}"]


def test_a_hostile_pattern_is_an_error_and_not_a_hang(subtests: pytest.Subtests) -> None:
    for pattern in HOSTILE:
        with subtests.test(pattern), pytest.raises(InputError, match=r"too large|took longer"):
            regex_dfa(pattern, Budget(max_states=5000, max_steps=50_000))


def test_the_clock_ends_a_compilation() -> None:
    with pytest.raises(InputError, match="took longer than 0 s"):
        regex_dfa("(a|b)*a(a|b){15}", Budget(seconds=0.0))


def test_a_grammar_nests_to_its_depth_and_no_further() -> None:
    rules = {"sum": "(?&term)(\\+(?&term))*", "term": "[0-9]|\\((?&sum)\\)"}
    dfa = grammar_dfa(rules, "sum", 3, Budget())

    assert all(dfa.accepts(text) for text in (b"1", b"1+2", b"(1+2)+3", b"((1)+(2))"))
    assert not any(dfa.accepts(text) for text in (b"", b"(1", b"1)", b"(((1)))"))


def test_a_rule_that_is_not_there_is_named() -> None:
    with pytest.raises(InputError, match=r"unknown rule .* 'trm': did you mean 'term'"):
        grammar_dfa({"start": "(?&trm)", "term": "a"}, "start", 3, Budget())
    with pytest.raises(InputError, match="unknown rule 'go'"):
        grammar_dfa({"start": "a"}, "go", 3, Budget())
