"""What the engine drives: a sample, or forwards that a caller waits for; and how far its forwards are."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from daguerre.decoding.sample import Sample
from daguerre.engine.job import Job
from daguerre.engine.pieces import CleanRows, cut_at, first_rows, joined, other_rows, rows_of
from daguerre.engine.prefixes import PAGE, Prefixes
from daguerre.models.forward import Answer, DraftStep, Forward, KeyCache
from daguerre.models.session import Asking
from daguerre.trace import Event

Asked = Forward | DraftStep


class Work(Protocol):
    """Something that needs forwards until it is done."""

    def advance(self, answers: list[Answer] | None) -> list[Asked] | None:
        """Its next forwards, given the answers to the last ones; None once it is done."""

    def beside(self, crowd: int) -> None:
        """Take note of how many tasks, with it, share steps."""

    def spent(self, seconds: float) -> None:
        """Take note of the time of a step that it was part of."""

    def fail(self, error: BaseException) -> None:
        """End with an error."""


class SampleWork:
    """A sample of a request."""

    def __init__(self, sample: Sample) -> None:
        self.sample = sample

    def advance(self, answers: list[Answer] | None) -> list[Asked] | None:
        """Its next forwards; see `Work`."""
        item = self.sample.advance(answers)
        while isinstance(item, Event):
            item = self.sample.advance()
        return item

    def beside(self, crowd: int) -> None:
        """How much it drafts depends on them."""
        self.sample.beside(crowd)

    def spent(self, seconds: float) -> None:
        """Charge the time to the sample's deadline."""
        self.sample.deadline.busy += seconds

    def fail(self, error: BaseException) -> None:
        """Nothing: the job has the error."""


class AskingWork:
    """The forwards of a caller, who waits for their `result`. prepared: called with each before it is computed."""

    def __init__(self, asking: Asking[Any], prepared: Callable[[Asked], Asked] = lambda asked: asked) -> None:
        self.result = Future[Any]()
        self.result.set_running_or_notify_cancel()  # it cannot be cancelled from outside
        self._asking, self._prepared = asking, prepared

    def advance(self, answers: list[Answer] | None) -> list[Asked] | None:
        """The next forwards; see `Work`."""
        try:
            batch = self._asking.send(answers)  # type: ignore[arg-type]
        except StopIteration as end:
            self.result.set_result(end.value)
            return None
        return [self._prepared(one) for one in batch]

    def beside(self, crowd: int) -> None:
        """Nothing depends on them."""

    def spent(self, seconds: float) -> None:
        """Nothing is charged."""

    def fail(self, error: BaseException) -> None:
        """Tell the caller."""
        self.result.set_exception(error)


def one_batch(batch: list[Asked]) -> Asking[list[Answer]]:
    """The answers to a batch of forwards."""
    return (yield batch)


class PendingForward:
    """A forward of a task on its way: what is still to be computed for it, and its answer in the end.

    rows  the clean rows of its cache; None without a cache
    """

    def __init__(self, forward: Asked, rows: CleanRows | None) -> None:
        self.rows, self.answer = rows, None  # type: CleanRows | None, Answer | None
        self._todo, self._found = [forward], list[Answer]()

    @property
    def cache(self) -> KeyCache | None:
        """The cache that the forward reads, and its clean rows are added to."""
        last = self._todo[-1]
        return last.cache if isinstance(last, Forward) else None

    @property
    def length(self) -> int:
        """The rows that its cache has."""
        return 0 if self.cache is None else self.cache.length

    @property
    def num_rows(self) -> int:
        """How many rows its cache will have in the end."""
        clean = [one.layout.num_clean for one in self._todo if isinstance(one, Forward)]
        return 0 if self.cache is None else self.cache.length + sum(clean)

    @property
    def num_next(self) -> int:
        """How many rows are to be computed next."""
        return num_rows(self._todo[0])

    def part(self, most: int, whole: bool) -> Asked | None:
        """What to compute next, of at most `most` rows; `whole`: of more, where it cannot be divided. None: nothing."""
        first = self._todo[0]
        if not isinstance(first, Forward) or len(first.tokens) <= most:
            return first
        num = cut_at(first, most, wanted=True)
        return first_rows(first, num) if num else first if whole else None

    def computed(self, part: Asked, answer: Answer | None) -> None:
        """Take the answer to a part; None for rows that came from elsewhere."""
        if self.rows is not None and isinstance(part, Forward):
            self.rows.add(part)
        first = self._todo[0]
        if answer is not None and (not isinstance(part, Forward) or len(part.wanted)):
            self._found.append(answer)
        if part is not first and num_rows(part) < num_rows(first):
            assert isinstance(part, Forward) and isinstance(first, Forward)
            self._todo[0] = other_rows(first, num_rows(part))
        elif len(self._todo) > 1:
            self._todo.pop(0)
        else:
            self.answer = joined(self._found) if self._found else answer

    def reuse(self, prefixes: Prefixes, salt: str) -> tuple[list[bytes], int]:
        """Fill an empty cache with what earlier requests have computed; returns the hashes of the whole pages, and the
        number of rows.
        """
        first, cache = self._todo[0], self.cache
        if cache is None or cache.length or not isinstance(first, Forward):
            return [], 0
        rows = rows_of(first, cut_at(first, len(first.tokens)))
        keys, num = prefixes.fill(cache, rows, (first.level, first.second, cache.kind, salt))
        if num:
            self.computed(first_rows(first, num), None)
        return keys, num

    def give_up(self) -> None:
        """Free the memory of its cache; the rows are computed again first when it goes on."""
        if self.cache is None or self.rows is None:
            return
        if self.rows.length:
            self._todo.insert(0, self.rows.forward(self.cache))
            self.rows.truncate(0)
        self.cache.free()


