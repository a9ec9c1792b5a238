"""Contracts 4, 6 and 7 in float32, where two ways to compute a law give the same tokens: the tests of the CPU."""

from __future__ import annotations

import pytest

from contracts.test_contract_04_random_numbers import (  # noqa: F401
    test_ar_continues_its_own_text_with_the_same_tokens,
    test_the_same_seed_gives_the_same_text_and_another_seed_another,
)
from contracts.test_contract_06_07_exact_cache import (  # noqa: F401
    test_a_session_answers_for_the_canvas_at_hand_whatever_it_saw_before,
    test_an_empty_prompt_leaves_no_settled_row_and_its_span_still_sees_itself,
    test_generating_with_a_cache_equals_generating_without,
    test_logits_agree_along_a_whole_completion,
    test_logits_agree_along_an_infilling,
    test_several_gaps_agree_and_are_settled_once,
)

pytestmark = pytest.mark.gpu
