"""A log as columns: what analysis needs of each request, some 250 bytes, so that a million fit in memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from daguerre.router.config import Backend, Config
from daguerre.router.estimators import Array, spread_of
from daguerre.router.log import LogEntry, Read, ShadowOutcome, no_line, read_log, read_shadows

CACHES = ("hit", "near", "miss")
GONE = 499
REQUEST = np.dtype(
    [
        ("time", "f8"),
        ("ms", "f8"),
        ("first", "f8"),  # of streams alone: other answers are there at once
        ("cost", "f8"),
        ("input", "f8"),
        ("output", "f8"),
        ("slo", "f8"),  # of the request or of its step type
        ("other_slo", "f8"),  # of the other configuration
        ("grade", "f8"),
        ("config", "i4"),
        ("step", "i2"),
        ("decided", "i2"),  # -1: no backend could
        ("answered", "i2"),  # -1: none did, or the cache
        ("status", "i2"),
        ("retries", "i2"),  # attempts after the first, with the same backend, and with another one
        ("fallbacks", "i2"),
        ("hedges", "i2"),
        ("cache", "i1"),  # of CACHES; -1: not asked
    ]
)
ATTEMPT = np.dtype([("backend", "i2"), ("failed", "?"), ("answered", "?"), ("ms", "f8"), ("first", "f8")])
PAIR = np.dtype([("row", "i8"), ("backend", "i2"), ("exact", "?"), ("grade", "f8"), ("main", "f8"), ("cost", "f8")])


@dataclass
class Spread:
    """Numbers of requests and backends, most of which are 0: as they are found, and then as a matrix."""

    row: array[int] = field(default_factory=lambda: array("q"))
    arm: array[int] = field(default_factory=lambda: array("h"))
    value: array[float] = field(default_factory=lambda: array("d"))

    def add(self, row: int, arm: int, value: float) -> None:
        """One number."""
        self.row.append(row)
        self.arm.append(arm)
        self.value.append(value)

    def matrix(self, num: int, arms: int) -> Array:
        """Of `num` requests, float32 (num, arms)."""
        out = np.zeros((num, arms), np.float32)
        out[np.array(self.row, np.int64), np.array(self.arm, np.int64)] = np.array(self.value)
        return out


@dataclass
class LoggedRequests:
    """The requests of a log, R of them, with K backends by the numbers of `backends`.

    requests   REQUEST (R,)
    attempts   ATTEMPT: those that were sent to a backend
    pairs      PAIR: shadows, each with its request's row and the grade of its main answer; exact: `grade` says whether
               both answers are the same
    excluded   float32 (R, K), 1 where a backend could not have served the request
    predicted  float32 (R, K), quality
    given      float32 (R, K), the probability of each backend under the log's configuration; 0 where the other one
               means another server or model by the name
    target     the same under the other configuration; None: there is none
    same       bool (C, K), where a configuration of the log and the other one mean the same by a name
    """

    backends: list[str]
    steps: list[str]
    configs: list[Config]
    cut_off: int
    orphans: int
    requests: Array
    attempts: Array
    pairs: Array
    excluded: Array
    predicted: Array
    given: Array
    target: Array | None
    same: Array

    @property
    def answered(self) -> Array:
        """Which requests were answered, bool (R,)."""
        return np.asarray(self.requests["status"] < 400)

    @property
    def failed(self) -> Array:
        """Which the router failed: none of its backends could, or all that were tried failed."""
        status = self.requests["status"]
        return np.asarray((status >= 500) | (status == 429) | ((self.requests["decided"] < 0) & (status >= 400)))

    @property
    def cached(self) -> Array:
        """Which the cache answered."""
        return np.isin(self.requests["cache"], (CACHES.index("hit"), CACHES.index("near")))

    @property
    def both_graded(self) -> Array:
        """Which pairs have the grades of two backends, bool (P,)."""
        main = self.requests["answered"][self.pairs["row"]]
        known = np.isfinite(self.pairs["grade"]) & np.isfinite(self.pairs["main"]) & ~self.pairs["exact"]
        return np.asarray(known & (main >= 0) & (main != self.pairs["backend"]))

    def met(self, slo: str = "slo") -> Array:
        """1 where the answer was there within its SLO, 0 where it was late or failed, NaN where none was promised, and
        where the client left or had asked for what cannot be: float (R,).
        """
        judged = (self.answered | self.failed) & np.isfinite(self.requests[slo])
        within = self.answered & (self.requests["ms"] <= self.requests[slo])
        return np.where(judged, within, np.nan)

    def costs(self) -> Array:
        """Dollars of each request with each backend, had its answer had the same tokens: float (R, K)."""
        prices = np.array([prices_of(each, self.backends) for each in self.configs])
        table = prices.reshape(len(self.configs), len(self.backends), 3)[self.requests["config"]]
        into, out = self.requests["input"][:, None], self.requests["output"][:, None]
        return np.asarray(into * table[..., 0] + out * table[..., 1] + table[..., 2])


def prices_of(config: Config, backends: list[str]) -> list[tuple[float, float, float]]:
    """Dollars for a token in, a token out and a request of each backend; NaN where it has no such backend."""
    known = {each.name: each.price for each in config.backends}
    return [
        (known[name].input / 1e6, known[name].output / 1e6, known[name].request) if name in known else (np.nan,) * 3
        for name in backends
    ]


def read_rows(path: Path, other: Config | None = None) -> LoggedRequests:
    """A log, in two passes: its shadows, which follow their requests, then its requests. DataError for what no router
    has written.
    """
    reading = _Reading(path, read_shadows(path), other)
    requests = np.fromiter(reading.requests(), REQUEST)
    num, arms = len(requests), len(reading.backends)
    target = None if other is None else reading.target.matrix(num, arms)
    given = reading.given.matrix(num, arms)
    same = reading.same(other)
    if num:
        given *= same[requests["config"]]
    return LoggedRequests(
        list(reading.backends),
        list(reading.steps),
        reading.configs,
        reading.found.cut_off,
        sum(each.backend is not None for some in reading.shadows.values() for each in some),
        requests,
        _columns(reading.attempts, ATTEMPT),
        _columns(reading.pairs, PAIR),
        reading.excluded.matrix(num, arms),
        reading.predicted.matrix(num, arms),
        given,
        target,
        same,
    )


class _Reading:
    """What reading a log has found so far. Backends and step types have numbers in the order they are met."""

    def __init__(self, path: Path, shadows: dict[str, list[ShadowOutcome]], other: Config | None) -> None:
        self.path, self.shadows, self.other = path, shadows, other
        self.backends, self.steps = dict[str, int](), dict[str, int]()
        self.configs, self._numbers = list[Config](), dict[str, int]()
        self.found = Read()
        self.attempts, self.pairs = array("d"), array("d")
        self.excluded, self.predicted, self.given, self.target = Spread(), Spread(), Spread(), Spread()
        for each in other.backends if other else ():
            self._backend(each.name)

    def requests(self) -> Iterator[tuple[Any, ...]]:
        """Tuples of REQUEST; all else is kept here."""
        for row, entry in enumerate(read_log(self.path, self.found)):
            try:
                yield self._request(row, entry)
            except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
                raise no_line(self.path, entry.number, error) from None

    def same(self, other: Config | None) -> Array:
        """Where a configuration of the log and the other one mean the same server and model by a name, bool (C, K)."""
        theirs = {each.name: _means(each) for each in other.backends} if other else {}
        out = np.zeros((len(self.configs), len(self.backends)), bool)
        for number, config in enumerate(self.configs):
            for each in config.backends:
                out[number, self.backends[each.name]] = theirs.get(each.name) in (None, _means(each))
        return out

    def _request(self, row: int, entry: LogEntry) -> tuple[Any, ...]:
        line, decision = entry.line, entry.line["decision"]
        config, step, wishes = entry.config, decision["step"], line["features"]["wishes"]
        self._decision(row, entry, decision)
        retries, fallbacks, hedges, answered, first = self._attempts(line)
        shadows = self.shadows.pop(line["id"], ()) if self.shadows else ()
        grade = line.get("grade")
        for shadow in shadows:
            grade = shadow.main_grade if grade is None else grade
            numbers = (shadow.grade, shadow.main_grade, shadow.cost)
            if shadow.backend is not None:
                self.pairs.extend((row, self._backend(shadow.backend), shadow.exact, *map(_number, numbers)))
        tokens = line.get("tokens") or {}
        slo = wishes.get("slo_ms")
        return (
            line["time"],
            line["ms"],
            first,
            _number(line.get("cost")),
            _number(tokens.get("input")),
            _number(tokens.get("output")),
            _number(config.rule(step).slo_ms if slo is None else slo),
            np.nan if self.other is None else _number(self.other.rule(step).slo_ms if slo is None else slo),
            _number(grade),
            self._numbers[config.sha256],
            self.steps.setdefault(step, len(self.steps)),
            -1 if decision["backend"] is None else self.backends[decision["backend"]],
            answered,
            line["status"],
            retries,
            fallbacks,
            hedges,
            CACHES.index(line["cache"]) if line.get("cache") in CACHES else -1,
        )

    def _decision(self, row: int, entry: LogEntry, decision: Mapping[str, Any]) -> None:
        """The candidates, and the probabilities of both configurations."""
        config = entry.config
        if config.sha256 not in self._numbers:
            self._numbers[config.sha256] = len(self.configs)
            self.configs.append(config)
            for backend in config.backends:
                self._backend(backend.name)
        for each in decision["candidates"]:
            if each["excluded"] is not None:
                self.excluded.add(row, self.backends[each["name"]], 1.0)
        if self.other is None:
            return
        given = spread_of(decision, config)
        if "cascade" in entry.line and config.cascade != self.other.cascade:
            given = dict.fromkeys(given, 0.0)  # what another cascade, or none, would have answered is not known
        elif decision["backend"] is not None and abs(given[decision["backend"]] - decision["propensity"]) > 1e-9:
            raise ValueError("its propensity is not that of its configuration: try daguerre route replay")
        theirs = entry.again(self.other)
        for name, value in given.items():
            self.given.add(row, self.backends[name], value)
        for name, value in spread_of(theirs.to_dict(), self.other).items():
            self.target.add(row, self.backends[name], value)
        for name, value in [(each.name, each.quality) for each in theirs.candidates] + [
            (each["name"], each["quality"]) for each in decision["candidates"]
        ]:
            self.predicted.add(row, self.backends[name], value)

    def _attempts(self, line: Mapping[str, Any]) -> tuple[int, int, int, int, float]:
        """Retries, fallbacks, hedges, the backend that answered, and when the first text of its stream came."""
        tried, answered, first = set[str](), -1, np.nan
        retries = fallbacks = hedges = 0
        for each in line["attempts"]:
            name, begun = each["backend"], each["begun_ms"]
            if each.get("hedge"):
                hedges += 1
            elif tried:
                retries += name in tried
                fallbacks += name not in tried
            if not each.get("draft"):
                tried.add(name)
            number, failed = self._backend(name), "error" in each
            good = not failed and (each.get("status") or GONE) < 400 and not each.get("rejected")
            came = each.get("first_ms") if line["features"]["stream"] else None
            if good:
                answered, first = number, _number(came)
            times = (_number(each.get("ms")) - begun, _number(came) - begun)
            self.attempts.extend((number, failed, good, *times))
        return retries, fallbacks, hedges, answered, first

    def _backend(self, name: str) -> int:
        return self.backends.setdefault(name, len(self.backends))


def _columns(flat: array[float], kind: np.dtype[Any]) -> Array:
    """Rows of numbers, one after the other, by the names of their columns."""
    assert kind.names is not None
    table = np.array(flat).reshape(-1, len(kind.names))
    out = np.zeros(len(table), kind)
    for place, name in enumerate(kind.names):
        out[name] = table[:, place]
    return out


def _means(backend: Backend) -> tuple[Any, ...]:
    """What is asked by the name of a backend."""
    return str(backend.url), backend.model, repr(sorted(backend.body.items())), getattr(backend, "api", None)


def _number(value: Any) -> float:
    return np.nan if value is None else float(value)
