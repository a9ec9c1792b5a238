"""Values that few arguments expect, and what a call may do with them: return, or say in one line what is wrong."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from daguerre.errors import DaguerreError

HOSTILE: dict[str, Any] = {
    "None": None,
    "True": True,
    "False": False,
    "NaN": float("nan"),
    "infinity": float("inf"),
    "minus infinity": -float("inf"),
    "0": 0,
    "-1": -1,
    "0.5": 0.5,
    "2^64": 2**64,
    "10^400": 10**400,
    "1j": 1j,
    "empty text": "",
    "no": "no",
    "bytes": b"",
    "a byte": b"\x06",
    "NUL": "a\0b",
    "lone surrogate": "a\ud800",
    "long text": "x" * 5000,
    "list": [],
    "dict": {},
    "set": {1},
    "object": object(),
    "class": int,
    "list of None": [None],
    "list of NaN": [float("nan")],
    "list of a text": ["a"],
    "list of True": [True],
    "list of 10^400": [10**400],
    "nested": [[1]],
    "dict of True": {20: True},
    "numpy int": np.int64(3),
    "numpy float": np.float32(0.5),
    "numpy NaN": np.float64("nan"),
    "numpy bool": np.bool_(True),
    "array": np.array([1, 2]),
    "no array": np.array([]),
    "array of texts": np.array(["a", "b"]),
    "array of one": np.array(3),
}
SECONDS = 60
"""Longer than any call of a tiny model takes, on any machine."""


class Hung(BaseException):
    """A call that did not return."""


@contextmanager
def returns_within(seconds: int) -> Iterator[None]:
    """Raise `Hung` in the block once the time is over."""

    def stop(*_: object) -> None:
        raise Hung

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def wrongly_met(call: Callable[[Any], object], names: tuple[str, ...], kinds: dict[str, Any] = HOSTILE) -> list[str]:
    """What `call` does wrong with each value: it raises another error than a DaguerreError of one line with one of the
    `names` in it, or does not return.
    """
    return [f"{kind}: {wrong}" for kind, value in kinds.items() if (wrong := _wrong(call, value, names))]


def _wrong(call: Callable[[Any], object], value: Any, names: tuple[str, ...]) -> str | None:
    try:
        with returns_within(SECONDS):
            call(value)
    except DaguerreError as error:
        said = str(error)
        if "\n" in said or len(said) > 600:
            return f"an error that is not one line: {said[:200]!r}"
        return None if any(name in said for name in names) else f"none of {names} is named in: {said:.200}"
    except Hung:
        return "it did not return"
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:160]}"
    return None
