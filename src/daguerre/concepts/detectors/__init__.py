"""Detectors: functions that find the spans of a concept in a `SourceText`, each registered under the concept's name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from daguerre.concepts.source import SourceText, Span

Rule = Literal["node", "header", "body", "token"]
"""What a span covers: the whole expression or statement; the lines of a block up to its colon; what is below that; or
single tokens."""
Detector = Callable[[SourceText], Iterable[Span]]
Register = Callable[[Detector], Detector]
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


@dataclass(frozen=True)
class ConceptGroup:
    """Registers the detectors of a group's concepts: a decorator for each rule."""

    name: str

    def node(self, name: str, description: str, **more: Any) -> Register:
        """A concept that covers the whole of a node."""
        return self._register(name, "node", description, **more)

    def header(self, name: str, description: str, **more: Any) -> Register:
        """One that covers the lines of a block up to its colon."""
        return self._register(name, "header", description, **more)

    def body(self, name: str, description: str, **more: Any) -> Register:
        """Register a detector whose spans cover the body below the header."""
        return self._register(name, "body", description, **more)

    def token(self, name: str, description: str, **more: Any) -> Register:
        """One that covers single tokens."""
        return self._register(name, "token", description, **more)

    def _register(self, name: str, rule: Rule, description: str, **more: Any) -> Register:
        def register(detect: Detector) -> Detector:
            assert name not in REGISTERED, name
            REGISTERED[name] = Registered(name, self.name, rule, description, detect, **more)
            return detect

        return register
