"""Imports, and what else stands at the top level of modules."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from daguerre.concepts.detectors import ConceptGroup
from daguerre.concepts.detectors.library_calls import calls_of
from daguerre.concepts.nodes import SCOPES
from daguerre.concepts.source import SourceText, Span, constant

GROUP = ConceptGroup("imports")
IMPORT_ERRORS = frozenset({"builtins.ImportError", "builtins.ModuleNotFoundError"})
PLATFORMS = frozenset({"sys.platform", "os.name"})


@GROUP.node("import_statement", "A statement `import x`; `from x import y` is none.")
def import_statement(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.Import):
        yield source.span(node)


@GROUP.node("from_import", "A statement `from x import y`.")
def from_import(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.ImportFrom):
        yield source.span(node)


@GROUP.node("import_alias", "A name with its `as` in an import: `numpy as np`.")
def import_alias(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.alias):
        if node.asname:
            yield source.span(node)


@GROUP.node("relative_import", "An import from a package by leading dots.", parents=("from_import",))
def relative_import(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.ImportFrom):
        if node.level:
            yield source.span(node)


@GROUP.node("future_import", "An import from __future__.", parents=("from_import",))
def future_import(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.ImportFrom):
        if node.module == "__future__" and not node.level:
            yield source.span(node)


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


@GROUP.node("optional_import", "An import in a try body with an except clause for ImportError or ModuleNotFoundError.")
def optional_import(source: SourceText) -> Iterator[Span]:
    imports: list[ast.Import | ast.ImportFrom] = source.of(ast.Import, ast.ImportFrom)
    for node in imports:
        if _guarded(source, node):
            yield source.span(node)


@GROUP.header(
    "type_checking_guard",
    "An if whose whole test is TYPE_CHECKING, as a name or an attribute.",
    parents=("if_statement",),
)
def type_checking_guard(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.If):
        if "TYPE_CHECKING" in source.names.last(node.test):
            yield source.header(node)


def _is_name(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "__name__"


@GROUP.header(
    "main_guard", "An if whose whole test is __name__ == '__main__', either way around.", parents=("if_statement",)
)
def main_guard(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.If):
        test = node.test
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
            left, right = test.left, test.comparators[0]
            if (_is_name(left) and constant(right, "__main__")) or (_is_name(right) and constant(left, "__main__")):
                yield source.header(node)


@GROUP.header("main_function", "A function named main, in no class or other function.", parents=("function_def",))
def main_function(source: SourceText) -> Iterator[Span]:
    for node in source.functions:
        if node.name == "main" and isinstance(source.scope(node), ast.Module):
            yield source.header(node)


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


@GROUP.node("module_constant", "An assignment directly in the module to a name in upper case.")
def module_constant(source: SourceText) -> Iterator[Span]:
    for node, names in _module_names(source):
        if any(name.isupper() for name in names):
            yield source.span(node)


@GROUP.node("module_metadata", "An assignment directly in the module to a name as __version__, but not __all__.")
def module_metadata(source: SourceText) -> Iterator[Span]:
    for node, names in _module_names(source):
        if any(len(name) > 4 and name[:2] == name[-2:] == "__" and name != "__all__" for name in names):
            yield source.span(node)


@GROUP.node("dunder_all", "An assignment to the name __all__, also by +=.")
def dunder_all(source: SourceText) -> Iterator[Span]:
    for node, names in _assigned(source):
        if "__all__" in names:
            yield source.span(node)


GROUP.node(
    "dynamic_import", "A call of __import__, or of import_module, reload or util.module_from_spec of importlib."
)(
    calls_of(
        "builtins.__import__ importlib.__import__ importlib.import_module importlib.reload "
        "importlib.util.module_from_spec"
    )
)


@GROUP.node("platform_check", "A comparison with sys.platform, os.name or platform.system(), or startswith of one.")
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


@GROUP.node("version_check", "A comparison with sys.version_info, or with an item or field of it.")
def version_check(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.Compare):
        for one in (node.left, *node.comparators):
            plain = one.value if isinstance(one, ast.Subscript) else one
            names = source.names.meanings(plain)
            if any(name == "sys.version_info" or name.startswith("sys.version_info.") for name in names):
                yield source.span(node)
                break


GROUP.node(
    "logger_setup",
    "A call of getLogger, basicConfig, config.dictConfig or config.fileConfig of logging.",
    parents=("logging_call",),
)(calls_of("logging.getLogger logging.basicConfig logging.config.dictConfig logging.config.fileConfig"))
