"""Fair shares of the machine between owners: who has had least of it, in work that was done, by its weight.

What one takes while nobody else wants anything costs it nothing later: only where owners wait for each other is work
compared. An owner that needs less than its share saves nothing up (as in start-time fair queueing, Goyal, Vin and
Cheng, SIGCOMM 1996).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import ceil

from daguerre.engine.task import Task

Weight = Callable[[str], float]
"""Of an owner: its part of the machine beside those of others."""


def alike(owner: str) -> float:
    """The weight of owners that are all alike."""
    return 1.0


class OwnerShares:
    """What owners have had since they first had to wait for each other."""

    def __init__(self, weight: Weight = alike) -> None:
        self.weight = weight
        self._had, self._floor = dict[str, float](), 0.0
        self._owed = dict[str, float]()

    def had(self, owner: str) -> float:
        """Work for an owner by its weight."""
        return self._had.get(owner, self._floor)

    def add(self, owner: str, work: float) -> None:
        """Work (`Pace.work`) is done for an owner."""
        self._had[owner] = self.had(owner) + work / self.weight(owner)

    def settle(self, short: Iterable[str]) -> None:
        """A step is chosen. short: owners that wanted more of it than they got."""
        waiting = set(short)
        if not waiting:
            self._had.clear()
        self._floor = min(map(self.had, waiting), default=0.0)
        for owner in self._had.keys() - waiting:
            self._had[owner] = max(self._had[owner], self._floor)

    def overdrew(self, owner: str, work: float) -> None:
        """An owner has had so much more of a step than its part, as what it asked for cannot be divided."""
        self._owed[owner] = self._owed.get(owner, 0.0) + work

    def pay(self, parts: Mapping[str, float]) -> set[str]:
        """A step begins, of which these owners have parts: those that owe get nothing of theirs until they are even;
        returns them. An owner that wants nothing, or is alone, owes nothing.
        """
        others = len(parts) > 1
        left = {owner: owed - parts[owner] for owner, owed in self._owed.items() if others and owner in parts}
        self._owed = {owner: owed for owner, owed in left.items() if owed > 0}
        return set(self._owed)

    def crowd(self, owner: str, tasks: Mapping[str, int]) -> int:
        """How many tasks share the machine with an owner's, where each owner has as many for its weight."""
        return ceil(tasks[owner] * sum(map(self.weight, tasks)) / self.weight(owner))

    def next_of(self, waiting: Iterable[Task], running: Iterable[Task]) -> Task:
        """The task that joins next: of the owner with the fewest places for its weight, and of those the one that has
        had least; of an owner's tasks the one with the lowest priority number, and then the one that came first.
        """
        places, own = Counter(task.owner for task in running), dict[str, list[Task]]()
        for task in waiting:
            own.setdefault(task.owner, []).append(task)

        def turn(owner: str) -> tuple[float, float, int]:
            first = min(task.number for task in own[owner])
            return places[owner] / self.weight(owner), self.had(owner), first

        return min(own[min(own, key=turn)], key=rank)

    def order(self, running: Iterable[Task]) -> Iterator[Task]:
        """The tasks in the order in which they have rows of a step, each time one of the owner that has had least until
        then, or else wants least; of an owner's tasks those that waited longest first.
        """
        own = dict[str, deque[Task]]()
        for task in sorted(running, key=lambda one: (one.turn, *rank(one))):
            own.setdefault(task.owner, deque()).append(task)
        while own:
            owner = min(own, key=lambda one: (self.had(one), own[one][0].num_next, one))
            yield own[owner].popleft()
            if not own[owner]:
                del own[owner]

    def over(self, running: Iterable[Task], measure: Callable[[Task], int], task: Task | None = None) -> Task | None:
        """The task that gives way: the last one of the owner with most by `measure` for its weight. None: there is none
        that can, or its owner would then have less than that of `task`, which needs the way.
        """
        amounts = Counter[str]()
        for one in running:
            amounts[one.owner] += measure(one)

        def share(owner: str, change: int = 0) -> float:
            return (amounts[owner] + change) / self.weight(owner)

        able = [one for one in running if one.can_give_up and measure(one)]
        if task is not None:
            mine = share(task.owner, measure(task))
            able = [one for one in able if share(one.owner, -measure(one)) >= mine]
        return max(able, key=lambda one: (share(one.owner), one.owner, *rank(one)), default=None)


def rank(task: Task) -> tuple[int, int]:
    """The order of an owner's own tasks: the lowest priority number first, and then the one that came first."""
    return task.priority, task.number
