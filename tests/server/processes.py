"""Commands as processes of their own, and requests to them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2

from commands import Done, Running, daguerre

COMMAND = (sys.executable, "-c", "from daguerre.cli import main; main()")


class Serving:
    """`daguerre serve` on a free port. `lines` are those of standard error, as they come.

    forked: as in `commands`, without the seconds that a start takes; `lines` has standard output, too
    """

    command = "serve"

    def __init__(self, *options: str, environment: dict[str, str] | None = None, forked: bool = False) -> None:
        words, env = (self.command, "--port", "0", *options), {**os.environ, **(environment or {})}
        reading, writing = os.pipe()
        self._error = os.fdopen(reading, encoding="utf-8")
        if forked:
            self.process: Running | subprocess.Popen[bytes] = Running(words, (writing, writing, writing), env=env)
        else:
            self.process = subprocess.Popen([*COMMAND, *words], stderr=writing, env=env)
        os.close(writing)
        self.lines: list[str] = []
        for line in self._error:
            self.lines.append(line)
            if found := re.match(r"daguerre: (?:serving \S+|routing to .*) at (http://\S+)", line):
                self.url = found[1]
                break
        else:
            raise AssertionError(f"it did not start: {self.lines}")
        self._reader = threading.Thread(target=lambda: self.lines.extend(self._error), daemon=True)
        self._reader.start()
        self.client = httpx2.Client(base_url=self.url, timeout=60)

    def log(self) -> list[dict[str, Any]]:
        """The lines of the log, once the process has ended."""
        self._reader.join(60)
        return [json.loads(line) for line in self.lines if line.startswith("{")]

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, *error: object) -> None:
        self.client.close()
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self._reader.join(60)
        self._error.close()


class Routing(Serving):
    """`daguerre route` on a free port, likewise."""

    command = "route"


def run(*words: str | Path, given: str = "", timeout: float = 60) -> Done:
    """A command, run to its end."""
    return daguerre(*words, stdin=given, timeout=timeout)


def wait_until(holds: Callable[[], bool], seconds: float = 60) -> None:
    """Wait for something; AssertionError where it does not come about in time."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)
