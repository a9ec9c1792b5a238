"""A program that tests one version of a module with doctests: child.py FOLDER, in a `Sandbox`.

It reads {"prompt": {"module", "test", "docstring"} as JSON, "answer": the text of the module} and prints 1 in its last
line if all examples pass. FOLDER holds the packages; it is run as a file, so it needs the standard library alone.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
import json
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType
from typing import Any

FLAGS = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL | doctest.NORMALIZE_WHITESPACE


class Version(SourceFileLoader):
    """The loader of a module whose text is given."""

    text = ""

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.text, self.path, "exec", dont_inherit=True)


class Finder(MetaPathFinder):
    """Finds one module, with a text that is not its file's."""

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path) if fullname == self.name else None
        if spec is not None and spec.origin is not None:
            spec.loader = Version(fullname, spec.origin)
            spec.loader.text = self.text
        return spec


def passes(module: str, text: str, name: str, docstring: str) -> bool:
    """Whether every example of a docstring passes with this text of the module; without an example, no."""
    sys.meta_path.insert(0, Finder(module, text))
    names = vars(importlib.import_module(module)).copy()
    test = doctest.DocTestParser().get_doctest(docstring, names, name, None, 0)
    found = doctest.DocTestRunner(verbose=False, optionflags=FLAGS).run(test, out=lambda _: 0)
    return found.attempted > 0 and not found.failed


def main() -> None:
    """The verdict goes out last: a version that ends the process has failed before it."""
    sys.path.insert(0, sys.argv[1])
    asked = json.load(sys.stdin)
    of = json.loads(asked["prompt"])
    _say(0)
    with contextlib.redirect_stdout(io.StringIO()):
        right = passes(of["module"], asked["answer"], of["test"], of["docstring"])
    _say(int(right))


def _say(number: int) -> None:
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
