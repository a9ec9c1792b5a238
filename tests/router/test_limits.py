"""Budgets a day and rates a minute, against a slow restatement."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daguerre.router.config import KeyLimits
from daguerre.router.limits import DAY, KEPT_DAYS, MINUTE, DailyUsage, LimitError, OwnerLimits, Reservation

NOON = 20_000 * DAY + DAY / 2


def database(path: Path | str = ":memory:") -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None)


def about(number: float) -> Any:
    return pytest.approx(number)


def limits(**default: Any) -> OwnerLimits:
    return OwnerLimits(database(), {"default": KeyLimits(**default)})


def test_requests_are_let_in_up_to_the_number_a_minute_and_again_as_the_oldest_leaves() -> None:
    one = limits(requests_per_minute=2)
    one.admit("ann", 0, 10, NOON)
    one.admit("ann", 0, 10, NOON + 20)
    with pytest.raises(LimitError, match="2 times a minute") as refused:
        one.admit("ann", 0, 10, NOON + 30)
    assert (refused.value.http_status, refused.value.code) == (429, "rate_limit_exceeded")
    assert refused.value.retry_after == 30
    one.admit("bob", 0, 10, NOON + 30)
    one.admit("ann", 0, 10, NOON + 60)
    with pytest.raises(LimitError):
        one.admit("ann", 0, 10, NOON + 79)


def test_tokens_a_minute_count_those_under_way_as_expected_and_those_that_ended_as_used() -> None:
    one = limits(tokens_per_minute=100)
    first = one.admit("ann", 0, 60, NOON)
    with pytest.raises(LimitError, match="wait for its other requests") as refused:
        one.admit("ann", 0, 50, NOON + 1)
    assert refused.value.retry_after is None
    one.settle(first, 0, 30, NOON + 2)
    one.settle(one.admit("ann", 0, 50, NOON + 12), 0, 50, NOON + 12)
    with pytest.raises(LimitError) as refused:
        one.admit("ann", 0, 40, NOON + 30)
    assert refused.value.retry_after == 32
    with pytest.raises(LimitError) as refused:
        one.admit("ann", 0, 90, NOON + 30)
    assert refused.value.retry_after == 42
    one.admit("ann", 0, 40, NOON + 62)


def test_a_request_that_can_never_fit_is_told_to_ask_for_less() -> None:
    for given_, code in (
        ({"tokens_per_minute": 10}, "rate_limit_exceeded"),
        ({"tokens_per_day": 10}, "budget_exceeded"),
        ({"dollars_per_day": 0.5}, "budget_exceeded"),
    ):
        with pytest.raises(LimitError, match=r"ask for (less|fewer)$") as refused:
            limits(**given_).admit(None, 1.0, 11, NOON)
        assert refused.value.code == code and refused.value.retry_after is None


def test_a_budget_lasts_until_midnight_of_utc() -> None:
    one = limits(dollars_per_day=0.3)
    for _ in range(3):
        one.settle(one.admit("ann", 0.1, 5, NOON), 0.1, 5, NOON)
    with pytest.raises(LimitError, match=r"0\.3 dollars a day") as refused:
        one.admit("ann", 0.1, 5, NOON + 0.5)
    assert refused.value.code == "budget_exceeded" and refused.value.retry_after == DAY // 2
    assert one.usage("ann", NOON) == DailyUsage(about(0.3), 15, 3)
    one.admit("ann", 0.0, 5, NOON)
    one.admit("ann", 0.1, 5, NOON + DAY / 2)
    assert one.usage("ann", NOON + DAY / 2) == DailyUsage()


def test_requests_at_once_do_not_exceed_a_budget_that_their_expectations_keep() -> None:
    one = limits(tokens_per_day=100)
    first, *_ = [one.admit("ann", 0, 30, NOON) for _ in range(3)]
    with pytest.raises(LimitError, match="of 10 left: wait for its other requests to end") as refused:
        one.admit("ann", 0, 30, NOON)
    assert refused.value.retry_after is None
    one.settle(first, 0, 0, NOON)
    assert one.admit("ann", 0, 30, NOON).open


def test_the_next_day_is_named_only_if_what_is_under_way_leaves_room_then() -> None:
    one = limits(tokens_per_day=100)
    one.settle(one.admit("ann", 0, 40, NOON), 0, 40, NOON)
    under_way = one.admit("ann", 0, 50, NOON)
    with pytest.raises(LimitError) as refused:
        one.admit("ann", 0, 70, NOON)
    assert refused.value.retry_after is None
    one.settle(under_way, 0, 0, NOON)
    with pytest.raises(LimitError) as refused:
        one.admit("ann", 0, 70, NOON)
    assert refused.value.retry_after == DAY // 2


def test_settling_twice_counts_once() -> None:
    one = limits(tokens_per_minute=100)
    first = one.admit("", 1, 50, NOON)
    one.settle(first, 1, 50, NOON)
    one.settle(first, 1, 50, NOON)
    assert one.usage(None, NOON) == DailyUsage(1, 50, 1)
    one.admit("", 1, 50, NOON)


def test_an_owner_with_limits_of_his_own_has_not_those_of_the_others_and_without_a_default_there_are_none() -> None:
    one = OwnerLimits(database(), {"ann": KeyLimits(requests_per_minute=1)})
    one.admit("ann", 0, 0, NOON)
    with pytest.raises(LimitError):
        one.admit("ann", 0, 0, NOON)
    for _ in range(50):
        one.admit("bob", 1e9, 10**9, NOON)
    both = OwnerLimits(
        database(), {"ann": KeyLimits(requests_per_minute=2), "default": KeyLimits(requests_per_minute=1)}
    )
    both.admit("ann", 0, 0, NOON)
    both.admit("ann", 0, 0, NOON)
    both.admit("bob", 0, 0, NOON)
    with pytest.raises(LimitError):
        both.admit("bob", 0, 0, NOON)


def test_what_was_spent_outlasts_a_restart_and_old_days_are_deleted(tmp_path: Path) -> None:
    path, table = tmp_path / "state.db", {"default": KeyLimits(dollars_per_day=1.0)}
    db = database(path)
    one = OwnerLimits(db, table)
    one.settle(one.admit("ann", 0.9, 7, NOON), 0.8, 7, NOON)
    db.close()
    db = database(path)
    again = OwnerLimits(db, table)
    assert again.usages(NOON) == {"ann": DailyUsage(0.8, 7, 1)}
    with pytest.raises(LimitError):
        again.admit("ann", 0.3, 1, NOON)
    again.settle(again.admit("ann", 0.1, 1, NOON), 0.1, 1, NOON)
    assert again.usage("ann", NOON) == DailyUsage(about(0.9), 8, 2)
    later = NOON + KEPT_DAYS * DAY
    again.settle(again.admit("bob", 0.1, 1, later - DAY), 0.1, 1, later - DAY)
    assert db.execute("SELECT COUNT(*) FROM spent").fetchone() == (2,)
    again.settle(again.admit("bob", 0.1, 1, later), 0.1, 1, later)
    assert db.execute("SELECT owner FROM spent").fetchall() == [("bob",), ("bob",)]
    assert again.usages(later) == {"bob": DailyUsage(0.1, 1, 1)}


def test_a_clock_that_is_set_back_locks_nobody_out() -> None:
    one = limits(requests_per_minute=1, tokens_per_minute=10)
    one.settle(one.admit("ann", 0, 10, NOON), 0, 10, NOON)
    one.settle(one.admit("ann", 0, 10, NOON - 3600), 0, 10, NOON - 3600)
    with pytest.raises(LimitError):
        one.admit("ann", 0, 10, NOON - 3599)


def test_a_database_that_fails_is_logged_once_and_budgets_hold_without_it(caplog: pytest.LogCaptureFixture) -> None:
    db = database()
    one = OwnerLimits(db, {"default": KeyLimits(tokens_per_day=100)})
    db.execute("DROP TABLE spent")
    one.settle(one.admit("ann", 0, 60, NOON), 0, 60, NOON)
    with pytest.raises(LimitError):
        one.admit("ann", 0, 60, NOON)
    one.settle(one.admit("ann", 0, 40, NOON), 0, 40, NOON)
    assert one.usages(NOON) == {"ann": DailyUsage(0, 100, 2)}
    assert one.failures >= 3 and len(caplog.records) == 1 and "it is counted until" in caplog.text


class Slow:
    """The same limits, restated: a list of all that happened."""

    def __init__(self, table: KeyLimits) -> None:
        self.table, self.all = table, list[dict[str, Any]]()

    def admits(self, dollars: int, tokens: int, now: float) -> bool:
        held = [one for one in self.all if one["ended"] is None]
        minute = [one for one in self.all if one["ended"] is not None and one["ended"] > now - MINUTE]
        today = [one for one in self.all if one["ended"] is not None and one["ended"] // DAY == now // DAY]
        asked = [one for one in self.all if one["begun"] > now - MINUTE]
        sums = {
            "requests_per_minute": len(asked) + 1,
            "tokens_per_minute": tokens and tokens + sum(one["tokens"] for one in held + minute),
            "tokens_per_day": tokens and tokens + sum(one["tokens"] for one in held + today),
            "dollars_per_day": dollars and dollars + sum(one["dollars"] for one in held + today),
        }
        return all(
            getattr(self.table, name) is None or sum_ <= getattr(self.table, name) for name, sum_ in sums.items()
        )


AMOUNT = st.integers(0, 12)
STEP = st.tuples(st.booleans(), st.sampled_from([0, 1, 7, 30, 59, 60, 61, DAY // 3]), AMOUNT, AMOUNT)
SOME = st.one_of(st.none(), st.integers(1, 40))


@settings(max_examples=60, deadline=None)
@given(requests=SOME, minute=SOME, day=SOME, dollars=SOME, steps=st.lists(STEP, max_size=40))
def test_limits_are_those_of_a_slow_restatement(
    requests: int | None,
    minute: int | None,
    day: int | None,
    dollars: int | None,
    steps: list[tuple[bool, int, int, int]],
) -> None:
    table = KeyLimits(
        requests_per_minute=requests, tokens_per_minute=minute, tokens_per_day=day, dollars_per_day=dollars
    )
    fast, slow, now = OwnerLimits(database(), {"default": table}), Slow(table), NOON
    under_way = list[tuple[Reservation, dict[str, Any]]]()
    for settles, passed, cost, tokens in steps:
        now += passed
        if settles and under_way:
            reservation, one = under_way.pop(0)
            fast.settle(reservation, cost, tokens, now)
            one |= {"ended": now, "tokens": tokens, "dollars": cost}
            continue
        may = slow.admits(cost, tokens, now)
        one = {"begun": now, "ended": None, "tokens": tokens, "dollars": cost}
        try:
            under_way.append((fast.admit("x", cost, tokens, now), one))
        except LimitError as error:
            refused: LimitError | None = error
        else:
            refused = None
            slow.all.append(one)
        assert may is (refused is None)
        if refused is None:
            continue
        after = refused.retry_after
        if after is None:
            fits = max(cost - (dollars or 12), tokens - (minute or 12), tokens - (day or 12)) <= 0
            assert not fits or any(each["ended"] is None for each in slow.all)
        else:
            assert slow.admits(cost, tokens, now + after) and not slow.admits(cost, tokens, now + after - 1)
    today = [one for one in slow.all if one["ended"] is not None and one["ended"] // DAY == now // DAY]
    sums = (sum(one["dollars"] for one in today), sum(one["tokens"] for one in today), len(today))
    assert fast.usage("x", now) == DailyUsage(*sums)
