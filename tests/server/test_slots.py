"""Places for what takes a processor: few at once, fewer of one owner, in turns, and none for who has left."""

from __future__ import annotations

import contextvars
import threading

import pytest

from daguerre.cancellation import Cancellation, use_cancellation
from daguerre.errors import CancelledError, QueueFullError
from daguerre.server.slots import Slots
from server.processes import wait_until


class Taking:
    """Threads that take places, and the owners in the order in which they had them."""

    def __init__(self, slots: Slots) -> None:
        self._slots, self.order, self._threads = slots, list[str](), list[threading.Thread]()

    def wait(self, owner: str, num: int = 1) -> None:
        """More of an owner wait."""
        before = self._slots.num_waiting(owner)
        for _ in range(num):
            self._threads.append(threading.Thread(target=self._take, args=(owner,)))
            self._threads[-1].start()
        wait_until(lambda: self._slots.num_waiting(owner) == before + num)

    def _take(self, owner: str) -> None:
        with self._slots.taken(owner):
            self.order.append(owner)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()


def test_an_owner_has_its_places_and_others_theirs() -> None:
    slots = Slots("things", 2, 1, 4)
    taking = Taking(slots)
    with slots.taken("ana"):
        taking.wait("ana")
        with slots.taken("bob"):
            assert not taking.order
    taking.join()
    with slots.taken(""), slots.taken(""):
        pass


def test_as_many_wait_as_may_and_who_has_less_than_its_share_does_all_the_same() -> None:
    slots = Slots("things", 1, 1, 4, lambda owner: 2.0 if owner == "eva" else 1.0)
    taking = Taking(slots)
    with slots.taken("ana"):
        taking.wait("ana", 4)
        with pytest.raises(QueueFullError, match="5 things are computed or wait, of at most 5"), slots.taken("ana"):
            pass
        taking.wait("bob", 2)
        with pytest.raises(QueueFullError), slots.taken("bob"):
            pass
        taking.wait("eva", 2)
        with pytest.raises(QueueFullError), slots.taken("eva"):
            pass
    taking.join()
    assert taking.order == ["ana", "bob", "eva", "ana", "bob", "eva", "ana", "ana"]


def test_who_has_left_does_not_wait() -> None:
    slots, cancellation = Slots("things", 1, 1, 4), Cancellation()

    def ask() -> None:
        use_cancellation(cancellation)
        cancellation.cancel()
        with pytest.raises(CancelledError), slots.taken("bob"):
            pass

    with slots.taken("ana"):
        contextvars.copy_context().run(ask)
    assert not slots.num_waiting("bob")
    with slots.taken("bob"):
        pass
