"""What the names of a file stand for: modules, what is imported from them, and built-ins."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Container, Iterator
from typing import cast

from daguerre.concepts.nodes import COMPREHENSIONS, Comprehension, Nodes, Scope

# A list of our own: `dir(builtins)` grows with the version of Python, and labels must not.
BUILTINS = frozenset(
    """
    ArithmeticError AssertionError AttributeError BaseException BaseExceptionGroup BlockingIOError BrokenPipeError
    BufferError BytesWarning ChildProcessError ConnectionAbortedError ConnectionError ConnectionRefusedError
    ConnectionResetError DeprecationWarning EOFError Ellipsis EncodingWarning EnvironmentError Exception ExceptionGroup
    FileExistsError FileNotFoundError FloatingPointError FutureWarning GeneratorExit IOError ImportError ImportWarning
    IndentationError IndexError InterruptedError IsADirectoryError KeyError KeyboardInterrupt LookupError MemoryError
    ModuleNotFoundError NameError NotADirectoryError NotImplemented NotImplementedError OSError OverflowError
    PendingDeprecationWarning PermissionError ProcessLookupError RecursionError ReferenceError ResourceWarning
    RuntimeError RuntimeWarning StopAsyncIteration StopIteration SyntaxError SyntaxWarning SystemError SystemExit
    TabError TimeoutError TypeError UnboundLocalError UnicodeDecodeError UnicodeEncodeError UnicodeError
    UnicodeTranslateError UnicodeWarning UserWarning ValueError Warning ZeroDivisionError __import__ abs aiter all anext
    any ascii bin bool breakpoint bytearray bytes callable chr classmethod compile complex delattr dict dir divmod
    enumerate eval exec filter float format frozenset getattr globals hasattr hash hex id input int isinstance
    issubclass iter len list locals map max memoryview min next object oct open ord pow print property range repr
    reversed round set setattr slice sorted staticmethod str sum super tuple type vars zip
    """.split()
)
SOMETIMES = ("WindowsError", "exit", "help", "quit")
"""Built-in on one system only, or for as long as the module `site` is imported."""
UNBOUND = {name: (f"builtins.{name}",) for name in (*BUILTINS, *SOMETIMES)} | {"__builtins__": ("builtins",)}
AT_THEIR_END = (
    *(ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Import, ast.ImportFrom),
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef),
)
"""Statements that bind names once they are evaluated to their end."""
Place = tuple[int, int]
"""A line and a byte in it."""
Binding = tuple[Place, str | None]
"""From where in a class it holds, and what an import binds; None for what is no import."""


class NameMeanings:
    """What names and their attributes stand for, by this rule alone:

    A name stands for what the innermost scope that binds it binds it to, and scopes are those of Python: functions,
    lambdas, comprehensions, classes for what is directly in them, the module; `global` and `nonlocal` are followed. If
    that scope binds it by imports, the name may stand for each of them, in whichever branch they are and whatever else
    the scope binds it to. If it binds it otherwise alone (by an assignment, a parameter, a `def`), the name stands for
    nothing. If no scope binds it, it is a built-in or nothing. In the body of a class only what is bound before counts;
    elsewhere the order does not. Values are not followed: `loads = json.loads`, `getattr(json, "loads")`. What
    `from json import *` brings is not known.
    """

    def __init__(self, nodes: Nodes) -> None:
        bindings = _Bindings(nodes)
        self._meanings: dict[ast.AST, tuple[str, ...]] = {}
        self._uses = defaultdict[str, list[tuple[ast.expr, str]]](list)
        self._calls = defaultdict[str, list[tuple[ast.Call, str]]](list)
        for name in nodes.of(ast.Name):
            if bindings.knows(name.id) and not isinstance(name.ctx, ast.Store):
                found, node, above = bindings.found(name), cast(ast.expr, name), nodes.parents[name]
                if found:
                    self._note(node, found, above)
                    while isinstance(above, ast.Attribute):
                        found, node = tuple(f"{one}.{above.attr}" for one in found), above
                        above = nodes.parents[node]
                        self._note(node, found, above)

    def _note(self, node: ast.expr, found: tuple[str, ...], above: ast.AST) -> None:
        self._meanings[node] = found
        for name in found:
            library = name.partition(".")[0]
            self._uses[library].append((node, name))
            if isinstance(above, ast.Call) and above.func is node:
                self._calls[library].append((above, name))

    def meanings(self, node: ast.AST | None) -> tuple[str, ...]:
        """What a name or attribute may stand for: `numpy.zeros` for `np.zeros`, `builtins.len` for `len`. Nothing for
        whatever is neither imported nor built-in.
        """
        return () if node is None else self._meanings.get(node, ())

    def means(self, node: ast.AST | None, wanted: Container[str]) -> bool:
        """Whether a name or attribute may stand for one of these."""
        return any(one in wanted for one in self.meanings(node))

    def last(self, node: ast.AST | None) -> tuple[str, ...]:
        """The last parts of what a name or attribute may stand for; of what is neither imported nor built-in the last
        part as it is written: `append` of `f().append`.
        """
        found = self.meanings(node)
        if found:
            return tuple(one.rpartition(".")[2] for one in found)
        if isinstance(node, ast.Attribute):
            return (node.attr,)
        return (node.id,) if isinstance(node, ast.Name) else ()

    def uses(self, library: str) -> list[tuple[ast.expr, str]]:
        """The names and attributes of a library, with what they stand for: of `np.random.rand` these are `np`,
        `np.random` and all of it. The built-ins are those of `builtins`.
        """
        return self._uses.get(library, [])

    def calls(self, library: str) -> list[tuple[ast.Call, str]]:
        """The calls of what is of a library, with the name of what is called: `numpy.random.rand`."""
        return self._calls.get(library, [])


class _Bindings:
    """The scopes that bind names which are imported or built-in."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._globals = set[tuple[ast.AST, str]]()
        self._bound = self._bindings()

    def knows(self, name: str) -> bool:
        """Whether a name is imported or built-in anywhere."""
        return name in self._bound or name in UNBOUND

    def _imports(self) -> Iterator[tuple[str, ast.alias, str]]:
        """Each name that is imported, where, and what it stands for. That of a relative import starts with a dot."""
        for one in self._nodes.of(ast.Import):
            for alias in one.names:
                root = alias.name.partition(".")[0]
                yield (alias.asname, alias, alias.name) if alias.asname else (root, alias, root)
        for other in self._nodes.of(ast.ImportFrom):
            for alias in other.names:
                if alias.name != "*":
                    yield alias.asname or alias.name, alias, f"{'.' * other.level}{other.module or ''}.{alias.name}"

    def _others(self, known: Container[str]) -> Iterator[tuple[str, ast.AST]]:
        """Each of the known names that is bound otherwise, and the node that does it."""
        of = self._nodes.of
        for name in of(ast.Name):
            if name.id in known and not isinstance(name.ctx, ast.Load):
                yield name.id, name
        for argument in of(ast.arg):
            if argument.arg in known:
                yield argument.arg, argument
        named = [
            *self._nodes.functions,
            *of(ast.ClassDef),
            *of(ast.ExceptHandler),
            *of(ast.MatchAs),
            *of(ast.MatchStar),
        ]
        for node in named:
            if node.name in known and node.name:
                yield node.name, node
        for mapping in of(ast.MatchMapping):
            if mapping.rest in known and mapping.rest:
                yield mapping.rest, mapping

    def _bindings(self) -> dict[str, dict[ast.AST, list[Binding]]]:
        """Of the names that are imported or built-in, the scopes that bind them."""
        out = defaultdict[str, dict[ast.AST, list[Binding]]](dict)
        imports = list(self._imports())
        for name, alias, origin in imports:
            self._bind(out[name], alias, origin)
        for name, node in self._others(UNBOUND.keys() | {name for name, _, _ in imports}):
            self._bind(out[name], node, None)
        declared: list[ast.Global | ast.Nonlocal] = self._nodes.of(ast.Global, ast.Nonlocal)
        for declaration in declared:
            for name in declaration.names:
                if name in out:
                    self._declare(out[name], declaration, name)
        return dict(out)

    def _bind(self, scopes: dict[ast.AST, list[Binding]], node: ast.AST, origin: str | None) -> None:
        parents = self._nodes.parents
        above = parents[node]
        if isinstance(node, ast.arg):
            home = parents[parents[node] if isinstance(parents[node], ast.arguments) else node]
        else:
            walrus = isinstance(above, ast.NamedExpr)
            around = self._nodes.lookups(node)
            home = next(one for one in around if not (walrus and isinstance(one, COMPREHENSIONS)))
        place = self._held_from(node) if isinstance(home, ast.ClassDef) else (0, 0)
        scopes.setdefault(home, []).append((place, origin))

    def _held_from(self, node: ast.AST) -> Place:
        """Where a binding is done, in the body of a class."""
        statement = node
        while not isinstance(statement, ast.stmt):
            statement = self._nodes.parents[statement]
        last = statement if isinstance(statement, AT_THEIR_END) else node
        return getattr(last, "end_lineno", 0), getattr(last, "end_col_offset", 0)

    def _declare(self, scopes: dict[ast.AST, list[Binding]], node: ast.Global | ast.Nonlocal, name: str) -> None:
        """Move what a scope binds to where a declaration of it says."""
        scope, *around = self._nodes.lookups(node)
        found = scopes.pop(scope, [])
        if isinstance(node, ast.Global):
            self._globals.add((scope, name))
            home: ast.AST | None = around[-1] if around else scope
        else:
            home = next((one for one in around if one in scopes and not isinstance(one, ast.ClassDef)), None)
        if home is not None and found:
            scopes.setdefault(home, []).extend(found)

    def found(self, name: ast.Name) -> tuple[str, ...]:
        """What a name may stand for where it is."""
        scopes = self._bound.get(name.id)
        if not scopes:
            return UNBOUND.get(name.id, ())
        module = self._nodes.tree
        if len(scopes) == 1 and module in scopes:
            return _origins(scopes[module])
        inner: Scope | Comprehension | None = None
        for scope in self._nodes.lookups(name):
            if (scope, name.id) in self._globals:
                return _origins(scopes[module]) if module in scopes else UNBOUND.get(name.id, ())
            bindings = scopes.get(scope, [])
            if isinstance(scope, ast.ClassDef):
                here = (name.lineno, name.col_offset)
                bindings = [] if inner is not None else [one for one in bindings if one[0] <= here]
            if bindings:
                return _origins(bindings)
            inner = scope
        return UNBOUND.get(name.id, ())


def _origins(bindings: list[Binding]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(origin for _, origin in bindings if origin is not None))
