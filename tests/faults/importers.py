"""Which test files import a module of the package."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

PACKAGE = "daguerre"


def modules(root: Path) -> dict[str, Path]:
    """The modules of the package in a checkout, by name."""
    source = root / "src"
    return {
        ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted((source / PACKAGE).rglob("*.py"))
    }


def importers(root: Path, module: str) -> list[str]:
    """The test files that import a module, as paths from the root: directly, or by a helper of the tests.

    Where none does, those that import a module which imports it, and so on upwards. Files that are named after the
    module come first.
    """
    names = modules(root)
    tests = {path: imported(path) & set(names) for path in sorted((root / "tests").rglob("*.py"))}
    sources = {name: imported(path) & set(names) for name, path in names.items()}
    wanted, seen = {module}, {module}
    while wanted:
        if found := _with_helpers(root, {path for path, targets in tests.items() if targets & wanted}):
            stem = module.rpartition(".")[2]
            return sorted(found, key=lambda path: (stem not in path, path))
        wanted = {name for name, targets in sources.items() if targets & wanted} - seen
        seen |= wanted
    return []


@cache
def imported(path: Path) -> set[str]:
    """The dotted names that a file imports, at its top or inside a function: each a module or something in one."""
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def _with_helpers(root: Path, found: set[Path]) -> list[str]:
    """Test files among those found; if there are none, those that import a helper among them (all import conftest)."""
    files = {path for path in found if path.name.startswith("test_")}
    helpers = {path.stem for path in found - files} - {"conftest", "__init__"}
    if not files:
        files = {path for path in (root / "tests").rglob("test_*.py") if imported(path) & helpers}
    return [path.relative_to(root).as_posix() for path in files]
