"""What a reviewer of security or quality would stop at."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from daguerre.concepts.detectors import concept, nodes
from daguerre.concepts.detectors.signatures import defaults
from daguerre.concepts.source import SourceText, Span, string

DISPLAYS = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
CONTAINERS = frozenset({"builtins.list", "builtins.dict", "builtins.set"})
SECRET = re.compile(
    r"[\w-]*(?:password|passwd|secret|token|(?:api|auth|access|secret)[_-]?key)", re.ASCII | re.IGNORECASE
)
BRACKETS = re.compile(r"<.*>|\[.*\]", re.DOTALL)
"""Around a placeholder, and around a special token of a language model: `<your password>`, `[MASK]`."""

# SQL in capitals is known by its first words. In small letters these may be English ("select a file from the list"), so
# that more of the grammar has to be there.
SQL_CAPITALS = re.compile(
    r"""\s*(?:
        SELECT\b.*?\bFROM\b
        | INSERT\s+(?:OR\s+\w+\s+)?INTO(?:\s|$)
        | UPDATE\s+\S+\s+SET(?:\s|$)
        | DELETE\s+FROM(?:\s|$)
        | (?:CREATE|DROP|ALTER)\s+TABLE(?:\s|$)
    )""",
    re.VERBOSE | re.DOTALL,
)
_COLUMN = r'(?:\*|[\w.{}%?`"]+(?:\s*\([^()]*\))?(?:\s+as\s+\w+)?)'
SQL_SMALL = re.compile(
    rf"""\s*(?:
        select\s+(?:distinct\s+)?{_COLUMN}(?:\s*,\s*{_COLUMN})*\s+from\s+\S
        | insert\s+(?:or\s+\w+\s+)?into\s+\S+?\s*(?:\(|\svalues\b|\sselect\b)
        | update\s+\S+\s+set\s+\S+?\s*=
        | delete\s+from\s+\S+\s*(?:;|$|\swhere\s+\S+?\s*(?:[=<>]|\s(?:in|is|like)\s))
        | create\s+table\s+(?:if\s+not\s+exists\s+)?\S+?\s*\(
        | (?:drop|alter)\s+table\s+(?:if\s+exists\s+)?\S+\s*(?:;|$|\s(?:add|drop|rename)\s)
    )""",
    re.VERBOSE | re.DOTALL,
)


def is_swallowed(_: SourceText, node: ast.ExceptHandler) -> bool:
    return all(
        isinstance(one, ast.Pass) or (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))
        for one in node.body
    )


nodes("bare_except", ast.ExceptHandler, lambda _, node: node.type is None)
nodes("swallowed_exception", ast.ExceptHandler, is_swallowed)
nodes("star_import", ast.ImportFrom, lambda _, node: node.names[0].name == "*")
nodes("global_statement", ast.Global)


@concept
def mutable_default_argument(source: SourceText) -> Iterator[Span]:
    for parameters in source.of(ast.arguments):
        for _, value in defaults(parameters):
            called = value.func if isinstance(value, ast.Call) else None
            if isinstance(value, DISPLAYS) or source.names.means(called, CONTAINERS):
                yield source.span(value)


def _targets(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """What an assignment gives to names, attributes and keys."""
    if isinstance(target, ast.Tuple | ast.List):
        if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts):
            if not any(isinstance(one, ast.Starred) for one in (*target.elts, *value.elts)):
                for part, its_value in zip(target.elts, value.elts, strict=True):
                    yield from _targets(part, its_value)
    elif isinstance(target, ast.Subscript):
        yield string(target.slice) or "", value
    elif isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Attribute):
        yield target.attr, value


def given(source: SourceText) -> Iterator[tuple[str, ast.expr]]:
    """Values, with the names, attributes, parameters, arguments and keys that they are given to."""
    for node in source.of(ast.Assign):
        for target in node.targets:
            yield from _targets(target, node.value)
    for typed in source.of(ast.AnnAssign):
        if typed.value is not None:
            yield from _targets(typed.target, typed.value)
    for walrus in source.of(ast.NamedExpr):
        yield walrus.target.id, walrus.value
    for parameters in source.of(ast.arguments):
        for argument, default in defaults(parameters):
            yield argument.arg, default
    for keyword in source.of(ast.keyword):
        yield keyword.arg or "", keyword.value
    for mapping in source.of(ast.Dict):
        for key, value in zip(mapping.keys, mapping.values, strict=True):
            yield string(key) or "", value


@concept
def hardcoded_secret(source: SourceText) -> Iterator[Span]:
    for name, value in given(source):
        if isinstance(value, ast.Constant) and isinstance(value.value, str | bytes) and SECRET.fullmatch(name):
            text = value.value if isinstance(value.value, str) else value.value.decode(errors="replace")
            if text and not BRACKETS.fullmatch(text):
                yield source.span(value)


def is_sql(source: SourceText, node: ast.Constant | ast.JoinedStr) -> bool:
    if isinstance(node, ast.JoinedStr):  # a mark stands for each value
        text = "".join(string(one) or "{}" for one in node.values)
    else:
        text = "" if isinstance(source.parent(node), ast.JoinedStr) else string(node) or ""
    return bool(SQL_CAPITALS.match(text) or SQL_SMALL.match(text))


nodes("sql_string", (ast.Constant, ast.JoinedStr), is_sql)
