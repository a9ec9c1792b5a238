"""Contract 2: every request has a bound on its forwards, known at the start; at it everything open is committed."""

from __future__ import annotations

from typing import Any

import pytest

from daguerre.model import Model
from daguerre.planning import make_plan
from daguerre.sampling.decode import Decode
from daguerre.sampling.policies import POLICIES

VALUES: dict[str, list[Any]] = {"threshold": [0.5, 1.0], "steps": [3], "factor": [0.0, 2.0], "gamma": [0.0, 1.0]}
"""Values of each option that a policy may read."""

CHOICES: list[dict[str, Any]] = [
    {"policy": name, **options}
    for name, kind in POLICIES.items()
    for options in [{}, *({option: value} for option in kind.options for value in VALUES[option])]
]


@pytest.mark.parametrize("name", ["causal", "causal_unshifted", "full", "block"])
@pytest.mark.parametrize("options", CHOICES)
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_forwards_stay_within_the_plans_bound(
    models: dict[str, Model], name: str, options: dict[str, Any], temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = models[name]
    decode = Decode(temperature=temperature, **options)
    plan = make_plan(model.config, model.tokenizer, decode, "for i in ran", None, 21, None)
    calls = 0
    forward = type(model.denoiser.executor).__call__

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        return forward(*args, **kwargs)

    monkeypatch.setattr(type(model.denoiser.executor), "__call__", counted)
    result = model.generate("for i in ran", 21, decode)
    assert result.usage.forwards == calls <= plan.bound
    if result.finish_reason == "length":
        assert result.usage.completion_tokens == 21


@pytest.mark.parametrize("name", ["causal", "full"])
@pytest.mark.parametrize("options", CHOICES)
def test_an_infilled_gap_has_nothing_open_at_the_bound(
    models: dict[str, Model], name: str, options: dict[str, Any]
) -> None:
    model = models[name]
    decode = Decode(temperature=1.0, logit_bias={model.tokenizer.null_id: 10.0}, **options)
    plan = make_plan(model.config, model.tokenizer, decode, "x = fo", "\n", 20, None)
    result = model.infill("x = fo", "\n", 20, decode)
    *_, canvas = result.trace.replay()
    assert not canvas.open.any()
    assert result.usage.forwards <= plan.bound


def test_a_static_schedule_takes_exactly_its_steps(causal: Model) -> None:
    never_ends = {causal.tokenizer.eos_id: float("-inf")}
    result = causal.generate(
        "a = 1", 32, policy="confidence", steps=4, block_size=16, heal=False, logit_bias=never_ends
    )
    assert result.usage.forwards == 8
    sizes = [len(step.decision) for step in result.trace.steps]
    assert sizes == [4] * 8


def test_prefill_and_settled_rows_are_counted_apart(causal: Model) -> None:
    never_ends = {causal.tokenizer.eos_id: float("-inf")}
    prompt = causal.tokenizer.encode("def f(x):\n    return x")
    options: dict[str, Any] = {"policy": "confidence", "steps": 2, "heal": False, "logit_bias": never_ends}
    usage = causal.generate(prompt, 24, block_size=8, **options).usage
    assert usage.forwards == 6
    assert usage.prefill_rows == len(prompt)  # <bos> and all but the last token, which is the first seed
    assert usage.rows == 6 * 8
    assert usage.settle_rows == 16  # two finished spans; the third is never needed
