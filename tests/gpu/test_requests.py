"""Requests in every mode and policy, and operations: in float32 a device gives what was recorded on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

import daguerre
from daguerre.engine.engine import Engine
from daguerre.model import Model
from equivalence.cases import TINY
from equivalence.test_recorded import RECORDED, check

pytestmark = pytest.mark.gpu
PARTS = 16


@pytest.fixture(scope="session")
def subjects(on_device: Any, device: str) -> Callable[[], dict[str, Model]]:
    """The models by name, made on first use."""

    def make() -> dict[str, Model]:
        made = {name: on_device(**facts) for name, facts in TINY.items()}
        return made | {"default": daguerre.load(dtype="float32", backend="torch", device=device)}

    return cache(make)


@pytest.mark.parametrize("part", range(PARTS))
def test_a_request_gets_the_recorded_answer(subjects: Callable[[], dict[str, Model]], part: int) -> None:
    check(range(part, len(RECORDED), PARTS), subjects())


def test_an_engine_serves_many_requests_as_it_does_each_alone(subjects: Callable[[], dict[str, Model]]) -> None:
    model = subjects()["default"]
    prompts = [f"def f{number}(a, b):\n    return " for number in range(12)]
    how = [{"mode": mode, "seed": 3} for mode in ("ar", "speculative", "block")] * 4
    with Engine(model) as engine:
        jobs = [engine.generate(prompt, 16, **one) for prompt, one in zip(prompts, how, strict=True)]
        texts = [job.result().text for job in jobs]
    assert texts == [model.generate(prompt, 16, **one).text for prompt, one in zip(prompts, how, strict=True)]


def test_a_device_has_the_type_that_it_multiplies_natively(device: str) -> None:
    model = daguerre.load(backend="torch", device=device)
    assert model.backbone.embedding.weight.device.type == device
    assert model.generate("def area(w, h):\n    return ", 8).usage.completion_tokens > 0
