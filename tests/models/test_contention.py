"""Fewer threads in a crowd, and all of them again behind it."""

from __future__ import annotations

from daguerre.models.crowd import LEAST_REST, MANY, MOST_REST, WINDOW, Crowd, taken_away

FORWARD = 0.001


class Machine:
    """A clock and a count, which grows by `rate` a second while more than `free` threads are used."""

    def __init__(self, free: int, rate: float = 3 * MANY) -> None:
        self.now, self.count, self.free, self.rate = 100.0, 7.0, free, rate
        self.crowd = Crowd(lambda: self.now, lambda: int(self.count))

    def run(self, seconds: float, most: int) -> list[int]:
        """The threads of each forward."""
        out, end = [], self.now + seconds
        while self.now < end:
            out.append(self.crowd.threads(most))
            self.now += FORWARD
            self.count += FORWARD * self.rate * (out[-1] > self.free)
        return out


def share(used: list[int], number: int) -> float:
    return sum(num == number for num in used) / len(used)


def test_alone_all_threads_are_used() -> None:
    assert set(Machine(free=4).run(5.0, 4)) == {4}


def test_a_few_interruptions_are_no_crowd() -> None:
    assert set(Machine(free=0, rate=0.5 * MANY).run(5.0, 4)) == {4}


def test_in_a_crowd_one_thread_is_used_nearly_always() -> None:
    used = Machine(free=1).run(30.0, 2)
    assert used[0] == 2 and share(used, 1) > 0.97 and 2 in used[len(used) // 2 :]


def test_of_many_threads_as_many_as_there_is_room_for() -> None:
    used = Machine(free=4).run(30.0, 16)
    assert share(used, 4) > 0.95 and min(used) == 4


def test_behind_a_crowd_all_threads_are_used_again() -> None:
    machine = Machine(free=1)
    machine.run(10.0, 4)
    machine.free = 4
    used = machine.run(4 * MOST_REST, 4)
    assert used[0] == 1 and set(used[-1000:]) == {4}
    machine.free = 1  # a later crowd is met as quickly as the first
    machine.run(0.2, 4)
    machine.free = 4
    assert machine.run(4 * LEAST_REST + 4 * WINDOW, 4)[-1] == 4


def test_a_pause_is_not_judged() -> None:
    machine = Machine(free=4)
    machine.run(1.0, 4)
    machine.now, machine.count = machine.now + 60, machine.count + 1e6
    assert set(machine.run(1.0, 4)) == {4}


def test_one_thread_stays_one_and_the_count_is_of_this_process() -> None:
    assert Machine(free=0).crowd.threads(1) == 1
    assert taken_away() <= taken_away()
