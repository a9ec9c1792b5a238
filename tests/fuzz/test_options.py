"""Options of requests, right and wrong ones together: a result that keeps the contracts, or an error in one line.

A wrong value is one that no option of that kind takes; what is refused is refused before the first forward.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concept_models import with_heads
from conftest import GEMMA
from contracts.test_contract_11_pairs import OPERATIONS, lean_to_the_left
from daguerre.decoding.options import DecodeOptions
from daguerre.decoding.pins import Pin
from daguerre.decoding.request import CALLS
from daguerre.errors import DaguerreError
from daguerre.kinds import options_of
from daguerre.model import Model
from daguerre.models.core.config import FimTokens
from daguerre.models.denoiser import CACHE_MODES
from daguerre.sampling.policies import POLICIES
from daguerre.scoring.decisions import Choice, Score, YesNo
from promises import Recorder

share = st.floats(0, 1) | st.sampled_from([0, 1, 0.5])
WRONG: list[Any] = [
    None,
    True,
    -1,
    1.5,
    math.nan,
    math.inf,
    "",
    "nonsense",
    "\ud800",
    b"x",
    [],
    {},
    [1],
    {"a": 1},
    2**64,
    object(),
]
RIGHT: dict[str, st.SearchStrategy[Any]] = {
    "mode": st.sampled_from(
        [None, "ar", "block", "full", "speculative", "beam", "ancestral", "renoise", "expand", "fim"]
    ),
    "block_size": st.integers(1, 12),
    "sliding": st.booleans(),
    "drafter": st.sampled_from(["auto", "head", "lookup"]),
    "start_tokens": st.integers(1, 8),
    "num_beams": st.integers(1, 4),
    "no_repeat_context_lines": st.booleans(),
    "fill_end": st.sampled_from(["fit", "model"]),
    "accept_draft": st.none() | share,
    "policy": st.sampled_from(sorted(POLICIES)),
    "threshold": share,
    "edit_threshold": share,
    "factor": st.floats(0, 3),
    "gamma": st.floats(0, 3),
    "entropy_threshold": st.floats(0, 3),
    "position_penalty": st.floats(0, 1),
    "steps": st.integers(1, 12),
    "schedule": st.sampled_from(["even", "time"]),
    "rank_temperature": st.floats(0, 2),
    "rank_by": st.sampled_from(["model", "drawn"]),
    "greedy_tail": st.booleans(),
    "remask": share,
    "revise": st.integers(0, 2),
    "revise_threshold": share,
    "revise_reading": st.sampled_from(["unmasked", "leave_one_out"]),
    "temperature": st.sampled_from([0, 0.5, 1.0, 2.0, 1e-6]),
    "top_p": st.floats(0, 1),
    "min_p": st.floats(0, 1),
    "top_k": st.integers(1, 2_000),
    "repetition_penalty": st.floats(0.5, 2),
    "no_repeat_ngram_size": st.integers(0, 4),
    "min_tokens": st.integers(0, 10),
    "end_of_text": st.sampled_from(["fill", "plain", "last", "never"]),
    "stop": st.sampled_from(["\n", ["a", "e"], [], ["never there"]]),
    "stop_loops": st.sampled_from([None, True, False]),
    "logit_bias": st.dictionaries(st.integers(16, 2_000), st.sampled_from([-math.inf, -5.0, 3]), max_size=3),
    "n": st.integers(1, 2),
    "seed": st.integers(0, 2**64 - 1),
    "guidance": st.sampled_from([0, 0.5, 1, 2.5]),
    "guidance_schedule": st.sampled_from(["constant", "linear", "cosine"]),
    "negative": st.sampled_from([None, "", "import re"]),
    "cache": st.sampled_from(sorted(CACHE_MODES)),
    "schema": st.sampled_from(
        [{"type": "boolean"}, {"enum": ["a", 1]}, {"type": "array", "items": {"const": 1}, "maxItems": 2}]
    ),
    "regex": st.sampled_from(["[a-z ]*ab[a-z ]*;", "[0-9]{2,6}", ".*"]),
    "choices": st.sampled_from([["yes", "no"], ["a"], ["é🙂", "b"]]),
    "keywords": st.sampled_from(["ab", "x"]),
    "forbidden": st.sampled_from([["e", "\n"], ["a"]]),
    "ending": st.sampled_from([";", "\n"]),
    "pins": st.sampled_from([[Pin("ab", at=3)], [Pin(";", at=-1)], [Pin("ab", at=(1, 8))]]),
    "lenient": st.booleans(),
    "strict": st.booleans(),
    "tools": st.sampled_from([[], [{"name": "f", "parameters": {"properties": {"a": {"enum": [1]}}}}]]),
    "tool_choice": st.sampled_from(["auto", "none", "required", "f"]),
    "parallel_calls": st.booleans(),
    "chat_format": st.sampled_from([None, "may", "does"]),
    "steer": st.sampled_from([[], [{"kind": "add", "concepts": ["loop"], "strength": 2.0}]]),
    "scorer": st.sampled_from([None, lean_to_the_left]),
    "t_min": share,
    "t_max": share,
    "max_entropy": st.floats(0, 3),
    "explain": st.booleans(),
    "forbid": st.sampled_from(["loop", ["call"]]),
    "forbid_exactly": st.booleans(),
    "draft": st.sampled_from(["rt ab;\ny = 2\n", ""]),
    "heal": st.booleans(),
    "timeout": st.sampled_from([30.0, 6.0, 1e-9]),
    "search_length": st.booleans(),
    "context": st.sampled_from(["auto", "whole"]),
    "files": st.sampled_from([None, {}, {"a.py": "x = 1\n"}, [("a.py", ""), ("a.py", "y")]]),
    "special_tokens": st.sampled_from([None, True, False]),
    "on_step": st.sampled_from([None, lambda event: None]),
}
CHECKED_ELSEWHERE = frozenset({"heal", "timeout", "search_length", "context", "draft", "on_step"})
"""Arguments of calls: wrong values of these have tests of their own."""


@st.composite
def options(draw: st.DrawFn) -> dict[str, Any]:
    """A few options; one in four times, a wrong value of one of them."""
    names = draw(st.lists(st.sampled_from(sorted(RIGHT)), max_size=5, unique=True))
    chosen = {name: draw(RIGHT[name]) for name in names}
    spoilt = [name for name in names if name not in CHECKED_ELSEWHERE]
    if spoilt and draw(st.integers(0, 3)) == 0:
        chosen[draw(st.sampled_from(spoilt))] = draw(st.sampled_from(WRONG))
    return chosen


def test_every_option_is_drawn() -> None:
    asked = {"prompt", "prefix", "suffix", "template", "text", "max_tokens", "spans"}
    others = {"mark", "lines", "pattern", "strength", "changeable"}  # of one operation each

    assert RIGHT.keys() == options_of(DecodeOptions).keys() | CALLS.keys() - asked - others


def unless_refused(call: Callable[[], Any]) -> Any:
    """What a call gives; None where it is refused, in one line."""
    try:
        return call()
    except DaguerreError as error:
        said = str(error)
    assert "\n" not in said
    return None


@pytest.fixture(scope="module")
def recorder() -> Iterator[Recorder]:
    with pytest.MonkeyPatch.context() as patch:
        yield Recorder(patch)


@pytest.fixture(scope="module")
def each(models: dict[str, Model], make_model: Any) -> dict[str, Model]:
    noisy = {"context": "full", "shift": False, "process": "uniform", "time_input": True, "null_id": None}
    more = {
        "uniform": make_model(**noisy),
        "gemma": make_model(**GEMMA),
        "expanding": make_model(context="full", expand_id=15),
        "filling": make_model(mask_id=None, null_id=None, fim=FimTokens(prefix=5, suffix=6, middle=7)),
        "concepts": with_heads(make_model),
    }
    return {**models, **more}


@given(data=st.data())
def test_a_request_keeps_its_promises_or_is_refused(
    data: st.DataObject, each: dict[str, Model], recorder: Recorder
) -> None:
    model = each[data.draw(st.sampled_from(sorted(each)), label="model")]
    call = data.draw(st.sampled_from(OPERATIONS), label="call")
    drawn = data.draw(options(), label="options")
    off = {name: None for name, value in drawn.items() if value is None}
    recorder.run(partial(call, **off), model, {name: value for name, value in drawn.items() if name not in off})


@given(
    text=st.text(max_size=30),
    kind=st.sampled_from(["ar", "elbo", "chain"]),
    layout=st.none() | st.integers(1, 8) | st.just("full"),
    order=st.sampled_from([None, "left", "random"]),
    samples=st.integers(1, 4),
    seed=st.integers(0, 2**64 - 1),
    context=st.sampled_from(["auto", "whole"]),
    name=st.sampled_from(["causal", "full", "block"]),
)
def test_a_likelihood_is_a_finite_number_or_is_refused(
    models: dict[str, Model], name: str, text: str, **how: Any
) -> None:
    found = unless_refused(lambda: models[name].nll(text, **how))
    if found is None:
        return
    assert math.isfinite(found.value) and found.value == pytest.approx(float(np.sum(found.by_token)))
    assert len(found.by_token) == found.num_tokens


words = st.sampled_from(["a", "b c", "True", "", "é", "x" * 40, "\n"])
questions = (
    st.builds(partial, st.just(YesNo), before=words, after=words, yes=words, no=words)
    | st.builds(partial, st.just(Choice), before=words, after=words, labels=st.lists(words, max_size=4))
    | st.builds(partial, st.just(Score), before=words, low=st.integers(-3, 3), high=st.integers(-3, 5))
)


@given(data=st.data(), state=st.text(max_size=30), name=st.sampled_from(["causal", "full", "block"]))
def test_a_decision_has_probabilities_or_is_refused(
    models: dict[str, Model], name: str, state: str, data: st.DataObject
) -> None:
    asked = data.draw(st.lists(questions, max_size=3))
    answers = unless_refused(lambda: models[name].decide(state, [make() for make in asked]))
    assert answers is None or len(answers) == len(asked)
    for answer in answers or ():
        assert sum(answer.probabilities.values()) == pytest.approx(1, abs=1e-6)
