"""Steps are cut by time, on a clock that computed rows move: what somebody waits for, and what a long prompt takes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from daguerre.decoding.drafters import Drafted, LookedUp
from daguerre.engine import scheduler
from daguerre.engine.engine import Engine
from daguerre.engine.pace import Pace, fair_parts
from daguerre.engine.pieces import CleanRows
from daguerre.engine.task import AskingWork, PendingForward, one_batch
from daguerre.model import Model
from daguerre.models.forward import Answer, DraftStep, Forward, Hidden, Layout, LogProbs
from daguerre.models.processor import row_time

ROW, STEP = 0.004, 0.25
"""Seconds of a row that sees few keys, and of a step."""
LONG, SHORT, WHOLE = 1500, 40, 400


@pytest.fixture(scope="module")
def model(make_model: Callable[..., Model]) -> Model:
    return make_model(max_positions=2048)


class Timed:
    """An engine whose forwards take ROW for each row, on a clock of their own."""

    def __init__(self, model: Model, monkeypatch: pytest.MonkeyPatch, least: int = 0, **limits: Any) -> None:
        """least: fewer rows take as long as so many; then keys take time, too."""
        self.now, self.rows = 0.0, list[int]()
        monkeypatch.setattr(scheduler.time, "perf_counter", lambda: self.now)
        self.engine = Engine(model, store_prefixes=False, **limits)
        backend, pace = self.engine._scheduler.backend, self.engine._scheduler._pace
        forward = backend.forward

        def timed(batch: Sequence[Forward | DraftStep]) -> list[Answer]:
            self.rows.append(sum(len(one.tokens) if isinstance(one, Forward) else len(one.rows) for one in batch))
            self.now += ROW * (max(least, sum(map(pace.work, batch))) if least else self.rows[-1])
            return forward(batch)

        monkeypatch.setattr(backend, "forward", timed)

    def steps(self) -> Iterator[float]:
        """The clock after each step."""
        while self.engine.step():
            yield self.now


def prompt(model: Model, num: int, seed: int) -> list[int]:
    drawn = np.random.default_rng(seed).integers(0, 256, num)
    return [model.config.bos_id, *drawn.tolist()] if model.config.bos_id is not None else drawn.tolist()


def test_nobody_waits_for_a_long_prompt(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = Timed(model, monkeypatch)
    first = alone.engine.generate(prompt(model, LONG, 0), 1, mode="ar", min_tokens=1, heal=False)
    *_, taken = alone.steps()
    text = first.result().text

    timed = Timed(model, monkeypatch)
    ask = timed.engine.generate
    streams = [ask(prompt(model, SHORT, 1 + n), 400, mode="ar", min_tokens=400, heal=False) for n in range(4)]
    steps = timed.steps()
    while not all(job.first for job in streams):
        next(steps)
    began = last = timed.now
    job, asked_at, gaps = ask(prompt(model, LONG, 0), 1, mode="ar", min_tokens=1, heal=False), None, list[float]()
    for now in steps:
        gaps.append(now - last)
        last = now
        if asked_at is None and now - began > 1:
            newcomer, asked_at = ask(prompt(model, SHORT, 9), 2, mode="ar", min_tokens=2, heal=False), now
        if job.done:
            break
    assert job.result().text == text, "a prompt in parts is the same prompt"
    assert asked_at is not None and newcomer.first is not None and newcomer.first - asked_at <= 1.5
    assert max(gaps) <= 0.5
    assert last - began <= 1.25 * taken
    assert not any(stream.done for stream in streams)


@pytest.mark.parametrize("more", [{"mode": "ar"}, {"mode": "block", "block_size": 24, "threshold": 0.0}])
def test_an_owner_writes_at_its_share_of_what_it_writes_alone(
    model: Model, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    """By a row or by many at a time, beside another with more samples and longer prompts than a step has room for."""

    def seconds(timed: Timed, tokens: int = 96) -> float:
        ask = timed.engine.generate
        job = ask(prompt(model, 4, 1), tokens, owner="ana", min_tokens=tokens, heal=False, **more)
        steps = timed.steps()
        while not job.first:
            next(steps)
        first = timed.now
        while not job.done:
            next(steps)
        return (timed.now - first) / tokens

    alone = seconds(Timed(model, monkeypatch, least=16))
    timed = Timed(model, monkeypatch, least=16)
    hog: dict[str, Any] = {"mode": "ar", "min_tokens": 400, "heal": False, "owner": "hog"}
    for number in range(4):
        timed.engine.generate(prompt(model, LONG, number), 400, **hog)
        timed.engine.generate(prompt(model, 4, number), 400, n=10, temperature=1.0, seed=number, **hog)
    assert seconds(timed) <= 1.1 * 2 * alone


def test_a_forward_that_cannot_be_divided_costs_its_owner_later_parts(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside embeddings of another, each of many steps' rows, an owner writes at its share; and they get theirs."""

    def written(num: int) -> float:
        timed = Timed(model, monkeypatch, least=16)
        place = np.arange(WHOLE)
        layout = Layout(place, np.full(WHOLE, WHOLE, dtype=np.int32), 0)
        whole = Forward(place % 256, layout, None, np.zeros(1, dtype=np.int32), Hidden())
        timed.engine._enter([AskingWork(one_batch([whole] * num))], 0, "hog", None)
        job = timed.engine.generate(prompt(model, 4, 1), 200, mode="ar", min_tokens=200, heal=False, owner="ana")
        steps = timed.steps()
        while not job.done:
            next(steps)
        return timed.now

    alone = written(0)
    assert 1.5 * alone <= written(100) <= 1.1 * 2 * alone


