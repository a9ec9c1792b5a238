"""Instructions to edit real files, each with its only right result: made by rules, checked exactly.

A rule finds a place in a file where it applies, says in words what is to be done there, and makes the result. A file is
one of the frozen held-out sample, or a run of its top-level statements, of MIN_LINES to MAX_LINES lines.

An answer is right if it has the syntax tree and the comments of a result, and every line of the file that the result
keeps, as it was and in the same order. So a difference in quotes or in a blank line is wrong where the rule changed
nothing, and free within a line that it did. Statements that may stand anywhere at the top level, such as a new
constant, are compared without their place.
"""

from __future__ import annotations

import ast
import io
import random
import re
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from daguerre.heldout import Document

MIN_LINES, MAX_LINES = 20, 200
NAMES = {
    "get": "fetch",
    "set": "assign",
    "make": "build",
    "is": "seems",
    "to": "into",
    "parse": "read",
    "check": "verify",
    "create": "make",
}
"""The first word of a new name, by that of the old one."""
Function = ast.FunctionDef | ast.AsyncFunctionDef
Found = tuple[str, str]
"""An instruction, and the text that it makes of the file."""


@dataclass(frozen=True)
class EditTask:
    """An instruction for a file.

    results  the texts that are right
    loose    statements that may be anywhere at the top level
    """

    rule: str
    file: str
    text: str
    instruction: str
    results: tuple[str, ...]
    loose: tuple[str, ...] = ()

    def is_right(self, text: str) -> bool:
        """Whether a text is a right answer."""
        untyped = text.replace("verbose: bool = False", "verbose=False") if self.rule == "add_parameter" else text
        return any(_same(self, untyped, result) for result in self.results)


def _same(task: EditTask, text: str, result: str) -> bool:
    try:
        if _tree(text, task.loose) != _tree(result, task.loose) or _comments(text) != _comments(result):
            return False
    except (SyntaxError, ValueError, RecursionError, tokenize.TokenError):
        return False
    return _has_lines(text.split("\n"), _kept(task, result))


def _tree(text: str, loose: Sequence[str]) -> tuple[str, Counter[str]]:
    """The tree without loose statements, and how often these are there."""
    tree, apart = ast.parse(text), Counter[str]()
    dumps = {ast.dump(ast.parse(one).body[0]) for one in loose}
    for node in list(tree.body):
        if (dump := ast.dump(node)) in dumps:
            apart[dump] += 1
            tree.body.remove(node)
    return ast.dump(tree), apart


def _comments(text: str) -> list[str]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [token.string for token in tokens if token.type == tokenize.COMMENT]


def _kept(task: EditTask, result: str) -> list[str]:
    """The lines of the file that a result keeps; where statements leave or move, without those that are blank."""
    old, new = task.text.split("\n"), result.split("\n")
    blocks = SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks()
    moves = task.rule in ("remove_function", "sort_imports") or bool(task.loose)
    return [line for block in blocks for line in old[block.a : block.a + block.size] if line.strip() or not moves]


