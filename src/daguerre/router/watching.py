"""How a router is doing: counters for Prometheus and numbers for the status page, all from the lines of its log."""

from __future__ import annotations

import time
from collections import Counter as Counts
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from daguerre.router.config import Config
from daguerre.router.latency import DecayedQuantiles

SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 300.0)
SHORT = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05)
LAST = 50
"""Requests that the status page lists."""


@dataclass
class RunningTotals:
    """Numbers of requests of one backend or step type, and their times in milliseconds, newer ones weighing more. What
    a client did wrong, or gave up, neither keeps nor breaks an SLO.
    """

    requests: int = 0
    failed: int = 0
    in_time: int = 0
    promised: int = 0
    cost: float = 0.0
    times: DecayedQuantiles = field(default_factory=DecayedQuantiles)

    def add(self, line: Mapping[str, Any], slo: float | None, at: float) -> None:
        """A request that ended."""
        self.requests += 1
        self.failed += line["status"] >= 400
        self.cost += line.get("cost", 0.0)
        if line["status"] < 400:
            self.times.add(line["ms"], at)
        if slo is not None and not 400 <= line["status"] < 500:
            self.promised += 1
            self.in_time += line["status"] < 400 and line["ms"] <= slo

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "requests": self.requests,
            "failed": self.failed,
            "cost": self.cost,
            "p50_ms": self.times.quantile(0.5),
            "p95_ms": self.times.quantile(0.95),
            "in_time": self.in_time / self.promised if self.promised else None,
        }


class LogWatcher:
    """Takes the lines of a log."""

    def __init__(self, config: Config) -> None:
        self._config, self._began = config, time.time()
        self._backends, self._steps = (
            defaultdict[str, RunningTotals](RunningTotals),
            defaultdict[str, RunningTotals](RunningTotals),
        )
        self._rules, self._last = Counts[str](), deque[dict[str, Any]](maxlen=LAST)
        self.registry = CollectorRegistry()
        here: dict[str, Any] = {"registry": self.registry}
        self._http = Counter("daguerre_http_requests", "Answers by path and status.", ["path", "status"], **here)
        labels = ["backend", "step"]
        self._requests = Counter("daguerre_route_requests", "Requests that ended.", [*labels, "status"], **here)
        self._attempts = Counter("daguerre_route_attempts", "Requests to backends.", ["backend", "outcome"], **here)
        self._hedges = Counter("daguerre_route_hedges", "Second requests to another backend.", ["backend"], **here)
        self._rule = Counter("daguerre_route_decisions", "Decisions by the rule that made them.", ["rule"], **here)
        self._cost = Counter("daguerre_route_cost_dollars", "Dollars that answers cost.", labels, **here)
        self._tokens = Counter("daguerre_route_tokens", "Tokens of requests and answers.", ["backend", "kind"], **here)
        self._slo = Counter(
            "daguerre_route_slo", "Requests with an SLO, by whether it was met.", ["step", "met"], **here
        )
        self._cached = Counter("daguerre_route_cache", "Requests that the cache was asked for.", ["result"], **here)
        self._cascades = Counter(
            "daguerre_route_cascades", "Small backends' first answers.", ["backend", "accepted"], **here
        )
        self._shadows = Counter("daguerre_route_shadows", "Shadows and how they ended.", ["backend", "outcome"], **here)
        self._grades = Histogram(
            "daguerre_route_grade", "Grades of answers.", ["backend"], buckets=(0.0, 0.2, 0.4, 0.6, 0.8, 1.0), **here
        )
        self._first = Histogram(
            "daguerre_route_first_text_seconds", "Until the first text of a stream.", labels, buckets=SECONDS, **here
        )
        self._whole = Histogram(
            "daguerre_route_seconds", "Until the end of an answer.", labels, buckets=SECONDS, **here
        )
        self._decided = Histogram(
            "daguerre_route_decision_seconds", "Until a request was decided.", buckets=SHORT, **here
        )

    def answered(self, path: str, status: int) -> None:
        """Count an answer over HTTP."""
        self._http.labels(path, str(status)).inc()

    def line(self, line: Mapping[str, Any]) -> None:
        """Count what a line of the log says."""
        if "shadow_of" in line:
            self._shadow(line)
        elif "decision" in line:
            self._request(line)

    def _shadow(self, line: Mapping[str, Any]) -> None:
        if line.get("backend"):
            self._shadows.labels(line["backend"], line.get("error", "ok")).inc()
            if line.get("grade") is not None:
                self._grades.labels(line["backend"]).observe(line["grade"])

    def _request(self, line: Mapping[str, Any]) -> None:
        features, decision, attempts = line["features"], line["decision"], line["attempts"]
        step, status = features["step"], line["status"]
        backend = line.get("backend", "none")
        self._requests.labels(backend, step, str(status)).inc()
        self._rule.labels(decision["rule"]).inc()
        self._decided.observe(line["decided_ms"] / 1000)
        for each in attempts:
            self._attempts.labels(each["backend"], each.get("error", "ok")).inc()
            if each.get("hedge"):
                self._hedges.labels(each["backend"]).inc()
        if (cascade := line.get("cascade")) is not None:
            self._cascades.labels(cascade["small"], "yes" if cascade.get("accepted") else "no").inc()
        if "cache" in line:
            self._cached.labels(line["cache"]).inc()
        if "tokens" in line:
            self._cost.labels(backend, step).inc(line["cost"])
            for kind in ("input", "output"):
                self._tokens.labels(backend, kind).inc(line["tokens"][kind])
        if status < 400:
            self._whole.labels(backend, step).observe(line["ms"] / 1000)
            for each in attempts:
                if features["stream"] and each["backend"] == backend and "first_ms" in each:
                    self._first.labels(backend, step).observe(each["first_ms"] / 1000)
        self._sum(line, backend, step)

    def _sum(self, line: Mapping[str, Any], backend: str, step: str) -> None:
        slo = line["features"]["wishes"].get("slo_ms", self._config.rule(step).slo_ms)
        at = time.monotonic()
        for sums in (self._backends[backend], self._steps[step]):
            sums.add(line, slo, at)
        if slo is not None and not 400 <= line["status"] < 500:
            met = line["status"] < 400 and line["ms"] <= slo
            self._slo.labels(step, "yes" if met else "no").inc()
        self._rules[line["decision"]["rule"]] += 1
        self._last.appendleft(
            {
                "id": line["id"],
                "owner": line.get("owner"),
                "time": line["time"],
                "step": step,
                "backend": backend,
                "chosen": line["decision"]["backend"],
                "rule": line["decision"]["rule"],
                "reason": line["decision"]["reason"],
                "status": line["status"],
                "ms": line["ms"],
                "cost": line.get("cost"),
                "attempts": len(line["attempts"]),
            }
        )

    def text(self) -> bytes:
        """All counters, in Prometheus' text format."""
        return generate_latest(self.registry)

    def status(self, owner: str | None = None) -> dict[str, Any]:
        """Numbers since the start, and the last requests, as JSON values; no text of a request. owner: the name of the
        one whose requests they are; None: of all.
        """
        return {
            "began": self._began,
            "config": self._config.sha256,
            "backends": {name: sums.to_dict() for name, sums in self._backends.items()},
            "steps": {name: sums.to_dict() for name, sums in self._steps.items()},
            "rules": dict(self._rules),
            "last": [one for one in self._last if owner is None or one["owner"] == owner],
        }
