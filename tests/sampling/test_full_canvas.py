"""Mode "full": the whole budget is one span, under every policy and in every context that allows it."""

from __future__ import annotations

from typing import Any

import pytest

from daguerre.decoding.request import Decode
from daguerre.errors import UnsupportedError
from daguerre.model import Model
from daguerre.sampling.policies import POLICIES
from plans import make_plan

WHOLE = ["causal", "causal_unshifted", "full", "full_unshifted"]
CASES = [(WHOLE[number % 4], policy, float(number % 2)) for number, policy in enumerate([*POLICIES, *POLICIES])]
STEPS = {name: {"steps": 3} if "steps" in kind.options else {} for name, kind in POLICIES.items()}


def test_every_policy_fills_the_whole_canvas_as_one_span(models: dict[str, Model], subtests: pytest.Subtests) -> None:
    for name, policy, temperature in CASES:
        with subtests.test(policy, name=name, temperature=temperature):
            model = models[name]
            decode = Decode(mode="full", policy=policy, temperature=temperature, min_tokens=20, **STEPS[policy])
            for suffix in (None, "\nprint(x)\n"):
                plan = make_plan(model.config, model.tokenizer, decode, "x = 1\ny = ", suffix, 20, False)
                assert plan.spans(plan.canvas) == [plan.canvas.gaps[0]]
                given: dict[str, Any] = {"max_tokens": 20, "decode": decode, "heal": False}
                texts = ("x = 1\ny = ",) if suffix is None else ("x = 1\ny = ", suffix)
                call = model.generate if suffix is None else model.infill
                result = call(*texts, **given)
                assert (result.finish_reason, result.usage.completion_tokens) == ("length", 20)
                by_policy = plan.decode.commit_policy
                assert result.usage.forwards <= plan.max_forwards == by_policy.bound(20) + by_policy.num_extra
                assert call(*texts, **given).text == result.text
                assert not result.trace.canvas.open.sum() > 20


def test_a_block_model_says_that_it_cannot(models: dict[str, Model]) -> None:
    with pytest.raises(UnsupportedError, match='mode "full" is beyond a model with block context'):
        models["block"].generate("x", 8, mode="full")
