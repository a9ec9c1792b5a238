"""Draw faults: small changes of the package's code, each of which some test should find.

    .venv/bin/python tests/faults/draw.py --count 30 --seed 50 --out tests/faults/patches

Packages take part by their lines, each at least once. In a module a kind of fault is drawn, then a place:

* operator: `+` for `-`, `*` for `/`, `and` for `or`, `==` for `!=`, `in` for `not in`;
* bound: `<` for `<=`, `>` for `>=`, or a whole number that is one too large;
* sign: a minus left out, or put before what is multiplied or added;
* argument: two neighboring arguments in the wrong order, or one with a name left out;
* return: a function that returns what it was given first, or nothing, before it has done anything.

A fault is kept if a test that imports its module reaches its line; that is tried with an exception in its place.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import random
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from importers import modules
from run import Checkout, Outcome

OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "*", ast.And: "or",
    ast.Or: "and", ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
BOUNDS: dict[type[ast.AST], str] = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}


@dataclass(frozen=True)
class Fault:
    kind: str
    line: int
    text: str
    """The whole module with the fault in it."""
    probe: str
    """The whole module with an exception at the same statement."""


class Source:
    """A module's text, and how to replace what a node of its tree stands for."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = ast.parse(text)
        self.starts = [0]
        for line in text.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line.encode()))
        self.bytes = text.encode()

    def span(self, node: ast.AST) -> tuple[int, int]:
        return self.starts[node.lineno - 1] + node.col_offset, self.starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]

    def of(self, node: ast.AST) -> str:
        begin, end = self.span(node)
        return self.bytes[begin:end].decode()

    def replaced(self, begin: int, end: int, new: str) -> str:
        return (self.bytes[:begin] + new.encode() + self.bytes[end:]).decode()

    def between(self, left: ast.AST, right: ast.AST, old: str, new: str) -> str | None:
        """An operator between two nodes replaced; None where it cannot be told from what else stands there."""
        begin, end = self.span(left)[1], self.span(right)[0]
        gap = self.bytes[begin:end].decode()
        if gap.count(old) != 1 or "#" in gap:
            return None
        return self.replaced(begin, end, gap.replace(old, new))


SIGNS = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.And: "and",
    ast.Or: "or", ast.Eq: "==", ast.NotEq: "!=", ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in",
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
}  # fmt: skip


Found = tuple[str, ast.stmt, ast.AST, str]
"""A fault's kind, the statement and node where it stands, and the module with it."""


def faults(source: Source) -> Iterator[Found]:
    """Every fault that a module can get."""
    for function in ast.walk(source.tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        yield from _early_returns(source, function)
        for statement in _statements(function.body):
            for node in _expressions(statement):
                for kind, text in _of_node(source, node):
                    if text is not None:
                        yield kind, statement, node, text


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        yield statement
        for name in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(statement, name, []))
        for handler in getattr(statement, "handlers", []):
            yield from _statements(handler.body)


def _expressions(statement: ast.stmt) -> Iterator[ast.AST]:
    """The nodes of a statement, without those of statements inside it, and without messages of errors."""
    if isinstance(statement, ast.Raise | ast.Assert):
        return
    waiting = [
        child for child in ast.iter_child_nodes(statement) if not isinstance(child, ast.stmt | ast.excepthandler)
    ]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.JoinedStr | ast.Lambda):
            waiting += ast.iter_child_nodes(node)


def _of_node(source: Source, node: ast.AST) -> Iterator[tuple[str, str | None]]:
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        yield "operator", source.between(node.left, node.right, SIGNS[type(node.op)], OPERATORS[type(node.op)])
        if isinstance(node.op, ast.Add | ast.Mult) and isinstance(node.right, ast.Name | ast.Call | ast.Attribute):
            yield "sign", source.replaced(*source.span(node.right), f"-{source.of(node.right)}")
    elif isinstance(node, ast.BoolOp):
        old, new = SIGNS[type(node.op)], OPERATORS[type(node.op)]
        yield "operator", source.between(node.values[0], node.values[1], old, new)
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        op = type(node.ops[0])
        kind, new = ("bound", BOUNDS[op]) if op in BOUNDS else ("operator", OPERATORS[op])
        yield kind, source.between(node.left, node.comparators[0], SIGNS[op], new)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield "sign", source.replaced(*source.span(node), source.of(node.operand))
    elif isinstance(node, ast.Constant) and type(node.value) is int and 0 <= node.value < 100:
        yield "bound", source.replaced(*source.span(node), str(node.value + 1))
    elif isinstance(node, ast.Call):
        for left, right in zip(node.args, node.args[1:], strict=False):
            if not isinstance(left, ast.Starred) and not isinstance(right, ast.Starred):
                begin, end = source.span(left)[0], source.span(right)[1]
                middle = source.bytes[source.span(left)[1] : source.span(right)[0]].decode()
                yield "argument", source.replaced(begin, end, source.of(right) + middle + source.of(left))
        for keyword in node.keywords:
            if keyword.arg:
                begin, end = source.span(keyword)
                tail = source.bytes[end:]
                end += len(tail) - len(tail.lstrip(b" \n,")) if tail.lstrip()[:1] == b"," else 0
                yield "argument", source.replaced(begin, end, "")


