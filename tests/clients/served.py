"""`daguerre serve` as a process."""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

MODEL = "default"
SECOND = "second"
"""Another name of the same model."""
MODELS = ("--model", MODEL, "--model", f"{SECOND}=default")


@dataclass
class Served:
    """A running server.

    url        its address
    started    seconds from the start of the process until it listened
    lines      of its standard error
    """

    process: subprocess.Popen[str]
    url: str = ""
    started: float = 0.0
    lines: list[str] = field(default_factory=list)

    def alive(self) -> bool:
        """Whether the process still runs."""
        return self.process.poll() is None


@contextmanager
def serving(command: str, *options: str, models: tuple[str, ...] = MODELS) -> Iterator[Served]:
    """A server, by default of the default model by two names, on a free port, until the block ends. AssertionError
    where it does not start.
    """
    begun = time.monotonic()
    words = [command, "serve", "--port", "0", *models, *options]
    reader: threading.Thread | None = None
    one = Served(subprocess.Popen(words, stderr=subprocess.PIPE, text=True))
    try:
        assert one.process.stderr is not None
        for line in one.process.stderr:
            one.lines.append(line)
            if found := re.match(r"daguerre: serving \S+ at (http://\S+)", line):
                one.url, one.started = found[1], time.monotonic() - begun
                break
        assert one.url, f"the server did not start: {one.lines}"
        reader = threading.Thread(target=lambda: one.lines.extend(one.process.stderr or ()), daemon=True)
        reader.start()
        yield one
    finally:
        one.process.terminate()
        one.process.wait(60)
        if reader is not None:
            reader.join(10)
        assert one.process.stderr is not None
        one.process.stderr.close()
