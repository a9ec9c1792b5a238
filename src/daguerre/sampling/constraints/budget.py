"""The limits of compiling a constraint: a hostile pattern or schema ends in one error, never in a hang."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from daguerre.errors import InputError

MAX_STATES = 60_000
MAX_STEPS = 600_000
MAX_EDGES = 10_000_000
MAX_TRANSITIONS = 2_000_000
"""Of a span, positions times pairs of states: a step at this limit takes about 20 ms and 150 MB."""
SECONDS = 10.0


@dataclass(frozen=True)
class Budget:
    """Limits of one compilation. The clock starts when it is made.

    max_states: of an automaton over bytes; max_steps: states of all nondeterministic automata before them;
    max_edges: of the token automaton; seconds: of this thread's processor time, so that other work does not count.
    """

    max_states: int = MAX_STATES
    max_steps: int = MAX_STEPS
    max_edges: int = MAX_EDGES
    seconds: float = SECONDS
    began: float = field(default_factory=time.thread_time)

    def states(self, number: int) -> None:
        """InputError when an automaton over bytes has more states than allowed, or time is up."""
        self._check("states", number, self.max_states)

    def steps(self, number: int) -> None:
        """InputError when a pattern written out is longer than allowed, or time is up."""
        self._check("steps when written out", number, self.max_steps)

    def edges(self, number: int) -> None:
        """InputError when a token automaton has more edges than allowed, or time is up."""
        self._check("edges over this vocabulary", number, self.max_edges)

    def _check(self, what: str, number: int, limit: int) -> None:
        if number > limit:
            raise InputError(
                f"the constraint is too large: more than {limit:,} {what}; lower its repetition counts, bounds or depth"
            )
        if time.thread_time() - self.began > self.seconds:
            raise InputError(
                f"the constraint took longer than {self.seconds:g} s to compile; lower its repetition counts or bounds"
            )