def test_scores_and_hidden_states_of_long_texts_are_computed_in_parts(model: Model) -> None:
    tokens = np.array(prompt(model, LONG, 3))
    num = len(tokens)
    layout = Layout(np.arange(num), np.arange(1, num + 1, dtype=np.int32), num)
    some = np.arange(7, num, 3, dtype=np.int32)
    batch = [Forward(tokens, layout, None, some, ask) for ask in (Hidden(), LogProbs(np.roll(tokens, -1)[some]))]
    hidden, scores = model.denoiser.backend.forward(batch)
    engine = Engine(model, max_rows=256, step_seconds=None)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(engine.compute, batch)
        job = engine.generate(prompt(model, SHORT, 1), 60, mode="ar", min_tokens=60, heal=False)
        rows = list[int]()
        while not found.done() or not job.done:
            before = engine.stats().rows
            engine.step()
            rows.append(engine.stats().rows - before)
    in_parts, scored = found.result()
    assert 0 < max(rows) <= 257 and sum(rows) >= 2 * num + SHORT + 59
    np.testing.assert_allclose(in_parts.hidden, hidden.hidden, atol=1e-5)
    np.testing.assert_allclose(scored.log_probs, scores.log_probs, atol=1e-5)


def test_what_was_wanted_before_memory_was_given_up_is_in_the_answer_once(model: Model) -> None:
    backend, num = model.denoiser.backend, 200
    tokens, place = np.array(prompt(model, num, 3))[:num], np.arange(num)
    layout, wanted = Layout(place, (place + 1).astype(np.int32), num), np.arange(5, num, dtype=np.int32)
    (whole,) = backend.forward([Forward(tokens, layout, None, wanted, Hidden())])
    piece = PendingForward(Forward(tokens, layout, backend.cache(num), wanted, Hidden()), CleanRows())
    for number in range(20):
        part = piece.part(70, whole=False)
        assert part is not None
        (answer,) = backend.forward([part])
        piece.computed(part, answer)
        if number == 1:
            piece.give_up()
        if piece.answer is not None:
            break
    assert piece.answer is not None and number > 3, "rows are computed again first"
    np.testing.assert_allclose(piece.answer.hidden, whole.hidden, atol=1e-5)


