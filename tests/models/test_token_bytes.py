"""The bytes of a vocabulary's tokens in one piece, beside a list of them."""

from __future__ import annotations

import json
import tracemalloc
from itertools import product
from string import ascii_lowercase
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daguerre.models.published_tokenizer import PublishedTokenizer
from daguerre.models.token_bytes import TokenBytes
from daguerre.models.tokenizer import byte_of_character


@given(texts=st.lists(st.binary(max_size=4), max_size=6), ids=st.integers(0, 9))
def test_it_is_the_list_cut_or_filled_up(texts: list[bytes], ids: int) -> None:
    held, wanted = TokenBytes(texts).sized(ids), [*texts, *[b""] * 9][:ids]
    assert list(held) == wanted and len(held) == ids
    assert held.empty() == {index for index, text in enumerate(wanted) if not text}
    assert held[1:] == wanted[1:]
    for index in (-1, ids):
        with pytest.raises(IndexError):
            held[index]


def test_a_large_vocabulary_leaves_little_behind() -> None:
    words = ["".join(letters) for letters in product(ascii_lowercase, repeat=3)]
    content = json.dumps(layout([*byte_of_character(), *words]))
    tracemalloc.start()
    try:
        tokenizer = PublishedTokenizer(content)
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert tokenizer.to_bytes() == content.encode()
    assert [tokenizer.token_bytes(tokenizer.encode(word)[0]) for word in words[:5]] == [w.encode() for w in words[:5]]
    assert left < 20 * len(words)  # an object for each token takes 40 bytes and more, the file 30


def layout(words: list[str]) -> dict[str, Any]:
    """A `tokenizer.json` of these tokens, each a word that is written whole."""
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": bytes_,
        "decoder": bytes_,
        "model": {
            "type": "BPE",
            "vocab": {word: index for index, word in enumerate(words)},
            "merges": [],
            "ignore_merges": True,
        },
    }
