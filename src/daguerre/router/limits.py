"""What owners of keys may use: budgets a day, and rates a minute.

A request is admitted with what it is expected to cost, which is held for it until it is settled with what it did cost.
So any number of requests at once exceed a budget by no more than what they cost beyond their expectations. A day is one
of UTC, and counts what was settled in it; a minute is the last 60 seconds, and counts requests when they were admitted,
and tokens when they were settled. A request that is refused counts as none. One that is expected to cost nothing passes
every budget, and one of no tokens every limit of tokens.

Days are in a table of a database and outlast a restart; minutes do not. One process uses a database.
"""

from __future__ import annotations

import logging
import math
import sqlite3
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from daguerre.http.errors import ApiError
from daguerre.router.config import KeyLimits

LOG = logging.getLogger("daguerre.router")
MINUTE, DAY = 60.0, 86400
KEPT_DAYS = 31
ROUNDING = 1 + 1e-9
"""By which sums of dollars may be above a budget that they reach exactly."""
NO_LIMITS = KeyLimits()
TABLES = """
CREATE TABLE IF NOT EXISTS spent (owner TEXT NOT NULL, day INTEGER NOT NULL, dollars REAL NOT NULL,
    tokens INTEGER NOT NULL, requests INTEGER NOT NULL, PRIMARY KEY (owner, day)) WITHOUT ROWID;
"""


class LimitError(ApiError):
    """A request that is refused for now. retry_after: whole seconds after which an equal one may be admitted; None: it
    is not known, or never.
    """

    def __init__(self, message: str, code: str, retry_after: float | None) -> None:
        super().__init__(message, 429, code=code)
        self.retry_after = None if retry_after is None else max(1, math.ceil(retry_after))


@dataclass(frozen=True)
class DailyUsage:
    """What an owner used in a day: settled requests alone."""

    dollars: float = 0.0
    tokens: int = 0
    requests: int = 0


@dataclass(eq=False)
class Reservation:
    """What is held for a request that was admitted. Settle it once; later times change nothing."""

    owner: str
    dollars: float
    tokens: int
    open: bool = True


@dataclass
class _Account:
    """What is known of an owner.

    day, usage  of the last day that was asked for
    open        requests under way
    asked       when requests of the last minute were admitted, where that is limited
    settled     when tokens of the last minute were settled, and how many, where that is limited; minute: their sum
    """

    day: int = -1
    usage: DailyUsage = DailyUsage()
    open: set[Reservation] = field(default_factory=set)
    asked: deque[float] = field(default_factory=deque)
    settled: deque[tuple[float, int]] = field(default_factory=deque)
    minute: int = 0

    @property
    def held_dollars(self) -> float:
        """Of requests under way."""
        return math.fsum(one.dollars for one in self.open)

    @property
    def held_tokens(self) -> int:
        """Of requests under way."""
        return sum(one.tokens for one in self.open)

    def forget(self, now: float) -> None:
        """Leave out what is older than a minute, or has the time of a clock that was set back."""
        while self.asked and not now - MINUTE < self.asked[0] <= now:
            self.asked.popleft()
        while self.settled and not now - MINUTE < self.settled[0][0] <= now:
            self.minute -= self.settled.popleft()[1]


