"""A timeout is met by committing more a forward; the clock is the test's own."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from daguerre.canvas import Canvas, Decision
from daguerre.model import Model
from daguerre.models.denoiser import CacheMode, Counts, Denoiser, Session
from daguerre.plan import Search
from daguerre.planning import make_plan
from daguerre.result import Result
from daguerre.running import Running
from daguerre.sample import Sample
from daguerre.sampling.deadline import Deadline, hastened
from daguerre.sampling.decode import Decode
from daguerre.sampling.logits import Proposals
from daguerre.sampling.pins import Pin
from daguerre.sampling.policies import POLICIES

SLOW: dict[str, Any] = {"threshold": 1.0, "min_tokens": 40}
"""One position a forward, and no end."""


class Ticking:
    """A denoiser each forward of which takes one second of `now`, or what `slow` says of its number."""

    def __init__(self, denoiser: Denoiser, slow: Any = lambda number: 1.0) -> None:
        self.config, self._denoiser, self._slow = denoiser.config, denoiser, slow
        self.now, self.number = 100.0, 0

    def session(self, canvas: Canvas, cache: CacheMode = "auto") -> Session:
        self._own = self._denoiser.session(canvas, cache)
        self.counts = self._own.counts
        return self

    def logits(self, canvas: Canvas, asked: np.ndarray) -> np.ndarray:
        self.now += self._slow(self.number)
        self.number += 1
        return self._own.logits(canvas, asked)

    def in_turn(self, canvas: Canvas) -> Any:
        self.now += self._slow(self.number)
        self.number += 1
        return self._own.in_turn(canvas)

    def noisy_logits(self, tokens_BL: Tensor, t: float, asked: np.ndarray) -> np.ndarray:
        self.now += 1.0
        return self._own.noisy_logits(tokens_BL, t, asked)

    def verify(self, canvas: Canvas, draft: np.ndarray, ahead: int) -> Any:
        self.now += 1.0
        return self._own.verify(canvas, draft, ahead)


def timed(model: Model, seconds: float, suffix: str | None = None, slow: Any = lambda n: 1.0, **options: Any) -> Result:
    ticking = Ticking(model.denoiser, slow)
    decode = Decode(**(SLOW | options))
    plan = make_plan(model.config, model.tokenizer, decode, "def f(a):\n", suffix, 40, False)
    sample = Sample(ticking, plan, 0, seconds, lambda: ticking.now)
    for _ in sample.steps():
        pass
    result = sample.result()
    *_, last = result.trace.replay()
    assert np.array_equal(last.tokens, sample.canvas.tokens)
    assert result.usage.forwards <= plan.bound
    return result


@pytest.mark.parametrize("seconds", [2.0, 4.5, 8.0, 20.0])
@pytest.mark.parametrize("name", ["causal", "causal_unshifted", "full", "full_unshifted"])
def test_the_whole_budget_is_filled_in_time(models: dict[str, Model], name: str, seconds: float) -> None:
    for options in ({"mode": "full"}, {"block_size": 8}):
        result = timed(models[name], seconds, **options)
        assert result.finish_reason == "length"
        assert result.usage.completion_tokens == 40
        assert result.usage.seconds <= seconds
        assert result.usage.forwards >= int(seconds) - 1
        assert result.usage.hurried > 0


@pytest.mark.parametrize("name", ["causal", "full"])
def test_a_gap_is_filled_in_time(models: dict[str, Model], name: str) -> None:
    for options in ({}, {"block_size": 8}):
        result = timed(models[name], 6.0, "\n    return a\n", **options)
        assert (result.finish_reason, result.usage.completion_tokens) == ("length", 40)
        assert result.usage.seconds <= 6.0


def test_blocks_of_a_grid_take_a_forward_each(models: dict[str, Model]) -> None:
    result = timed(models["block"], 8.0)
    assert (result.finish_reason, result.usage.completion_tokens) == ("length", 40)
    assert timed(models["block"], 3.0).finish_reason == "timeout"


@pytest.mark.parametrize("name", list(POLICIES))
def test_every_policy_is_hastened(causal: Model, name: str) -> None:
    options: dict[str, Any] = {"threshold": 0.9, "policy": name, "temperature": 1.0}
    result = timed(causal, 5.0, mode="full", **options)
    assert (result.finish_reason, result.usage.completion_tokens) == ("length", 40)
    assert result.usage.seconds <= 5.0


def test_a_forward_that_takes_longer_hastens_those_to_come(causal: Model) -> None:
    result = timed(causal, 60.0, mode="full", slow=lambda number: 1.0 if number < 10 else 10.0)
    assert result.usage.completion_tokens == 40
    assert result.usage.seconds <= 60.0
    sizes = [len(step.decision) for step in result.trace.steps]
    assert sizes[:10] == [1] * 10
    assert min(sizes[11:]) > 1


def test_with_time_enough_nothing_is_changed(causal: Model) -> None:
    plain, timely = timed(causal, 1e9), timed(causal, 41.0)
    assert [t.id for t in plain.tokens] == [t.id for t in timely.tokens]
    assert plain.usage.hurried == timely.usage.hurried == 0


def test_modes_of_the_autoregressive_law_keep_it_and_stop(causal: Model) -> None:
    whole = timed(causal, 1e9, mode="ar", threshold=0.9)
    for mode in ("ar", "speculative"):
        result = timed(causal, 6.0, mode=mode, threshold=0.9)
        assert result.finish_reason == "timeout"
        assert result.text == whole.text[: len(result.text)]
        assert result.usage.hurried == 0


def test_a_constraint_holds_when_it_is_hurried(causal: Model) -> None:
    schema = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9999}, "maxItems": 4}
    for seconds in (2.0, 3.0, 5.0):
        result = timed(causal, seconds, mode="full", min_tokens=0, schema=schema, temperature=1.0)
        assert isinstance(json.loads(result.text), list)
        assert result.usage.seconds <= seconds


def test_the_prompt_is_not_taken_for_the_forwards_to_come() -> None:
    now = 0.0
    deadline, counts = Deadline(50.0, lambda: now), Counts()
    assert deadline.least(80, counts) == 0
    now, counts.forwards, counts.rows, counts.prefill_rows = 10.0, 1, 16, 144
    assert deadline.least(80, counts) == 2  # 1 second of the 10 was of the span: 40 forwards
    assert deadline.least(80, counts) == 2
    now, counts.forwards, counts.rows = 14.0, 2, 32
    assert deadline.least(80, counts) == 9  # 36 seconds, 9 forwards of 4
    assert not deadline.late()
    now = 50.0
    assert deadline.late()


def test_the_highest_ranked_of_what_is_left_are_added() -> None:
    ready = Proposals(np.arange(5), np.arange(5), np.full(5, 0.5), np.zeros((5, 8)))
    first = Decision([3], [3], [0.5], [0.5])
    more = hastened(first, ready, np.array([0.1, 0.9, 0.2, 0.0, 0.8]), 3)
    assert more.positions.tolist() == [1, 3, 4]
    assert hastened(first, ready, np.zeros(5), 9).positions.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("options", [{"mode": "full"}, {"block_size": 8}])
def test_pins_stand_in_a_text_that_is_hurried(causal: Model, options: dict[str, Any]) -> None:
    (semicolon,) = causal.tokenizer.encode(";")
    result = timed(causal, 5.0, pins=[Pin(";", at=7), Pin(";", at=-1)], **options)
    assert (result.finish_reason, len(result.tokens)) == ("length", 40)
    assert [result.tokens[at].id for at in (7, 39)] == [semicolon] * 2
    assert result.usage.seconds <= 5.0


@pytest.mark.parametrize("options", [{"mode": "full"}, {"block_size": 8}])
def test_what_is_changed_on_the_way_is_filled_in_time_too(causal: Model, options: dict[str, Any]) -> None:
    ticking = Ticking(causal.denoiser)
    plan = make_plan(causal.config, causal.tokenizer, Decode(**SLOW, **options), "def f(a):\n", None, 40, False)
    running = Running(Sample(ticking, plan, 0, 9.0, lambda: ticking.now), causal.tokenizer)
    for _ in range(4):
        next(running)
    running.remask(0, 40)
    running.pin(30, "x")
    result = running.result()
    assert (result.finish_reason, len(result.tokens)) == ("length", 40)
    assert result.usage.seconds <= 9.0
    assert result.usage.forwards <= running.bound


def test_the_time_of_a_search_is_gone(causal: Model) -> None:
    ticking = Ticking(causal.denoiser)
    plan = make_plan(causal.config, causal.tokenizer, Decode(min_tokens=20, threshold=1.0), "x = ", "\n", 20, False)
    found = replace(plan, searched=Search((20,), (0.0,), Counts(forwards=2), 6.0))
    sample = Sample(ticking, found, 0, 10.0, lambda: ticking.now)
    assert len(list(sample.steps())) <= 4
    result = sample.result()
    assert (result.finish_reason, len(result.tokens)) == ("length", 20)
    assert 6.0 < result.usage.seconds <= 10.0
