"""Contract 4: random numbers come from a counter; `ar` draws a token from u(seed, position) and its law alone."""

from __future__ import annotations

import pytest

from daguerre.model import Model

PROMPT = "import os\n"


def test_the_same_seed_gives_the_same_text_and_another_seed_another(causal: Model, subtests: pytest.Subtests) -> None:
    for mode in ("ar", "block", "full", "speculative"):
        with subtests.test(mode):
            first, again, other = (causal.generate(PROMPT, 24, mode=mode, temperature=1.0, seed=s) for s in (7, 7, 8))
            assert [t.id for t in first.tokens] == [t.id for t in again.tokens]
            assert [t.id for t in first.tokens] != [t.id for t in other.tokens]


def test_ar_continues_its_own_text_with_the_same_tokens(causal: Model) -> None:
    """The draw at a position is the same whether what stands before it was drawn or given, cached or not."""
    prompt = causal.tokenizer.encode(PROMPT)
    whole = [t.id for t in causal.generate(prompt, 20, mode="ar", temperature=1.0, heal=False, seed=3).tokens]
    assert len(whole) == 20
    for cut in (1, 7, 19):
        given = prompt + whole[:cut]
        rest = causal.generate(given, 20 - cut, mode="ar", temperature=1.0, heal=False, seed=3, cache="none")
        assert [t.id for t in rest.tokens] == whole[cut:]
