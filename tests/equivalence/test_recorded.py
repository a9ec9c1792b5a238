"""What requests were answered before the core was rebuilt, they are answered still: same tokens for the same seeds.

`recorded.json` holds the answers of the float32 reference at 9a76144 to the requests of `cases.py`; those drawn at a
temperature above 0 were recorded again when the draw became a race, and those of policy "chain" when it began to draft
as mode "speculative" does, with a draft head that was trained for it; those of block context when the rows of a span
became those of its whole block (CHANGELOG.md). Four drawn under a constraint were recorded again, without a margin,
when automata got another order of states. Those of mode "renoise" came later, with the torch backend when the
native one learned that mode. The `margin` of each is in nats:
with noise up to that on every logit, in four runs, nothing of its answer changed. Requests with less than 1e-3 were
left out. Of mode "speculative", and of a draft in mode "ar", only the text is recorded, since the number of forwards
depends on the processor.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import daguerre
from backends import BACKENDS, needs_compiler
from daguerre.model import Model
from equivalence.cases import TINY, answer

RECORDED: list[Any] = json.loads(Path(__file__).with_name("recorded.json").read_text(encoding="utf-8"))
PARTS = 4
"""Cases are tested in so many parts: a failure names its cases."""


MORE = {"guidance", "negative", "cache", "draft", "revise", "stop", "logit_bias", "n", "regex", "schema", "choices"}
MORE |= {"search_length", "keywords", "pins"}
"""Options that ask for something else, not for more or less of it."""


def kind(one: Any) -> tuple[Any, ...]:
    """What a request asks for: two of one kind differ in their texts and numbers, or in lesser options."""
    options = one["options"]
    drawn = options.get("temperature", 0) > 0
    return (
        one["model"],
        one["call"],
        options.get("mode"),
        options.get("policy"),
        drawn,
        frozenset(options.keys() & MORE),
    )


FIRST = sorted({kind(one): number for number, one in reversed(list(enumerate(RECORDED)))}.values())
"""The numbers of the first request of each kind."""
OTHERS = sorted(set(range(len(RECORDED))) - set(FIRST))


def make(name: str, make_model: Any, backend: Any) -> Model:
    if name == "default":
        return daguerre.load(dtype="float32", backend=backend)
    model = make_model(**TINY[name])
    return Model(model.backbone, model.tokenizer, backend)


@pytest.fixture(scope="module")
def subjects(make_model: Any) -> Callable[[str], dict[str, Model]]:
    """subjects(backend): the models by name, which this backend computes."""
    return cache(lambda backend: {name: make(name, make_model, backend) for name in ("default", *TINY)})


def near(got: Any, want: Any) -> bool:
    """Equal; numbers of a score to rounding."""
    if isinstance(want, list) and want and isinstance(want[0], float):
        return bool(np.allclose(got, want, rtol=2e-5, atol=2e-5))
    if isinstance(want, list) and want and isinstance(want[0], list):
        return all(map(near, got, want))
    return bool(got == want)


def recorded_part(one: Any, subjects: dict[str, Model]) -> Any:
    """The answer to a request, without what is not recorded of it."""
    got = answer(subjects[one["model"]], one)
    if not isinstance(got[0], dict):
        return got
    return [{name: value for name, value in each.items() if name in one["answer"][0]} for each in got]


def check(numbers: Sequence[int], models: dict[str, Model]) -> None:
    wrong = [
        (number, one["model"], one["call"], one["options"], got)
        for number, one in ((number, RECORDED[number]) for number in numbers)
        if not near(got := recorded_part(one, models), one["answer"])
    ]
    assert wrong == []


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_request_of_each_kind_gets_the_recorded_answer(subjects: Any, backend: str, part: int) -> None:
    check(FIRST[part::PARTS], subjects(backend))


@needs_compiler
@pytest.mark.parametrize("part", range(PARTS))
def test_every_other_request_gets_the_recorded_answer(subjects: Any, part: int) -> None:
    check(OTHERS[part::PARTS], subjects("native"))


@pytest.mark.parametrize("part", range(PARTS))
def test_every_other_request_gets_the_recorded_answer_of_pytorch(subjects: Any, part: int) -> None:
    check(OTHERS[part::PARTS], subjects("torch"))


def test_the_record_covers_every_mode_and_policy() -> None:
    assert len(RECORDED) >= 200
    assert all(one["margin"] is None or one["margin"] >= 1e-3 for one in RECORDED)
    for name, values in (
        ("mode", {"ar", "block", "full", "speculative", "beam", "ancestral", "renoise"}),
        (
            "policy",
            {"chain", "confidence", "entropy", "entropy_bounded", "factor", "first_hitting", "margin", "random"},
        ),
    ):
        assert values <= {one["options"].get(name) for one in RECORDED}