def num_pages(rows: int) -> int:
    """The pages that these rows take."""
    return -(-rows // PAGE)


def num_rows(asked: Asked) -> int:
    """The rows of a forward."""
    return len(asked.tokens) if isinstance(asked, Forward) else len(asked.rows)


@dataclass(eq=False)
class Task:
    """One work in the engine.

    number    its place in the order of arrival
    priority  lower goes first
    owner     whose it is
    salt      tasks of another one find none of its stored prefixes
    job       the request that it belongs to, if it is one's
    turn      the number of the last step that it was part of
    stored    whether its prompt was stored for later requests
    """

    work: Work
    number: int = 0
    priority: int = 0
    owner: str = ""
    salt: str = ""
    job: Job | None = None
    turn: int = -1
    stored: bool = False
    pieces: list[PendingForward] = field(default_factory=list)
    _caches: dict[int, KeyCache] = field(default_factory=dict)
    _rows: dict[int, CleanRows] = field(default_factory=dict)
    _read: list[bytes] = field(default_factory=list)
    _pages: int | None = None

    def advance(self, answers: list[Answer] | None) -> bool:
        """Go on to the next forwards; returns whether there are any."""
        asked, self._pages = self.work.advance(answers), None
        self.pieces = [PendingForward(one, self._rows_of(one)) for one in asked or []]
        return asked is not None

    def _rows_of(self, asked: Asked) -> CleanRows | None:
        if not isinstance(asked, Forward) or asked.cache is None:
            return None
        self._caches[id(asked.cache)] = asked.cache
        rows = self._rows.setdefault(id(asked.cache), CleanRows())
        rows.truncate(asked.cache.length)
        return rows

    @property
    def pages(self) -> int:
        """The pages of memory that it holds, and needs for its next forwards, beside those that are stored."""
        if self._pages is None:
            self._pages = self._counted()
        return self._pages

    def _counted(self) -> int:
        need = {key: cache.length for key, cache in self._caches.items()}
        need |= {id(piece.cache): piece.num_rows for piece in self.pieces if piece.cache is not None}
        shared = len(self._read) if any(cache.shares for cache in self._caches.values()) else 0
        return max(0, sum(num_pages(rows) for rows in need.values()) - shared)

    @property
    def num_next(self) -> int:
        """How many rows it wants of a step."""
        return sum(piece.num_next for piece in self.pieces if piece.answer is None)

    @property
    def length(self) -> int:
        """The rows that its longest cache has."""
        return max((piece.length for piece in self.pieces), default=0)

    def reuse(self, prefixes: Prefixes) -> int:
        """Take what earlier requests have computed; returns how many rows."""
        found, self._pages = [piece.reuse(prefixes, self.salt) for piece in self.pieces], None
        self._read += [key for keys, _ in found for key in keys]
        return sum(num for _, num in found)

    def keep(self, prefixes: Prefixes, room: int) -> None:
        """Store what it has computed for later requests, in at most `room` new pages."""
        self._pages = None
        for key, cache in self._caches.items():
            rows = self._rows[key]
            if rows.length == cache.length:
                before = len(prefixes)
                self._read += prefixes.store(cache, rows.rows, (rows.level, rows.second, cache.kind, self.salt), room)
                room -= len(prefixes) - before

    def release(self, prefixes: Prefixes) -> None:
        """It reads no stored pages any more."""
        prefixes.release(self._read)
        self._read, self._pages = [], None

    @property
    def can_give_up(self) -> bool:
        """Whether it can wait, its memory be given to others and computed again later."""
        begun = any(piece.answer is not None for piece in self.pieces)
        return not begun and all(rows.closed for rows in self._rows.values())

    def give_up(self) -> None:
        """Free its memory."""
        self._pages = None
        for piece in self.pieces:
            piece.give_up()
