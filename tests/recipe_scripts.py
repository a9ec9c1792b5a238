"""The scripts of a folder of recipes, which import each other by name, as modules of a test."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

RECIPES = Path(__file__).resolve().parents[1] / "recipes"


@contextmanager
def recipe_scripts(folder: str, *names: str) -> Iterator[SimpleNamespace]:
    """Modules of recipes/`folder` by name. Afterwards no script of recipes is known as a module: other folders have
    scripts of the same names.
    """
    before = list(sys.path)
    sys.path.insert(0, str(RECIPES / folder))
    try:
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
    finally:
        sys.path[:] = before
        for name, module in list(sys.modules.items()):
            if (file := getattr(module, "__file__", None)) and RECIPES in Path(file).parents:
                del sys.modules[name]