def test_a_step_takes_as_long_as_it_may_whatever_a_row_takes(model: Model) -> None:
    """Rows of an unknown price, of which those that see more keys take longer, in parts that have a price, too."""
    pace = Pace(model.config, STEP)
    for row, keys, each in itertools.product((1e-4, 0.1), (0.0, 1e-5), (0.0, 0.03)):
        took = list[float]()
        for _ in range(12):
            rows = pace.rows(pace.most(), 1000)
            forward = rows * (row + keys * 1000)
            pace.took(rows, pace.need(rows, 1000), 1, forward, forward + each)
            took.append(forward + each)
        assert took[-1] <= max(1.1 * STEP, 16 * (row + keys * 1000) + each) and took[-1] >= 0.7 * STEP
    for rows, length in itertools.product((1, 7, 300), (0, 10, 5000)):
        assert pace.rows(pace.need(rows, length) + 1e-6, length) == rows
    assert pace.rows(-5.0, 10) == 0
    assert Pace(model.config, None).rows(Pace(model.config, None).most(), 0) > 1 << 20


def test_one_late_step_does_not_make_all_later_ones_small(model: Model) -> None:
    """Behind many keys a step of the least work has few rows; it is timed all the same."""
    pace = Pace(model.config, STEP)
    for number in range(40):
        rows = pace.rows(pace.most(), 1000)
        work = pace.need(rows, 1000)
        seconds = (100 if number == 20 else 1) * 1e-4 * work
        pace.took(rows, work, 1, seconds, seconds)
    assert 1e-4 * work >= 0.7 * STEP


def test_parts_are_fair() -> None:
    """Max-min fairness: equal by weight, but for those that need less."""
    for needs, weights, most, wanted in (
        ([10, 10], [1, 1], 8, [4, 4]),
        ([1, 10, 10], [1, 1, 1], 9, [1, 4, 4]),
        ([10, 10], [3, 1], 8, [6, 2]),
        ([1, 9, 9], [2, 1, 3], 9, [1, 2, 6]),
        ([1, 2], [1, 1], 9, [1, 2]),
    ):
        assert fair_parts(needs, weights, most) == pytest.approx(wanted)


def test_a_row_costs_in_a_crowd_what_it_adds_to_a_step() -> None:
    """A forward of N texts takes (1 - r) + r N times as long as that of one; each text's part of it is 1/N."""
    alone = row_time()
    for crowd in (1, 2, 5, 16, 1000):
        one = (1 - alone + alone * crowd) / crowd
        assert row_time(crowd) == pytest.approx(alone / one)


def test_drafts_from_a_text_that_were_wrong_are_not_believed_in_a_crowd() -> None:
    draft = Drafted.of(np.arange(8), [0.9] * 8, "lookup")
    looked = LookedUp()
    assert looked.judged(draft, 1) is draft
    before = looked.judged(draft, 16).reached[1]
    for _ in range(3):
        looked.judged(draft, 16)
        looked.count(draft, 0)
    after = looked.judged(draft, 16).reached[1]
    assert after < before / 2
    for _ in range(50):
        looked.count(looked.judged(draft, 16), 8)
    assert looked.judged(draft, 16).reached == pytest.approx(draft.reached)


def test_a_crowd_drafts_less_and_writes_the_same(model: Model) -> None:
    text = "a = 1\nb = 2\na = 1\nb = 2\na = 1\n"
    alone = model.generate(text, 48, mode="speculative", drafter="lookup", min_tokens=48)
    engine = Engine(model, store_prefixes=False)
    jobs = [engine.generate(text, 48, mode="speculative", drafter="lookup", min_tokens=48) for _ in range(24)]
    while engine.step():
        pass
    for job in jobs:
        assert job.result().text == alone.text
        assert job.result().usage.drafted < alone.usage.drafted
