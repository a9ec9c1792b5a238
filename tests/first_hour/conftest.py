"""Each task is timed, and what its commands printed is kept, in the file that DAGUERRE_FIRST_HOUR names."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

LINES = 12
"""Lines that are kept of what a command printed."""


@pytest.fixture(autouse=True)
def noted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep the seconds of a test, and each command that it waits for with its output."""
    named = os.environ.get("DAGUERRE_FIRST_HOUR")
    if not named:
        yield
        return
    seen, real, began = list[str](), subprocess.run, time.monotonic()

    def run(command: Any, *given: Any, **how: Any) -> Any:
        started = time.monotonic()
        done = real(command, *given, **how)
        words = command if isinstance(command, str) else " ".join(map(str, command))
        seen.append(f"    $ {words[:200]!r}, {time.monotonic() - started:.1f} s")
        printed = "".join(part for part in (done.stdout, done.stderr) if isinstance(part, str))
        seen.extend(f"    {line}" for line in printed.splitlines()[:LINES])
        return done

    monkeypatch.setattr(subprocess, "run", run)
    yield
    with Path(named).open("a", encoding="utf-8") as file:
        lines = "".join(f"{line}\n" for line in seen)
        file.write(f"{request.node.nodeid}: {time.monotonic() - began:.1f} s\n\n{lines}\n")
