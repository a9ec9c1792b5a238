"""Rewards of answers: by a Python function (prompt, answer) -> number, of a module or of a file, or by a command."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

from daguerre.errors import DaguerreError, InputError, TrainingError
from daguerre.train.reinforce.options import Reinforce
from daguerre.train.reinforce.prompts import RewardedPrompt
from daguerre.train.reinforce.sandbox import Sandbox

Reward = Callable[..., float]
MOST = 8
"""Commands that run at the same time, at most."""


class Rewards:
    """The rewards of a recipe. Each is a function of the prompt, the answer and the row's other keys, so it is asked
    once for answers that are alike.
    """

    def __init__(self, options: Reinforce) -> None:
        if options.command:
            sandbox = Sandbox(options.seconds, options.megabytes)
            self._reward: Reward = lambda prompt, answer, **more: sandbox.reward(options.command, prompt, answer, more)
            self._workers = min(MOST, os.cpu_count() or 1)
        else:
            self._reward, self._workers = reward_function(options.reward), 1

    def of(self, asked: Sequence[tuple[RewardedPrompt, str]]) -> list[float]:
        """The rewards of answers, in order. TrainingError where a function fails."""
        keys = [(prompt.text, answer, json.dumps(prompt.fields, sort_keys=True)) for prompt, answer in asked]
        once = dict(zip(keys, asked, strict=True))
        if self._workers == 1:
            made = [self._one(*each) for each in once.values()]
        else:
            with ThreadPoolExecutor(self._workers) as pool:
                made = list(pool.map(lambda each: self._one(*each), once.values()))
        known = dict(zip(once, made, strict=True))
        return [known[key] for key in keys]

    def _one(self, prompt: RewardedPrompt, answer: str) -> float:
        try:
            return self._reward(prompt.text, answer, **prompt.fields)
        except DaguerreError:
            raise
        except Exception as error:
            raise TrainingError(f"the reward failed on the answer {answer[:60]!r}: {error!r}") from error


def reward_function(name: str) -> Reward:
    """The function of "package.module:function" or "folder/file.py:function"; its rewards are checked to be finite.

    It runs in this process, with no limits: answers that are programs belong in a `Sandbox`. Beside the prompt and the
    answer it gets the keys of the prompt's row that its parameters name, or all of them if it takes any (**more).
    """
    where, colon, function = name.rpartition(":")
    if not (colon and where and function):
        raise InputError(f"a reward is module:function or file.py:function, not {name!r}")
    found = getattr(_from_file(Path(where)) if where.endswith(".py") else _from_module(where), function, None)
    if not callable(found):
        raise InputError(f"{where} has no function {function!r} to reward with")

    taken = _taken(found)

    def checked(prompt: str, answer: str, **more: Any) -> float:
        number = float(found(prompt, answer, **{key: more[key] for key in more if taken is None or key in taken}))
        if not math.isfinite(number):
            raise InputError(f"the reward {name} gave {number}: a reward is a finite number")
        return number

    return checked


def _taken(function: Callable[..., Any]) -> set[str] | None:
    """The names of a function's parameters behind the first two; None: it takes any."""
    try:
        parameters: Mapping[str, inspect.Parameter] = inspect.signature(function).parameters
    except ValueError:  # of some that are not written in Python
        return set()
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
        return None
    return set(list(parameters)[2:])


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
