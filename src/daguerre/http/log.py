"""The log: one JSON object a line on standard error, written by a thread, so that no disk or pipe can hold up answers.
The thread writes what came within `PAUSE` seconds at once: to wake it for every line would hold up answers, too.

Lines that cannot be written, because the disk is full or nobody reads the pipe, are counted and lost; a line says how
many once writing works again.
"""

from __future__ import annotations

import json
import logging
import os
import time
from queue import SimpleQueue
from threading import Thread

from daguerre.errors import printable

ACCESS = "daguerre.access"
"""The logger of requests, whose messages are JSON already."""
WAITING = 10_000
"""Lines that may wait to be written."""
LONGEST = 8_000
"""Characters of a message, and of the end of a traceback."""
SECONDS_TO_END = 1.0
PAUSE = 0.1


class LineWriter(logging.Handler):
    """Writes lines to a file descriptor in a thread of its own."""

    def __init__(self, descriptor: int = 2) -> None:
        super().__init__()
        self._descriptor, self._lost = descriptor, 0
        self._lines = SimpleQueue[str | None]()
        self._thread = Thread(target=self._write, name="daguerre-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        try:
            self.line(record.getMessage() if record.name == ACCESS else _as_json(record))
        except Exception:  # what cannot be formatted is lost: a log must not end a request
            self._lost += 1

    def line(self, text: str) -> None:
        """Write a line."""
        if self._lines.qsize() < WAITING:
            self._lines.put(text)
        else:
            self._lost += 1

    def close(self) -> None:
        """Write what waits, for at most a second."""
        self._lines.put(None)
        self._thread.join(SECONDS_TO_END)
        super().close()

    def _write(self) -> None:
        lines = list[str | None]()
        while None not in lines:
            lines = [self._lines.get()]
            time.sleep(PAUSE)
            lines += [self._lines.get() for _ in range(self._lines.qsize())]
            self._write_all([printable(line) for line in lines if line is not None])

    def _write_all(self, lines: list[str]) -> None:
        if lines and not self._written("\n".join(lines)):
            self._lost += len(lines)
        elif self._lost and self._written(json.dumps({"level": "WARNING", "lost_lines": self._lost})):
            self._lost = 0

    def _written(self, line: str) -> bool:
        data = line.encode("utf-8", "replace") + b"\n"
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError:
            return False
        return True


def log_lines() -> LineWriter:
    """Log to standard error from here on: every request, and the problems of all parts."""
    writer = LineWriter()
    logging.getLogger().handlers[:] = [writer]
    logging.getLogger(ACCESS).setLevel(logging.INFO)
    return writer


def _as_json(record: logging.LogRecord) -> str:
    line = {
        "time": stamp(record.created),
        "level": record.levelname,
        "logger": record.name,
        "message": record.getMessage()[:LONGEST],
    }
    if record.exc_info:
        line["error"] = logging.Formatter().formatException(record.exc_info)[-LONGEST:]
    return json.dumps(line, ensure_ascii=False)


def stamp(seconds: float) -> str:
    """A time in seconds since 1970 as logs write it: UTC, with milliseconds."""
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{int(seconds % 1 * 1000):03d}Z"
