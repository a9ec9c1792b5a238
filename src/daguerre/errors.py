"""One tree of errors. Every message says what to do.

DaguerreError                 anything a user can cause; exit status 2, HTTP 400 unless said otherwise
├── InputError                a value that the caller gave: an option, a text, a length
│   ├── ContextError           a text, and what is asked for, that the model has no room for
│   └── UnsupportedError      something this model's context or training cannot honor
├── DataError                 a corpus, shard or file of examples
├── CheckpointError           a checkpoint that is truncated, altered, or of another shape
├── EngineError                  the engine has stopped; HTTP 503
│   └── QueueFullError           too many requests wait; HTTP 429
├── CancelledError               the caller ended the request
├── TimeUpError                  the time that a server gives a request is up; HTTP 408
├── TrainingError             a run that cannot go on: NaN loss, full disk
└── MissingExtra              an optional dependency; the message has the command that installs it
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping


class DaguerreError(Exception):
    """Base of all errors a user can cause. `http_status` is what a server answers with."""

    http_status = 400


class InputError(DaguerreError):
    """A value given by the caller is wrong."""


class ContextError(InputError):
    """The text and its new tokens are longer than the model's context."""


class UnsupportedError(InputError):
    """The request is sound, but this model's context or training cannot honor it."""


class DataError(DaguerreError):
    """A corpus, shard or file of examples cannot be used."""


class CheckpointError(DaguerreError):
    """A checkpoint is missing, truncated, altered, or of another shape."""

    http_status = 500


class TrainingError(DaguerreError):
    """A training run cannot go on; what was saved stays as it was."""

    http_status = 500


class EngineError(DaguerreError):
    """The engine takes no requests, or has stopped before one was done."""

    http_status = 503


class QueueFullError(EngineError):
    """Too many requests wait already."""

    http_status = 429


class CancelledError(DaguerreError):
    """The caller ended the request."""

    http_status = 499


class TimeUpError(DaguerreError):
    """The time that a server gives a request is up."""

    http_status = 408


class MissingExtra(DaguerreError):
    """An optional dependency is not installed."""

    http_status = 500

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed: run `pip install 'daguerre[{extra}]'`")


LONGEST_SHOWN = 60
"""Characters of a value that an error shows."""


def shown(value: object) -> str:
    """A value in an error: its `repr` in one line, cut."""
    try:
        words = " ".join(repr(value).split())
    except Exception:  # of an object of the caller's, or an int of more digits than Python writes
        words = f"a value of type {type(value).__name__}"
    return words if len(words) <= LONGEST_SHOWN else f"{words[:LONGEST_SHOWN]}..."


OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
"""Control characters of terminals, ends of lines, and characters that are invisible or turn the direction of text."""


def printable(text: str) -> str:
    """A text of a stranger for a terminal or a log: characters that are `OBEYED` are written as JSON escapes them."""
    return OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


MOST_NAMED = 30
"""How many names an error lists."""


def unknown(kind: str, name: object, known: Iterable[str], elsewhere: Mapping[str, str] | None = None) -> InputError:
    """An InputError for a name that is not in a table, with the nearest one that is. elsewhere: names that others use,
    and ours in their place.
    """
    written = name if isinstance(name, str) else shown(name)
    names, ours = sorted(known), (elsewhere or {}).get(written)
    near = difflib.get_close_matches(written[:LONGEST_SHOWN], names, n=1) if ours is None else [ours]
    more = ", ..." if len(names) > MOST_NAMED else ""
    hint = f"did you mean {near[0]!r}?" if near else f"choose one of: {', '.join(names[:MOST_NAMED])}{more}"
    return InputError(f"unknown {kind} {shown(name)}: {hint}")


def no_concept_heads(needed_by: str | None = None) -> UnsupportedError:
    """An UnsupportedError for a model without concept heads, with the name of what needs them, if there is one."""
    why = "" if needed_by is None else f", which {needed_by} needs"
    return UnsupportedError(
        f"this model has no concept heads{why}: use one that has, such as `--model concepts` or "
        'daguerre.load("concepts"), or train some with `daguerre train concepts`'
    )
