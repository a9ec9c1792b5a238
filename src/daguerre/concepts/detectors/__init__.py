"""Detectors: functions that find the spans of a concept in a `SourceText`, each registered under the concept's name.

What a concept means, its group and its parents are said once, in the taxonomy's file.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from typing import Any

from daguerre.concepts.nodes import FUNCTIONS
from daguerre.concepts.source import SourceText, Span

Detector = Callable[[SourceText], Iterable[Span]]
Kinds = type[ast.AST] | tuple[type[ast.AST], ...]
Holds = Callable[[SourceText, Any], bool]
"""Whether a node of the types that were asked for is an instance."""

DETECTORS: dict[str, Detector] = {}


def add(name: str, detect: Detector) -> None:
    """Register the detector of a concept."""
    assert name not in DETECTORS, name
    DETECTORS[name] = detect


def concept(detect: Detector) -> Detector:
    """Register a function as the detector of the concept that has its name."""
    add(detect.__name__, detect)
    return detect


def always(_: SourceText, node: ast.AST) -> bool:
    """Of every node."""
    return True


def nodes(name: str, kinds: Kinds, holds: Holds = always) -> None:
    """Register a concept that covers the whole of each node of these types of which something holds."""
    wanted = kinds if isinstance(kinds, tuple) else (kinds,)
    add(name, lambda source: (source.span(one) for one in source.of(*wanted) if holds(source, one)))  # type: ignore[arg-type]


def headers(name: str, kinds: Kinds, holds: Holds = always) -> None:
    """Register one that covers the lines of such blocks up to their colons."""
    wanted = kinds if isinstance(kinds, tuple) else (kinds,)
    add(name, lambda source: (source.header(one) for one in source.of(*wanted) if holds(source, one)))  # type: ignore[arg-type]


def trait(name: str, holds: Holds = always) -> None:
    """Register one that covers the headers of functions."""
    headers(name, FUNCTIONS, holds)
