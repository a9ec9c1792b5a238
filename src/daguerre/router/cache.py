"""Answers that are kept, and given again to equal requests.

A request is equal to an earlier one if all that can change the answer is equal: the operation, the body but for the
fields of `APART`, who may answer, and the owner of the key. Objects are equal in any order of their fields, and numbers
by value (0, 0.0 and -0.0 are one number, and JSON has no others); texts are equal by their code points, since normal
forms of Unicode have tokens of their own. `null` is not the same as an absent field. A stream and a whole answer are
kept apart, and each is given again byte for byte, ids and times included.

A request that wishes `near` may also have the answer to a request that differs in the text of its last message alone,
and there in no number, negation, comparison, symbol, quotation or code: the entry with the most similar text.

Requests that are equal and under way at the same time are all sent; the last answer stays.
"""

from __future__ import annotations

import hashlib
import logging
import sqlite3
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import orjson

import daguerre
from daguerre.errors import InputError
from daguerre.router.attempts import Opened
from daguerre.router.config import Cache, Config
from daguerre.router.near import marks_of, nearest, vector_of
from daguerre.router.reading import dicts
from daguerre.router.routed_request import RoutedRequest
from daguerre.router.store import Store
from daguerre.router.upstream import merged

LOG = logging.getLogger("daguerre.router")
APART = frozenset({"user", "safety_identifier", "metadata", "store", "prompt_cache_key", "prompt_cache_retention"})
"""Fields that do not change an answer: they name the end user, label what is stored, or help a backend to find a prompt
again. A request with `store: true` is never kept, so the field is always false here. All of them count for `responses`,
whose answers repeat them. `service_tier` counts, since answers repeat it, and so do `stream` and `stream_options`.
"""
DECIDING = ("backend", "step", "tags", "max_cost", "test")
"""Wishes that change who may answer. `slo_ms` is none of them: it never lets a worse backend answer."""
TOOLS = ("tools", "functions", "web_search_options")
STATE = ("previous_response_id", "conversation", "background", "prompt")
"""Fields of `responses` by which a server remembers, or looks up, what the body does not say."""
SAID = ("message", "reasoning")
"""Items of `responses` that are no tool calls and no results of them."""
PARTS = ("tool_use", "tool_call", "tool_result")
UNSAMPLED = ("embeddings", "decisions")
ENDS = ("stop", "length", "tool_calls", "function_call")
MOST_COMPARED = 1000
"""Entries, the newest, that a text is compared with."""
MOST_FORGOTTEN = 256
"""How many expired entries are deleted at a time, so that no request waits long."""
NEAR_CHARACTERS = 4000
"""Longer texts are near to none: the longer they are, the less one word changes the similarity."""
OVERHEAD = 512
"""Bytes that an entry takes beside its body and vector."""
TABLES = """
CREATE TABLE IF NOT EXISTS answers (key BLOB PRIMARY KEY, at REAL NOT NULL, size INTEGER NOT NULL, rest BLOB,
    vector BLOB, kind TEXT NOT NULL, backend TEXT NOT NULL, usage BLOB NOT NULL, sum INTEGER NOT NULL,
    body BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS answers_at ON answers (at);
CREATE INDEX IF NOT EXISTS answers_rest ON answers (rest, at) WHERE rest IS NOT NULL;
"""
DAMAGE = (sqlite3.Error, ValueError, TypeError)


@dataclass(frozen=True)
class CacheKey:
    """Of a request. rest: of all but the words of its last message, whose counts are `vector`; None: it is near to
    no other request.
    """

    exact: bytes
    rest: bytes | None = None
    vector: bytes | None = None


@dataclass(frozen=True)
class CachedResponse:
    """What a backend answered, with status 200. kind: its content type; usage: as it was counted, if it was."""

    body: bytes
    kind: str
    backend: str
    usage: dict[str, Any] | None = None


@dataclass(frozen=True)
class Hit:
    """An answer that was kept. age: seconds; similarity: of the two texts, None where the requests are equal."""

    answer: CachedResponse
    age: float
    similarity: float | None = None


@dataclass(frozen=True)
class CacheStats:
    """Lookups by what came of them, the entries and their bytes now, and failures of the database."""

    hits: int = 0
    near: int = 0
    misses: int = 0
    entries: int = 0
    bytes: int = 0
    failures: int = 0


