"""Docstrings, and what they tell, by their value."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

from daguerre.concepts.detectors import add
from daguerre.concepts.nodes import FUNCTIONS
from daguerre.concepts.source import SourceText, once, string

Owner = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module
GOOGLE = re.compile(r"^[ \t]*(?:Args|Arguments|Attributes|Raises|Returns|Yields):[ \t]*$", re.MULTILINE)
NUMPY = re.compile(
    r"^[ \t]*(?:Parameters|Other Parameters|Returns|Yields|Raises|Attributes|Notes|Examples)[ \t]*\n[ \t]*-{3,}[ \t]*$",
    re.MULTILINE,
)
FIELD = re.compile(
    r"^[ \t]*:(?:(?:param|type|keyword|raises?|var|ivar|cvar|vartype)[ \t]+[^:\n]+|returns?|rtype|yields?):",
    re.MULTILINE,
)
DOCTEST = re.compile(r"^[ \t]*>>> ", re.MULTILINE)
RETURNS = re.compile(r"\bReturns?\b|:returns?:|:rtype:")
RAISES = re.compile(r"\bRaises?\b|:raises?\b")
EXAMPLES = re.compile(r"^[ \t]*Examples?:*[ \t]*$", re.MULTILINE)
DEPRECATED = re.compile(r"\bdeprecated\b", re.IGNORECASE)


@once
def docstrings(source: SourceText) -> list[tuple[Owner, ast.Expr, str]]:
    """Those of definitions, classes and the module: whose, the statement, and its value."""
    out = list[tuple[Owner, ast.Expr, str]]()
    owners: list[Owner] = [*source.of(ast.Module), *source.of(ast.ClassDef)]
    owners += source.functions
    for owner in owners:
        statement = source.docstring(owner)
        if statement is not None:
            out.append((owner, statement, string(statement.value) or ""))
    return out


def _docstring(name: str, holds: Callable[[Owner, ast.Expr, str], object]) -> None:
    """Register a concept for docstrings, by whose they are, by their statements, and by what they tell."""
    add(name, lambda source: (source.span(found[1]) for found in docstrings(source) if holds(*found)))


def _told(name: str, pattern: re.Pattern[str]) -> None:
    _docstring(name, lambda _, statement, value: pattern.search(value))


_docstring("docstring", lambda *_: True)
_docstring("one_line_docstring", lambda _, statement, value: statement.lineno == statement.end_lineno)
_docstring("module_docstring", lambda owner, *_: isinstance(owner, ast.Module))
_docstring("class_docstring", lambda owner, *_: isinstance(owner, ast.ClassDef))
_docstring("function_docstring", lambda owner, *_: isinstance(owner, FUNCTIONS))
_told("google_docstring", GOOGLE)
_told("numpy_docstring", NUMPY)
_told("rest_docstring", FIELD)
_told("doctest_example", DOCTEST)
_told("doc_returns", RETURNS)
_told("doc_raises", RAISES)
_told("doc_examples", EXAMPLES)
_told("doc_deprecated", DEPRECATED)
