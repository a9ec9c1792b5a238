"""Fewer threads under contention, and all of them again after it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from daguerre.models.contention import LEAST_REST, MANY, MOST_REST, WINDOW, Contention

FORWARD = 0.001
TWO_ON_ONE = """
import os, signal
from daguerre.models.contention import involuntary_switches
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
before, other = involuntary_switches(), os.fork()
if not other:
    signal.alarm(60)
while not other:
    pass
while involuntary_switches() == before:
    pass
os.kill(other, signal.SIGKILL)
os.waitpid(other, 0)
print(involuntary_switches() - before)
"""


class Machine:
    """A clock and a count, which grows by `rate` a second while more than `free` threads are used."""

    def __init__(self, free: int, rate: float = 3 * MANY, forward: float = FORWARD) -> None:
        self.now, self.count, self.free, self.rate, self.forward = 100.0, 7.0, free, rate, forward
        self.contention = Contention(lambda: self.now, lambda: int(self.count))

    def run(self, seconds: float, most: int) -> list[int]:
        """The threads of each forward."""
        out, end = [], self.now + seconds
        while self.now < end:
            out.append(self.contention.threads(most))
            self.now += self.forward
            self.count += self.switches(self.forward * self.rate) * (out[-1] > self.free)
        return out

    def switches(self, expected: float) -> float:
        return expected


class Random(Machine):
    """One whose switches come at random."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.rng = np.random.default_rng(0)

    def switches(self, expected: float) -> float:
        return float(self.rng.poisson(expected))


def share(used: list[int], number: int) -> float:
    return sum(num == number for num in used) / len(used)


def test_alone_all_threads_are_used() -> None:
    assert set(Machine(free=4).run(5.0, 4)) == {4}


def test_a_few_switches_are_no_contention() -> None:
    assert set(Machine(free=0, rate=0.5 * MANY).run(5.0, 4)) == {4}


@pytest.mark.parametrize("forward", [0.001, 0.03, 0.09])
def test_switches_at_random_on_an_idle_machine_are_no_contention(forward: float) -> None:
    assert share(Random(free=0, rate=0.3 * MANY, forward=forward).run(300.0, 2), 2) > 0.99


@pytest.mark.parametrize("forward", [0.001, 0.03, 0.4, 1.0])
def test_another_process_is_noticed_by_switches_at_random(forward: float) -> None:
    used = Random(free=1, rate=1.5 * MANY, forward=forward).run(60.0, 2)
    assert share(used, 1) > 0.7


def test_under_contention_one_thread_is_used_nearly_always() -> None:
    used = Machine(free=1).run(30.0, 2)
    assert used[0] == 2 and share(used, 1) > 0.97 and 2 in used[len(used) // 2 :]


def test_of_many_threads_as_many_as_there_is_room_for() -> None:
    used = Machine(free=4).run(30.0, 16)
    assert share(used, 4) > 0.95 and min(used) == 4


def test_one_window_of_switches_is_no_contention() -> None:
    machine = Machine(free=0)
    used = machine.run(0.04, 2)
    machine.free = 2
    assert set(used + machine.run(5.0, 2)) == {2}


def test_after_contention_all_threads_are_used_again() -> None:
    machine = Machine(free=1)
    machine.run(10.0, 4)
    machine.free = 4
    used = machine.run(4 * MOST_REST, 4)
    assert used[0] == 1 and set(used[-1000:]) == {4}
    machine.free = 1  # a later one is met as quickly as the first
    machine.run(0.2, 4)
    machine.free = 4
    assert machine.run(4 * LEAST_REST + 4 * WINDOW, 4)[-1] == 4


def test_what_happens_in_a_pause_is_no_contention() -> None:
    machine = Machine(free=4)
    machine.run(1.0, 4)
    machine.now, machine.count = machine.now + 60, machine.count + 1e6
    assert set(machine.run(1.0, 4)) == {4}


def test_one_thread_stays_one() -> None:
    assert Machine(free=0).contention.threads(1) == 1


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs processes bound to a processor")
def test_switches_are_counted_where_two_processes_want_one_processor() -> None:
    done = subprocess.run([sys.executable, "-c", TWO_ON_ONE], check=True, capture_output=True, text=True, timeout=60)
    assert int(done.stdout) > 0
