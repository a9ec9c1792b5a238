"""A circuit breaker: a backend that fails again and again has no requests for a while, and then one to try.

closed      requests go there; so many failures in a row as the configuration says open it
open        none go there until a time that doubles with each opening, up to a limit; a backend that says when to come
            back (Retry-After) is left alone until then
half open   one request tries; its success closes the circuit, its failure opens it again
"""

from __future__ import annotations

from daguerre.router.config import Breaker


class Circuit:
    """The breaker of one backend. Times are seconds of one clock."""

    def __init__(self, rule: Breaker | None = None) -> None:
        self._rule = rule or Breaker()
        self._failures, self._openings = 0, 0
        self._until = 0.0
        self._probing = False

    def state(self, now: float) -> str:
        """closed, open, or half open."""
        if now < self._until:
            return "open"
        return "half open" if self._openings else "closed"

    def wait(self, now: float) -> float:
        """Seconds until requests may go there; 0: now, or as soon as the one that tries has an answer."""
        return max(0.0, self._until - now)

    def allows(self, now: float) -> bool:
        """Whether a request may go there."""
        return now >= self._until and not self._probing

    def begin(self, now: float) -> None:
        """A request goes there."""
        self._probing = self.state(now) == "half open"

    def succeeded(self) -> None:
        """It was answered."""
        self._failures = self._openings = 0
        self._probing, self._until = False, 0.0

    def failed(self, now: float, retry_after: float | None = None) -> None:
        """It was not answered. retry_after: seconds that the backend asks for."""
        self._failures, rule = self._failures + 1, self._rule
        if self._probing or self._failures >= rule.failures:
            self._until = now + min(rule.cool * 2.0**self._openings, rule.most_cool)
            self._openings += 1
        if retry_after is not None:
            self._until = max(self._until, now + min(retry_after, rule.most_cool))
        self._probing = False

    def left(self) -> None:
        """Nobody waited for its answer, which says nothing about the backend."""
        self._probing = False
