"""Prompts that are the beginnings of files of Python: before uses of a concept, and before any statements."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from daguerre.concepts.labels import Labels
from daguerre.concepts.taxonomy import Concept

MOST_CHARACTERS = 4000
"""Prompts are not longer than this; a model reads what fits."""


@dataclass(frozen=True)
class FilePrompt:
    """The beginning of a file, and the number of the file."""

    file: int
    text: str


def before_uses(
    texts: Iterable[tuple[int, str, Labels]], concept: Concept, limit: int, most: int = MOST_CHARACTERS
) -> list[FilePrompt]:
    """At most `limit` prompts that end just before an instance of a concept, from as many files as there are: every
    file's first one before a file's second. Instances of equal beginnings count once.
    """
    by_file = list[list[FilePrompt]]()
    for file, text, labels in texts:
        starts = sorted({start for start, _ in labels.of(concept) if 0 < start <= most})
        by_file.append([FilePrompt(file, text[:start]) for start in starts])
    rounds = max((len(each) for each in by_file), default=0)
    turns = [each[number] for number in range(rounds) for each in by_file if number < len(each)]
    return turns[:limit]


def before_statements(
    texts: Iterable[tuple[int, str, Labels]], limit: int, seed: int, most: int = MOST_CHARACTERS
) -> list[FilePrompt]:
    """At most `limit` prompts that end just before a statement of a function, in a random order, one a file."""
    out = []
    for file, text, _ in texts:
        starts = _statement_starts(text, most)
        if starts:
            place = int(np.random.default_rng((seed, file)).integers(len(starts)))
            out.append(FilePrompt(file, text[: starts[place]]))
    order = np.random.default_rng(seed).permutation(len(out))
    return [out[number] for number in order[:limit]]


def _statement_starts(text: str, most: int) -> list[int]:
    """Where statements of functions begin that are first on their lines, but for the first of each body."""
    lines = np.cumsum([0, *(len(line) for line in text.splitlines(keepends=True))])
    found = set[int]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for one in node.body[1:]:
                start = int(lines[one.lineno - 1]) + one.col_offset
                if text.isascii() and start <= most and not text[lines[one.lineno - 1] : start].strip():
                    found.add(start)
    return sorted(found)
