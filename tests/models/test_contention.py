"""Fewer threads under contention, and all of them again after it."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from daguerre.models.contention import LEAST_REST, MOST_REST, WINDOW, Contention, Times

FORWARD = 0.001
TWO_ON_ONE = """
import os, signal, time
from daguerre.models.contention import LEAST, Contention, Times

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
other = os.fork()
if not other:
    signal.alarm(60)
while not other:
    pass
contention = Contention()
while contention.threads(2) == 2:
    with contention.computing(2, 1):
        end = time.perf_counter() + 0.02
        while time.perf_counter() < end:
            pass
os.kill(other, signal.SIGKILL)
os.waitpid(other, 0)
"""


class Machine:
    """Of its processors so many are `free`: more threads share them with threads of other processes, or of their `own`.
    At random forwards lose up to `noise` of their time. Then they take `slower` times as long as with few threads.
    """

    def __init__(
        self, free: int, forward: float = FORWARD, own: bool = False, noise: float = 0.0, slower: float = 3.0
    ) -> None:
        self.clock, self.thread, self.process = 100.0, 7.0, 9.0
        self.free, self.forward, self.own, self.noise, self.slower = free, forward, own, noise, slower
        self.rng, self.contention = np.random.default_rng(0), Contention(lambda: self.times)

    @property
    def times(self) -> Times:
        return Times(self.clock, self.thread, self.process)

    def run(self, seconds: float, most: int) -> list[int]:
        """The threads of each forward."""
        out, end = [], self.clock + seconds
        while self.clock < end:
            out.append(self.contention.threads(most))
            with self.contention.computing(out[-1], 1):
                had = min(1.0, (self.free + 0.5) / out[-1]) * (1 - self.noise * self.rng.random())
                seconds = self.forward * (self.slower if out[-1] > self.free else 1.0)
                self.clock += seconds
                self.thread += seconds * (had if self.own else 1)
                self.process += seconds * out[-1] * (1 if self.own else had)
        return out


def share(used: list[int], number: int) -> float:
    return sum(num == number for num in used) / len(used)


def test_alone_all_threads_are_used() -> None:
    assert set(Machine(free=4).run(5.0, 4)) == {4}


@pytest.mark.parametrize("forward", [0.001, 0.03, 0.4])
def test_moments_in_which_others_are_busy_are_no_contention(forward: float) -> None:
    assert set(Machine(free=2, forward=forward, noise=0.15).run(300 * forward, 2)) == {2}


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("forward", [0.001, 0.03, 0.4, 1.0])
def test_another_thread_is_noticed_whosever_it_is(forward: float, own: bool) -> None:
    used = Machine(free=1, forward=forward, own=own, noise=0.1).run(60.0, 2)
    assert share(used, 1) > 0.7


def test_the_faster_number_of_threads_stays_whatever_they_lack() -> None:
    machine = Machine(free=1, slower=0.7)
    assert share(machine.run(60.0, 2), 2) > 0.9
    machine.slower = 2.0  # others have become busier
    assert share(machine.run(30.0, 2), 1) > 0.8


def test_under_contention_one_thread_is_used_nearly_always() -> None:
    used = Machine(free=1).run(30.0, 2)
    assert used[0] == 2 and share(used, 1) > 0.95 and 2 in used[len(used) // 2 :]


def test_of_many_threads_as_many_as_there_is_room_for() -> None:
    used = Machine(free=4).run(30.0, 16)
    assert share(used, 4) > 0.95 and min(used) == 4


def test_one_window_is_no_contention() -> None:
    machine = Machine(free=0)
    used = machine.run(WINDOW, 2)
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
    machine.clock += 60
    assert set(machine.run(1.0, 4)) == {4}


def test_one_thread_stays_one() -> None:
    assert Machine(free=0).contention.threads(1) == 1


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs processes bound to a processor")
def test_two_processes_that_want_one_processor_are_contention() -> None:
    subprocess.run([sys.executable, "-c", TWO_ON_ONE], check=True, timeout=60)
