"""What a router remembers of conversations."""

from __future__ import annotations

from pathlib import Path

import pytest

from daguerre.router import store
from daguerre.router.store import Store


def test_a_tool_call_is_held_by_its_backend_also_after_a_restart(tmp_path: Path) -> None:
    first = Store(tmp_path / "state.db")
    first.hold("", ["call_1", "call_2"], "a")
    first.hold("", ["call_2"], "b")
    first.close()
    again = Store(tmp_path / "state.db")
    assert again.holder("", ["call_1"]) == "a"
    assert again.holder("", ["call_1", "call_2", "unknown"]) == "b"
    assert again.holder("", ["unknown"]) is None and again.holder("", []) is None


def test_old_tool_calls_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    one, now = Store(None), [1000.0]
    monkeypatch.setattr(store.time, "time", lambda: now[0])
    one.hold("", ["old"], "a")
    now[0] += store.HELD_SECONDS + 1
    one.hold("", ["new"], "a")
    assert one.holder("", ["old"]) is None and one.holder("", ["new"]) == "a"


def test_what_an_owner_holds_is_not_another_s() -> None:
    one = Store(None)
    one.hold("ann", ["resp_1"], "a")
    assert one.holder("ann", ["resp_1"]) == "a" and one.holder("bob", ["resp_1"]) is None
