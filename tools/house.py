"""Counts what makes the code base easy or hard to read: `python tools/house.py` prints them, one a line.

It counts the checkout that it stands in, or that `--root` names, and calls the `daguerre` of that checkout once.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

COUNTED = ("src", "recipes", "benchmarks", "tests/oracles")
CODE = (".py", ".cpp", ".h", ".js", ".mjs", ".css", ".html")
GENERATED = ("src/daguerre/assets", "benchmarks/results")  # models and word lists; pages that benchmarks write
DOCS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "MODEL_CARD.md", "CHANGELOG.md", "docs")
RECORD = "docs/log.md"
TABLE_OF_MODES = "src/daguerre/decoding/modes"
MAY_NAME_MODES = (TABLE_OF_MODES, "src/daguerre/evals")
DECODING = "src/daguerre/decoding"
CALL = """
import json, sys
import daguerre
home, crossed, calls = sys.argv[1], set(), 0
def profile(frame, event, argument):
    global calls
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(home) and not code.co_name.startswith("<"):
        crossed.add((code.co_filename, code.co_qualname, code.co_firstlineno))
        calls += 1
model = daguerre.load()
model.generate("def f", max_tokens=8)  # what is made once, by the first call, is not counted
found = []
for _ in range(5):  # nor what the clock adds, several times a second
    crossed, calls = set(), 0
    sys.setprofile(profile)
    model.generate("def f", max_tokens=8)
    sys.setprofile(None)
    found.append([len({one[0] for one in crossed}), len(crossed), calls])
print(json.dumps(min(found, key=lambda one: one[1])))
"""


def counts(root: Path) -> dict[str, float]:
    """Every count of a checkout, by its name."""
    return {
        **functions(root),
        "files over 500 lines": sum(len(lines(path)) > 500 for path in code_files(root)),
        "class names in two or more files": len(repeated_classes(root)),
        **call(root),
        **decoding(root),
        "modules that compare a mode's name": len({place.partition(":")[0] for place in mode_comparisons(root)}),
        "lines of code": sum(len(lines(path)) for path in code_files(root)),
        "lines of code that are not blank": sum(sum(map(bool, lines(path))) for path in code_files(root)),
        **words(root),
    }


@cache
def tracked(root: Path) -> tuple[str, ...]:
    """The files of a checkout, those not yet added among them."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = set(subprocess.check_output(command, cwd=root, text=True).splitlines())
    return tuple(sorted(name for name in names if (root / name).is_file()))


def code_files(root: Path, ending: str | tuple[str, ...] = CODE) -> list[Path]:
    """Files of code of the package, recipes, benchmarks and oracles, without what is generated or packed."""
    names = [name for name in tracked(root) if inside(name, COUNTED) and not inside(name, GENERATED)]
    return [root / name for name in names if name.endswith(ending)]


def inside(name: str, folders: tuple[str, ...]) -> bool:
    return any(name == folder or name.startswith(folder + "/") for folder in folders)


