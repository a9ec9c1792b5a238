"""Owners share places, rows, memory and the queue, each by its weight, whatever priorities they give."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from daguerre.engine.engine import Engine
from daguerre.engine.job import Job
from daguerre.engine.shares import OwnerShares
from daguerre.errors import QueueFullError
from daguerre.model import Model

LEAST = -1_000_000_000
PROMPT = "def area(w, h):\n    return "


@pytest.fixture(scope="module")
def model(make_model: Callable[..., Model]) -> Model:
    return make_model()


class Ended:
    """An engine that notes whose requests are done, in order. weights: of owners, where they are not 1."""

    def __init__(self, model: Model, weights: dict[str, float] | None = None, **limits: Any) -> None:
        class Weighed(Engine):
            def weight(self, owner: str) -> float:
                return (weights or {}).get(owner, 1.0)

        self.owners = list[str]()
        limits = {"step_seconds": None, **limits}  # steps are counted: none is cut because the machine is busy
        self.engine = Weighed(model, lambda job: self.owners.append(job.owner), **limits)

    def ask(self, owner: str, tokens: int = 4, prompt: str = PROMPT, **more: Any) -> Job:
        return self.engine.generate(prompt, tokens, mode="ar", min_tokens=tokens, owner=owner, **more)

    def steps(self, num: int = 100_000) -> None:
        for _ in range(num):
            if not self.engine.step():
                return

    def places(self) -> Counter[str]:
        return Counter(task.owner for task in self.engine._scheduler._running)


def text(tokens: int, model: Model, word: str) -> str:
    """About so many tokens, unlike those of other words."""
    line = f"{word} = 1\n"
    return line * max(1, tokens // len(model.tokenizer.encode(line)))


def test_one_place_goes_round_whatever_the_priorities(model: Model) -> None:
    served = Ended(model, max_running=1)
    for _ in range(6):
        served.ask("hog", priority=LEAST)
    for _ in range(2):
        served.ask("ann", priority=9)
    served.ask("ben")
    served.steps()
    assert served.owners[:5].count("hog") == 2 and served.owners[:3] != ["hog"] * 3
    assert served.owners[5:] == ["hog"] * 4


def test_priorities_rank_the_requests_of_their_owner(model: Model) -> None:
    served = Ended(model, max_running=1)
    jobs = [served.ask("ann", priority=number) for number in (3, -7, 0)]
    served.steps()
    starts = [job.started or 0.0 for job in jobs]
    assert starts == [max(starts), min(starts), sorted(starts)[1]]


def test_whoever_has_more_places_than_its_share_gives_them_up_and_its_texts_stay_as_they_are(model: Model) -> None:
    alone = model.generate(PROMPT, 24, mode="ar", min_tokens=24)
    served = Ended(model, max_running=8)
    many = [served.ask("hog", 24, n=8, temperature=0.0, priority=LEAST) for _ in range(2)]
    served.steps(3)
    assert served.places() == {"hog": 8}
    some = [served.ask("ann", 24) for _ in range(6)]
    served.steps(1)
    assert served.places() == {"hog": 4, "ann": 4}
    served.ask("ben", 24, n=8)
    served.steps(1)
    assert sorted(served.places().values()) == [2, 3, 3]
    served.steps()
    for job in (*many, *some):
        assert {choice.text for choice in job.result().choices} == {alone.text}


def test_places_are_shared_by_weight(model: Model) -> None:
    served = Ended(model, {"ann": 3.0}, max_running=8)
    served.ask("hog", 24, n=16)
    served.steps(2)
    served.ask("ann", 24, n=16)
    served.steps(1)
    assert served.places() == {"ann": 6, "hog": 2}


def test_rows_of_steps_are_shared_by_weight(model: Model) -> None:
    served = Ended(model, {"ben": 2.0}, max_rows=64, store_prefixes=False)
    for number in range(3):
        for owner in ("hog", "ann", "ben"):
            served.ask(owner, 1, text(600, model, f"{owner}{number}"), priority=LEAST if owner == "hog" else 0)
    served.steps(16)
    work, pace = defaultdict[str, float](float), served.engine._scheduler._pace
    for task in served.engine._scheduler._running:
        work[task.owner] += sum(pace.need(cache.length, 0) for cache in task._caches.values())
    step = pace.need(64, 320)
    assert abs(work["hog"] - work["ann"]) <= step and abs(work["ben"] - 2 * work["ann"]) <= 2 * step
    assert not served.owners


def test_a_step_is_not_one_owners_prompts_alone(model: Model) -> None:
    served = Ended(model, max_rows=64, store_prefixes=False)
    for number in range(6):
        served.ask("hog", 4, text(640, model, f"hog{number}"), priority=LEAST)
    served.steps(2)
    job = served.ask("ann", 8)
    served.steps(12)
    assert job.done and "hog" not in served.owners


def test_who_overdrew_a_step_waits_for_its_parts_of_later_ones() -> None:
    shares = OwnerShares(lambda owner: 3.0 if owner == "ann" else 1.0)
    shares.overdrew("hog", 5.0)
    parts = {"ann": 6.0, "hog": 2.0}
    assert [shares.pay(parts) for _ in range(4)] == [{"hog"}, {"hog"}, set(), set()]
    shares.overdrew("hog", 1e9)
    assert shares.pay({"hog": 8.0}) == set() and shares.pay(parts) == set(), "alone it takes nobody's part"


def test_a_crowd_counts_as_many_tasks_of_each_owner_as_of_oneself() -> None:
    shares = OwnerShares(lambda owner: 2.0 if owner == "ann" else 1.0)
    tasks = {"ann": 1, "ben": 1, "hog": 30}
    assert [shares.crowd(owner, tasks) for owner in tasks] == [2, 4, 120]


def test_what_was_taken_while_nobody_waited_costs_nothing_later(model: Model) -> None:
    served = Ended(model, max_running=1, store_prefixes=False)
    for _ in range(5):
        served.ask("ann", 16)
    served.steps()
    for _ in range(4):
        served.ask("ann")
        served.ask("ben")
    served.owners.clear()
    served.steps()
    assert served.owners[:6].count("ann") == 3


def test_memory_is_shared(model: Model) -> None:
    served = Ended(model, cache_rows=1024, store_prefixes=False)
    for number in range(8):
        served.ask("hog", 40, text(180, model, f"hog{number}"), priority=LEAST)
    served.steps(4)
    job = served.ask("ann", 8, text(180, model, "ann"))
    served.steps(12)
    assert job.done and "hog" not in served.owners
    served.steps()
    assert served.owners.count("hog") == 8


def test_a_full_queue_has_room_for_who_has_less_than_its_share(model: Model) -> None:
    served = Ended(model, max_running=2, max_waiting=6)
    served.ask("hog", n=8)
    with pytest.raises(QueueFullError):
        served.ask("hog")
    for _ in range(2):
        served.ask("ann", n=2)
    with pytest.raises(QueueFullError):
        served.ask("ann")
    served.ask("ben", n=2)
    served.steps()
    assert served.owners.count("ann") == 2 and {"hog", "ben"} < set(served.owners)
    served.ask("hog", n=8)


def test_a_prompt_is_not_known_to_others_unless_they_share_it(model: Model, subtests: pytest.Subtests) -> None:
    for shared in (False, True):
        with subtests.test(shared=shared):
            served = Ended(model, share_prefixes=shared)
            found = list[int]()
            for owner in ("ann", "ben", "ann"):
                job = served.ask(owner, 2, text(200, model, "secret"))
                served.steps()
                found.append(job.cached_tokens)
            assert found[0] == 0 and found[2] > 0 and bool(found[1]) is shared
