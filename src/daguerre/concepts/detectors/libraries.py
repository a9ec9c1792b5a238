"""Libraries, by the names that imports bring into a file."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from daguerre.concepts.detectors import Detector, add
from daguerre.concepts.source import SourceText, Span

LIBRARIES = (
    "typing sys os numpy collections re unittest functools warnings json itertools datetime contextlib math".split()
)


def _library(library: str) -> Detector:
    def detect(source: SourceText) -> Iterator[Span]:
        for one in source.of(ast.Import):
            for alias in one.names:
                if alias.name.partition(".")[0] == library:
                    yield source.span(alias)
        for other in source.of(ast.ImportFrom):
            if other.level == 0 and (other.module or "").partition(".")[0] == library:
                yield source.span(other)
        for node, _ in source.names.uses(library):
            if isinstance(node, ast.Name):
                yield source.span(node)

    return detect


for _name in LIBRARIES:
    add(f"lib_{_name}", _library(_name))
