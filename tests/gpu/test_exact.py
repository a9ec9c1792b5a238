"""Contracts 4, 6 and 7 in float32, where two ways to compute the same logits give the same tokens."""

from __future__ import annotations

import pytest

from contracts.test_contract_04_random_numbers import (  # noqa: F401
    test_ar_continues_its_own_text_with_the_same_tokens,
    test_the_same_seed_gives_the_same_text_and_another_seed_another,
)
from contracts.test_contract_06_07_exact_cache import both, steps_of, that_differ
from daguerre.model import Model

pytestmark = pytest.mark.gpu
CACHED = ["causal", "causal_unshifted", "block", "block_shifted"]


@pytest.mark.parametrize("name", CACHED)
def test_logits_agree_along_a_whole_request(models: dict[str, Model], name: str) -> None:
    """With those of plain modules without a cache."""
    model = models[name]
    assert both(model.denoiser, steps_of(model)) < 1e-5
    if model.config.context == "causal":
        assert both(model.denoiser, steps_of(model, "infill")) < 1e-5


@pytest.mark.parametrize("name", CACHED)
def test_a_session_answers_for_the_canvas_at_hand_whatever_it_saw_before(models: dict[str, Model], name: str) -> None:
    assert both(models[name].denoiser, that_differ(models[name])) < 1e-5
