"""Contract 2: every request has a bound on its forwards, known at the start; at it everything open is committed."""

from __future__ import annotations

from typing import Any

import pytest

import main_path
from daguerre.decoding.request import Decode
from daguerre.errors import UnsupportedError
from daguerre.model import Model
from daguerre.sampling.policies import POLICIES
from driving import Recorded
from plans import make_plan

VALUES: dict[str, list[Any]] = {
    "threshold": [0.5, 1.0],
    "steps": [3],
    "schedule": ["time"],
    "rank_temperature": [0.5],
    "factor": [0.01, 2.0],
    "gamma": [0.0, 1.0],
    "edit_threshold": [0.0, 1.0],
    "entropy_threshold": [0.0, 2.0],
    "position_penalty": [0.1],
}
"""Values of each option that a policy may read."""

CHOICES: list[dict[str, Any]] = [
    {"policy": name, **options}
    for name, kind in POLICIES.items()
    for options in [{}, *({option: value} for option in kind.options for value in VALUES[option])]
]
CHOICES += [{"mode": "ar"}, {"mode": "speculative"}, {"mode": "speculative", "block_size": 6}, {"revise": 2}]
CHOICES += [{"mode": "full", "revise": 1, "revise_reading": "leave_one_out"}, {"guidance": 2.0, "mode": "block"}]
CHOICES += [{"policy": name, "steps": 40} for name in ("origin", "first_hitting")]
CHOICES += [{"policy": "entropy", "schedule": "time", "steps": 40, "rank_by": "drawn", "top_p": 0.8}]
CHOICES += [{"sliding": True, "block_size": size, "threshold": 0.5} for size in (1, 5)]
CHOICES += [{"sliding": True, "policy": name} for name in ("chain", "entropy_threshold")]
NAMES = ("causal", "causal_unshifted", "full", "block", "block_shifted", "reordered")


@pytest.mark.parametrize("name", NAMES)
def test_forwards_stay_within_the_plans_bound(models: dict[str, Model], name: str) -> None:
    """Each choice on each model at one of two temperatures, the other for its neighbor."""
    model, num_ran = models[name], 0
    for number, options in enumerate(CHOICES, NAMES.index(name)):
        decode = Decode(temperature=1.5 * (number % 2), **options)
        try:
            plan = make_plan(model.config, model.tokenizer, decode, "for i in ran", None, 17, None)
        except UnsupportedError:
            continue
        recorded = Recorded(model.denoiser)
        result = main_path.generate(recorded, model.tokenizer, "for i in ran", 17, decode)
        assert result.usage.forwards == len(recorded.backend.forwards) <= plan.max_forwards, options
        if result.finish_reason == "length":
            assert result.usage.completion_tokens == 17
        num_ran += 1
    assert num_ran >= len(CHOICES) - 9


@pytest.mark.parametrize("name", ["causal", "full", "reordered"])
def test_an_infilled_gap_has_nothing_open_at_the_bound(models: dict[str, Model], name: str) -> None:
    model = models[name]
    for options in (one for one in CHOICES if one.get("mode") not in ("ar", "speculative")):
        if name == "reordered" and (options.get("policy") == "joint_threshold" or options.get("revise") == 2):
            continue
        decode = Decode(temperature=1.0, logit_bias={model.tokenizer.null_id: 10.0}, **options)
        plan = make_plan(model.config, model.tokenizer, decode, "x = fo", "\n", 13, None)
        result = model.infill("x = fo", "\n", 13, decode)
        *_, canvas = result.trace.replay()
        assert not canvas.open.any(), options
        assert result.usage.forwards <= plan.max_forwards, options


def test_a_static_schedule_takes_exactly_its_steps(causal: Model) -> None:
    never_ends = {causal.tokenizer.eos_id: float("-inf")}
    result = causal.generate(
        "a = 1", 32, policy="confidence", steps=4, block_size=16, heal=False, logit_bias=never_ends
    )
    assert result.usage.forwards == 8
    sizes = [len(step.decision) for step in result.trace.steps]
    assert sizes == [4] * 8


def test_prefill_and_finalized_tokens_are_counted_apart(causal: Model) -> None:
    never_ends = {causal.tokenizer.eos_id: float("-inf")}
    prompt = causal.tokenizer.encode("def f(x):\n    return x")
    options: dict[str, Any] = {"policy": "confidence", "steps": 2, "heal": False, "logit_bias": never_ends}
    usage = causal.generate(prompt, 24, block_size=8, **options).usage
    assert usage.forwards == 6
    assert usage.prefill_tokens == len(prompt)  # <bos> and all but the last token, which is the first anchor
    assert usage.query_tokens == 6 * 8
    assert usage.finalized_tokens == 16  # two finished spans; the third is never needed
