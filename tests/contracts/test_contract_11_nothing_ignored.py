"""Contract 11: what a model's context or training cannot honor is an error that names it."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest

from daguerre.decoding.request import Decode
from daguerre.errors import InputError, UnsupportedError
from daguerre.model import Model
from daguerre.sampling.policies import POLICIES

BEYOND: list[tuple[str, dict[str, Any], str]] = [
    ("causal_unshifted", {"mode": "ar"}, 'mode "ar"'),
    ("full", {"mode": "ar"}, 'mode "ar"'),
    ("full_unshifted", {"mode": "ar"}, 'mode "ar"'),
    ("block", {"mode": "ar"}, 'mode "ar"'),
    ("block", {"mode": "full"}, 'mode "full"'),
    ("block", {"block_size": 32}, "block_size=32"),
    ("causal_unshifted", {"mode": "speculative"}, 'mode "speculative"'),
    ("full", {"mode": "speculative"}, 'mode "speculative"'),
    ("block", {"mode": "speculative"}, 'mode "speculative"'),
    ("block", {"sliding": True}, "leave out sliding"),
    ("full", {"sliding": True, "cache": "approximate_dual"}, "computes everything where a span begins"),
    ("full", {"sliding": True, "draft": "x"}, "sliding reads no draft"),
    ("reordered", {"mode": "ar"}, 'mode "ar"'),
    ("reordered", {"mode": "speculative"}, 'mode "speculative"'),
    ("reordered", {"mode": "ancestral"}, 'mode "ancestral"'),
    ("reordered", {"mode": "renoise"}, 'mode "renoise"'),
    ("reordered", {"cache": "approximate_dual"}, "whose cache is exact"),
    ("reordered", {"draft": "x"}, "reads no draft"),
    ("reordered", {"revise": 1}, 'revise_reading="leave_one_out"'),
    ("reordered", {"policy": "joint_threshold"}, "cannot edit any"),
]


def test_a_mode_or_option_beyond_a_model_is_named(models: dict[str, Model]) -> None:
    for name, options, named in BEYOND:
        with pytest.raises(UnsupportedError, match=named):
            models[name].generate("x", 8, **options)


def test_infilling_beyond_a_model_is_named(models: dict[str, Model], make_model: Any) -> None:
    with pytest.raises(UnsupportedError, match='mode "ar" cannot infill'):
        models["causal"].infill("a", "b", 8, mode="ar")
    with pytest.raises(UnsupportedError, match='mode "speculative" cannot infill'):
        models["causal"].infill("a", "b", 8, mode="speculative")
    with pytest.raises(UnsupportedError, match="block context cannot infill"):
        models["block"].infill("a", "b", 8)
    without_null = make_model(null_id=None)
    with pytest.raises(UnsupportedError, match="no <null>"):
        without_null.infill("a", "b", 8, mode="block", search_length=False)
    with pytest.raises(UnsupportedError, match="heal=False"):
        without_null.infill("a", "b", 8, mode="block", min_tokens=8, heal=True)
    assert without_null.infill("a", "b", 8, mode="block", min_tokens=8).usage.completion_tokens == 8
    assert 0 < without_null.infill("a", "b", 8).usage.completion_tokens <= 8, "mode beam needs no <null>"


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"mode": "blok"}, "did you mean 'block'"),
    ({"policy": "treshold"}, "did you mean 'threshold'"),
    ({"cache": "exact"}, "unknown cache 'exact'"),
    ({"policy": "random", "threshold": 0.5}, "threshold is not used by policy 'random'"),
    ({"policy": "threshold", "steps": 4}, "steps is not used by policy 'threshold'"),
    ({"steps": 4, "threshold": 0.5}, "steps is not used beside threshold, which belongs to another policy"),
    ({"steps": 4, "gamma": 0.5}, "gamma is not used beside steps, which belongs to another policy"),
    ({"steps": 4, "sliding": True}, "sliding is not used with steps"),
    ({"mode": "ar", "block_size": 4}, "block_size is not used in mode 'ar'"),
    ({"mode": "full", "block_size": 4}, "block_size is not used in mode 'full'"),
    ({"mode": "ar", "policy": "random"}, "policy is not used in mode 'ar'"),
    ({"mode": "speculative", "threshold": 0.5}, "threshold is not used in mode 'speculative'"),
    ({"mode": "ar", "threshold": 0.3}, "threshold is not used in mode 'ar'"),
    ({"mode": "ar", "steps": 2}, "steps is not used in mode 'ar'"),
    ({"mode": "beam", "policy": "random"}, "policy is not used in mode 'beam'"),
    ({"mode": "beam", "temperature": 1.0}, "temperature is not used in mode 'beam'"),
    ({"mode": "beam", "n": 2}, "n is not used in mode 'beam'"),
    ({"mode": "beam", "num_beams": 0}, "num_beams must be"),
    ({"mode": "block", "num_beams": 4}, "num_beams is not used in mode 'block'"),
    ({"mode": "ar", "no_repeat_context_lines": True}, "no_repeat_context_lines is not used in mode 'ar'"),
    ({"mode": "beam", "no_repeat_context_lines": "lines"}, "no_repeat_context_lines must be True or False"),
    ({"mode": "block", "greedy_tail": True}, "greedy_tail is not used in mode 'block'"),
    ({"mode": "ancestral", "greedy_tail": 1}, "greedy_tail must be True or False"),
    ({"mode": "block", "remask": 0.1}, "remask is not used in mode 'block'"),
    ({"mode": "ancestral", "remask": 1.5}, "remask must be a probability"),
    ({"lenient": 1}, "lenient must be True or False"),
    ({"strict": 1}, "strict must be True or False"),
    ({"mode": "beam", "regex": "a"}, 'mode "beam" cannot honor the option regex'),
    ({"mode": "block", "start_tokens": 4}, "start_tokens is not used in mode 'block'"),
    ({"start_tokens": 0}, "start_tokens must be a whole number from 1 up"),
    ({"mode": "expand", "policy": "chain"}, "policy 'chain' is not used in mode 'expand'"),
    ({"mode": "expand", "steps": 4, "policy": "entropy"}, "steps is not used in mode 'expand'"),
    ({"mode": ["ar"]}, "unknown mode"),
    ({"policy": []}, "unknown policy"),
    ({"regex": 5}, "regex must be a string"),
    ({"schema": "{}"}, "schema must be a JSON Schema"),
    ({"choices": "ab"}, "choices must be a sequence of strings"),
    ({"tools": ["f"]}, "tools must be a sequence of objects"),
    ({"regex": "a", "schema": {}}, "schema and regex are two constraints"),
    ({"regex": "a", "lenient": True}, "lenient is not used without a schema"),
    ({"regex": "a", "strict": True}, "strict is not used without a schema"),
    ({"schema": {}, "strict": True, "lenient": True}, "strict is not used with lenient"),
    ({"regex": "a", "stop": "\n"}, "stop is not used with the option regex"),
    ({"regex": "a", "revise": 1}, "revise cannot honor the option regex"),
    ({"temprature": 1.0}, "unknown option 'temprature': did you mean 'temperature'"),
    ({"temperature": -1.0}, "temperature must be"),
    ({"temperature": float("nan")}, "temperature must be"),
    ({"temperature": "hot"}, "temperature must be a number"),
    ({"top_p": -0.1}, "top_p must be"),
    ({"top_p": 1.5}, "top_p must be"),
    ({"top_k": -2}, "top_k must be"),
    ({"min_p": 1.5}, "min_p must be"),
    ({"threshold": 2.0}, "threshold must be"),
    ({"policy": "factor", "factor": -1.0}, "factor must be"),
    ({"policy": "joint_threshold", "edit_threshold": 1.5}, "edit_threshold must be"),
    ({"policy": "threshold", "edit_threshold": 0.2}, "edit_threshold is not used"),
    ({"policy": "factor", "factor": float("nan")}, "factor must be"),
    ({"policy": "entropy_bounded", "gamma": -0.1}, "gamma must be"),
    ({"policy": "threshold", "gamma": 0.5}, "gamma is not used by policy 'threshold'"),
    ({"policy": "threshold", "entropy_threshold": 0.5}, "entropy_threshold is not used by policy 'threshold'"),
    ({"policy": "entropy_threshold", "entropy_threshold": -0.1}, "entropy_threshold must be a number of nats"),
    ({"policy": "entropy_threshold", "position_penalty": float("nan")}, "position_penalty must be a number of nats"),
    ({"policy": "entropy_threshold", "position_penalty": "far"}, "position_penalty must be a number"),
    ({"sliding": 1}, "sliding must be True or False"),
    ({"mode": "full", "sliding": True}, "sliding is not used in mode 'full'"),
    ({"policy": "confidence", "sliding": True}, "sliding is not used by policy 'confidence'"),
    ({"policy": "first_hitting", "sliding": True}, "sliding is not used by policy 'first_hitting'"),
    ({"policy": "joint_threshold", "sliding": True}, "sliding is not used by policy 'joint_threshold'"),
    ({"revise": 1, "sliding": True}, "sliding is not used with revise"),
    ({"policy": "entropy", "schedule": "tine"}, "did you mean 'time'"),
    ({"policy": "entropy", "rank_temperature": -1.0}, "rank_temperature must be a number from 0 up"),
    ({"policy": "entropy", "rank_temperature": float("inf")}, "rank_temperature must be a number from 0 up"),
    ({"rank_temperature": "hot"}, "rank_temperature must be a number"),
    ({"rank_by": "rank"}, "unknown rank_by 'rank'"),
    ({"policy": "random", "rank_by": "drawn"}, "rank_by is not used by policy 'random'"),
    ({"policy": "origin", "rank_by": "drawn"}, "rank_by is not used by policy 'origin'"),
    ({"mode": "ar", "rank_by": "drawn"}, "rank_by is not used in mode 'ar'"),
    ({"regex": "a", "rank_by": "drawn"}, "rank_by is not used with the option regex"),
    ({"end_of_text": "pad"}, "unknown end_of_text 'pad'"),
    ({"mode": "ar", "end_of_text": "last"}, "end_of_text is not used in mode 'ar'"),
    ({"steps": 0, "policy": "random"}, "steps must be"),
    ({"block_size": 0}, "block_size must be"),
    ({"min_tokens": -1}, "min_tokens must be"),
    ({"n": 0}, "n must be"),
    ({"n": True}, "n must be"),
    ({"seed": 2**64}, "seed must be"),
    ({"stop": ""}, "stop must be"),
    ({"stop": ("a", "")}, "stop must be"),
    ({"stop": 5}, "stop must be"),
    ({"logit_bias": {20: float("nan")}}, "logit_bias of token 20"),
    ({"logit_bias": {"20": 1.0}}, "logit_bias must map"),
    ({"logit_bias": [20]}, "logit_bias must map"),
]


def test_a_wrong_option_says_what_to_do() -> None:
    for options, message in WRONG:
        with pytest.raises(InputError, match=message) as caught:
            Decode(**options)
        assert "\n" not in str(caught.value)


def test_an_unknown_option_gets_the_nearest_name(causal: Model) -> None:
    for decode in (None, Decode(seed=1)):
        with pytest.raises(InputError, match="unknown option 'temprature': did you mean 'temperature'"):
            causal.generate("x", 8, decode, temprature=1.0)
    with pytest.raises(InputError, match="by name"):
        Decode("ar")  # type: ignore[misc]


def test_every_option_that_some_policy_reads_is_refused_by_the_others_and_by_ar() -> None:
    values: dict[str, Any] = {"threshold": 0.5, "edit_threshold": 0.2, "factor": 2.0, "gamma": 0.5, "steps": 2}
    values |= {"schedule": "time", "rank_temperature": 0.5, "entropy_threshold": 0.5, "position_penalty": 0.1}
    for option in {option for kind in POLICIES.values() for option in kind.options}:
        for name, kind in POLICIES.items():
            given = {"policy": name, option: values[option]}
            if option in kind.options:
                assert getattr(Decode(**given), option) == values[option]
            else:
                with pytest.raises(InputError, match=f"{option} is not used by policy '{name}'"):
                    Decode(**given)
        assert option in Decode(**{option: values[option]}).policy_options, "alone it says which policy is meant"
        with pytest.raises(InputError, match=f"{option} is not used in mode 'ar'"):
            Decode(mode="ar", **{option: values[option]})


def test_options_that_are_as_by_default_are_no_conflict() -> None:
    assert Decode(mode="ar", policy="threshold", threshold=0.9, steps=None).policy_name == "threshold"


def test_a_frozen_decode_is_copied_with_changes() -> None:
    assert dataclasses.replace(Decode(mode="ar"), seed=4) == Decode(mode="ar", seed=4)
    assert copy.deepcopy(Decode(stop="x")) == Decode(stop=["x"])


def test_more_steps_than_positions_are_refused(causal: Model) -> None:
    with pytest.raises(InputError, match="steps=5 is more than"):
        causal.generate("x", 8, policy="confidence", steps=5, block_size=4)


def test_a_schedule_whose_empty_steps_take_no_forward_may_have_more_of_them(causal: Model) -> None:
    for options in ({"policy": "entropy", "schedule": "time"}, {"policy": "origin"}, {"policy": "first_hitting"}):
        usage = causal.generate("x", 8, steps=50, block_size=4, min_tokens=8, heal=False, **options).usage
        assert usage.completion_tokens == 8
        assert usage.forwards <= 8


def test_steps_of_an_infilling_are_those_of_the_whole_gap(causal: Model) -> None:
    options: dict[str, Any] = {"policy": "confidence", "min_tokens": 24, "heal": False}
    assert causal.infill("x", "y", 24, steps=20, **options).usage.forwards == 20
    with pytest.raises(InputError, match="steps=25 is more than"):
        causal.infill("x", "y", 24, steps=25, **options)


def test_a_bias_that_cannot_be_honored_is_refused(causal: Model) -> None:
    with pytest.raises(InputError, match="token 3 is reserved"):
        causal.generate("x", 8, logit_bias={3: 5.0})
    with pytest.raises(InputError, match="token 99999 is not in the vocabulary"):
        causal.generate("x", 8, logit_bias={99999: 5.0})
    with pytest.raises(InputError, match="no token is left"):
        causal.generate("x", 8, heal=False, logit_bias=dict.fromkeys(range(16, 2048), float("-inf")), min_tokens=8)
