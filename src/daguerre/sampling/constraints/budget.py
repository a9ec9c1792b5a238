"""The limits of compiling a constraint: a hostile pattern or schema ends in one error, never in a hang."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from daguerre.cancellation import Cancellation, began, current_cancellation
from daguerre.errors import InputError
from daguerre.kinds import Number, Whole, check_fields

MAX_STATES = 250_000
MAX_STEPS = 2_000_000
MAX_EDGES = 20_000_000
MAX_BYTES = 1 << 30
MAX_NODES = 1 << 22
"""Of a span, positions times states."""
SECONDS = 10.0


LOOK = 1 << 18
"""So many more bytes are counted here before those of the library are asked for."""


class Memory:
    """Bytes of one compilation: `held` by Python, as far as it is much, and what the library counts itself.

    quiet: until then, on the clock of `time.perf_counter`, a thread cannot have used up the time of its budget. Looking
    at that clock is cheap, and at a thread's processor time expensive.
    """

    def __init__(self) -> None:
        self.held = 0
        self._looked = 0
        self._counted: Callable[[], int] = int
        self._began: int | None = None
        self.quiet = -math.inf

    def counted_by(self, counted: Callable[[], int]) -> int:
        """What the library had counted when it was first asked for."""
        if self._began is None:
            self._counted, self._began = counted, counted()
        return self._began

    @property
    def total(self) -> int:
        self._looked = self.held
        return self.held + self._counted() - (self._began or 0)

    def hold(self, size: int) -> bool:
        """Count some more; whether it is time to look at the total."""
        self.held += size
        return self.held - self._looked > LOOK


@dataclass(frozen=True)
class Budget:
    """Limits of one compilation. The clock starts when it is made, or where the planning of its request began.

    max_states: of an automaton over bytes; max_steps: states of all nondeterministic automata before them;
    max_edges: of the token automaton; max_bytes: of memory, for all of it together; seconds: of this thread's processor
    time, so that other work does not count. cancellation: once nobody waits for it, it ends with a CancelledError.
    """

    max_states: int = MAX_STATES
    max_steps: int = MAX_STEPS
    max_edges: int = MAX_EDGES
    max_bytes: int = field(default_factory=lambda: current_cancellation().max_bytes or MAX_BYTES)
    seconds: float = SECONDS
    began: float = field(default_factory=began)
    memory: Memory = field(default_factory=Memory, repr=False, compare=False)
    cancellation: Cancellation = field(default_factory=current_cancellation, repr=False, compare=False)

    def __post_init__(self) -> None:
        sizes = ("max_states", "max_steps", "max_edges", "max_bytes")
        seconds = Number(low=0.0, infinite=True, what="a number of seconds")
        check_fields(self, dict.fromkeys(sizes, Whole(low=1)) | {"seconds": seconds})

    @property
    def until(self) -> float:
        """When time is up, on the clock of this thread's processor time."""
        return self.began + self.seconds

    def states(self, number: int) -> None:
        """InputError when an automaton over bytes has more states than allowed, or time is up."""
        self._check(1, number > self.max_states)

    def steps(self, number: int) -> None:
        """InputError when a pattern written out is longer than allowed, or time is up."""
        self._check(2, number > self.max_steps)

    def edges(self, number: int) -> None:
        """InputError when a token automaton has more edges than allowed, or time is up."""
        self._check(3, number > self.max_edges)

    def look(self) -> None:
        """InputError when time is up. For loops that count nothing, every so many turns."""
        self._check(4, False)

    def hold(self, size: int) -> None:
        """Count bytes that Python holds or, with a number below 0, gives back. InputError when a limit is exceeded."""
        if self.memory.hold(size):
            self._check(5, self.memory.total > self.max_bytes)

    def _check(self, error: int, is_over: bool) -> None:
        if is_over:
            self.exceeded(error)
        self.cancellation.check()
        now = time.perf_counter()
        if now > self.memory.quiet:
            left = self.until - time.thread_time()
            if left < 0:
                self.exceeded(4)
            self.memory.quiet = now + left

    def exceeded(self, error: int) -> NoReturn:
        """Raise the InputError of a limit, by its number in native/limits.h."""
        if error == 6:
            self.cancellation.check()
        if error == 4:
            raise InputError(
                f"the constraint took longer than {self.seconds:g} s to compile; lower its repetition counts or "
                "bounds, or compile it with budget=Budget(seconds=...)"
            )
        what, limit = {
            1: (f"{self.max_states:,} states", "max_states"),
            2: (f"{self.max_steps:,} steps when written out", "max_steps"),
            3: (f"{self.max_edges:,} edges over this vocabulary", "max_edges"),
            5: (f"{self.max_bytes >> 20:,} MiB of memory", "max_bytes"),
        }[error]
        raise InputError(
            f"the constraint is too large: more than {what}; lower its repetition counts, bounds or depth, or compile "
            f"it with budget=Budget({limit}=...)"
        )
