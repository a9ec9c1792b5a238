"""Which backends answered which requests right: read from a file of outcomes, or from a router's log.

A line of outcomes has a `prompt` or a `body` (with its `operation`, by default chat), `outcomes`, a number from 0 to 1
by backend, and may have a `group`, such as a subject or a user. A log counts where it has bodies (`log_text`) and
grades. A backend that explores is graded more often for some requests than for others: where no shadow has graded a
second answer, the grade weighs 1 / propensity, at most MOST_WEIGHT. A shadow's grade by `exact` says only whether two
answers are alike, so it counts for nothing here.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daguerre.errors import DataError
from daguerre.router.measures import text_of
from daguerre.router.reading import ParsedRequest, read

Array = NDArray[np.float64]
MOST_WEIGHT = 20.0
CACHED = ("hit", "near")
GONE = 499
NO_TEXT = "requests without a text"


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcomes:
    """N requests and B backends.

    right     (N, B), 0 to 1; NaN: not known
    weights   (N, B), of each outcome; 0: not known
    groups    (N,): requests of one are never on both sides of a split; those without one are grouped by their text
    named     (N,): whether the file gave the group
    unused    how many lines of the file are not among these, by the reason
    """

    readings: Sequence[ParsedRequest]
    backends: tuple[str, ...]
    right: Array
    weights: Array
    groups: NDArray[np.str_]
    named: NDArray[np.bool_]
    unused: Mapping[str, int] = field(default_factory=dict)

    def of(self, rows: NDArray[np.int64], backends: Sequence[int] | None = None) -> Outcomes:
        """Some of the requests, and of the backends."""
        some = np.arange(len(self.backends)) if backends is None else np.array(backends, np.int64)
        return Outcomes(
            readings=[self.readings[row] for row in rows.tolist()],
            backends=tuple(self.backends[place] for place in some.tolist()),
            right=self.right[np.ix_(rows, some)],
            weights=self.weights[np.ix_(rows, some)],
            groups=self.groups[rows],
            named=self.named[rows],
            unused=self.unused,
        )


@dataclass
class _Row:
    """A request that was read, and the grades and weights of its answers by backend."""

    reading: ParsedRequest
    group: str | None = None
    grades: dict[str, float] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class _Logged:
    """A request of a log: its row, which backend answered it, how its grade weighs; or why it is not used."""

    row: _Row | None = None
    backend: str | None = None
    weight: float = 1.0
    why: str | None = None


def read_outcomes(path: Path) -> Outcomes:
    """The outcomes of a file, which may be gzipped. DataError, with the line's number, for what is neither outcomes nor
    a log, and for a log without bodies or grades.
    """
    rows, logged, shadows, unused = list[_Row](), dict[str, _Logged](), list[dict[str, Any]](), Counter[str]()
    for number, line in lines_of(path, unused):
        try:
            if "outcomes" in line:
                rows.append(_outcome(line))
            elif "shadow_of" in line:
                shadows.append(line)
            elif "decision" in line:
                logged[line["id"]] = _logged(line)
            elif "value" not in line:
                raise ValueError("it has neither outcomes nor a decision")
        except (KeyError, TypeError, ValueError) as error:
            message = f"line {number} of {path} cannot be used: {error!s:.200}: see docs/routing-evaluation.md"
            raise DataError(message) from None
    if logged and all(each.why == NO_TEXT for each in logged.values()):
        raise DataError(f"{path} has no texts of requests: set `log_text = true` under [server], and log again")
    unused.update(why for why in (_shadowed(shadow, logged) for shadow in shadows) if why)
    for each in logged.values():
        if each.row is not None and each.row.grades:
            rows.append(each.row)
        else:
            unused[each.why or "requests without a grade"] += 1
    if not rows:
        raise DataError(f"{path} has no graded answers: set a [grader] and a [shadow], or give outcomes")
    return replace(_gathered(rows), unused=dict(unused))


def lines_of(path: Path, unused: Counter[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The lines of a file. One of a router's log may be cut off, where the router was killed."""
    log = False
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if packed else path.open("rb") as file:
            for number, text in enumerate(file, 1):
                if not text.strip():
                    continue
                try:
                    line = json.loads(text)
                except ValueError:
                    if not log or text.endswith(b"}\n"):
                        raise DataError(f"line {number} of {path} is no JSON") from None
                    unused["lines that were cut off"] += 1
                    continue
                if not isinstance(line, dict):
                    raise DataError(f"line {number} of {path} is no JSON object")
                log = log or "config" in line or "decision" in line
                yield number, line
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"cannot read {path}: {error}") from None


