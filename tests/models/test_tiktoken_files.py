"""tiktoken files and Tekken against the tiktoken library, and what is refused."""

from __future__ import annotations

import base64
import json
import unicodedata
from functools import cache
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import made_tokenizers as mt
from daguerre.errors import DataError
from daguerre.models.published_tokenizer import PublishedTokenizer
from daguerre.models.tiktoken_files import CL100K, merges, oniguruma, read_tekken, read_tiktoken

POSSESSIVE = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
    r"|\s+(?!\S)|\s"
)
WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
HAN = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{L}&&[^\p{Han}]]+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
ENDS = r"[\p{L}\s]+$|\p{L}|[^\p{L}]+?"
PATTERNS = {"cl100k": CL100K, "possessive": POSSESSIVE, "words": WORDS, "han": HAN, "gpt2": GPT2, "ends": ENDS}
ASSIGNED = st.characters(exclude_categories=("Cs", "Cn", "Co")).filter(lambda c: unicodedata.category(c) != "Cn")
RUNS = st.tuples(
    st.sampled_from([" ", "\n", "\t", "=", "a", "ab", "é", "the", "1", "_", "'S", "漢"]), st.integers(1, 20)
)
TEXTS = st.lists(st.one_of(RUNS.map(lambda run: run[0] * run[1]), st.text(ASSIGNED, max_size=6)), max_size=8)


@cache
def both(name: str) -> tuple[Any, Any]:
    """Our tokenizer of a pattern, and tiktoken's."""
    tiktoken = pytest.importorskip("tiktoken")
    theirs = tiktoken.Encoding("made", pat_str=PATTERNS[name], mergeable_ranks=mt.ranks(), special_tokens={})
    return PublishedTokenizer(read_tiktoken(mt.tiktoken_lines(), PATTERNS[name])), theirs


@settings(max_examples=200, deadline=None)
@given(pieces=TEXTS)
@example(pieces=["12345678 x\n", " \n\n  y  ", "\n"])
@example(pieces=["ab\n", "ab"])
def test_any_text_has_the_ids_of_tiktoken(pieces: list[str]) -> None:
    text = "".join(pieces)
    for name in PATTERNS:
        ours, theirs = both(name)
        assert ours.encode(text) == theirs.encode_ordinary(text), name


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text("ab", min_size=2, max_size=5), max_size=12, unique=True), st.text("ab ", max_size=40))
def test_any_vocabulary_of_whole_merges_has_the_ids_of_tiktoken(tokens: list[str], text: str) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    ranks = {bytes([byte]): byte for byte in range(256)}
    for token in sorted(map(str.encode, tokens), key=len):  # what can be merged from two tokens, in their order
        if any(token[:i] in ranks and token[i:] in ranks for i in range(1, len(token))):
            ranks[token] = len(ranks)
    lines = b"\n".join(base64.b64encode(token) + b" %d" % rank for token, rank in ranks.items())
    theirs = tiktoken.Encoding("made", pat_str=CL100K, mergeable_ranks=ranks, special_tokens={})

    assert PublishedTokenizer(read_tiktoken(lines)).encode(text) == theirs.encode_ordinary(text)


def test_merges_are_all_pairs_in_the_order_of_what_they_join_to() -> None:
    ranks = {b"a": 0, b"b": 1, b"ab": 2, b"ba": 3, b"aba": 4, b"xyz": 5}
    assert merges(ranks) == [(b"a", b"b"), (b"b", b"a"), (b"a", b"ba"), (b"ab", b"a")]


def test_patterns_mean_the_same_to_the_other_library(subtests: pytest.Subtests) -> None:
    for pattern, expected in [
        (CL100K, CL100K),
        (r"\p{N}{1,3}+|\s++$", r"(?>\p{N}{1,3})|\s++\z"),
        (r"[^$\]]{2}+$|\$", r"(?>[^$\]]{2})\z|\$"),
        (r"x{1,}+\}+", r"(?>x{1,})\}+"),
        (r"[[:alpha:]]{3}+", r"(?>[[:alpha:]]{3})"),
    ]:
        with subtests.test(pattern):
            assert oniguruma(pattern) == expected


def test_a_group_that_is_repeated_possessively_is_refused() -> None:
    with pytest.raises(DataError, match="possessively"):
        oniguruma(r"(?:ab){1,3}+")


def test_a_damaged_line_is_refused_with_its_number(subtests: pytest.Subtests) -> None:
    for line in [b"YQ==", b"YQ== x", b"Y!== 3", b"\x01\x00\xff 1", b"YQ== 1 2"]:
        with subtests.test(line=line), pytest.raises(DataError, match="line 2 is not"):
            read_tiktoken(b"YQ== 0\n" + line)


def test_a_damaged_tekken_file_is_refused(subtests: pytest.Subtests) -> None:
    for number, change in enumerate(
        [
            lambda v: v.pop("config"),
            lambda v: v["config"].pop("pattern"),
            lambda v: v["vocab"][3].pop("rank"),
            lambda v: v["vocab"][3].update(token_bytes="?"),
            lambda v: v.update(special_tokens=3),
            lambda v: v["config"].update(default_num_special_tokens=10**9),
            lambda v: v["config"].update(default_num_special_tokens=10**9, default_vocab_size=10**10),
        ]
    ):
        with subtests.test(str(number)):
            values = mt.tekken()
            change(values)
            with pytest.raises(DataError, match=r"not a tekken\.json"):
                read_tekken(json.dumps(values).encode())


def test_what_is_no_tekken_file_is_refused(subtests: pytest.Subtests) -> None:
    for content in [b"", b"[]", b"null", b"\xff", b"{}", b"[" * 100_000]:
        with (
            subtests.test(content=content[:9]),
            pytest.raises(DataError, match=r"not a tekken\.json|tekken\.json is n"),
        ):
            read_tekken(content)


def test_a_tekken_file_without_special_tokens_has_those_of_its_first_versions() -> None:
    values = mt.tekken()
    del values["special_tokens"]
    tokenizer = PublishedTokenizer(read_tekken(json.dumps(values).encode()))
    names = {index: text for text, index in tokenizer.added.items()}
    assert [names[i] for i in (0, 1, 2, 3, 11, 19, 20, 39)] == [
        "<unk>", "<s>", "</s>", "[INST]", "<pad>", "[TOOL_CONTENT]", "<SPECIAL_20>", "<SPECIAL_39>",
    ]  # fmt: skip
    assert tokenizer.token_bytes(40 + 65) == b"A"
