"""Docstrings, and what they tell, by their value."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from daguerre.concepts.detectors import ConceptGroup
from daguerre.concepts.nodes import Function
from daguerre.concepts.source import SourceText, Span, once, string

GROUP = ConceptGroup("comments")
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


@GROUP.node("docstring", "The docstring of a module, class or function.")
def docstring(source: SourceText) -> Iterator[Span]:
    return (source.span(statement) for _, statement, _ in docstrings(source))


@GROUP.node("one_line_docstring", "A docstring that stands on one line of the file.", parents=("docstring",))
def one_line_docstring(source: SourceText) -> Iterator[Span]:
    for _, statement, _ in docstrings(source):
        if statement.lineno == statement.end_lineno:
            yield source.span(statement)


@GROUP.node("module_docstring", "The docstring of a module.", parents=("docstring",))
def module_docstring(source: SourceText) -> Iterator[Span]:
    return (source.span(statement) for owner, statement, _ in docstrings(source) if isinstance(owner, ast.Module))


@GROUP.node("class_docstring", "The docstring of a class.", parents=("docstring",))
def class_docstring(source: SourceText) -> Iterator[Span]:
    return (source.span(statement) for owner, statement, _ in docstrings(source) if isinstance(owner, ast.ClassDef))


@GROUP.node("function_docstring", "The docstring of a function or method.", parents=("docstring",))
def function_docstring(source: SourceText) -> Iterator[Span]:
    return (source.span(statement) for owner, statement, _ in docstrings(source) if isinstance(owner, Function))


def _told(name: str, description: str, pattern: re.Pattern[str]) -> None:
    search: Callable[[str], object] = pattern.search

    def detect(source: SourceText) -> Iterator[Span]:
        return (source.span(statement) for _, statement, value in docstrings(source) if search(value))

    GROUP.node(name, description, parents=("docstring",))(detect)


_told(
    "google_docstring",
    "A docstring with a line of only Args:, Arguments:, Attributes:, Raises:, Returns: or Yields:.",
    GOOGLE,
)
_told(
    "numpy_docstring",
    "A docstring with a line of a NumPy section, such as Parameters or Returns, underlined with dashes.",
    NUMPY,
)
_told(
    "rest_docstring",
    "A docstring with a line that starts with a field such as `:param x:`, `:returns:` or `:rtype:`.",
    FIELD,
)
_told("doctest_example", "A docstring with a line that starts with the prompt `>>> `.", DOCTEST)
_told("doc_returns", "A docstring with the word Return or Returns, or :return:, :returns: or :rtype:.", RETURNS)
_told("doc_raises", "A docstring with the word Raise or Raises, or a field :raise or :raises.", RAISES)
_told("doc_examples", "A docstring with a line of only Example or Examples, with or without colons.", EXAMPLES)
_told("doc_deprecated", "A docstring with the word deprecated, in any case.", DEPRECATED)
