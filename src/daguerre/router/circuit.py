"""A circuit breaker: a backend that fails again and again has no requests for a while, and then one to try.

closed      requests go there; so many failures in a row as the configuration says open it
open        none go there until a time that doubles with each opening, up to a limit; a backend that says when to come
            back (Retry-After) is left alone until then
half open   one request of each owner tries; its success closes the circuit, its failure opens it again, for that owner

Whose fault a failure is, nobody knows: a request may be one that no backend can answer. So equal requests of an owner
count once; the failures of one owner open the circuit for that owner alone, and those of several open it for all.
What no request can be the reason of, such as a backend that cannot be reached, counts each time and for all.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from daguerre.router.config import Breaker


@dataclass
class _Switch:
    """The circuit of one owner, or of all. probing: owners of whom a request tries; failed: the owners and requests of
    failures in a row.
    """

    until: float = 0.0
    openings: int = 0
    probing: set[str] = field(default_factory=set)
    failed: set[tuple[object, object]] = field(default_factory=set)

    def state(self, now: float) -> str:
        if now < self.until:
            return "open"
        return "half open" if self.openings else "closed"

    def fail(self, rule: Breaker, who: tuple[object, object]) -> None:
        """Note a failure."""
        if len(self.failed) < rule.failures or who[0] not in self._owners:
            self.failed.add(who)

    @property
    def _owners(self) -> set[object]:
        return {owner for owner, _ in self.failed}

    def is_due(self, rule: Breaker, several: bool) -> bool:
        """Whether failures are enough to open it. several: they must be of several owners."""
        return len(self.failed) >= rule.failures and (not several or len(self._owners) > 1)

    def is_down(self, rule: Breaker) -> bool:
        """Whether failures that no request can be the reason of are enough to open it."""
        return sum(not isinstance(owner, str) for owner in self._owners) >= rule.failures

    def open(self, now: float, rule: Breaker) -> None:
        self.until = now + min(rule.cool * 2.0**self.openings, rule.most_cool)
        self.openings += 1
        self.probing.clear()
        self.failed.clear()


class Circuit:
    """The breaker of one backend. Times are seconds of one clock; without keys the owner is ""."""

    def __init__(self, rule: Breaker | None = None) -> None:
        self._rule, self._all, self._own = rule or Breaker(), _Switch(), dict[str, _Switch]()

    def _both(self, owner: str) -> tuple[_Switch, _Switch]:
        return self._all, self._own.get(owner) or _Switch()

    def state(self, now: float, owner: str = "") -> str:
        """closed, open, or half open: as an owner's requests find it."""
        states = [one.state(now) for one in self._both(owner)]
        return next((state for state in ("open", "half open") if state in states), "closed")

    def wait(self, now: float, owner: str = "") -> float:
        """Seconds until an owner's requests may go there; 0: now, or as soon as the one that tries has an answer."""
        return max(0.0, *(one.until - now for one in self._both(owner)))

    def allows(self, now: float, owner: str = "") -> bool:
        """Whether an owner's request may go there."""
        return all(now >= one.until and owner not in one.probing for one in self._both(owner))

    def begin(self, now: float, owner: str = "") -> None:
        """A request goes there."""
        for one in self._both(owner):
            if one.state(now) == "half open":
                one.probing.add(owner)

    def succeeded(self, owner: str = "") -> None:
        """It was answered."""
        self._all = _Switch()
        self._own.pop(owner, None)

    def failed(
        self, now: float, retry_after: float | None = None, owner: str = "", request: object | None = None
    ) -> None:
        """It was not answered.

        retry_after  seconds that the backend asks for
        request      what is equal for equal requests; None: no request is the reason
        """
        rule, (everyone, own) = self._rule, self._both(owner)
        tried_all, tried_own = (owner in one.probing for one in (everyone, own))
        self.left(owner)
        if request is None:
            everyone.fail(rule, (object(), object()))
            if tried_all or everyone.is_down(rule):
                everyone.open(now, rule)
            if tried_own:
                own.open(now, rule)
        else:
            self._own[owner] = own
            own.fail(rule, (owner, request))
            if tried_all or tried_own or own.is_due(rule, several=False):
                own.open(now, rule)
            everyone.fail(rule, (owner, request))
            if everyone.is_due(rule, several=True):
                everyone.open(now, rule)
        if retry_after is not None:
            self._all.until = max(self._all.until, now + min(retry_after, rule.most_cool))

    def left(self, owner: str = "") -> None:
        """Nobody waited for its answer, which says nothing about the backend."""
        for one in self._both(owner):
            one.probing.discard(owner)
