"""Qwen2.5-Coder 0.5B drafts for another of its vocabulary: for the 1.5B, and in CI for itself."""

from __future__ import annotations

from typing import Any

import pytest

import daguerre
from real.conftest import FULL
from real.files import bring

PROMPT = 'def fibonacci(n: int) -> int:\n    """Return the n-th Fibonacci number."""\n'


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"temperature": 0.7, "top_p": 0.8, "seed": 2}])
def test_the_text_is_that_of_ar_in_fewer_forwards(options: dict[str, Any], coder_pair: Any) -> None:
    want = coder_pair.generate(PROMPT, 24, mode="ar", **options)
    got = coder_pair.generate(PROMPT, 24, mode="speculative", drafter="second", block_size=4, **options)
    assert got.text == want.text
    assert got.usage.head_accepted > got.usage.head_drafted / 2
    assert got.usage.forwards < want.usage.forwards


@pytest.fixture(scope="module")
def coder_pair() -> Any:
    return daguerre.load(bring("coder-1.5b" if FULL else "coder-0.5b"), drafts=bring("coder-0.5b"))
