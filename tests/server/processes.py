"""Commands as processes of their own, and requests to them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx2

from commands import Done, daguerre

COMMAND = (sys.executable, "-c", "from daguerre.cli import main; main()")


class Serving:
    """`daguerre serve` on a free port. `lines` are those of standard error, as they come."""

    def __init__(self, *options: str, environment: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, "serve", "--port", "0", *options],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        assert self.process.stderr is not None
        self.lines: list[str] = []
        for line in self.process.stderr:
            self.lines.append(line)
            if found := re.match(r"daguerre: serving \S+ at (http://\S+)", line):
                self.url = found[1]
                break
        else:
            raise AssertionError(f"it did not start: {self.lines}")
        self._reader = threading.Thread(target=lambda: self.lines.extend(self.process.stderr or ()), daemon=True)
        self._reader.start()
        self.client = httpx2.Client(base_url=self.url, timeout=60)

    def log(self) -> list[dict[str, Any]]:
        """The lines of the log, once the process has ended."""
        self._reader.join(10)
        return [json.loads(line) for line in self.lines if line.startswith("{")]

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, *error: object) -> None:
        self.client.close()
        self.process.kill()
        self.process.wait()
        self._reader.join(10)
        assert self.process.stderr is not None
        self.process.stderr.close()


def run(*words: str | Path, given: str = "", timeout: float = 60) -> Done:
    """A command, run to its end."""
    return daguerre(*words, stdin=given, timeout=timeout)


def batch(requests: Path, answers: Path, *options: str) -> Sequence[str]:
    """The command of a batch."""
    return [*COMMAND, "batch", str(requests), str(answers), *options]


def wait_until(holds: Callable[[], bool], seconds: float = 10) -> None:
    """Wait for something; AssertionError where it does not come about in time."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)
