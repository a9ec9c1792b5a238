"""Statements that stand on lines of their own, and donors: statements and functions of other files."""

from __future__ import annotations

import ast
import random
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pieces import ShortFile

from daguerre.evals.lines import first_line_number


@dataclass(frozen=True)
class Site:
    """A statement on lines [start, end) of a piece, from 0, with its indentation; `alone` in its body."""

    start: int
    end: int
    indent: str
    node: ast.stmt
    alone: bool
    in_class: bool


def sites_of(piece: ShortFile) -> list[Site]:
    """The statements of a piece that share no line with another one."""
    return list(_sites(piece.tree, piece.lines))


def _sites(parent: ast.AST, lines: Sequence[str]) -> Iterator[Site]:
    for name in ("body", "orelse", "finalbody", "handlers"):
        body = getattr(parent, name, None)
        if not isinstance(body, list):
            continue
        for node in body:
            if isinstance(node, ast.stmt):
                start, end = first_line_number(node), node.end_lineno or node.lineno
                indent = lines[start][: len(lines[start]) - len(lines[start].lstrip())]
                rest = lines[end - 1].encode()[node.end_col_offset or 0 :].decode().strip()
                own = len(indent) == node.col_offset or start + 1 != node.lineno
                if own and (not rest or rest.startswith("#")) and node.lineno > getattr(parent, "lineno", 0):
                    yield Site(start, end, indent, node, len(body) == 1, isinstance(parent, ast.ClassDef))
            yield from _sites(node, lines)


@dataclass
class Donors:
    """What is put into other files: short statements, functions, and names."""

    statements: list[list[str]] = field(default_factory=list)
    functions: list[list[str]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def add(self, piece: ShortFile) -> None:
        """Take what a piece has."""
        for site in sites_of(piece):
            lines = textwrap.dedent("\n".join(piece.lines[site.start : site.end])).split("\n")
            if isinstance(site.node, ast.FunctionDef | ast.AsyncFunctionDef) and 2 <= len(lines) <= 10:
                self.functions.append(lines)
            elif len(lines) <= 4 and not isinstance(site.node, ast.FunctionDef | ast.ClassDef | ast.Pass):
                self.statements.append(lines)
        self.names += (node.id for node in ast.walk(piece.tree) if isinstance(node, ast.Name) and len(node.id) > 1)

    def some(self, rng: random.Random, indent: str, function: bool = False) -> list[str]:
        """Lines of a donor at this indentation."""
        lines = rng.choice(self.functions if function else self.statements)
        return [indent + line if line else line for line in lines]