def lines(path: Path) -> list[str]:
    return [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def functions(root: Path) -> dict[str, float]:
    """Lengths of functions: from `def` to the last line, with the docstring."""
    lengths = [
        node.end_lineno - node.lineno + 1
        for path in code_files(root, ".py")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno
    ]
    return {
        "functions": len(lengths),
        "median lines of a function": statistics.median(lengths),
        "functions over 60 lines": sum(length > 60 for length in lengths),
    }


def repeated_classes(root: Path) -> dict[str, list[str]]:
    """Classes of the package whose name stands in two or more files, with the files."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path in code_files(root, ".py"):
        if inside(path.relative_to(root).as_posix(), ("src",)):
            for node in ast.walk(tree(path)):
                if isinstance(node, ast.ClassDef):
                    found[node.name].add(path.relative_to(root).as_posix())
    return {name: sorted(files) for name, files in sorted(found.items()) if len(files) > 1}


def call(root: Path) -> dict[str, float]:
    """What a completion of eight tokens by the default model passes through, by `sys.setprofile`."""
    source = str(root / "src")
    environment = os.environ | {"PYTHONPATH": source, "HF_HUB_OFFLINE": "1"}
    output = subprocess.check_output([sys.executable, "-c", CALL, source], env=environment, text=True)
    files, crossed, calls = json.loads(output.splitlines()[-1])
    return {"files a completion crosses": files, "functions it crosses": crossed, "calls it makes": calls}


def decoding(root: Path) -> dict[str, float]:
    """Files of decoding, the modes taken as one, and its floors: how many files the longest chain of imports has."""
    arrows: defaultdict[str, set[str]] = defaultdict(set)
    for name, imported in imports(root, DECODING):
        arrows[as_one(name)] |= {as_one(below) for below in imported} - {as_one(name)}

    @cache
    def height(name: str) -> int:
        return 1 + max((height(below) for below in arrows[name] if below in arrows), default=0)

    return {"files of decoding": len(arrows), "floors of decoding": max(map(height, arrows))}


def as_one(name: str) -> str:
    """daguerre.decoding.modes.ar -> daguerre.decoding.modes"""
    return ".".join(name.split(".")[:3])


def imports(root: Path, folder: str) -> Iterator[tuple[str, list[str]]]:
    """Each module of a folder and what it imports when it is imported itself, by dotted names; no empty packages."""
    for path in code_files(root, ".py"):
        if inside(path.relative_to(root).as_posix(), (folder,)) and tree(path).body:
            parts = path.relative_to(root / "src").with_suffix("").parts
            package = path.name == "__init__.py"
            name = ".".join(parts[:-1] if package else parts)
            nodes = [node for node in tree(path).body if isinstance(node, ast.ImportFrom) and node.module]
            known = [f"{node.module}.{alias.name}" for node in nodes for alias in node.names]
            yield name, [one for one in [*known, *(str(node.module) for node in nodes)] if one != name]


def mode_comparisons(root: Path) -> list[str]:
    """Places in the package that compare a mode's name with a text, or keep a set of names.

    The table of modes may, and evaluations, which measure modes by their names.
    """
    names = set(mode_names(root))
    found = []
    for path in code_files(root, ".py"):
        place = path.relative_to(root).as_posix()
        if inside(place, ("src",)) and not inside(place, MAY_NAME_MODES):
            for node in ast.walk(tree(path)):
                named = set(texts(node)) if isinstance(node, ast.Compare | ast.Set) else set()
                compared = isinstance(node, ast.Compare) and named & names and re.search(r"\bmode\b", ast.unparse(node))
                if compared or (isinstance(node, ast.Set) and named and named <= names):
                    found.append(f"{place}:{node.lineno}")
    return found


def texts(node: ast.AST) -> list[str]:
    return [one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)]


def mode_names(root: Path) -> list[str]:
    """Names of modes: the texts that the classes of the table give to `name`."""
    nodes = [node for path in (root / TABLE_OF_MODES).glob("*.py") for node in ast.walk(tree(path))]
    named = [node for node in nodes if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "name"]
    return [text for node in named for text in texts(node.value)]


def words(root: Path) -> dict[str, float]:
    """Words of the documents; the record of experiments aside."""
    pages = [name for name in tracked(root) if name.endswith(".md") and inside(name, DOCS) and name != RECORD]
    return {
        "words of documents": sum(len((root / name).read_text(encoding="utf-8").split()) for name in pages),
        "pages over 250 lines": sum(len(lines(root / name)) > 250 for name in pages),
        "lines of pages over 120 columns": sum(len(line) > 120 for name in pages for line in prose(root / name)),
    }


def prose(page: Path) -> Iterator[str]:
    """The lines of a page that are no table and no code."""
    code = False
    for line in page.read_text(encoding="utf-8").splitlines():
        code ^= line.startswith("```")
        if not code and not line.startswith("|"):
            yield line


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="the checkout to count")
    for label, number in counts(parser.parse_args().root.resolve()).items():
        sys.stdout.write(f"{number:10,g}  {label}\n")
