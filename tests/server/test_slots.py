"""Places for what takes a processor: few at once, fewer of one owner, and none for who has left."""

from __future__ import annotations

import contextvars
import threading

import pytest

from daguerre.errors import CancelledError, QueueFullError
from daguerre.server.slots import Slots
from daguerre.wanted import Asker, asked_by


def test_an_owner_has_its_places_and_others_theirs() -> None:
    slots, waits, has = Slots(2, 1, 1), threading.Event(), threading.Event()

    def second() -> None:
        waits.set()
        with slots.taken("ana"):
            has.set()

    with slots.taken("ana"):
        thread = threading.Thread(target=second)
        thread.start()
        assert waits.wait(60)
        while not slots._waiting["ana"]:
            pass
        with pytest.raises(QueueFullError), slots.taken("ana"):
            pass
        with slots.taken("bob"):
            assert not has.is_set()
    thread.join(60)
    assert has.is_set()
    with slots.taken(""), slots.taken(""):
        pass


def test_who_has_left_does_not_wait() -> None:
    slots, leaving = Slots(1, 1, 4), Asker()

    def ask() -> None:
        asked_by(leaving)
        leaving.leave()
        with pytest.raises(CancelledError), slots.taken("bob"):
            pass

    with slots.taken("ana"):
        contextvars.copy_context().run(ask)
    assert not slots._waiting["bob"]
