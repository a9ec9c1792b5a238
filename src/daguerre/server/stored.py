"""Responses that are kept in memory for those who continue them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import orjson

from daguerre.http.errors import ApiError

MOST_KEPT = 4096
MOST_BYTES = 64 << 20
"""Of all responses that are kept, as JSON. Beyond either, the one that was used the longest ago is forgotten."""

Item = Mapping[str, Any]


@dataclass(frozen=True)
class StoredResponse:
    """A response, whose it is, the items that it answers, all that came before included, and its size in bytes."""

    response: Mapping[str, Any]
    owner: str
    items: Sequence[Item] = field(repr=False)
    size: int

    @property
    def history(self) -> list[Item]:
        """All items up to the end of the response."""
        return [*self.items, *self.response["output"]]


class ResponseStore:
    """The responses of a server, by id. Safe to use from any thread."""

    def __init__(self, most: int = MOST_KEPT, most_bytes: int = MOST_BYTES) -> None:
        self._most, self._most_bytes, self._lock = most, most_bytes, Lock()
        self._all: OrderedDict[str, StoredResponse] = OrderedDict()
        self._size = 0

    def add(self, response: Mapping[str, Any], owner: str, items: Sequence[Item]) -> None:
        """Keep a response."""
        size = len(orjson.dumps([response, list(items)]))
        with self._lock:
            self._all[response["id"]] = StoredResponse(response, owner, tuple(items), size)
            self._size += size
            while len(self._all) > self._most or self._size > self._most_bytes:
                self._size -= self._all.popitem(last=False)[1].size

    def get(self, key: str, owner: str, field: str = "id") -> StoredResponse:
        """A response of an owner. ApiError, 404, for any other, and one that is no longer kept."""
        with self._lock:
            found = self._all.get(key)
            if found is None or found.owner != owner:
                message = f"there is no response {key!r:.80}: it was not stored, is too old, or is another key's"
                raise ApiError(message, 404, field, "response_not_found")
            self._all.move_to_end(key)
            return found

    def delete(self, key: str, owner: str) -> None:
        """Forget a response. ApiError, 404, where there is none."""
        self.get(key, owner)
        with self._lock:
            gone = self._all.pop(key, None)
            self._size -= 0 if gone is None else gone.size
