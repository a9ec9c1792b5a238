"""Rewards by name: a Python function (prompt, answer) -> number, of a module or of a file."""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from daguerre.errors import InputError

Reward = Callable[[str, str], float]


def reward_function(name: str) -> Reward:
    """The function of "package.module:function" or "folder/file.py:function"; its rewards are checked to be finite.

    It runs in this process, with no limits: answers that are programs belong in a `Sandbox`.
    """
    where, colon, function = name.rpartition(":")
    if not (colon and where and function):
        raise InputError(f"a reward is module:function or file.py:function, not {name!r}")
    found = getattr(_from_file(Path(where)) if where.endswith(".py") else _from_module(where), function, None)
    if not callable(found):
        raise InputError(f"{where} has no function {function!r} to reward with")

    def checked(prompt: str, answer: str) -> float:
        number = float(found(prompt, answer))
        if not math.isfinite(number):
            raise InputError(f"the reward {name} gave {number}: a reward is a finite number")
        return number

    return checked


def _from_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(f"the module of the reward cannot be imported: {error}") from error


def _from_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise InputError(f"the file of the reward is not there: {path.name}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
