"""Cases: a statement's line, or an expression, of a held-out function whose doctests notice when it is missing."""

from __future__ import annotations

import ast
import doctest
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from running import child

from daguerre.evals.lines import (
    PREFIX_TOKENS,
    SUFFIX_TOKENS,
    candidate_lines,
    fitting,
    hashed_order,
    parse,
    split_lines,
)
from daguerre.heldout import Document
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.reinforce.sandbox import Sandbox

Kind = Literal["line", "expression"]
KINDS: tuple[Kind, ...] = ("line", "expression")
MIN_EXPRESSION, MAX_EXPRESSION = 6, 80
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Test:
    """The examples of one docstring, and the function that they test."""

    document: Document
    name: str
    docstring: str = field(repr=False)
    function: Function = field(repr=False)

    @property
    def module(self) -> str:
        """The dotted name of the document's module."""
        parts = Path(self.document.file).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@dataclass(frozen=True)
class DoctestCase:
    """A missing part of a function: what is shown around it, and the whole text around it.

    A line comes with its indentation and without its break; an expression is a part of a line.
    """

    kind: Kind
    test: Test
    part: str
    prefix: str
    suffix: str
    before: str = field(repr=False)
    after: str = field(repr=False)

    def with_part(self, part: str) -> str:
        """The whole text with another part in that place."""
        return self.before + part + self.after


def find_tests(document: Document) -> Iterator[Test]:
    """Functions and methods with examples in their docstring; methods without have those of their class."""
    tree = None if "\r" in document.text else parse(document.text)
    for name, node, inherited in [] if tree is None else _functions(tree, "", ""):
        text = ast.get_docstring(node) or ""
        examples = text if _has_examples(text) else inherited
        if examples:
            yield Test(document, name, examples, node)


def _functions(node: ast.AST, above: str, inherited: str) -> Iterator[tuple[str, Function, str]]:
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, Function):
            yield above + inner.name, inner, inherited
        elif isinstance(inner, ast.ClassDef):
            text = ast.get_docstring(inner) or ""
            yield from _functions(inner, f"{above}{inner.name}.", text if _has_examples(text) else "")


def _has_examples(text: str) -> bool:
    try:
        return bool(doctest.DocTestParser().get_examples(text))
    except ValueError:
        return False


def candidates(test: Test, kind: Kind, counter: Tokenizer, seed: int) -> Iterator[DoctestCase]:
    """Parts of the function, in hashed order, that do not occur in what is shown around them."""
    places = _lines(test) if kind == "line" else _expressions(test)
    text = test.document.text
    for start, end in sorted(places, key=lambda place: hashed_order(seed, text[place[0] : place[1]], *place)):
        before, part, after = text[:start], text[start:end], text[end:]
        prefix = "".join(reversed(fitting(split_lines(before)[::-1], counter, PREFIX_TOKENS)))
        suffix = "".join(fitting(split_lines(after), counter, SUFFIX_TOKENS))
        if part.strip() not in prefix and part.strip() not in suffix:
            yield DoctestCase(kind, test, part, prefix, suffix, before, after)


def _lines(test: Test) -> Iterator[tuple[int, int]]:
    """Places of the function's simple statements that are a line each."""
    starts = _starts(test.document.text)
    taken = set(candidate_lines(test.document.text))
    for node in ast.walk(test.function):
        if isinstance(node, ast.stmt) and not hasattr(node, "body") and node.lineno == node.end_lineno:
            first, last = starts[node.lineno - 1], starts[node.lineno] - 1
            line = test.document.text[first:last].strip()
            if node.lineno - 1 in taken and line == ast.get_source_segment(test.document.text, node):
                yield first, last


def _expressions(test: Test) -> Iterator[tuple[int, int]]:
    """Places of the function's values, conditions and arguments that are more than a name."""
    text = test.document.text
    starts = _starts(text)
    for node in ast.walk(test.function):
        for inner in _values(node):
            if isinstance(inner, ast.Name | ast.Constant | ast.JoinedStr) or inner.lineno != inner.end_lineno:
                continue
            line = text[starts[inner.lineno - 1] :].encode()
            first = starts[inner.lineno - 1] + len(line[: inner.col_offset].decode())
            part = ast.get_source_segment(text, inner) or ""
            if MIN_EXPRESSION <= len(part) <= MAX_EXPRESSION:
                yield first, first + len(part)


def _values(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Return | ast.Assign | ast.AugAssign):
        return [] if node.value is None else [node.value]
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        return [node.test]
    if isinstance(node, ast.For):
        return [node.iter]
    if isinstance(node, ast.Call):
        return [*node.args, *(keyword.value for keyword in node.keywords)]
    return []


def _starts(text: str) -> list[int]:
    """Where each line starts, and where one behind the last would."""
    out = [0]
    for line in split_lines(text):
        out.append(out[-1] + len(line))
    return out


class Judge:
    """Runs the doctests of cases in a sandbox; `folder` holds the packages, at the versions of the documents."""

    def __init__(self, folder: Path, sandbox: Sandbox | None = None) -> None:
        self.folder, self.sandbox = folder.resolve(), sandbox or Sandbox(seconds=5, megabytes=1024)
        self.command = [sys.executable, "-I", "-S", child.__file__, str(self.folder)]
        self._known: dict[tuple[str, str, str], bool] = {}

    def has(self, document: Document) -> bool:
        """Whether the folder has this very file."""
        path = self.folder / document.file
        return path.is_file() and path.read_bytes() == document.text.encode()

    def passes(self, case: DoctestCase, part: str) -> bool:
        """Whether the function with this part passes its doctests."""
        text = case.with_part(part)
        key = case.test.module, case.test.docstring, text
        if key not in self._known:
            self._known[key] = parse(text) is not None and self._run(case.test, text)
        return self._known[key]

    def _run(self, test: Test, text: str) -> bool:
        asked = {"module": test.module, "test": test.name, "docstring": test.docstring}
        return self.sandbox.reward(self.command, json.dumps(asked), text) == 1

    def notices(self, case: DoctestCase) -> bool:
        """Whether the doctests pass with the part, and fail with `pass` for a line or `None` for an expression."""
        indentation = case.part[: len(case.part) - len(case.part.lstrip())]
        missing = indentation + "pass" if case.kind == "line" else "None"
        return self.passes(case, case.part) and not self.passes(case, missing)


def find_cases(
    documents: Sequence[Document], judge: Judge, kind: Kind, *, each: int = 2, tries: int = 6, seed: int = 0
) -> Iterator[DoctestCase]:
    """At most `each` cases of a function, of the `tries` first candidates, for the documents that the judge has."""
    counter = Tokenizer.default("2k")
    for document in documents:
        if not judge.has(document):
            continue
        for test in find_tests(document):
            found = 0
            for number, case in enumerate(candidates(test, kind, counter, seed)):
                if number == tries or found == each:
                    break
                if judge.notices(case):
                    found += 1
                    yield case
