"""What is fuzzed: a reader of untrusted bytes, and seeds of what it reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from fuzz.mutate import mutant

Run = Callable[[bytes], Any]


@dataclass(frozen=True, kw_only=True)
class Target:
    """One reader.

    make      sets up, in the child process, and gives what runs one case. A `DaguerreError` is a right answer, as is
              any result; every other exception is a finding, an AssertionError too
    seeds     inputs to change
    change    how
    seconds   of processor time that a case may take
    megabytes of address space that it may take beyond what the process had before
    cases     how many changed seeds the suite runs
    """

    name: str
    make: Callable[[], Run]
    seeds: Callable[[], Sequence[bytes]]
    change: Callable[[bytes, Sequence[bytes], Random], bytes] = field(default=mutant)
    seconds: float = 5.0
    megabytes: int = 1_024
    cases: int = 200