def _has_lines(lines: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether lines have the wanted ones in their order."""
    rest = iter(lines)
    return all(any(line == one for line in rest) for one in wanted)


# ---- the rules -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RuleSource:
    """A file and its tree; lines are from 1, as in the tree."""

    text: str
    tree: ast.Module

    @property
    def functions(self) -> list[tuple[str, Function]]:
        """Functions of the module and methods of its classes whose body begins in a line of its own, each with its name
        in words.
        """
        out: list[tuple[str, Function]] = []
        for node in self.tree.body:
            if isinstance(node, Function):
                out.append((f"the function `{node.name}`", node))
            elif isinstance(node, ast.ClassDef):
                methods = [each for each in node.body if isinstance(each, Function)]
                out += [(f"the method `{each.name}` of the class `{node.name}`", each) for each in methods]
        names = Counter(name for name, _ in out)
        alone = [(name, node) for name, node in out if names[name] == 1 and not node.decorator_list]
        return [(name, node) for name, node in alone if not self.line(node.body[0])[: node.body[0].col_offset].strip()]

    def line(self, node: ast.stmt) -> str:
        """The line that a statement begins in."""
        return self.text.split("\n")[node.lineno - 1]

    def at(self, line: int, column: int) -> int:
        """The character at a place."""
        lines = self.text.split("\n")
        return sum(len(one) + 1 for one in lines[: line - 1]) + column

    def insert(self, line: int, column: int, new: str, until: tuple[int, int] | None = None) -> str:
        """The text with a new one at a place, or instead of what is there `until` another."""
        start = self.at(line, column)
        return self.text[:start] + new + self.text[self.at(*(until or (line, column))) :]

    def part(self, node: ast.stmt | ast.expr) -> str:
        """The text of a node."""
        return ast.get_source_segment(self.text, node) or ""

    def header_end(self, node: Function) -> int:
        """The character of the colon that ends a function's header."""
        start, depth = self.at(node.lineno, node.col_offset), 0
        for token in tokenize.generate_tokens(io.StringIO(self.text[start:]).readline):
            depth += (token.string in "([{") - (token.string in ")]}") if token.type == tokenize.OP else 0
            if token.string == ":" and depth == 0:
                row, column = token.start
                return start + sum(len(one) + 1 for one in self.text[start:].split("\n")[: row - 1]) + column
        raise ValueError("a function without a colon")


def _renamed(old: str, taken: str) -> str:
    first, mark, rest = old.partition("_")
    new = f"{NAMES[first]}_{rest}" if mark and first in NAMES else f"{old}_value"
    return "" if re.search(rf"\b{new}\b", taken) else new


def _words(name: str, text: str) -> int:
    return len(re.findall(rf"\b{re.escape(name)}\b", text))


def _rename_definition(source: RuleSource, kinds: type | tuple[type, ...], word: str) -> Iterator[Found]:
    for node in source.tree.body:
        if not isinstance(node, kinds):
            continue
        old: str = node.name  # type: ignore[attr-defined]
        uses = sum(isinstance(each, ast.Name) and each.id == old for each in ast.walk(source.tree))
        new = _renamed(old, source.text) if word == "function" else f"{old}Base"
        if uses and uses + 1 == _words(old, source.text) and new and not old.startswith("__"):
            yield f"Rename the {word} `{old}` to `{new}`.", re.sub(rf"\b{old}\b", new, source.text)


def rename_function(source: RuleSource) -> Iterator[Found]:
    """A function of the module, and all its uses."""
    yield from _rename_definition(source, (ast.FunctionDef, ast.AsyncFunctionDef), "function")


def rename_class(source: RuleSource) -> Iterator[Found]:
    """A class of the module, and all its uses."""
    yield from _rename_definition(source, ast.ClassDef, "class")


def rename_parameter(source: RuleSource) -> Iterator[Found]:
    """A parameter, within its function."""
    for name, node in source.functions:
        part = source.part(node)
        for arg in node.args.args:
            uses = sum(isinstance(each, ast.Name) and each.id == arg.arg for each in ast.walk(node))
            new = _renamed(arg.arg, source.text)
            elsewhere = re.search(rf"\b{arg.arg}\s*=[^=]", source.text.replace(part, ""))
            if arg.arg != "self" and uses and uses + 1 == _words(arg.arg, part) and new and not elsewhere:
                changed = re.sub(rf"\b{arg.arg}\b", new, part)
                yield f"Rename the parameter `{arg.arg}` of {name} to `{new}`.", source.text.replace(part, changed)


def add_parameter(source: RuleSource) -> Iterator[Found]:
    """A last parameter with a default; its type may be said."""
    for name, node in source.functions:
        args = node.args
        if args.vararg or args.kwarg or args.kwonlyargs or args.posonlyargs or _words("verbose", source.text):
            continue
        parts: list[ast.arg | ast.expr] = [*args.args, *args.defaults]
        ends = [(each.end_lineno or 0, each.end_col_offset or 0) for each in parts]
        if ends and not any(arg.annotation for arg in args.args):
            text = source.insert(*max(ends), ", verbose=False")
            yield f"Add a last parameter `verbose` with the default `False` to {name}. Do not use it yet.", text


def change_default(source: RuleSource) -> Iterator[Found]:
    """Another default of a parameter: a number or a truth value."""
    for name, node in source.functions:
        for arg, default in zip(node.args.args[-len(node.args.defaults) :], node.args.defaults, strict=False):
            if isinstance(default, ast.Constant) and isinstance(default.value, bool | int):
                new = repr(not default.value if isinstance(default.value, bool) else default.value + 1)
                assert default.end_lineno is not None and default.end_col_offset is not None
                until = default.end_lineno, default.end_col_offset
                text = source.insert(default.lineno, default.col_offset, new, until)
                yield f"Change the default of the parameter `{arg.arg}` of {name} to `{new}`.", text


def extract_constant(source: RuleSource) -> Iterator[Found]:
    """A number in a function becomes a constant of the module."""
    for name, node in source.functions:
        numbers = [each for part in node.body for each in ast.walk(part) if isinstance(each, ast.Constant)]
        numbers = [each for each in numbers if type(each.value) in (int, float) and each.value not in (0, 1)]
        for each in numbers:
            if sum(other.value == each.value for other in numbers) > 1 or re.search(r"\bLIMIT\b", source.text):
                continue
            assert each.end_lineno is not None and each.end_col_offset is not None
            text = source.insert(each.lineno, each.col_offset, "LIMIT", (each.end_lineno, each.end_col_offset))
            said = source.part(each)
            first = next(x for x in source.tree.body if x.end_lineno is not None and x.end_lineno >= node.lineno)
            at = source.at(first.lineno - len(getattr(first, "decorator_list", ())), 0)
            what = f"Move the number `{said}` in {name} into a constant `LIMIT` of the module, and use it there."
            yield what, f"{text[:at]}LIMIT = {said}\n\n\n{text[at:]}"


def annotate_result(source: RuleSource) -> Iterator[Found]:
    """The type of a function's result."""
    for name, node in source.functions:
        if node.returns is None and not any(arg.annotation for arg in node.args.args) and node.name != "__init__":
            at = source.header_end(node)
            yield f"Annotate {name} as returning `str`.", f"{source.text[:at]} -> str{source.text[at:]}"


def annotate_parameter(source: RuleSource) -> Iterator[Found]:
    """The type of a parameter."""
    for name, node in source.functions:
        for arg in node.args.args:
            if arg.annotation is None and arg.arg not in ("self", "cls"):
                assert arg.end_lineno is not None and arg.end_col_offset is not None
                text = source.insert(arg.end_lineno, arg.end_col_offset, ": int")
                yield f"Annotate the parameter `{arg.arg}` of {name} with the type `int`. Change no other.", text


def add_logging(source: RuleSource) -> Iterator[Found]:
    """A call at the beginning of a function, and an import."""
    for name, node in source.functions:
        if not _words("logging", source.text):
            what = f'Add `logging.debug("{node.name}")` as the first statement of the body of {name}'
            text = _begun(source, node, [f'logging.debug("{node.name}")'])
            yield f"{what}, and import `logging` at the top of the file.", _imported(text)


def _imported(text: str) -> str:
    at = next(i for i, node in enumerate(ast.parse(text).body) if not (i == 0 and ast.get_docstring(ast.parse(text))))
    line = next(
        (n for n in ast.parse(text).body if isinstance(n, ast.Import | ast.ImportFrom)), ast.parse(text).body[at]
    )
    future = isinstance(line, ast.ImportFrom) and line.module == "__future__"
    lines = text.split("\n")
    row = (line.end_lineno or 1) if future else line.lineno - 1 - len(getattr(line, "decorator_list", ()))
    return "\n".join([*lines[:row], "import logging", *lines[row:]])


def _begun(source: RuleSource, node: Function, new: Sequence[str]) -> str:
    """The text with lines at the beginning of a function's body, after its docstring."""
    first = node.body[0]
    indent = " " * first.col_offset
    said = ast.get_docstring(node) is not None
    row = (first.end_lineno or 0) if said else first.lineno - 1 - len(getattr(first, "decorator_list", ()))
    lines = source.text.split("\n")
    return "\n".join([*lines[:row], *(indent + line for line in new), *lines[row:]])


def add_check(source: RuleSource) -> Iterator[Found]:
    """An error for an argument that is None, at the beginning of a function."""
    for name, node in source.functions:
        for arg in node.args.args:
            if arg.arg in ("self", "cls"):
                continue
            made = [f"if {arg.arg} is None:", f'    raise ValueError("{arg.arg} is missing")']
            what = f'raise a `ValueError("{arg.arg} is missing")` if `{arg.arg}` is None'
            text = _begun(source, node, made)
            yield f"At the beginning of the body of {name}, {what}. Keep all the rest as it is.", text


def add_docstring(source: RuleSource) -> Iterator[Found]:
    """A docstring for a function that has none."""
    for name, node in source.functions:
        if ast.get_docstring(node) is None:
            text = _begun(source, node, ['"""Do what is needed."""'])
            yield f'Add the docstring """Do what is needed.""" to {name}.', text


def remove_function(source: RuleSource) -> Iterator[Found]:
    """A function that nothing in the file uses."""
    for node in source.tree.body:
        if isinstance(node, Function) and _words(node.name, source.text) == 1 and not node.decorator_list:
            lines = source.text.split("\n")
            end = node.end_lineno or 0
            while end < len(lines) - 1 and not lines[end].strip():
                end += 1
            above = [line for line in lines[max(0, node.lineno - 2) : node.lineno - 1] if line.strip()]
            if not above and len(source.tree.body) > 2:
                yield f"Remove the function `{node.name}`.", "\n".join([*lines[: node.lineno - 1], *lines[end:]])


def remove_docstring(source: RuleSource) -> Iterator[Found]:
    """A function's docstring goes."""
    for name, node in source.functions:
        if ast.get_docstring(node) is not None and len(node.body) > 1:
            first = node.body[0]
            lines = source.text.split("\n")
            kept = [*lines[: first.lineno - 1], *lines[first.end_lineno or 0 :]]
            if len(kept) > first.lineno - 1 and lines[first.end_lineno or 0].strip():
                yield f"Remove the docstring of {name}.", "\n".join(kept)


RULES: dict[str, Callable[[RuleSource], Iterator[Found]]] = {
    rule.__name__: rule
    for rule in (
        rename_function,
        rename_class,
        rename_parameter,
        add_parameter,
        change_default,
        extract_constant,
        annotate_result,
        annotate_parameter,
        add_logging,
        add_check,
        add_docstring,
        remove_function,
        remove_docstring,
    )
}
LOOSE = {"extract_constant": ("LIMIT = {}",), "add_logging": ("import logging",)}


def sort_imports(text: str, rng: random.Random) -> tuple[str, Found, str] | None:
    """A file whose imports at the top are out of order, what to do, and the two results that are right: lines in order,
    or those with `import` first. None for a file with fewer than three such lines, or with others between them.
    """
    nodes = [node for node in ast.parse(text).body if isinstance(node, ast.Import | ast.ImportFrom)]
    nodes = [node for node in nodes if not (isinstance(node, ast.ImportFrom) and node.module == "__future__")]
    rows = [node.lineno - 1 for node in nodes]
    lines = text.split("\n")
    if len(rows) < 3 or rows != list(range(rows[0], rows[0] + len(rows))):
        return None
    found = [lines[row] for row in rows]
    if any("#" in line or node.end_lineno != node.lineno for line, node in zip(found, nodes, strict=True)):
        return None
    if sorted(found) != sorted(found, key=str.lower):
        return None
    mixed = rng.sample(found, len(found))

    def whole(block: Sequence[str]) -> str:
        return "\n".join([*lines[: rows[0]], *block, *lines[rows[0] + len(rows) :]])

    first = sorted(found, key=lambda line: (line.startswith("from"), line))
    told = "Sort the import statements at the top of the file alphabetically."
    return None if mixed in (sorted(found), first) else (whole(mixed), (told, whole(sorted(found))), whole(first))


# ---- files and tasks -------------------------------------------------------------------------------------------------


def files_of(documents: Sequence[Document], rng: random.Random) -> list[tuple[str, str]]:
    """Names and texts of files of MIN_LINES to MAX_LINES lines, all ASCII: documents, and runs of statements of longer
    ones.
    """
    out = []
    for document in documents:
        if not document.text.isascii() or re.search(r"[\r\f\t]", document.text):
            continue
        lines = document.text.split("\n")
        if len(lines) > MAX_LINES:
            starts = [
                node.lineno - 1 - len(getattr(node, "decorator_list", ())) for node in ast.parse(document.text).body
            ]
            begin = rng.choice(starts[: max(1, len(starts) // 2)])
            most = rng.randint(MIN_LINES, MAX_LINES)
            ends = [start for start in [*starts, len(lines)] if MIN_LINES <= start - begin <= most]
            lines = lines[begin : ends[-1]] if ends else []
        text = "\n".join(lines).rstrip("\n") + "\n"
        if MIN_LINES <= text.count("\n") <= MAX_LINES:
            out.append((f"{document.package}/{document.file}", text))
    return out


def make_tasks(documents: Sequence[Document], num: int, seed: int = 0, most_lines: int = MAX_LINES) -> list[EditTask]:
    """`num` tasks, as evenly from the rules as there are places; a file is used again only after the others."""
    rng = random.Random(seed)
    files = [file for file in files_of(documents, rng) if file[1].count("\n") <= most_lines]
    used = Counter[str]()
    out: list[EditTask] = []
    names = [*RULES, "sort_imports"]
    for turn in range(10 * num):
        if len(out) == num:
            break
        rule = names[turn % len(names)]
        taken = {task.file for task in out if task.rule == rule}
        order = sorted(rng.sample(files, len(files)), key=lambda each: used[each[0]])
        task = next(filter(None, (_task(rule, *file, rng) for file in order if file[0] not in taken)), None)
        if task is not None:
            used[task.file] += 1
            out.append(task)
    return out


def _task(rule: str, name: str, text: str, rng: random.Random) -> EditTask | None:
    """A task of a rule on a file, or None where it applies nowhere."""
    if rule == "sort_imports":
        sorting = sort_imports(text, rng)
        if sorting is None:
            return None
        mixed, (told, result), other = sorting
        return EditTask(rule, name, mixed, told, (result, other))
    found = list(RULES[rule](RuleSource(text, ast.parse(text))))
    if not found:
        return None
    told, result = rng.choice(found)
    number = re.search(r"number `(.*?)`", told)
    loose = tuple(one.format(number[1] if number else "") for one in LOOSE.get(rule, ()))
    return EditTask(rule, name, text, told, (result,), loose)
