"""A file as detectors of concepts see it: its text, its tokens, and its syntax tree with spans in characters."""

from __future__ import annotations

import ast
import re
import tokenize
import warnings
from bisect import bisect_right
from collections import defaultdict
from contextlib import suppress
from functools import cached_property
from typing import TypeVar, cast

N = TypeVar("N", bound=ast.AST)
Span = tuple[int, int]
"""Characters [start, end) of a text."""
Function = ast.FunctionDef | ast.AsyncFunctionDef
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
)
Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda | ast.Module
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.Module)
SHARED = (ast.expr_context, ast.operator, ast.unaryop, ast.cmpop, ast.boolop)
"""Nodes of which there is one object for the whole tree."""
LINE = re.compile(r"\r\n|\r|\n")
"""What ends a line for Python; `str.splitlines` knows more, which are none."""


class Source:
    """A text, and what is known of it.

    tree    None: the text does not parse
    tokens  up to the first one that cannot be read
    """

    def __init__(self, text: str) -> None:
        self.text = text
        ends = [found.end() for found in LINE.finditer(text)]
        self._starts = [0, *ends]
        self._lines = [text[start:end] for start, end in zip(self._starts, [*ends, len(text)], strict=True)]
        self._wide = [not line.isascii() for line in self._lines]
        self.tree = self._parsed()
        self.tokens = self._tokens()
        self._nodes: dict[type[ast.AST], list[ast.AST]] = defaultdict(list)
        self.parents: dict[ast.AST, ast.AST] = {}
        if self.tree is not None:
            self._walk(self.tree)

    def _parsed(self) -> ast.Module | None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of escapes in strings, for example
                return ast.parse(self.text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None

    def _tokens(self) -> list[tokenize.TokenInfo]:
        lines, out = iter(self._lines), list[tokenize.TokenInfo]()
        with suppress(tokenize.TokenError, SyntaxError, ValueError):
            for token in tokenize.generate_tokens(lambda: next(lines, "")):
                out.append(token)
        return out

    def _walk(self, root: ast.AST) -> None:
        """Note the nodes by type, in the order of the text, and their parents."""
        stack, nodes, parents = [root], self._nodes, self.parents
        while stack:
            node = stack.pop()
            nodes[type(node)].append(node)
            children = list[ast.AST]()
            for name in node._fields:
                value = getattr(node, name, None)
                for child in value if isinstance(value, list) else (value,):
                    if isinstance(child, ast.AST) and not isinstance(child, SHARED):
                        parents[child] = node
                        children.append(child)
            stack.extend(reversed(children))

    # Nodes

    def of(self, *kinds: type[N]) -> list[N]:
        """All nodes of these types."""
        if len(kinds) == 1:
            return cast(list[N], self._nodes.get(kinds[0], []))
        return [cast(N, node) for kind in kinds for node in self._nodes.get(kind, ())]

    def parent(self, node: ast.AST) -> ast.AST | None:
        """The node that it is in."""
        return self.parents.get(node)

    def scope(self, node: ast.AST) -> Scope:
        """The innermost function, class, lambda or module around a node. A decorator, default, base or annotation of a
        definition counts as inside of it.
        """
        while (above := self.parents.get(node)) is not None:
            if isinstance(above, SCOPES):
                return above
            node = above
        assert self.tree is not None
        return self.tree

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

    def header(self, node: Block) -> Span:
        """The line or lines of a block up to its colon: `def f(x):`, `for x in y:`. Without decorators."""
        first = node.body[0]
        end = self.span(first)[0]
        if isinstance(first, Function | ast.ClassDef) and first.decorator_list:
            end = self.text.rindex("@", 0, self.span(first.decorator_list[0])[0])
        start = self.span(node)[0]
        colon = self._last_colon(start, end)
        return start, colon + 1

    def _last_colon(self, start: int, end: int) -> int:
        """The last colon of these characters that is a token of its own: none of a comment."""
        places = self._colons
        found = bisect_right(places, end - 1) - 1
        return places[found] if found >= 0 and places[found] >= start else end - 1

    @cached_property
    def _colons(self) -> list[int]:
        return [self.token_span(one)[0] for one in self.tokens if one.type == tokenize.OP and one.string == ":"]

    def token_span(self, token: tokenize.TokenInfo) -> Span:
        """The extent of a token."""
        (line, column), (last, end) = token.start, token.end
        first = self._starts[min(line, len(self._starts)) - 1] + column
        return first, self._starts[min(last, len(self._starts)) - 1] + end

    # Names

    @cached_property
    def imported(self) -> dict[str, str]:
        """What the names that the file imports stand for: `np` for `numpy`, `join` for `os.path.join`. An import
        anywhere in the file counts; of two for one name the last.
        """
        out = dict[str, str]()
        for one in self.of(ast.Import):
            for alias in one.names:
                out[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        for other in self.of(ast.ImportFrom):
            for alias in other.names:
                dots = "." * other.level
                if alias.name != "*":
                    out[alias.asname or alias.name] = f"{dots}{other.module or ''}.{alias.name}"
        return out

    @cached_property
    def names(self) -> dict[ast.AST, str]:
        """The dotted names of all `ast.Name` and `ast.Attribute`, as they stand; "" below anything else than a name."""
        out = dict[ast.AST, str]()
        for name in self.of(ast.Name):
            out[name] = name.id
        for attribute in sorted(self.of(ast.Attribute), key=_depth):
            base = out.get(attribute.value, "")
            out[attribute] = f"{base}.{attribute.attr}" if base else ""
        return out

    def name(self, node: ast.AST | None) -> str:
        """The dotted name of a node as it stands: `np.zeros`; "" if it has none."""
        return "" if node is None else self.names.get(node, "")

    def resolved(self, node: ast.AST | None) -> str:
        """The dotted name with its root as the file imports it: `numpy.zeros`; as it stands if it is not imported."""
        name = self.name(node)
        root, dot, rest = name.partition(".")
        return self.imported.get(root, root) + dot + rest

    def last_name(self, node: ast.AST | None) -> str:
        """The last part of a name or attribute, whatever stands before it: `append` of `f().append`."""
        if isinstance(node, ast.Attribute):
            return node.attr
        return node.id if isinstance(node, ast.Name) else ""

    @cached_property
    def calls(self) -> list[tuple[ast.Call, str, str]]:
        """All calls, with the resolved and the last name of what is called."""
        return [(call, self.resolved(call.func), self.last_name(call.func)) for call in self.of(ast.Call)]

    def docstring(self, node: Function | ast.ClassDef | ast.Module) -> ast.Expr | None:
        """The statement of a docstring."""
        first = node.body[0] if node.body else None
        found = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
        if found and isinstance(cast(ast.Constant, cast(ast.Expr, first).value).value, str):
            return cast(ast.Expr, first)
        return None


def _depth(node: ast.Attribute) -> int:
    depth, value = 1, node.value
    while isinstance(value, ast.Attribute):
        depth, value = depth + 1, value.value
    return depth


def constant(node: ast.AST | None, value: object) -> bool:
    """Whether a node is this constant, of this type: `True` is not 1."""
    return isinstance(node, ast.Constant) and type(node.value) is type(value) and node.value == value


def string(node: ast.AST | None) -> str | None:
    """The value of a string constant."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
