"""What a step of the engine computes: which tasks take part in it, and how much of each.

First the next rows of texts that are being written, then prompts, each a fair part of what is left of the step. Of
either kind one comes in any case, whole if it cannot be divided: so everything goes on, in turns. Whose prompt took
more than its part then waits, while others write, until its parts of later steps have made up for it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from daguerre.engine.pace import TIMED, Pace, fair_parts
from daguerre.engine.prefixes import PAGE
from daguerre.engine.shares import OwnerShares
from daguerre.engine.task import Asked, PendingForward, Task, num_rows


@dataclass(eq=False)
class PieceRows:
    """What a step computes of a piece of a task."""

    task: Task
    piece: PendingForward
    asked: Asked


@dataclass(eq=False)
class StepPlan:
    """A step that is being chosen.

    rows, work           what is left of it
    short                owners that wanted more of it
    num_rows, num_work   what its parts take
    """

    rows: int
    work: float
    short: set[str]
    parts: list[PieceRows] = field(default_factory=list)
    num_rows: int = 0
    num_work: float = 0.0

    def take(self, task: Task, pace: Pace, work: float, whole: bool) -> float:
        """Add what a task computes next, as far as this is at most so much work; `whole`: all of a forward that cannot
        be divided. Returns the work.
        """
        taken = 0.0
        for piece in [piece for piece in task.pieces if piece.answer is None]:
            first = whole and not taken
            asked = piece.part(min(self.rows, max(int(first), pace.rows(work - taken, piece.length))), first)
            rows = 0 if asked is None else num_rows(asked)
            if rows < piece.num_next:
                self.short.add(task.owner)
            if asked is not None:
                taken += self._add(PieceRows(task, piece, asked), rows, pace.work(asked))
        return taken

    def _add(self, part: PieceRows, rows: int, work: float) -> float:
        self.parts.append(part)
        self.rows, self.work = self.rows - rows, self.work - work
        self.num_rows, self.num_work = self.num_rows + rows, self.num_work + work
        return work


def choose(
    shares: OwnerShares, pace: Pace, max_rows: int, running: Sequence[Task], waiting: Sequence[Task]
) -> StepPlan:
    """The next step of the tasks that run."""
    needs = defaultdict[str, float](float)
    for task in running:
        needs[task.owner] += pace.need(task.num_next, task.length)
    weights = {owner: shares.weight(owner) for owner in needs}
    most, total = pace.most([(weights[owner], need) for owner, need in needs.items()]), sum(weights.values())
    owing = shares.pay({owner: most * weight / total for owner, weight in weights.items()})
    step = StepPlan(max_rows, most, {task.owner for task in waiting})
    writing = [task for task in running if is_writing(task)]
    reading = [task for task in running if not is_writing(task)]
    even = [task for task in reading if task.owner not in owing]
    reading = even if writing or even else reading
    kept = step.work / 2 if reading else 0.0
    for task in (order := shares.order(writing)):
        left = step.work - kept
        if left <= 0 and step.parts:
            step.short |= {task.owner, *(one.owner for one in order)}
            break
        shares.add(task.owner, step.take(task, pace, left, not step.parts))
    if reading:
        _read(step, shares, pace, reading)
    shares.settle(step.short)
    return step


def is_writing(task: Task) -> bool:
    """Whether a task has read its prompt, and has few rows to compute."""
    return task.stored and task.num_next <= PAGE


def _read(step: StepPlan, shares: OwnerShares, pace: Pace, reading: Sequence[Task]) -> None:
    """The part of a step that prompts have: as many of them as can have some rows each."""
    order = [*shares.order(reading)]
    some = order[: max(1, int(step.work) // TIMED)]
    step.short |= {task.owner for task in order[len(some) :]}
    owned, begun = Counter(task.owner for task in some), len(step.parts)
    weights = [shares.weight(task.owner) / owned[task.owner] for task in some]
    works = fair_parts([pace.need(task.num_next, task.length) for task in some], weights, max(0.0, step.work))
    for task, work in zip(some, works, strict=True):
        taken = step.take(task, pace, work, len(step.parts) == begun)
        shares.add(task.owner, taken)
        if taken > work + 1:  # more than a row, by which parts are rounded
            shares.overdrew(task.owner, taken - work)
