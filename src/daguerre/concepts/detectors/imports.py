"""Imports, and what else stands at the top level of modules."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from daguerre.concepts.detectors import add, concept, headers, nodes, trait
from daguerre.concepts.detectors.functions import is_dunder
from daguerre.concepts.detectors.library_calls import calls_of
from daguerre.concepts.nodes import SCOPES
from daguerre.concepts.source import SourceText, Span, constant

IMPORT_ERRORS = frozenset({"builtins.ImportError", "builtins.ModuleNotFoundError"})
PLATFORMS = frozenset({"sys.platform", "os.name"})


def _guarded(source: SourceText, node: ast.stmt) -> bool:
    below: ast.AST = node
    while (above := source.parent(below)) is not None and not isinstance(above, SCOPES):
        if isinstance(above, ast.Try | ast.TryStar) and any(below is one for one in above.body):
            for handler in above.handlers:
                caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
                if any(source.names.means(one, IMPORT_ERRORS) for one in caught):
                    return True
        below = above
    return False


nodes("import_statement", ast.Import)
nodes("from_import", ast.ImportFrom)
nodes("import_alias", ast.alias, lambda _, node: bool(node.asname))
nodes("relative_import", ast.ImportFrom, lambda _, node: bool(node.level))
nodes("future_import", ast.ImportFrom, lambda _, node: node.module == "__future__" and not node.level)
nodes("optional_import", (ast.Import, ast.ImportFrom), _guarded)
headers("type_checking_guard", ast.If, lambda source, node: "TYPE_CHECKING" in source.names.last(node.test))
trait("main_function", lambda source, one: one.name == "main" and isinstance(source.scope(one), ast.Module))
add(
    "dynamic_import",
    calls_of(
        "builtins.__import__ importlib.__import__ importlib.import_module importlib.reload "
        "importlib.util.module_from_spec"
    ),
)
add(
    "logger_setup",
    calls_of("logging.getLogger logging.basicConfig logging.config.dictConfig logging.config.fileConfig"),
)


def _is_name(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "__name__"


def _guards_main(_: SourceText, node: ast.If) -> bool:
    test = node.test
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq)):
        return False
    left, right = test.left, test.comparators[0]
    return (_is_name(left) and constant(right, "__main__")) or (_is_name(right) and constant(left, "__main__"))


headers("main_guard", ast.If, _guards_main)


def _assigned(source: SourceText) -> Iterator[tuple[ast.Assign | ast.AnnAssign | ast.AugAssign, list[str]]]:
    """Assignments, with the plain names that they are to."""
    for node in source.of(ast.Assign):
        yield node, [target.id for target in node.targets if isinstance(target, ast.Name)]
    for typed in source.of(ast.AnnAssign):
        if typed.value is not None and isinstance(typed.target, ast.Name):
            yield typed, [typed.target.id]
    for added in source.of(ast.AugAssign):
        if isinstance(added.target, ast.Name):
            yield added, [added.target.id]


def _module_names(source: SourceText) -> Iterator[tuple[ast.stmt, list[str]]]:
    """The assignments directly in the module, without those like `+=`."""
    for node, names in _assigned(source):
        if isinstance(source.parent(node), ast.Module) and not isinstance(node, ast.AugAssign):
            yield node, names


@concept
def module_constant(source: SourceText) -> Iterator[Span]:
    return (source.span(node) for node, names in _module_names(source) if any(map(str.isupper, names)))


@concept
def module_metadata(source: SourceText) -> Iterator[Span]:
    for node, names in _module_names(source):
        if any(is_dunder(name) and name != "__all__" for name in names):
            yield source.span(node)


@concept
def dunder_all(source: SourceText) -> Iterator[Span]:
    return (source.span(node) for node, names in _assigned(source) if "__all__" in names)


@concept
def platform_check(source: SourceText) -> Iterator[Span]:
    def is_platform(node: ast.expr) -> bool:
        asked = isinstance(node, ast.Call) and source.names.means(node.func, ("platform.system",))
        return asked or source.names.means(node, PLATFORMS)

    for node in source.of(ast.Compare):
        if any(is_platform(one) for one in (node.left, *node.comparators)):
            yield source.span(node)
    for call in source.method_calls(["startswith"]):
        if isinstance(call.func, ast.Attribute) and is_platform(call.func.value):
            yield source.span(call)


def _checks_version(source: SourceText, node: ast.Compare) -> bool:
    sides = (one.value if isinstance(one, ast.Subscript) else one for one in (node.left, *node.comparators))
    names = (name for one in sides for name in source.names.meanings(one))
    return any(name == "sys.version_info" or name.startswith("sys.version_info.") for name in names)


nodes("version_check", ast.Compare, _checks_version)
