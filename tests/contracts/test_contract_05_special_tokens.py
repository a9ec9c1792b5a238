"""Contract 5: a mask or other special token inside the user's text is the user's text."""

from __future__ import annotations

import numpy as np
import pytest

from daguerre.model import Model


def test_special_tokens_in_a_prompt_are_neither_open_nor_the_end(
    models: dict[str, Model], subtests: pytest.Subtests
) -> None:
    for name in ("causal", "causal_unshifted", "full", "full_unshifted", "block", "block_shifted"):
        with subtests.test(name):
            model = models[name]
            t = model.tokenizer
            prompt = [*t.encode("a = 1\n"), t.mask_id, t.eos_id, t.null_id, t.pad_id, t.mask_id, *t.encode("b")]
            never_ends = {t.eos_id: float("-inf")}
            result = model.generate(prompt, 10, heal=False, logit_bias=never_ends)
            *_, canvas = result.trace.replay()
            assert canvas.tokens[1 : 1 + len(prompt)].tolist() == prompt
            assert result.usage.completion_tokens == 10
            for step in result.trace.steps:
                assert np.all(step.decision.positions > len(prompt))


def test_special_tokens_on_both_sides_of_a_gap_stay(causal: Model) -> None:
    t = causal.tokenizer
    prefix, suffix = [*t.encode("x ="), t.null_id, t.mask_id], [t.mask_id, t.eos_id, *t.encode("\ny"), t.null_id]
    result = causal.infill(prefix, suffix, 8, min_tokens=8)
    *_, canvas = result.trace.replay()
    assert canvas.tokens[1 : 1 + len(prefix)].tolist() == prefix
    assert canvas.tokens[len(canvas) - len(suffix) :].tolist() == suffix
    assert result.usage.completion_tokens == 8


def test_a_special_tokens_name_is_ordinary_text(causal: Model) -> None:
    result = causal.generate("<mask><eos>", 4, heal=False)
    assert result.usage.prompt_tokens == len(causal.tokenizer.encode("<mask><eos>"))
    assert not set(result.trace.canvas.tokens[1 : 1 + result.usage.prompt_tokens].tolist()) & set(range(16))
