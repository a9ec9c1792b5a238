"""What a router remembers between requests and between runs, in SQLite: which backend has an open tool call, or an
answer that a later request names; and the salt of the hashes in its log.
"""

from __future__ import annotations

import logging
import os
import secrets
import sqlite3
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from daguerre.errors import InputError

LOG = logging.getLogger("daguerre.router")
HELD_SECONDS = 30 * 24 * 3600.0
"""How long an open tool call or a kept response binds its conversation to a backend."""
TABLES = """
CREATE TABLE IF NOT EXISTS held (owner TEXT NOT NULL, id TEXT NOT NULL, backend TEXT NOT NULL, at REAL NOT NULL,
    PRIMARY KEY (owner, id)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS held_at ON held (at);
CREATE TABLE IF NOT EXISTS salt (value BLOB NOT NULL);
"""


class Store:
    """A database in a file, which one process uses at a time; None: in memory. Used by one thread at a time. One that
    is full or damaged fails no request. InputError where another process has the file.

    db    for others' tables
    salt  random bytes that are this database's own
    """

    def __init__(self, path: Path | None) -> None:
        self._lock = None if path is None else _locked(path)
        if path is not None:
            path.touch(mode=0o600)
        self.db = sqlite3.connect(":memory:" if path is None else path, isolation_level=None, check_same_thread=False)
        self.db.execute("PRAGMA journal_mode = WAL")
        self.db.execute("PRAGMA synchronous = NORMAL")
        self.db.executescript(TABLES)
        self.salt = self._salt()

    def _salt(self) -> bytes:
        find = "SELECT value FROM salt ORDER BY rowid LIMIT 1"
        if self.db.execute(find).fetchone() is None:
            self.db.execute("INSERT INTO salt VALUES (?)", (secrets.token_bytes(32),))
        return bytes(self.db.execute(find).fetchone()[0])

    def close(self) -> None:
        """Close the file."""
        self.db.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def hold(self, owner: str, ids: Sequence[str], backend: str) -> None:
        """A backend has these tool calls, or this answer, of a conversation of an owner."""
        now = time.time()
        if not ids:
            return
        try:
            self.db.executemany(
                "INSERT OR REPLACE INTO held VALUES (?, ?, ?, ?)", [(owner, one, backend, now) for one in ids]
            )
            self.db.execute("DELETE FROM held WHERE at < ?", (now - HELD_SECONDS,))
        except sqlite3.Error:
            LOG.exception("the state cannot be written: a conversation with open tool calls may change its backend")

    def holder(self, owner: str, ids: Iterable[str]) -> str | None:
        """The backend of the last of these that is known."""
        found = None
        try:
            for one in ids:
                row = self.db.execute("SELECT backend FROM held WHERE owner = ? AND id = ?", (owner, one)).fetchone()
                found = found if row is None else str(row[0])
        except sqlite3.Error:
            LOG.exception("the state cannot be read: a conversation with open tool calls may change its backend")
        return found


def _locked(path: Path) -> int:
    """A descriptor of the lock of a database, which ends with the process. InputError where another one has it.

    It is of a file beside it: SQLite's own locks on the database would end with any descriptor of it that is closed.
    """
    import fcntl

    lock = os.open(f"{path.resolve()}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise InputError(f"another router uses {path}: stop it, or name another file as state in [server]") from None
    return lock
