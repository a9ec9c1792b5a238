"""A timeout is met by committing more a forward; the clock is the test's own."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from daguerre.canvas import Decision
from daguerre.decoding.denoise import Deadline, with_more
from daguerre.decoding.pins import Pin
from daguerre.decoding.plan import Search
from daguerre.decoding.request import Decode
from daguerre.decoding.result import Result
from daguerre.decoding.running import Running
from daguerre.decoding.sample import Sample, Together, drive
from daguerre.model import Model
from daguerre.models.session import Counts
from daguerre.sampling.logits import Proposals
from daguerre.sampling.policies import POLICIES
from driving import Ticking
from plans import make_plan

SLOW: dict[str, Any] = {"threshold": 1.0, "min_tokens": 40}
"""One position a forward, and no end."""
WHOLE_OR_SPANS: list[dict[str, Any]] = [{"mode": "full"}, {"block_size": 8}]


def timed(model: Model, seconds: float, suffix: str | None = None, slow: Any = lambda n: 1.0, **options: Any) -> Result:
    ticking = Ticking(model.denoiser, slow)
    decode = Decode(**(SLOW | options))
    plan = make_plan(model.config, model.tokenizer, decode, "def f(a):\n", suffix, 40, False)
    sample = Sample(ticking, plan, 0, seconds, ticking.clock)
    for _ in drive(sample):
        pass
    result = sample.result()
    *_, last = result.trace.replay()
    assert np.array_equal(last.tokens, sample.canvas.tokens)
    assert result.usage.forwards <= plan.max_forwards
    return result


BUDGETS = [("causal", 2.0), ("causal", 20.0), ("causal_unshifted", 4.5), ("full", 8.0), ("full_unshifted", 2.0)]


def test_the_whole_budget_is_filled_in_time(models: dict[str, Model], subtests: pytest.Subtests) -> None:
    for name, seconds in BUDGETS:
        with subtests.test(name, seconds=seconds):
            for options in ({"mode": "full"}, {"block_size": 8}):
                result = timed(models[name], seconds, **options)
                assert result.finish_reason == "length"
                assert result.usage.completion_tokens == 40
                assert result.usage.seconds <= seconds
                assert result.usage.forwards >= int(seconds) - 1
                assert result.usage.deadline_forced > 0


def test_a_gap_is_filled_in_time(models: dict[str, Model], subtests: pytest.Subtests) -> None:
    for name in ("causal", "full"):
        with subtests.test(name):
            for options in ({}, {"block_size": 8}):
                result = timed(models[name], 6.0, "\n    return a\n", **options)
                assert (result.finish_reason, result.usage.completion_tokens) == ("length", 40)
                assert result.usage.seconds <= 6.0


def test_edits_leave_time_for_the_whole_budget(models: dict[str, Model], subtests: pytest.Subtests) -> None:
    for name, seconds in product(("causal", "full", "block"), (6.5, 10.5, 20.5)):
        with subtests.test(name, seconds=seconds):
            size = {} if name == "block" else {"block_size": 4}
            result = timed(models[name], seconds, mode="block", policy="joint_threshold", edit_threshold=0.3, **size)
            assert (result.finish_reason, result.usage.completion_tokens) == ("length", 40)
            assert result.usage.seconds <= seconds
            assert result.usage.deadline_forced > 0


def test_edits_are_made_where_there_is_time(causal: Model) -> None:
    options: dict[str, Any] = {"policy": "joint_threshold", "edit_threshold": 0.3, "threshold": 0.9, "block_size": 4}
    plain, timely = timed(causal, 1e9, **options), timed(causal, 200.0, **options)
    assert any(len(step.decision.replace) for step in plain.trace.steps)
    assert [t.id for t in plain.tokens] == [t.id for t in timely.tokens]
    assert plain.usage.forwards == timely.usage.forwards


def test_blocks_of_a_grid_take_a_forward_each(models: dict[str, Model]) -> None:
    result = timed(models["block"], 8.0, mode="block")
    assert (result.finish_reason, result.usage.completion_tokens) == ("length", 40)
    assert timed(models["block"], 3.0, mode="block").finish_reason == "timeout"


def test_every_policy_is_made_to_commit_more(causal: Model) -> None:
    for name in POLICIES:
        options: dict[str, Any] = {"threshold": 0.9, "policy": name, "temperature": 1.0}
        result = timed(causal, 5.0, mode="full", **options)
        assert (result.finish_reason, result.usage.completion_tokens) == ("length", 40), name
        assert result.usage.seconds <= 5.0


def test_a_forward_that_takes_longer_changes_those_to_come(causal: Model) -> None:
    result = timed(causal, 60.0, mode="full", slow=lambda number: 1.0 if number < 10 else 10.0)
    assert result.usage.completion_tokens == 40
    assert result.usage.seconds <= 60.0
    sizes = [len(step.decision) for step in result.trace.steps]
    assert sizes[:10] == [1] * 10
    assert min(sizes[11:]) > 1


def test_with_time_enough_nothing_is_changed(causal: Model) -> None:
    plain, timely = timed(causal, 1e9), timed(causal, 41.0)
    assert [t.id for t in plain.tokens] == [t.id for t in timely.tokens]
    assert plain.usage.deadline_forced == timely.usage.deadline_forced == 0


def test_modes_of_the_autoregressive_distribution_keep_it_and_stop(causal: Model) -> None:
    whole = timed(causal, 1e9, mode="ar", threshold=0.9)
    for mode in ("ar", "speculative"):
        result = timed(causal, 6.0, mode=mode, threshold=0.9)
        assert result.finish_reason == "timeout"
        assert result.text == whole.text[: len(result.text)]
        assert result.usage.deadline_forced == 0


def test_a_constraint_holds_when_time_is_short(causal: Model) -> None:
    schema = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9999}, "maxItems": 4}
    for seconds in (2.0, 3.0, 5.0):
        result = timed(causal, seconds, mode="full", min_tokens=0, schema=schema, temperature=1.0)
        assert isinstance(json.loads(result.text), list)
        assert result.usage.seconds <= seconds


def test_the_prompt_is_not_taken_for_the_forwards_to_come() -> None:
    now = 0.0
    deadline, counts = Deadline(50.0, lambda: now), Counts()

    def forward(seconds: float, query_tokens: int, prefill_tokens: int = 0) -> None:
        nonlocal now
        now += seconds
        deadline.busy += seconds
        counts.forwards += 1
        counts.query_tokens += query_tokens
        counts.prefill_tokens += prefill_tokens

    assert deadline.min_commits(80, counts) == 0
    forward(10.0, 16, 144)
    assert deadline.min_commits(80, counts) == 2  # 1 second of the 10 was of the span: 40 forwards
    assert deadline.min_commits(80, counts) == 2
    forward(4.0, 16)
    assert deadline.min_commits(80, counts) == 9  # 36 seconds, 9 forwards of 4
    assert not deadline.late()
    now = 50.0
    assert deadline.late()


def test_the_highest_ranked_of_what_is_left_are_added() -> None:
    ready = Proposals(np.arange(5), np.arange(5), np.full(5, 0.5))
    first = Decision([3], [3], [0.5], [0.5])
    more = with_more(first, ready, np.array([0.1, 0.9, 0.2, 0.0, 0.8]), 3)
    assert more.positions.tolist() == [1, 3, 4]
    assert with_more(first, ready, np.zeros(5), 9).positions.tolist() == [0, 1, 2, 3, 4]


def test_pins_stand_in_a_text_whose_time_is_short(causal: Model, subtests: pytest.Subtests) -> None:
    for options in WHOLE_OR_SPANS:
        with subtests.test(str(options)):
            (semicolon,) = causal.tokenizer.encode(";")
            result = timed(causal, 5.0, pins=[Pin(";", at=7), Pin(";", at=-1)], **options)
            assert (result.finish_reason, len(result.tokens)) == ("length", 40)
            assert [result.tokens[at].id for at in (7, 39)] == [semicolon] * 2
            assert result.usage.seconds <= 5.0


def test_what_is_changed_on_the_way_is_filled_in_time_too(causal: Model, subtests: pytest.Subtests) -> None:
    for options in WHOLE_OR_SPANS:
        with subtests.test(str(options)):
            ticking = Ticking(causal.denoiser)
            plan = make_plan(causal.config, causal.tokenizer, Decode(**SLOW, **options), "def f(a):\n", None, 40, False)
            running = Running(Sample(ticking, plan, 0, 9.0, ticking.clock), causal.tokenizer)
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
    sample = Sample(ticking, found, 0, 10.0, ticking.clock)
    assert len(list(drive(sample))) <= 4
    result = sample.result()
    assert (result.finish_reason, len(result.tokens)) == ("length", 20)
    assert 6.0 < result.usage.seconds <= 10.0


def test_a_consumer_of_events_takes_no_time_of_a_forward(causal: Model) -> None:
    """Forwards take a second and the caller four more for each event: the pace is that of forwards of one second."""
    ticking, sizes = Ticking(causal.denoiser), list[int]()
    plan = make_plan(causal.config, causal.tokenizer, Decode(mode="full", **SLOW), "def f(a):\n", None, 40, False)
    sample = Sample(ticking, plan, 0, 100.0, ticking.clock)
    for event in drive(sample):
        sizes.append(len(event.decision))
        assert sample.deadline.busy == len(sizes)
        ticking.now += 4.0
    assert sizes[:12] == [1] * 12
    assert sample.deadline.clock() - sample.deadline.started > sample.deadline.busy


def test_samples_that_share_forwards_are_each_charged_what_they_waited_for(causal: Model) -> None:
    ticking = Ticking(causal.denoiser)

    def sample(num: int, **options: Any) -> Sample:
        decode = Decode(**(SLOW | {"mode": "full", "min_tokens": num} | options))
        plan = make_plan(causal.config, causal.tokenizer, decode, "def f(a):\n", None, num, False)
        return Sample(ticking, plan, 0, 1e6, ticking.clock)

    first, late, guided = sample(6), sample(9), sample(5, guidance=2.0)
    together = Together(ticking.backend, [first, guided])
    together.step()
    together.step()
    together.add(late)
    assert len(together) == 3
    while together:
        together.step()
        ticking.now += 10.0  # what is done between steps is charged to nobody
    assert [one.deadline.busy for one in (first, late, guided)] == [6.0, 9.0, 5.0]
    assert ticking.number == 11
    assert [len(one.result().tokens) for one in (first, late, guided)] == [6, 9, 5]


def test_samples_that_share_forwards_are_done_in_time(causal: Model, subtests: pytest.Subtests) -> None:
    for seconds in (3.0, 7.0):
        with subtests.test(str(seconds)):
            ticking = Ticking(causal.denoiser)
            samples = []
            for number, options in enumerate(
                ({"mode": "full"}, {"block_size": 8}, {"mode": "full", "policy": "random"})
            ):
                decode = Decode(**{"min_tokens": 40, **options})
                plan = make_plan(causal.config, causal.tokenizer, decode, "def f(a):\n", None, 40, False)
                samples.append(Sample(ticking, plan, number, seconds, ticking.clock))
            Together(ticking.backend, samples).run()
            for sample in samples:
                result = sample.result()
                assert (result.finish_reason, len(result.tokens)) == ("length", 40)
                assert result.usage.deadline_forced > 0
            assert ticking.number <= seconds