def may_cache(operation: str, body: Mapping[str, Any], wishes: Mapping[str, Any], table: Cache) -> bool:
    """Whether the answer to a request may be looked up and kept. InputError for a wish that the configuration refuses.

    A wish `on` allows tools and any temperature; nothing allows what depends on the state of a server or on the clock.
    """
    wish = wishes.get("cache")
    if wish == "near" and table.near is None:
        message = "x-route-cache cannot be 'near' here: use 'on' or 'off', or set near in [cache] of the configuration"
        raise InputError(message)
    if wish == "off" or table.ttl == 0 or _has_state(operation, body):
        return False
    return wish == "on" or _is_plain(operation, body)


def _has_state(operation: str, body: Mapping[str, Any]) -> bool:
    """Whether an answer depends on more than the body, or asks a server to remember something."""
    own = body.get("daguerre")
    if isinstance(own, dict) and (own.get("timeout") is not None or own.get("changeable")):
        return True
    if operation != "responses":
        return bool(body.get("store"))
    named = any(body.get(name) for name in STATE) or body.get("store") is not False
    return named or any(item.get("type") == "item_reference" for item in dicts(body.get("input")))


def _is_plain(operation: str, body: Mapping[str, Any]) -> bool:
    """Whether a request has no tools, and a temperature of 0. An absent one is the backend's own, mostly 1."""
    given = body.get("temperature")
    unsampled = operation in UNSAMPLED and given is None
    if not unsampled and (isinstance(given, bool) or not isinstance(given, int | float) or given != 0):
        return False
    items = dicts(body.get("input")) if operation == "responses" else []
    if any(body.get(name) for name in TOOLS) or any(one.get("type", "message") not in SAID for one in items):
        return False
    return not any(_is_of_tools(one) for one in dicts(body.get("messages")))


def _is_of_tools(message: Mapping[str, Any]) -> bool:
    called = message.get("tool_calls") or message.get("function_call") or message.get("role") in ("tool", "function")
    return bool(called) or any(part.get("type") in PARTS for part in dicts(message.get("content")))


def key_of(
    operation: str,
    body: Mapping[str, Any],
    *,
    answerers: str,
    owner: str | None,
    wishes: Mapping[str, Any],
    beta: str | None = None,
    near: bool = False,
) -> CacheKey | None:
    """The key of a request; None for one that has none, because it is nested too deeply.

    answerers  what decides who may answer, such as the hash of the configuration
    owner      of the API key
    beta       the header openai-beta, which backends see
    near       whether texts are compared
    """
    apart = frozenset[str]() if operation == "responses" or "test" in wishes else APART
    counted = {name: value for name, value in body.items() if name not in apart}
    if counted.get("stream") in (None, False):
        counted.pop("stream", None)
    asked = {name: wishes[name] for name in DECIDING if name in wishes}
    who = [operation, answerers, owner, beta, asked]
    try:
        exact = _digest([*who, counted])
        found = _apart(operation, counted) if near and "test" not in wishes and _is_plain(operation, body) else None
        if found is None:
            return CacheKey(exact)
        text, around = found
        vector = vector_of(text)
        if not vector.any():
            return CacheKey(exact)
        return CacheKey(exact, _digest([*who, around, marks_of(text)]), vector.tobytes())
    except (orjson.JSONEncodeError, RecursionError, UnicodeEncodeError):
        return None


def _digest(value: object) -> bytes:
    return hashlib.sha256(orjson.dumps(_by_value(value), option=orjson.OPT_SORT_KEYS)).digest()


def _by_value(value: Any) -> Any:
    """A JSON value in which equal numbers are written alike."""
    if isinstance(value, dict):
        return {name: _by_value(held) for name, held in value.items()}
    if isinstance(value, list):
        return [_by_value(held) for held in value]
    return int(value) if isinstance(value, float) and value.is_integer() and -(2**63) <= value < 2**64 else value


