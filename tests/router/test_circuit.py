"""The circuit breaker, in each of its states."""

from __future__ import annotations

from daguerre.router.circuit import Circuit
from daguerre.router.config import Breaker

FAILURES, COOL, MOST_COOL = Breaker().failures, Breaker().cool, Breaker().most_cool


def opened(now: float = 0.0) -> Circuit:
    one = Circuit()
    for _ in range(FAILURES):
        one.begin(now)
        one.failed(now)
    return one


def test_it_opens_after_failures_in_a_row_alone() -> None:
    one = Circuit()
    for _ in range(10):
        for _ in range(FAILURES - 1):
            one.begin(0.0)
            one.failed(0.0)
        assert one.allows(0.0) and one.state(0.0) == "closed"
        one.begin(0.0)
        one.succeeded()
    assert not opened().allows(0.0) and opened().state(0.0) == "open"


def test_half_open_lets_one_request_try() -> None:
    one = opened()
    assert not one.allows(COOL - 0.01)
    assert one.allows(COOL) and one.state(COOL) == "half open"
    one.begin(COOL)
    assert not one.allows(COOL), "a second one waits for the first"
    one.succeeded()
    assert one.allows(COOL) and one.state(COOL) == "closed"


def test_a_probe_that_fails_opens_it_for_twice_as_long_up_to_a_limit() -> None:
    one, now, waited = opened(), 0.0, []
    for _ in range(8):
        until = next(now + step / 2 for step in range(1, 1000) if one.allows(now + step / 2))
        waited.append(until - now)
        now = until
        one.begin(now)
        one.failed(now)
    assert waited == [min(COOL * 2**place, MOST_COOL) for place in range(8)]


def test_a_probe_that_nobody_waits_for_is_tried_again() -> None:
    one = opened()
    one.begin(COOL)
    one.left()
    assert one.allows(COOL) and one.state(COOL) == "half open"


def test_a_backend_that_says_when_to_come_back_is_left_alone_until_then() -> None:
    one = Circuit()
    one.begin(0.0)
    one.failed(0.0, retry_after=7.0)
    assert not one.allows(6.9) and one.allows(7.0)
    one.failed(10.0, retry_after=1e9)
    assert one.allows(10.0 + MOST_COOL)


def test_a_circuit_is_as_the_configuration_says() -> None:
    one = Circuit(Breaker(failures=1, cool=5.0, most_cool=8.0))
    one.begin(0.0)
    one.failed(0.0)
    assert not one.allows(4.9) and one.allows(5.0) and one.wait(1.0) == 4.0
    one.begin(5.0)
    one.failed(5.0)
    assert not one.allows(12.9) and one.allows(13.0)


def fail(one: Circuit, now: float, *asked: tuple[str, object]) -> None:
    for owner, request in asked:
        one.begin(now, owner)
        one.failed(now, owner=owner, request=request)


def test_equal_requests_count_once() -> None:
    one = Circuit()
    fail(one, 0.0, *[("eve", "x")] * 20)
    assert one.allows(0.0, "eve")


def test_the_failures_of_one_owner_close_it_to_that_owner_alone() -> None:
    one = Circuit()
    fail(one, 0.0, *(("eve", number) for number in range(FAILURES)))
    assert not one.allows(0.0, "eve") and one.allows(0.0, "ana") and one.state(0.0, "eve") == "open"
    assert one.wait(0.0, "eve") == COOL and one.wait(0.0, "ana") == 0.0
    fail(one, COOL, ("eve", "another"))
    assert not one.allows(COOL * 2.9, "eve"), "for twice as long"
    one.succeeded("ana")
    assert not one.allows(COOL * 2.9, "eve") and one.allows(COOL * 3, "eve")


def test_failures_of_several_owners_close_it_to_all() -> None:
    one = Circuit()
    fail(one, 0.0, *(("eve", number) for number in range(FAILURES)), ("ana", "x"))
    assert not one.allows(0.0, "ana") and not one.allows(0.0, "ben")
    one.begin(COOL, "ana")
    assert one.allows(COOL, "ben") and not one.allows(COOL, "ana"), "one request of each owner tries"
    one.failed(COOL, owner="ana", request="x")
    assert one.allows(COOL, "ben") and not one.allows(COOL, "ana"), "one owner's request proves nothing to others"
    one.succeeded("ben")
    assert one.state(COOL, "ben") == "closed"


def test_what_no_request_can_be_the_reason_of_counts_for_all() -> None:
    one = Circuit()
    for _ in range(FAILURES):
        one.failed(0.0, owner="eve")
    assert not one.allows(0.0, "ana")


def test_an_owner_whose_probe_no_request_is_the_reason_of_tries_again() -> None:
    one = Circuit()
    fail(one, 0.0, *(("eve", number) for number in range(FAILURES)))
    one.begin(COOL, "eve")
    one.failed(COOL, owner="eve")
    assert one.allows(COOL, "ana") and not one.allows(COOL * 2.9, "eve") and one.allows(COOL * 3, "eve")