def _outcome(line: dict[str, Any]) -> _Row:
    """A line of outcomes."""
    outcomes, group = line["outcomes"], line.get("group")
    if not isinstance(outcomes, dict) or not outcomes:
        raise ValueError("outcomes must be an object of backends and numbers from 0 to 1")
    if "body" in line:
        reading = read(str(line.get("operation", "chat")), line["body"])
    elif isinstance(line.get("prompt"), str):
        reading = read(str(line.get("operation", "completions")), {"prompt": line["prompt"]})
    else:
        raise ValueError("it has neither a prompt nor a body")
    grades = {str(name): grade_of(value) for name, value in outcomes.items() if value is not None}
    return _Row(reading, None if group is None else str(group), grades, dict.fromkeys(grades, 1.0))


def grade_of(value: object) -> float:
    """A grade in JSON, 0 to 1. ValueError for what is none."""
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"an outcome must be true, false or a number from 0 to 1, not {value!r:.40}")
    return float(value)


def _logged(line: dict[str, Any]) -> _Logged:
    """What a request's line in a log says."""
    tried = line.get("attempts", ())
    good = [one["backend"] for one in tried if _answered(one)]
    decided, propensity = line["decision"]["backend"], float(line["decision"]["propensity"])
    name = good[-1] if good else None
    weight = min(1 / max(propensity, 1e-9), MOST_WEIGHT) if name == decided else 1.0
    if "body" not in line:
        return _Logged(why=NO_TEXT)
    if line.get("cache") in CACHED:
        return _Logged(why="requests that the cache answered")
    if name is None:
        return _Logged(why="requests that no backend answered")
    row = _Row(read(line["features"]["operation"], line["body"]))
    if line.get("grade") is not None:
        row.grades[name], row.weights[name] = grade_of(line["grade"]), weight
    return _Logged(row, name, weight)


def _answered(attempt: Mapping[str, Any]) -> bool:
    """Whether an attempt's answer was given to the client."""
    failed = "error" in attempt or (attempt.get("status") or GONE) >= 400
    return not failed and not attempt.get("rejected")


def _shadowed(line: dict[str, Any], logged: Mapping[str, _Logged]) -> str | None:
    """Add what a shadow says to its request; why it says nothing, if it does."""
    held = logged.get(str(line["shadow_of"]))
    if held is None or held.row is None or held.backend is None:
        return "shadows of requests that are not used"
    row, main, second = held.row, line.get("main_grade"), line.get("grade")
    if main is not None:
        row.grades[held.backend], row.weights[held.backend] = grade_of(main), held.weight
    if second is not None and line.get("grader") == "exact":
        return "shadows that were only compared (grader exact)"
    if second is not None and line.get("backend") is not None:
        row.grades[line["backend"]] = grade_of(second)
        row.weights |= dict.fromkeys(row.grades, 1.0)
    return None if main is not None or second is not None else "shadows without a grade"


def _gathered(rows: Sequence[_Row]) -> Outcomes:
    backends = tuple(dict.fromkeys(name for row in rows for name in row.grades))
    right, weights = np.full((len(rows), len(backends)), np.nan), np.zeros((len(rows), len(backends)))
    for place, row in enumerate(rows):
        for name, grade in row.grades.items():
            right[place, backends.index(name)] = grade
            weights[place, backends.index(name)] = row.weights[name]
    return Outcomes(
        readings=[row.reading for row in rows],
        backends=backends,
        right=right,
        weights=weights,
        groups=np.array([_group(row) for row in rows]),
        named=np.array([row.group is not None for row in rows]),
    )


def _group(row: _Row) -> str:
    if row.group is not None:
        return f"group {row.group}"
    return f"text {hashlib.sha256(text_of(row.reading).encode('utf-8', 'replace')).hexdigest()[:32]}"
