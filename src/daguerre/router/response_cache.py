"""Which requests the cache answers and which answers it keeps, by the configuration."""

from __future__ import annotations

import time
from typing import Any

import daguerre
from daguerre.router.attempts import Opened
from daguerre.router.cache import AnswerCache, CachedResponse, CacheKey, CacheStats, Hit, key_of, may_cache, may_keep
from daguerre.router.config import Config
from daguerre.router.routed_request import RoutedRequest
from daguerre.router.store import Store
from daguerre.router.upstream import merged


class ResponseCache:
    """Answers of a router's backends. version: of what decides beside the configuration, such as a quality model."""

    def __init__(self, config: Config, store: Store, version: str = "") -> None:
        self._config, self._cache = config, AnswerCache(store.db, config.cache)
        self._answerers = f"{daguerre.__version__} {config.sha256} {version}"

    @property
    def most_bytes(self) -> int:
        """Of an answer that can be kept."""
        return self._config.cache.most_bytes

    def stats(self) -> CacheStats:
        """How the cache is doing."""
        return self._cache.stats()

    def key(self, routed: RoutedRequest) -> CacheKey | None:
        """The key of a request; None: no answer to it is kept. InputError for a wish that the file does not allow."""
        table, wishes = self._config.cache, routed.asked.wishes
        if not may_cache(routed.operation, routed.body, wishes, table):
            return None
        return key_of(
            routed.operation,
            routed.body,
            answerers=self._answerers,
            owner=routed.owner,
            wishes=wishes,
            beta=routed.headers.get("openai-beta"),
            near=table.near is not None,
        )

    def get(self, routed: RoutedRequest, key: CacheKey) -> Hit | None:
        """The answer that is kept for a request."""
        found = self._cache.get(key, time.time(), near=routed.asked.wishes.get("cache") == "near")
        routed.line["cache"] = "miss" if found is None else "hit" if found.similarity is None else "near"
        return found

    def keep(self, routed: RoutedRequest, key: CacheKey, opened: Opened, answer: bytes) -> None:
        """Keep a whole answer, unless it is one of a backend that is not good enough: the others may be back soon."""
        backend, floor = self._config.backend(opened.backend), self._config.rule(routed.features.step).quality
        good = {each.name for each in routed.decision.candidates if each.quality >= floor}
        sent = merged(routed.body, backend.body)
        kind, usage = opened.headers.get("content-type", "application/json"), dict[str, Any](opened.check.usage)
        if good and backend.name not in good:
            return
        if may_keep(opened.status, kind, answer) and may_cache(
            routed.operation, sent, routed.asked.wishes, self._config.cache
        ):
            self._cache.put(key, CachedResponse(answer, kind, backend.name, usage or None), time.time())


def hit_headers(hit: Hit) -> dict[str, str]:
    """What a client is told of an answer that was kept."""
    said = {"content-type": hit.answer.kind, "age": f"{hit.age:.0f}"}
    if hit.similarity is None:
        return said | {"x-route-cache": "hit"}
    return said | {"x-route-cache": "near", "x-route-similarity": f"{hit.similarity:.3f}"}