def _early_returns(
    source: Source, function: ast.FunctionDef | ast.AsyncFunctionDef
) -> Iterator[tuple[str, ast.stmt, ast.AST, str]]:
    body = [s for s in function.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    if not body or function.name.startswith("__") or len(body) < 2:
        return
    names = [argument.arg for argument in function.args.args if argument.arg not in ("self", "cls")]
    returns = any(isinstance(node, ast.Return) and node.value is not None for node in ast.walk(function))
    what = f"return {names[0]}" if returns and names else "return None"
    begin = source.span(body[0])[0]
    yield "return", body[0], function, source.replaced(begin, begin, f"{what}\n{' ' * body[0].col_offset}")


def probe(source: Source, statement: ast.stmt) -> str:
    begin = source.span(statement)[0]
    return source.replaced(begin, begin, f'raise SystemError("the line is reached")\n{" " * statement.col_offset}')


def draw(text: str, random_: random.Random) -> Fault | None:
    source = Source(text)
    kinds: dict[str, list[Found]] = {}
    for found in faults(source):
        kinds.setdefault(found[0], []).append(found)
    if not kinds:
        return None
    kind, statement, node, changed = random_.choice(kinds[random_.choice(sorted(kinds))])
    try:
        compile(changed, "fault", "exec")
        probed = probe(source, statement)
        compile(probed, "probe", "exec")
    except SyntaxError:
        return None
    return Fault(kind, getattr(node, "lineno", 0), changed, probed)


def quotas(sizes: dict[str, int], count: int) -> dict[str, int]:
    """Faults for each package: one each, and the others by lines (largest remainder)."""
    left = count - len(sizes)
    shares = {name: left * size / sum(sizes.values()) for name, size in sizes.items()}
    given = {name: int(share) for name, share in shares.items()}
    for name in sorted(shares, key=lambda name: given[name] - shares[name])[: left - sum(given.values())]:
        given[name] += 1
    return {name: 1 + given[name] for name in sizes}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--seed", type=int, default=50)
    parser.add_argument("--out", type=Path, required=True, help="the folder of the patches; finished packages stay")
    parser.add_argument(
        "--root", type=Path, default=Path(__file__).parents[2], help="the checkout whose tests are asked"
    )
    arguments = parser.parse_args(argv)
    arguments.out.mkdir(parents=True, exist_ok=True)
    files = modules(arguments.root)
    lines = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in files.items()}
    packages: dict[str, list[str]] = {}
    for name, path in files.items():
        within = path.relative_to(arguments.root / "src" / "daguerre").parts
        packages.setdefault(within[0] if len(within) > 1 else "daguerre", []).append(name)
    sizes = {name: sum(lines[module] for module in found) for name, found in packages.items()}
    sizes = {name: size for name, size in sizes.items() if size > 20}
    with tempfile.TemporaryDirectory() as folder:
        checkout = Checkout(arguments.root, Path(folder))
        for package, wanted in quotas(sizes, arguments.count).items():
            # Each package has numbers of its own: what is drawn in one does not depend on another.
            random_ = random.Random(f"{arguments.seed} {package}")
            kept = 0
            while kept < wanted:
                module = random_.choices(packages[package], [lines[name] for name in packages[package]])[0]
                path = files[module]
                text = path.read_text(encoding="utf-8")
                fault = draw(text, random_)
                if fault is None:
                    continue
                patch = arguments.out / f"{module.removeprefix('daguerre.')}-{fault.line}-{fault.kind}.patch"
                name = path.relative_to(arguments.root).as_posix()
                if not patch.exists():
                    reached = checkout.run(module, {name: fault.probe})
                    sys.stderr.write(f"{patch.name}: {reached}\n")
                    if reached.outcome is not Outcome.FOUND:
                        continue
                    old, new = text.splitlines(keepends=True), fault.text.splitlines(keepends=True)
                    patch.write_text(
                        "".join(difflib.unified_diff(old, new, f"a/{name}", f"b/{name}")), encoding="utf-8"
                    )
                kept += 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
