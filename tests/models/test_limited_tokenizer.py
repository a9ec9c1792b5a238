"""A tokenizer of a model's texts refuses what cannot fit before it is encoded."""

from __future__ import annotations

import pytest

from daguerre.errors import ContextError
from daguerre.models.tokenizer import LONGEST, Tokenizer


def test_a_text_that_cannot_fit_is_refused_before_it_is_encoded() -> None:
    plain = Tokenizer.default()
    plain.chat_template = object()  # type: ignore[attr-defined]
    limited, most = plain.limited(10), 10 * max(plain.longest, LONGEST)
    assert limited == plain and limited.chat_template is plain.chat_template  # type: ignore[attr-defined]
    assert limited.encode("x" * most) == plain.encode("x" * most)
    with pytest.raises(ContextError, match="11 tokens or more and the model has 10 positions"):
        limited.encode("x" * (most + 1))
    with pytest.raises(ContextError):
        limited.encode("é" * (most // 2 + 1))
    limited.check_size("x" * 10 * plain.longest, longest=1)
    with pytest.raises(ContextError):
        limited.check_size("x" * 10 * plain.longest, "y", longest=1)
    assert plain.encode("x" * (most + 1))
