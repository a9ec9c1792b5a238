"""Contract 11: what a model's context or training cannot honor is an error that names it."""

from __future__ import annotations

from typing import Any

import pytest

from daguerre.errors import InputError, UnsupportedError
from daguerre.model import Model
from daguerre.sampling.decode import Decode


@pytest.mark.parametrize(
    ("name", "options", "named"),
    [
        ("causal_unshifted", {"mode": "ar"}, 'mode "ar"'),
        ("full", {"mode": "ar"}, 'mode "ar"'),
        ("full_unshifted", {"mode": "ar"}, 'mode "ar"'),
        ("block", {"mode": "ar"}, 'mode "ar"'),
        ("block", {"mode": "full"}, 'mode "full"'),
        ("block", {"block_size": 4}, "block_size=4"),
        ("causal", {"mode": "speculative"}, "speculative"),
        ("causal", {"schema": {}}, "schema"),
        ("causal", {"regex": "a*"}, "regex"),
    ],
)
def test_a_mode_or_option_beyond_a_model_is_named(
    models: dict[str, Model], name: str, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(UnsupportedError, match=named):
        models[name].generate("x", 8, **options)


def test_infilling_beyond_a_model_is_named(models: dict[str, Model], make_model: Any) -> None:
    with pytest.raises(UnsupportedError, match='mode "ar" cannot infill'):
        models["causal"].infill("a", "b", 8, mode="ar")
    with pytest.raises(UnsupportedError, match="block context cannot infill"):
        models["block"].infill("a", "b", 8)
    without_null = make_model(null_id=None)
    with pytest.raises(UnsupportedError, match="no <null>"):
        without_null.infill("a", "b", 8)
    with pytest.raises(UnsupportedError, match="heal=False"):
        without_null.infill("a", "b", 8, min_tokens=8, heal=True)
    assert without_null.infill("a", "b", 8, min_tokens=8).usage.completion_tokens == 8


def test_a_shifted_model_with_block_context_is_refused(make_model: Any) -> None:
    with pytest.raises(UnsupportedError, match="block context and a shift"):
        make_model(context="block", shift=True, block_size=8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "blok"}, "did you mean 'block'"),
        ({"policy": "treshold"}, "did you mean 'threshold'"),
        ({"cache": "exact"}, "unknown cache 'exact'"),
        ({"policy": "random", "threshold": 0.5}, "threshold has no part in policy 'random'"),
        ({"steps": 4}, "steps has no part in policy 'threshold'"),
        ({"mode": "ar", "block_size": 4}, "block_size has no part in mode 'ar'"),
        ({"temperature": -1.0}, "temperature must be"),
        ({"temperature": float("nan")}, "temperature must be"),
        ({"temperature": "hot"}, "temperature must be a number"),
        ({"top_p": 0.0}, "top_p must be"),
        ({"top_p": 1.5}, "top_p must be"),
        ({"top_k": 0}, "top_k must be"),
        ({"threshold": 2.0}, "threshold must be"),
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
    ],
)
def test_a_wrong_option_says_what_to_do(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        Decode(**options)
    assert "\n" not in str(caught.value)


def test_an_unknown_option_gets_the_nearest_name(causal: Model) -> None:
    with pytest.raises(InputError, match="unknown option 'temprature': did you mean 'temperature'"):
        causal.generate("x", 8, temprature=1.0)


def test_more_steps_than_positions_are_refused(causal: Model) -> None:
    for options in ({"block_size": 4}, {"mode": "ar"}):
        with pytest.raises(InputError, match="steps=5 is more than"):
            causal.generate("x", 8, policy="confidence", steps=5, **options)


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
