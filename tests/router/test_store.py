"""What a router remembers: by conversation, by key, and answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from daguerre.router import store
from daguerre.router.store import Store


def test_a_tool_call_is_held_by_its_backend_also_after_a_restart(tmp_path: Path) -> None:
    first = Store(tmp_path / "state.db")
    first.hold(["call_1", "call_2"], "a")
    first.hold(["call_2"], "b")
    first.close()
    again = Store(tmp_path / "state.db")
    assert again.holder(["call_1"]) == "a"
    assert again.holder(["call_1", "call_2", "unknown"]) == "b"
    assert again.holder(["unknown"]) is None and again.holder([]) is None


def test_old_tool_calls_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    one, now = Store(None), [1000.0]
    monkeypatch.setattr(store.time, "time", lambda: now[0])
    one.hold(["old"], "a")
    now[0] += store.HELD_SECONDS + 1
    one.hold(["new"], "a")
    assert one.holder(["old"]) is None and one.holder(["new"]) == "a"


def test_spending_is_of_a_key_and_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Store(None)
    one.spend("key 1", 0.25)
    one.spend("key 1", 0.5)
    one.spend("key 2", 4.0)
    assert (one.spent("key 1"), one.spent("key 2"), one.spent("key 3")) == (0.75, 4.0, 0.0)
    monkeypatch.setattr(store, "_today", lambda: "2100-01-01")
    assert one.spent("key 1") == 0.0


def test_answers_are_kept_for_a_time_and_within_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    one, now = Store(None), [0.0]
    monkeypatch.setattr(store.time, "time", lambda: now[0])
    for number in range(6):
        now[0] += 1
        one.keep(f"k{number}", "a", bytes(40), 100)
    assert [number for number in range(6) if one.kept(f"k{number}", 1e9)] == [4, 5]
    one.keep("k5", "b", b"other", 100)
    assert one.kept("k5", 1e9) == ("b", b"other")
    one.keep("large", "a", bytes(101), 100)
    assert one.kept("large", 1e9) is None
    now[0] += 10
    assert one.kept("k4", 9.0) is None
