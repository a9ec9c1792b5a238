"""What a reviewer of security or quality would stop at."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from daguerre.concepts.detectors import concept
from daguerre.concepts.source import Source, Span

GROUP = "risk"


@concept("bare_except", GROUP, "node", "An except clause that names no exception.")
def bare_except(source: Source) -> Iterator[Span]:
    for node in source.of(ast.ExceptHandler):
        if node.type is None:
            yield source.span(node)
