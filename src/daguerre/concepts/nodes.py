"""The nodes of a syntax tree: by type, what each is in, and where names are looked up."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property
from typing import TypeVar, cast

N = TypeVar("N", bound=ast.AST)
Function = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda | ast.Module
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.Module)
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
SHARED = (ast.expr_context, ast.operator, ast.unaryop, ast.cmpop, ast.boolop)
"""Nodes of which there is one object for the whole tree."""


class Nodes:
    """The nodes of a tree; without a tree, none."""

    def __init__(self, tree: ast.Module | None) -> None:
        self.tree = tree
        self._nodes: dict[type[ast.AST], list[ast.AST]] = defaultdict(list)
        self.parents: dict[ast.AST, ast.AST] = {}
        if tree is not None:
            self._walk(tree)

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

    def of(self, *kinds: type[N]) -> list[N]:
        """All nodes of these types."""
        if len(kinds) == 1:
            return cast(list[N], self._nodes.get(kinds[0], []))
        return [cast(N, node) for kind in kinds for node in self._nodes.get(kind, ())]

    @cached_property
    def functions(self) -> list[Function]:
        """All functions and methods, async or not."""
        return self.of(*FUNCTIONS)

    def parent(self, node: ast.AST) -> ast.AST | None:
        """The node that it is in."""
        return self.parents.get(node)

    def lookups(self, node: ast.AST) -> Iterator[Scope | Comprehension]:
        """The scopes around a node, innermost first, comprehensions among them. What Python evaluates outside of a
        scope is outside: decorators, defaults, annotations and bases, and what the first `for` of a comprehension goes
        over.
        """
        below, above = node, self.parents.get(node)
        while above is not None:
            if isinstance(above, ast.comprehension):
                whole = cast(ast.ListComp, self.parents[above])
                outside = above is whole.generators[0] and below is above.iter
                below, above = (whole, self.parents.get(whole)) if outside else (above, whole)
                continue
            if isinstance(above, COMPREHENSIONS) or (
                isinstance(above, SCOPES)
                and (isinstance(below, ast.stmt) or (isinstance(above, ast.Lambda) and above.body is below))
            ):
                yield above
            below, above = above, self.parents.get(above)

    def scope(self, node: ast.AST) -> Scope | None:
        """The innermost function, class, lambda or module that has a node in its body; None for a module."""
        return next((one for one in self.lookups(node) if isinstance(one, SCOPES)), None)

    def function_around(self, node: ast.AST) -> Function | None:
        """The innermost function that has a node in its body, through lambdas and classes."""
        return next((one for one in self.lookups(node) if isinstance(one, Function)), None)
