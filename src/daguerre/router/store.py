"""What a router remembers between requests and between runs, in SQLite: which backend has an open tool call or an
answer that a later request names, what each key has spent today, and answers that are kept.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable
from pathlib import Path

HELD_SECONDS = 24 * 3600.0
"""How long an open tool call binds its conversation to a backend."""
TABLES = """
CREATE TABLE IF NOT EXISTS held (id TEXT PRIMARY KEY, backend TEXT NOT NULL, at REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS spent (owner TEXT, day TEXT, dollars REAL NOT NULL, PRIMARY KEY (owner, day)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS answers (
    key TEXT PRIMARY KEY, at REAL NOT NULL, size INTEGER NOT NULL, backend TEXT NOT NULL, body BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS answers_at ON answers (at);
"""


class Store:
    """A database in a file; None: in memory. Used by one thread at a time."""

    def __init__(self, path: Path | None) -> None:
        self._db = sqlite3.connect(":memory:" if path is None else path, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.executescript(TABLES)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def hold(self, ids: Iterable[str], backend: str) -> None:
        """A backend has these tool calls, or this answer, of a conversation."""
        now = time.time()
        self._db.executemany("INSERT OR REPLACE INTO held VALUES (?, ?, ?)", [(one, backend, now) for one in ids])
        self._db.execute("DELETE FROM held WHERE at < ?", (now - HELD_SECONDS,))

    def holder(self, ids: Iterable[str]) -> str | None:
        """The backend of the last of these that is known."""
        found = None
        for one in ids:
            row = self._db.execute("SELECT backend FROM held WHERE id = ?", (one,)).fetchone()
            found = found if row is None else str(row[0])
        return found

    def spend(self, owner: str, dollars: float) -> None:
        """Add to what a key has spent today."""
        self._db.execute(
            "INSERT INTO spent VALUES (?, ?, ?) "
            "ON CONFLICT (owner, day) DO UPDATE SET dollars = dollars + excluded.dollars",
            (owner, _today(), dollars),
        )

    def spent(self, owner: str) -> float:
        """Dollars that a key has spent today (UTC)."""
        row = self._db.execute("SELECT dollars FROM spent WHERE owner = ? AND day = ?", (owner, _today())).fetchone()
        return 0.0 if row is None else float(row[0])

    def keep(self, key: str, backend: str, body: bytes, most_bytes: int) -> None:
        """Keep an answer; the oldest ones go where there is no room."""
        if len(body) > most_bytes:
            return
        self._db.execute(
            "INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?)", (key, time.time(), len(body), backend, body)
        )
        over = self._db.execute("SELECT COALESCE(SUM(size), 0) FROM answers").fetchone()[0] - most_bytes
        while over > 0:
            oldest, size = self._db.execute("SELECT key, size FROM answers ORDER BY at LIMIT 1").fetchone()
            self._db.execute("DELETE FROM answers WHERE key = ?", (oldest,))
            over -= size

    def kept(self, key: str, seconds: float) -> tuple[str, bytes] | None:
        """The backend and the body of an answer that is not older than so many seconds."""
        row = self._db.execute(
            "SELECT backend, body FROM answers WHERE key = ? AND at >= ?", (key, time.time() - seconds)
        ).fetchone()
        return None if row is None else (str(row[0]), bytes(row[1]))


def _today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())