class OwnerLimits:
    """The limits of all owners. `table` has them by the names that `name_of` gives owners, and under "default" those of
    every other owner. Used by one thread at a time, but for `of`. `now` is in seconds since the epoch everywhere.

    A database that is damaged or full fails no request: what cannot be read counts as nothing, and what cannot be
    written is counted until the process ends. The first failure is logged.
    """

    def __init__(
        self, db: sqlite3.Connection, table: Mapping[str, KeyLimits], name_of: Callable[[str], str] = str
    ) -> None:
        self._db, self._table, self._name_of = db, dict(table), name_of
        self._accounts = dict[str, _Account]()
        self._last_day, self.failures = -1, 0
        try:
            self._db.executescript(TABLES)
        except sqlite3.Error as error:
            self._failed(error)

    def of(self, owner: str) -> KeyLimits:
        """The limits of an owner."""
        return self._table.get(self._name_of(owner), self._table.get("default", NO_LIMITS))

    def admit(self, owner: str | None, dollars: float, tokens: int, now: float) -> Reservation:
        """Let a request in that is expected to cost so much, input and output together. LimitError where a limit
        forbids it: of several the one that lasts longest. Without keys the owner is "" or None.
        """
        name = owner or ""
        limits, account = self.of(name), self._account(name, now)
        errors = (
            []
            if limits == NO_LIMITS
            else [
                _over_requests(limits, account, now),
                _over_minute(limits, account, tokens, now),
                _over_day("dollars", limits.dollars_per_day, account.usage.dollars, account.held_dollars, dollars, now),
                _over_day("tokens", limits.tokens_per_day, account.usage.tokens, account.held_tokens, tokens, now),
            ]
        )
        if found := [error for error in errors if error is not None]:
            raise max(found, key=lambda error: math.inf if error.retry_after is None else error.retry_after)
        if limits.requests_per_minute is not None:
            account.asked.append(now)
        reservation = Reservation(name, dollars, tokens)
        account.open.add(reservation)
        return reservation

    def settle(self, reservation: Reservation, dollars: float, tokens: int, now: float) -> None:
        """A request that was admitted has ended, and did cost so much: nothing where it failed."""
        if not reservation.open:
            return
        reservation.open = False
        account = self._account(reservation.owner, now)
        account.open.discard(reservation)
        if tokens and self.of(reservation.owner).tokens_per_minute is not None:
            account.settled.append((now, tokens))
            account.minute += tokens
        old = account.usage
        account.usage = DailyUsage(old.dollars + dollars, old.tokens + tokens, old.requests + 1)
        self._write(reservation.owner, account)

    def usage(self, owner: str | None, now: float) -> DailyUsage:
        """What an owner has used today."""
        return self._account(owner or "", now).usage

    def usages(self, now: float) -> dict[str, DailyUsage]:
        """What each owner has used today, by owner; without those that have used nothing."""
        day = int(now // DAY)
        try:
            rows = self._db.execute("SELECT owner FROM spent WHERE day = ?", (day,)).fetchall()
        except sqlite3.Error as error:
            self._failed(error)
            rows = []
        names = {name for (name,) in rows} | set(self._accounts)
        found = {name: self.usage(name, now) for name in sorted(names)}
        return {name: usage for name, usage in found.items() if usage != DailyUsage()}

    def _account(self, owner: str, now: float) -> _Account:
        """An owner's account at a time."""
        account, day = self._accounts.setdefault(owner, _Account()), int(now // DAY)
        if account.day != day:
            account.day, account.usage = day, self._read(owner, day)
        account.forget(now)
        return account

    def _read(self, owner: str, day: int) -> DailyUsage:
        try:
            sql = "SELECT dollars, tokens, requests FROM spent WHERE owner = ? AND day = ?"
            row = self._db.execute(sql, (owner, day)).fetchone()
            return DailyUsage() if row is None else DailyUsage(float(row[0]), int(row[1]), int(row[2]))
        except (sqlite3.Error, ValueError) as error:
            self._failed(error)
            return DailyUsage()

    def _write(self, owner: str, account: _Account) -> None:
        used = account.usage
        row = (owner, account.day, used.dollars, used.tokens, used.requests)
        try:
            self._db.execute("INSERT OR REPLACE INTO spent VALUES (?, ?, ?, ?, ?)", row)
            if account.day != self._last_day:
                self._db.execute("DELETE FROM spent WHERE day <= ?", (account.day - KEPT_DAYS,))
                self._last_day = account.day
        except sqlite3.Error as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        if not self.failures:
            LOG.warning("the table of what keys have used fails; it is counted until the router stops: %s", error)
        self.failures += 1


def _over_requests(limits: KeyLimits, account: _Account, now: float) -> LimitError | None:
    most = limits.requests_per_minute
    if most is None or len(account.asked) < most:
        return None
    return _too_fast(f"this key may ask {most} times a minute", account.asked[0] + MINUTE - now)


def _over_minute(limits: KeyLimits, account: _Account, tokens: int, now: float) -> LimitError | None:
    most = limits.tokens_per_minute
    if most is None or not tokens:
        return None
    if tokens > most:
        message = f"this key may use {most} tokens a minute, and the request may need {tokens}: ask for fewer"
        return LimitError(message, "rate_limit_exceeded", None)
    over = account.held_tokens + account.minute + tokens - most
    if over <= 0:
        return None
    after = None
    for time, number in account.settled:
        over -= number
        if over <= 0:
            after = time + MINUTE - now
            break
    return _too_fast(f"this key may use {most} tokens a minute", after)


def _too_fast(said: str, after: float | None) -> LimitError:
    wait = "wait for its other requests to end" if after is None else f"ask again in {max(1, math.ceil(after))} s"
    return LimitError(f"{said}: {wait}", "rate_limit_exceeded", after)


def _over_day(unit: str, most: float | None, spent: float, held: float, asked: float, now: float) -> LimitError | None:
    """The error of a request that may cost more than what is left of a day's budget."""
    if most is None or not asked or spent + held + asked <= most * ROUNDING:
        return None
    said, after = f"this key may use {most:.10g} {unit} a day (UTC) and the request may need {asked:.10g}", None
    if asked > most:
        return LimitError(f"{said}: ask for less", "budget_exceeded", None)
    said += f", of {max(0.0, most - spent - held):.10g} left"
    if spent + asked <= most * ROUNDING or held + asked > most * ROUNDING:
        said += ": wait for its other requests to end"
    else:
        said, after = f"{said}: ask for less, or wait for the next day", DAY - now % DAY
    return LimitError(said, "budget_exceeded", after)
