"""Lines to infill: real lines of held-out Python, taken out of the text around them.

A line can be taken out if it has 8 or more non-space characters, is not an import, a comment, part of a docstring or of
another multi-line string, or a bare keyword, and does not occur verbatim in the text that is shown around it.
"""

from __future__ import annotations

import ast
import hashlib
import keyword
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

from daguerre.errors import DataError
from daguerre.heldout import Document
from daguerre.models.tokenizer import Tokenizer

MIN_CHARACTERS = 8
PREFIX_TOKENS, SUFFIX_TOKENS = 512, 256
CONTEXT, LINE_ROOM = 2048, 96
"""Tokens of the largest window that a missing line is shown in, and how many of them are left for the line."""
Item = TypeVar("Item")


@dataclass(frozen=True)
class MissingLine:
    """Line `number` (from 0) of a document, without its break; what is shown around it, and the file around it."""

    document: Document
    number: int
    line: str
    prefix: str
    suffix: str
    before: str = field(repr=False)
    after: str = field(repr=False)

    def parses_with(self, prediction: str) -> bool:
        """True when the file, with `prediction` in place of the line, is Python."""
        return parse(self.before + prediction + self.after) is not None

    def to_dict(self, predictions: Mapping[str, Any]) -> dict[str, Any]:
        """For a report, with what was predicted in its place."""
        place = {"package": self.document.package, "file": self.document.file, "line": self.number + 1}
        return {**place, "truth": self.line, "predictions": dict(predictions)}


def make_examples(
    documents: Sequence[Document],
    limit: int,
    *,
    seed: int = 0,
    tokenizer: Tokenizer | None = None,
    shown: tuple[int, int] = (PREFIX_TOKENS, SUFFIX_TOKENS),
    after_text: bool = False,
) -> list[MissingLine]:
    """At most `limit` lines, spread evenly over the documents, in an order hashed from `seed`.

    `shown`: the most tokens of whole lines before a line and after it, counted by `tokenizer`; None: our 2k vocabulary,
    whatever the model, so that all models get the same examples. `after_text`: only lines that are shown after others,
    for a model that predicts nothing without a token before it. DataError when no line can be taken out.
    """
    counter = tokenizer or Tokenizer.default("2k")
    out = round_robin(documents, seed, limit, lambda document: _examples(document, counter, shown, seed, after_text))
    if not out:
        raise DataError(f"no line to infill: give Python files that parse, with lines of {MIN_CHARACTERS} characters")
    return out


def around(room: int) -> tuple[int, int]:
    """Tokens shown before and after a line to a model with `room` positions."""
    return min(PREFIX_TOKENS, room // 2), min(SUFFIX_TOKENS, room // 4)


def window(room: int) -> tuple[int, int]:
    """As `around`, where the whole context is used, up to CONTEXT: before the line, all that LINE_ROOM leaves."""
    _, after = around(room)
    return min(room, CONTEXT) - after - min(LINE_ROOM, room // 4), after


def round_robin(
    documents: Sequence[Document], seed: int, limit: int, of: Callable[[Document], Iterator[Item]]
) -> list[Item]:
    """At most `limit` items `of` documents in an order hashed from `seed`: the first of each, then the second of those
    that have one, and so on.
    """
    out: list[Item] = []
    left = [of(document) for document in sorted(documents, key=lambda one: hashed_order(seed, one.sha256))]
    while left and len(out) < limit:
        found = [(stream, list(islice(stream, 1))) for stream in left[: limit - len(out)]]
        left = [stream for stream, items in found if items] + left[len(found) :]
        out += [item for _, items in found for item in items]
    return out


def candidate_lines(text: str) -> list[int]:
    """Numbers, from 0, of the lines that may be taken out, whatever is shown around them; none in a text that has
    carriage returns or is not Python.
    """
    tree = None if "\r" in text else parse(text)
    if tree is None:
        return []
    hidden = {number for node in ast.walk(tree) for number in _hidden(node)}
    return [i for i, line in enumerate(text.split("\n")) if i not in hidden and _can_be_taken(line.strip())]


def _examples(
    document: Document, counter: Tokenizer, shown: tuple[int, int], seed: int, after_text: bool
) -> Iterator[MissingLine]:
    """A document's examples in hashed order."""
    numbers = sorted(candidate_lines(document.text), key=lambda number: hashed_order(seed, document.sha256, number))
    pieces = split_lines(document.text)
    for number in numbers:
        line = pieces[number].rstrip("\n")
        end = pieces[number][len(line) :]
        prefix = "".join(reversed(fitting(pieces[:number][::-1], counter, shown[0])))
        suffix = end + "".join(fitting(pieces[number + 1 :], counter, shown[1]))
        if line.strip() not in prefix and line.strip() not in suffix and (prefix or not after_text):
            before, after = "".join(pieces[:number]), end + "".join(pieces[number + 1 :])
            yield MissingLine(document, number, line, prefix, suffix, before, after)


def split_lines(text: str) -> list[str]:
    """Lines with their breaks; only line feeds are breaks."""
    lines = text.split("\n")
    return [line + "\n" for line in lines[:-1]] + lines[-1:]


def fitting(pieces: Sequence[str], counter: Tokenizer, budget: int) -> list[str]:
    """The first pieces that fit the budget together, in tokens, each piece encoded alone."""
    out: list[str] = []
    for piece in pieces:
        budget -= len(counter.encode(piece))
        if budget < 0:
            break
        out.append(piece)
    return out


def hashed_order(seed: int, *what: object) -> str:
    """A key to sort by: the order depends on the seed and on what is sorted, and on nothing else."""
    return hashlib.sha256(repr((seed, *what)).encode()).hexdigest()


def _can_be_taken(line: str) -> bool:
    long_enough = len("".join(line.split())) >= MIN_CHARACTERS
    return long_enough and not line.startswith("#") and not keyword.iskeyword(line.rstrip(":"))


def _hidden(node: ast.AST) -> range:
    """Lines, from 0, of an import, a string that is a statement (a docstring), or any string over several lines."""
    if not isinstance(node, ast.stmt | ast.expr) or node.end_lineno is None:
        return range(0)
    lines = range(node.lineno - 1, node.end_lineno)
    string = isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))
    statement = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    hides = isinstance(node, ast.Import | ast.ImportFrom) or statement or (string and len(lines) > 1)
    return lines if hides else range(0)


def first_line_number(node: ast.stmt) -> int:
    """The number, from 0, of a statement's first line, decorators included."""
    return min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))]) - 1


def parse(text: str) -> ast.Module | None:
    """The syntax tree, or None when the text is not Python."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in other people's strings
        try:
            return ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
