"""Libraries, by the names that imports bring into a file, and what these names stand for where they are used.

`source.resolved` knows one meaning a name and file; here every import of a name counts, and a name is not what was
imported where a function binds it to something else: `def f(json): json.loads()`.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from typing import cast

from daguerre.concepts.detectors import Detector, concept
from daguerre.concepts.source import SCOPES, Source, Span

GROUP = "libraries"
LIBRARIES = (
    "typing sys os numpy collections re unittest functools warnings json itertools datetime contextlib math".split()
)
BUILTINS = {name: f"builtins.{name}" for name in ("eval", "exec", "list", "dict", "set", "__import__")}
"""Built-in functions that are found like those of a module, where nothing else has their name."""
BUILTINS["__builtins__"] = "builtins"
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

# What names are bound to


@lru_cache(maxsize=1)
def origins(source: Source) -> dict[str, list[str]]:
    """What each imported name may stand for: `{"np": ["numpy"]}`. That of a relative import starts with a dot."""
    out = defaultdict[str, list[str]](list)
    for one in source.of(ast.Import):
        for alias in one.names:
            root = alias.name.partition(".")[0]
            out[alias.asname or root].append(alias.name if alias.asname else root)
    for other in source.of(ast.ImportFrom):
        for alias in other.names:
            out[alias.asname or alias.name].append(f"{'.' * other.level}{other.module or ''}.{alias.name}")
    out.pop("*", None)
    return {name: list(dict.fromkeys(found)) for name, found in out.items()}


def _bindings(source: Source) -> Iterator[tuple[str, ast.AST, bool]]:
    """Every name that is bound, the node that does it, and whether by an import."""
    for name in source.of(ast.Name):
        if not isinstance(name.ctx, ast.Load):
            yield name.id, name, False
    for argument in source.of(ast.arg):
        yield argument.arg, argument, False
    blocks: list[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]
    blocks = source.of(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    for block in blocks:
        yield block.name, block, False
    others: list[ast.ExceptHandler | ast.MatchAs | ast.MatchStar]
    others = source.of(ast.ExceptHandler, ast.MatchAs, ast.MatchStar)
    for other in others:
        if other.name:
            yield other.name, other, False
    for mapping in source.of(ast.MatchMapping):
        if mapping.rest:
            yield mapping.rest, mapping, False
    for alias in source.of(ast.alias):
        yield alias.asname or alias.name.partition(".")[0], alias, True


def _home(source: Source, node: ast.AST) -> ast.AST:
    """The scope in which a node that binds a name does so."""
    walrus = isinstance(source.parent(node), ast.NamedExpr)
    while (above := source.parent(node)) is not None:
        if isinstance(above, SCOPES) or (isinstance(above, COMPREHENSIONS) and not walrus):
            return above
        node = above
    return node


@lru_cache(maxsize=1)
def _rebound(source: Source) -> dict[str, dict[ast.AST, bool]]:
    """The scopes that bind an imported name or a built-in one, and whether by an import among others; without the names
    that are bound by imports alone.
    """
    out = defaultdict[str, dict[ast.AST, bool]](dict)
    known = origins(source)
    for name, node, imported in _bindings(source):
        if name in known or name in BUILTINS:
            scope = _home(source, node)
            if not isinstance(scope, ast.ClassDef):  # `json = json.loads` there takes the name from outside
                out[name][scope] = imported or out[name].get(scope, False)
    declared: list[ast.Global | ast.Nonlocal] = source.of(ast.Global, ast.Nonlocal)
    for outer in declared:
        scope = _home(source, outer)
        for name in outer.names:
            bound = out[name].pop(scope, None) if name in out else None
            if bound is not None and isinstance(outer, ast.Global) and source.tree is not None:
                out[name][source.tree] = bound or out[name].get(source.tree, False)
    return {name: scopes for name, scopes in out.items() if not all(scopes.values())}


def _shadowed(source: Source, name: ast.Name) -> bool:
    """Whether a name, where it is used, is that of something that the file itself binds other than by an import."""
    scopes = _rebound(source).get(name.id)
    if scopes is None:
        return False
    below: ast.AST = name
    above = source.parent(below)
    while above is not None:
        if isinstance(above, ast.comprehension):
            whole = cast(ast.ListComp, source.parent(above))
            first = above is whole.generators[0] and below is above.iter  # which is found outside
            below, above = (whole, source.parent(whole)) if first else (above, whole)
            continue
        own = isinstance(below, ast.stmt) or not isinstance(above, SCOPES)  # decorators and defaults are outside
        if isinstance(above, ast.Lambda):
            own = below is above.body
        if own and above in scopes:
            return not scopes[above]
        below, above = above, source.parent(above)
    return False


# Uses of imported names


@lru_cache(maxsize=1)
def uses(source: Source) -> dict[str, list[tuple[ast.expr, str]]]:
    """By library, the expressions that are names or attributes of it, with what they stand for: of `np.random.rand`
    these are `np`, `np.random` and all of it.
    """
    out = defaultdict[str, list[tuple[ast.expr, str]]](list)
    known = origins(source)
    for node in source.of(ast.Name):
        found = known.get(node.id) or ([BUILTINS[node.id]] if node.id in BUILTINS else [])
        if not found or not isinstance(node.ctx, ast.Load) or _shadowed(source, node):
            continue
        for name in found:
            here: ast.expr = node
            entries = out[name.partition(".")[0]]
            entries.append((here, name))
            while isinstance(above := source.parent(here), ast.Attribute):
                here, name = above, f"{name}.{above.attr}"
                entries.append((here, name))
    return out


@lru_cache(maxsize=1)
def library_calls(source: Source) -> dict[str, list[tuple[ast.Call, str]]]:
    """By library, the calls of what is imported from it, with the name of what is called: `numpy.random.rand`."""
    out = defaultdict[str, list[tuple[ast.Call, str]]](list)
    for library, entries in uses(source).items():
        for node, name in entries:
            above = source.parent(node)
            if isinstance(above, ast.Call) and above.func is node:
                out[library].append((above, name))
    return out


def meanings(source: Source, node: ast.expr) -> list[str]:
    """What a name or attribute may stand for, with a built-in one as of `builtins`; none if it is not imported."""
    root: ast.expr = node
    rest = ""
    while isinstance(root, ast.Attribute):
        rest = f".{root.attr}{rest}"
        root = root.value
    if not isinstance(root, ast.Name) or _shadowed(source, root):
        return []
    found = origins(source).get(root.id) or ([BUILTINS[root.id]] if root.id in BUILTINS else [])
    return [name + rest for name in found]


# Concepts


def _library(library: str) -> Detector:
    def detect(source: Source) -> Iterator[Span]:
        for one in source.of(ast.Import):
            for alias in one.names:
                if alias.name.partition(".")[0] == library:
                    yield source.span(alias)
        for other in source.of(ast.ImportFrom):
            if other.level == 0 and (other.module or "").partition(".")[0] == library:
                yield source.span(other)
        for node, _ in uses(source).get(library, ()):
            if isinstance(node, ast.Name):
                yield source.span(node)

    return detect


for _name in LIBRARIES:
    concept(f"lib_{_name}", GROUP, "node", f"An import of {_name} or its submodules, or a name that it brought.")(
        _library(_name)
    )
