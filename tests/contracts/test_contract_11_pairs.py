"""Contract 11 of pairs: two options together keep all that each promises, or are refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from conftest import GEMMA
from daguerre.canvas import Canvas
from daguerre.decoding.pins import Pin
from daguerre.decoding.result import Result
from daguerre.errors import InputError
from daguerre.model import Model
from promises import Recorder

BUDGET = 10
PROMPT = "x = 1\nimpo"
PATTERN = "[a-z ]*ab[a-z ]*;"


def lean_to_the_left(canvas: Canvas, asked: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """A scorer that wants other tokens at every position."""
    return 3 * np.sin(np.add.outer(asked * 7.0, np.arange(logits.shape[1]) * 13.0))


FEATURES: dict[str, dict[str, Any]] = {
    "pins": {"pins": [Pin("ab", at=3)]},
    "a pin at the right": {"pins": [Pin(";", at=-1)]},
    "a pin in an interval": {"pins": [Pin("ab", at=(1, 8))]},
    "keywords": {"keywords": "ab"},
    "forbidden": {"forbidden": ["e", "\n"]},
    "ending": {"ending": ";"},
    "constraint": {"regex": PATTERN},
    "draft": {"draft": "rt ab;\ny = 2\n"},
    "guidance": {"guidance": 2.0, "guidance_schedule": "linear"},
    "negative": {"guidance": 3.0, "negative": "import re"},
    "scorer": {"scorer": lean_to_the_left},
    "search_length": {"search_length": True},
    "timeout": {"timeout": 30.0},
    "a short timeout": {"timeout": 6.0},
    "revise": {"revise": 1, "revise_threshold": 0.2},
    "a masked reading": {"revise": 1, "revise_threshold": 0.2, "revise_reading": "leave_one_out"},
    "stop": {"stop": ["a", "\n"]},
    "n": {"n": 2},
    "heal": {"heal": True},
    "min_tokens": {"min_tokens": 6},
    "temperature": {"temperature": 1.0, "top_p": 0.9},
    "steps": {"policy": "confidence", "steps": 3},
    "a schedule in time": {"policy": "entropy", "schedule": "time", "rank_temperature": 0.1},
    "policy origin": {"policy": "origin", "steps": 20},
    "rank_by": {"rank_by": "drawn", "top_k": 5},
    "ends last": {"end_of_text": "last"},
    "policy chain": {"policy": "chain", "threshold": 0.3},
    "policy entropy_threshold": {"policy": "entropy_threshold", "entropy_threshold": 1.0, "position_penalty": 0.1},
    "small blocks": {"block_size": 3},
    "a window": {"block_size": 4, "sliding": True},
    "mode full": {"mode": "full"},
    "mode ar": {"mode": "ar"},
    "mode speculative": {"mode": "speculative"},
    "mode beam": {"mode": "beam", "num_beams": 4},
    "no_repeat_context_lines": {"mode": "beam", "num_beams": 4, "no_repeat_context_lines": True},
    "mode ancestral": {"mode": "ancestral"},
    "greedy_tail": {"mode": "ancestral", "greedy_tail": True},
    "remask": {"mode": "ancestral", "remask": 0.1},
    "mode renoise": {"mode": "renoise"},
    "mode expand": {"mode": "expand", "start_tokens": 6},
    "a schedule of heat": {"mode": "renoise", "steps": 3, "gamma": 1.0, "t_max": 0.5, "max_entropy": 1.0},
}


def generate(model: Model, **options: Any) -> Result:
    return model.generate(PROMPT, BUDGET, **options)


def infill(model: Model, **options: Any) -> Result:
    return model.infill(PROMPT, "\ny = 2\n", BUDGET, **options)


def fill(model: Model, **options: Any) -> Result:
    return model.fill("x = <gap>\ny = <gap>\n", BUDGET, **options)


def edit(model: Model, **options: Any) -> Result:
    return model.edit("x = 1\nvalue = cab;\n", [(8, 18)], **options)


def edit_with_a_draft(model: Model, **options: Any) -> Result:
    return model.edit("x = 1\nvalue = foo(cab;\n", [(6, 22)], strength=0.5, **options)


def stream(model: Model, **options: Any) -> Result:
    *_, last = model.stream(PROMPT, BUDGET, **options)
    assert last.result is not None
    return last.result


def start(model: Model, **options: Any) -> Result:
    """A request that is changed after its first and its second event."""
    running = model.start(PROMPT, BUDGET, **options)
    for change in (lambda: running.pin(1, "ab"), lambda: running.remask(0, BUDGET)):
        next(running)
        with suppress(InputError):
            change()
    return running.result()


OPERATIONS = [generate, infill, fill, edit, edit_with_a_draft, stream, start]


@pytest.fixture(scope="module")
def each_model(models: dict[str, Model], make_model: Any) -> dict[str, Model]:
    noisy = {"context": "full", "shift": False, "time_input": True}
    return {
        **models,
        "causal without null": make_model(null_id=None),
        "full without null": make_model(context="full", null_id=None),
        "time": make_model(**noisy),
        "uniform": make_model(process="uniform", null_id=None, **noisy),
        "gemma": make_model(**GEMMA),
        "expanding": make_model(context="full", expand_id=15),
    }


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    return Recorder(monkeypatch)


def pairs() -> Iterator[tuple[str, str]]:
    """All that do not set the same option twice."""
    for one, other in combinations(FEATURES, 2):
        if not FEATURES[one].keys() & FEATURES[other].keys():
            yield one, other


def every_seventh(number: int) -> list[tuple[Callable[..., Result], tuple[str, str]]]:
    """Pairs, each with an operation; over all numbers below seven, all pairs with each operation in turn."""
    each = list(enumerate([*pairs(), *((one, one) for one in FEATURES)]))
    return [(OPERATIONS[(at // 7 + number) % 7], pair) for at, pair in each if at % 7 == number]


@pytest.mark.parametrize(
    ("name", "number"),
    [
        *(("causal", number) for number in range(7)),
        ("causal_unshifted", 0),
        ("full", 1),
        ("full_unshifted", 2),
        ("block", 3),
        ("causal without null", 4),
        ("full without null", 5),
        ("time", 6),
        ("uniform", 0),
        ("gemma", 2),
        *(("expanding", number) for number in range(0, 7, 3)),
        *(("reordered", number) for number in range(0, 7, 3)),
    ],
)
def test_two_options_keep_what_each_promises_or_are_refused(
    each_model: dict[str, Model], name: str, number: int, recorder: Recorder
) -> None:
    num_ran = 0
    for call, (one, other) in every_seventh(number):
        modes = {"uniform": "ancestral", "gemma": "renoise", "expanding": "expand"}
        base = {"mode": modes[name]} if name in modes else {}
        num_ran += recorder.run(call, each_model[name], base | FEATURES[one] | FEATURES[other]) is not None
    assert num_ran


def test_the_pairs_are_with_every_operation() -> None:
    cases = [case for number in range(7) for case in every_seventh(number)]
    assert len(cases) == len(list(pairs())) + len(FEATURES)
    for name in FEATURES:
        assert len({call for call, pair in cases if name in pair}) >= 4, name


LAWS = [
    {"regex": PATTERN, "guidance": 2.0, "guidance_schedule": "cosine"},
    {"keywords": "ab", "forbidden": ["e"], "ending": ";", "scorer": lean_to_the_left},
    {"pins": [Pin("ab", at=(1, 8))], "forbidden": ["e", "\n"], "temperature": 1.0},
    {"guidance": 3.0, "negative": "import re", "temperature": 1.0, "min_tokens": 6, "heal": True},
    {"scorer": lean_to_the_left, "stop": ["a", "\n"], "temperature": 1.3, "top_k": 3, "cache": "none"},
    {"guidance": 0.5, "guidance_schedule": "linear", "scorer": lean_to_the_left, "logit_bias": {40: 3.0}},
]
"""What modes "ar" and "speculative" can be asked for together."""


@pytest.mark.parametrize("law", LAWS)
def test_a_law_of_several_options_is_the_same_with_a_draft_and_speculation(causal: Model, law: dict[str, Any]) -> None:
    def tokens(mode: str, **more: Any) -> tuple[list[int], list[float | None], str, str]:
        result = causal.generate(PROMPT, 14, mode=mode, **law, **more)
        logprobs = [token.logprob for token in result.tokens]
        return [token.id for token in result.tokens], logprobs, result.text, result.finish_reason

    for seed in (0, 1):
        want = tokens("ar", seed=seed)
        for draft in (want[2], want[2][:4] + "zq" + want[2][5:], ""):
            got = tokens("ar", seed=seed, draft=draft)
            assert (got[0], got[2:]) == (want[0], want[2:])
            assert got[1] == pytest.approx(want[1], abs=1e-4)
        if "pins" not in law:
            for block_size in (2, 5):
                got = tokens("speculative", seed=seed, block_size=block_size)
                assert (got[0], got[2:]) == (want[0], want[2:])
                assert got[1] == pytest.approx(want[1], abs=1e-4)