def _apart(operation: str, body: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """The text of the last message, if it is the user's, and the body without it; None where there is none."""
    name = {"chat": "messages", "responses": "input"}.get(operation)
    given = body.get(name) if name is not None else None
    if name is None or not given or not isinstance(given, list | str):
        return None
    if isinstance(given, str):
        return (given, {**body, name: None}) if len(given) <= NEAR_CHARACTERS else None
    last = given[-1]
    if not isinstance(last, dict) or last.get("role") != "user":
        return None
    content = last.get("content")
    parts = dicts(content)
    if isinstance(content, list) and len(parts) == len(content):
        text = "\n".join(one["text"] for one in parts if isinstance(one.get("text"), str))
        around = [{**one, "text": None} if isinstance(one.get("text"), str) else one for one in parts]
    elif isinstance(content, str):
        text, around = content, None
    else:
        return None
    if not text or len(text) > NEAR_CHARACTERS:
        return None
    return text, {**body, name: [*given[:-1], {**last, "content": around}]}


def may_keep(status: int, kind: str, body: bytes) -> bool:
    """Whether an answer is whole and ended as it should. An error in it, a filter, or an end that is not known: it is
    not kept.
    """
    if status != 200:
        return False
    try:
        if not kind.startswith("text/event-stream"):
            return _is_whole(orjson.loads(body))
        lines = [line[5:].strip() for line in body.replace(b"\r", b"\n").split(b"\n") if line.startswith(b"data:")]
        return _is_whole_stream([orjson.loads(line) for line in lines if line not in (b"", b"[DONE]")], lines)
    except orjson.JSONDecodeError:
        return False


def _is_whole(value: object) -> bool:
    if not isinstance(value, dict) or value.get("error"):
        return False
    if value.get("object") == "response":
        return value.get("status") == "completed"
    choices = value.get("choices")
    return choices is None or (bool(choices) and all(one.get("finish_reason") in ENDS for one in dicts(choices)))


def _is_whole_stream(events: Iterable[object], lines: list[bytes]) -> bool:
    ends, completed = dict[str, object](), False
    for event in events:
        if not isinstance(event, dict) or event.get("error") or event.get("type") in ("error", "response.failed"):
            return False
        completed = completed or event.get("type") == "response.completed"
        for choice in dicts(event.get("choices")):
            index = str(choice.get("index"))
            ends[index] = choice.get("finish_reason") or ends.get(index)
    if completed:
        return not ends
    return lines[-1:] == [b"[DONE]"] and bool(ends) and all(end in ENDS for end in ends.values())


class AnswerCache:
    """Answers in tables of a database, by a configuration. Used by one thread at a time, as the database is.

    The oldest entries go first where all together have more than `most_bytes`, whether they were asked for or not. A
    database that is damaged or full fails no request: what cannot be read is not there, and what cannot be written is
    not kept. The first failure is logged, and all are counted.
    """

    def __init__(self, db: sqlite3.Connection, table: Cache) -> None:
        self._db, self._table, self._counts = db, table, Counter[str]()
        self._entries = self._bytes = 0
        try:
            self._db.executescript(TABLES)
        except DAMAGE as error:
            self._failed(error)
        self._measure()

    def stats(self) -> CacheStats:
        """Numbers since the start, and what is kept now."""
        return CacheStats(**self._counts, entries=self._entries, bytes=self._bytes)

    def get(self, key: CacheKey, now: float, *, near: bool = False) -> Hit | None:
        """The answer to an equal request, or else, if `near`, to the nearest one. now: seconds since the epoch."""
        found = self._exact(key.exact, now)
        if found is None and near:
            found = self._nearest(key, now)
        self._counts["misses" if found is None else "hits" if found.similarity is None else "near"] += 1
        return found

    def put(self, key: CacheKey, answer: CachedResponse, now: float) -> None:
        """Keep an answer for which `may_keep` is true."""
        size = len(answer.body) + len(key.vector or b"") + OVERHEAD
        if size > self._table.most_bytes:
            return
        try:
            usage = orjson.dumps(answer.usage)
            row = (key.exact, now, size, key.rest, key.vector, answer.kind, answer.backend, usage, _sum(answer, usage))
            self._forget_old(now)
            self._forget([key.exact])
            self._db.execute("INSERT INTO answers VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (*row, answer.body))
            self._entries, self._bytes = self._entries + 1, self._bytes + size
            while self._bytes > self._table.most_bytes:
                rows = self._db.execute("SELECT key, size FROM answers ORDER BY at, rowid LIMIT 64").fetchall()
                if not rows:
                    raise ValueError("another process deletes entries")
                sums = accumulate(size for _, size in rows)
                over = self._bytes - self._table.most_bytes
                self._forget([key for (key, size), sum_ in zip(rows, sums, strict=True) if sum_ - size < over])
        except DAMAGE as error:
            self._failed(error)
            self._measure()

    def _forget_old(self, now: float) -> None:
        """Delete some entries whose time is over, or that have another clock's time."""
        sql = "SELECT key FROM answers WHERE at <= ? OR at > ? LIMIT ?"
        self._forget([key for (key,) in self._db.execute(sql, (now - self._table.ttl, now, MOST_FORGOTTEN))])

    def _forget(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            row = self._db.execute("SELECT size FROM answers WHERE key = ?", (key,)).fetchone()
            if row is not None:
                self._db.execute("DELETE FROM answers WHERE key = ?", (key,))
                self._entries, self._bytes = self._entries - 1, self._bytes - row[0]

    def _measure(self) -> None:
        """Count entries and their bytes."""
        try:
            sql = "SELECT COUNT(*), COALESCE(SUM(size), 0) FROM answers"
            self._entries, self._bytes = self._db.execute(sql).fetchone()
        except DAMAGE:
            self._entries = self._bytes = 0

    def _exact(self, key: bytes, now: float) -> Hit | None:
        try:
            row = self._db.execute(
                "SELECT at, kind, backend, usage, sum, body FROM answers WHERE key = ? AND at > ? AND at <= ?",
                (key, now - self._table.ttl, now),
            ).fetchone()
            if row is None:
                return None
            at, kind, backend, usage, sum_, body = row
            answer = CachedResponse(body, kind, backend, orjson.loads(usage))
            if _sum(answer, usage) != sum_:
                self._forget([key])
                raise ValueError("an answer is not what was written")
            return Hit(answer, now - at)
        except DAMAGE as error:
            self._failed(error)
            return None

    def _nearest(self, key: CacheKey, now: float) -> Hit | None:
        if key.vector is None or self._table.near is None:
            return None
        try:
            sql = "SELECT key, vector FROM answers WHERE rest = ? AND at > ? AND at <= ? ORDER BY at DESC LIMIT ?"
            rows = self._db.execute(sql, (key.rest, now - self._table.ttl, now, MOST_COMPARED)).fetchall()
            if not rows:
                return None
            best, similarity = nearest(key.vector, [vector for _, vector in rows])
        except DAMAGE as error:
            self._failed(error)
            return None
        found = self._exact(rows[best][0], now) if similarity >= self._table.near else None
        return None if found is None else replace(found, similarity=similarity)

    def _failed(self, error: Exception) -> None:
        if not self._counts["failures"]:
            LOG.warning("the cache of answers fails, and requests go on without it: %s", error)
        self._counts["failures"] += 1


def _sum(answer: CachedResponse, usage: bytes) -> int:
    """A checksum, since SQLite has none of its pages."""
    return zlib.crc32(b"\n".join((answer.kind.encode(), answer.backend.encode(), usage, answer.body)))


class ResponseCache:
    """Answers of a router's backends. version: of what decides beside the configuration, such as a quality model."""

    def __init__(self, config: Config, store: Store, version: str = "") -> None:
        self._config, self.answers = config, AnswerCache(store.db, config.cache)
        self._answerers = f"{daguerre.__version__} {config.sha256} {version}"

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
        found = self.answers.get(key, time.time(), near=routed.asked.wishes.get("cache") == "near")
        routed.line["cache"] = "miss" if found is None else "hit" if found.similarity is None else "near"
        return found

    def keep(self, routed: RoutedRequest, key: CacheKey, opened: Opened, answer: bytes) -> None:
        """Keep a whole answer, unless it is one of a backend that is not good enough, or was rejected: the others may
        be back soon.
        """
        backend, floor = self._config.backend(opened.backend), self._config.rule(routed.features.step).quality
        good = {each.name for each in routed.decision.candidates if each.quality >= floor}
        sent = merged(routed.body, backend.body)
        kind, usage = opened.headers.get("content-type", "application/json"), dict[str, Any](opened.check.usage)
        small = routed.small
        if not (small.accepted if small is not None and small.given else backend.name in good or not good):
            return
        if may_keep(opened.status, kind, answer) and may_cache(
            routed.operation, sent, routed.asked.wishes, self._config.cache
        ):
            self.answers.put(key, CachedResponse(answer, kind, backend.name, usage or None), time.time())


def hit_headers(hit: Hit) -> dict[str, str]:
    """What a client is told of an answer that was kept."""
    said = {"content-type": hit.answer.kind, "age": f"{hit.age:.0f}"}
    if hit.similarity is None:
        return said | {"x-route-cache": "hit"}
    return said | {"x-route-cache": "near", "x-route-similarity": f"{hit.similarity:.3f}"}
