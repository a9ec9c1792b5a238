"""Detectors: functions that find the spans of a concept in a `Source`, each registered under the concept's name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from daguerre.concepts.source import Source, Span

Rule = Literal["node", "header", "body", "token"]
"""What a span covers: the whole expression or statement; the lines of a block up to its colon; what is below that; or
single tokens."""
Detector = Callable[[Source], Iterable[Span]]
REGISTERED: dict[str, Registered] = {}


@dataclass(frozen=True)
class Registered:
    """A concept as code knows it.

    lexical  it is read from tokens alone, so it is known in files that do not parse, too
    parents  more general concepts: whatever is an instance of this one is one of theirs
    """

    name: str
    group: str
    rule: Rule
    description: str
    detect: Detector
    lexical: bool = False
    parents: tuple[str, ...] = ()


def concept(
    name: str, group: str, rule: Rule, description: str, *, lexical: bool = False, parents: tuple[str, ...] = ()
) -> Callable[[Detector], Detector]:
    """Register a detector."""

    def register(detect: Detector) -> Detector:
        assert name not in REGISTERED, name
        REGISTERED[name] = Registered(name, group, rule, description, detect, lexical, parents)
        return detect

    return register
