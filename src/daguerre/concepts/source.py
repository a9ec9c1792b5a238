"""A file as detectors of concepts see it: its text, its tokens, and its syntax tree with spans in characters."""

from __future__ import annotations

import ast
import re
import tokenize
import warnings
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cached_property, wraps
from typing import Any, TypeVar, cast

from daguerre.concepts.names import NameMeanings
from daguerre.concepts.nodes import Function, Nodes

T = TypeVar("T")
Span = tuple[int, int]
"""Characters [start, end) of a text."""
Block = (
    ast.FunctionDef
    | ast.AsyncFunctionDef
    | ast.ClassDef
    | ast.For
    | ast.AsyncFor
    | ast.While
    | ast.If
    | ast.With
    | ast.AsyncWith
    | ast.Try
    | ast.TryStar
    | ast.ExceptHandler
    | ast.Match
    | ast.match_case
)
CUTS = (":", "@", "case", "else", "finally")
"""Tokens that a syntax tree has no place of, and that blocks begin or end at."""
LINE = re.compile(r"\r\n|\r|\n")
"""What ends a line for Python; `str.splitlines` knows more, which are none."""


class SourceText(Nodes):
    """A text, and what is known of it.

    tree    None: the text does not parse
    tokens  up to the first one that cannot be read
    kept    what functions that are `once` have found
    """

    def __init__(self, text: str) -> None:
        self.text = text
        ends = [found.end() for found in LINE.finditer(text)]
        self._starts = [0, *ends]
        self._lines = [text[start:end] for start, end in zip(self._starts, [*ends, len(text)], strict=True)]
        self._wide = [not line.isascii() for line in self._lines]
        self.tokens = self._tokens()
        self.kept: dict[object, Any] = {}
        super().__init__(syntax_tree(text))

    def _tokens(self) -> list[tokenize.TokenInfo]:
        lines, out = iter(self._lines), list[tokenize.TokenInfo]()
        with suppress(tokenize.TokenError, SyntaxError, ValueError):
            for token in tokenize.generate_tokens(lambda: next(lines, "")):
                out.append(token)
        return out

    # Spans

    def at(self, line: int, byte: int) -> int:
        """The character at a line, from 1, and a byte of its UTF-8 form, as syntax trees count them."""
        if not self._wide[line - 1]:
            return self._starts[line - 1] + byte
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:byte].decode(errors="ignore"))

    def span(self, node: ast.expr | ast.stmt | ast.excepthandler | ast.arg | ast.keyword | ast.alias) -> Span:
        """The extent of a node."""
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self.at(node.lineno, node.col_offset), self.at(node.end_lineno, node.end_col_offset)

    def join(self, first: ast.AST, last: ast.AST) -> Span:
        """From the start of a node to the end of another."""
        return self.span(cast(ast.expr, first))[0], self.span(cast(ast.expr, last))[1]

    def start(self, node: ast.stmt) -> int:
        """The first character of a statement, decorators included."""
        if isinstance(node, Function | ast.ClassDef) and node.decorator_list:
            return self._before("@", self.span(node.decorator_list[0])[0])
        return self.span(node)[0]

    def header(self, node: Block) -> Span:
        """The line or lines of a block up to its colon: `def f(x):`, `for x in y:`. Without decorators."""
        first = self._case(node.cases[0]) if isinstance(node, ast.Match) else self.start(node.body[0])
        start = self._case(node) if isinstance(node, ast.match_case) else self.span(node)[0]
        return start, self._before(":", first) + 1

    def clause(self, keyword: str, body: list[ast.stmt]) -> Span:
        """`else:` or `finally:` before these statements."""
        first = self.start(body[0])
        return self._before(keyword, first), self._before(":", first) + 1

    def _case(self, node: ast.match_case) -> int:
        return self._before("case", self.at(node.pattern.lineno, node.pattern.col_offset))

    def _before(self, text: str, end: int) -> int:
        """The last of the CUTS of this text before a character: none of a comment or string."""
        places = self._cuts[text]
        found = bisect_left(places, end) - 1
        return places[found] if found >= 0 else self.text.rindex(text, 0, end)

    @cached_property
    def _cuts(self) -> dict[str, list[int]]:
        out: dict[str, list[int]] = {text: [] for text in CUTS}
        for token in self.tokens:
            if token.string in out and token.type in (tokenize.OP, tokenize.NAME):
                out[token.string].append(self.token_span(token)[0])
        return out

    def token_span(self, token: tokenize.TokenInfo) -> Span:
        """The extent of a token."""
        (line, column), (last, end) = token.start, token.end
        first = self._starts[min(line, len(self._starts)) - 1] + column
        return first, self._starts[min(last, len(self._starts)) - 1] + end

    # Names

    @cached_property
    def names(self) -> NameMeanings:
        """What names stand for."""
        return NameMeanings(self)

    def last_name(self, node: ast.AST | None) -> str:
        """The last part of a name or attribute as it is written: `append` of `f().append`."""
        if isinstance(node, ast.Attribute):
            return node.attr
        return node.id if isinstance(node, ast.Name) else ""

    @cached_property
    def _method_calls(self) -> dict[str, list[ast.Call]]:
        out = defaultdict[str, list[ast.Call]](list)
        for call in self.of(ast.Call):
            if isinstance(call.func, ast.Attribute):
                out[call.func.attr].append(call)
        return out

    def method_calls(self, names: Iterable[str]) -> Iterator[ast.Call]:
        """The calls of attributes of these names, of whatever they are."""
        for name in names:
            yield from self._method_calls.get(name, ())

    def docstring(self, node: Function | ast.ClassDef | ast.Module) -> ast.Expr | None:
        """The statement of a docstring."""
        first = node.body[0] if node.body else None
        found = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
        if found and isinstance(cast(ast.Constant, cast(ast.Expr, first).value).value, str):
            return cast(ast.Expr, first)
        return None


def syntax_tree(text: str) -> ast.Module | None:
    """The syntax tree of a text; None where it is not Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in strings, for example
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def once(made: Callable[[SourceText], T]) -> Callable[[SourceText], T]:
    """A function of a source that is computed once for each, and kept for as long as the source is."""

    @wraps(made)
    def of(source: SourceText) -> T:
        if made not in source.kept:
            source.kept[made] = made(source)
        return cast(T, source.kept[made])

    return of


def constant(node: ast.AST | None, value: object) -> bool:
    """Whether a node is this constant, of this type: `True` is not 1."""
    return isinstance(node, ast.Constant) and type(node.value) is type(value) and node.value == value


def string(node: ast.AST | None) -> str | None:
    """The value of a string constant."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
