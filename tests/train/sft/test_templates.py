"""Rows of templates: the text with its gaps filled, of which the fills are answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from daguerre.errors import InputError
from daguerre.models.core.config import ModelConfig
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.sft.formats import read_row
from daguerre.train.sft.rendering import Renderer

CONFIG = ModelConfig(
    width=16, num_layers=1, num_heads=1, num_kv_heads=1, mlp_width=16, max_positions=64, context="full", shift=False,
    vocab_size=272, mask_id=3, eos_id=2, bos_id=1, pad_id=0,
)  # fmt: skip


def test_a_template_is_the_text_with_its_fills_as_the_only_answers() -> None:
    tokenizer = Tokenizer.default("bytes")
    row = read_row({"template": "ab<gap><gap>e<gap>", "fills": ["c", "dd", "f"]})
    (text,) = Renderer(tokenizer, CONFIG).texts(row)
    assert text.tokens.tolist() == [1, *tokenizer.encode("abcddef")]
    assert np.flatnonzero(text.answer).tolist() == [3, 4, 5, 7]


def test_a_gap_may_be_first_and_nothing_follows_it() -> None:
    tokenizer = Tokenizer.default("bytes")
    (text,) = Renderer(tokenizer, CONFIG).texts(read_row({"template": "<gap>", "fills": ["7"]}))
    assert text.tokens.tolist() == [1, *tokenizer.encode("7")] and text.answer.tolist() == [False, True]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"template": "a<gap>", "fills": ["b", "c"]}, r"its template has 1 gaps \(<gap>\), and its fills are 2"),
        ({"template": "a", "fills": []}, "its template has 0 gaps"),
        ({"template": "a<gap>", "fills": [""]}, "one of its fills is empty"),
        ({"template": "a<gap>", "fills": "b"}, "its fills are no list of texts"),
        ({"template": 3, "fills": ["b"]}, "its template is no text"),
    ],
)
def test_a_template_that_cannot_be_filled_says_why(row: Any, why: str) -> None:
    with pytest.raises(InputError, match=why):
        read_row(row)


def test_the_vocabulary_of_bytes_has_a_token_for_each_byte_and_no_others() -> None:
    tokenizer = Tokenizer.default("bytes")
    assert tokenizer.vocab_size == 272
    assert len(tokenizer.encode("def f(x):\n    return 10\né")) == len("def f(x):\n    return 10\né".encode())
