"""A process that does what strangers' files ask for: one JSON line in, one out. It is started again where it ended."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from threading import Timer
from typing import Any

SECONDS = 120
"""For one line, on any machine."""


class Ended(Exception):
    """The process ended before it answered."""


class Child:
    """A script of this folder, with a clock as a failsafe; the script itself limits its memory."""

    def __init__(self, script: str) -> None:
        self._script, self._process = Path(__file__).with_name(script), None  # type: Path, subprocess.Popen[str] | None

    def ask(self, **question: Any) -> dict[str, Any]:
        """Its answer. Ended where there is none."""
        process = self._process = self._process or self._started()
        assert process.stdin is not None and process.stdout is not None
        timer = Timer(SECONDS, process.kill)
        timer.start()
        try:
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            status = self.close()
            raise Ended(f"status {status}")
        found: dict[str, Any] = json.loads(line)
        return found

    def _started(self) -> subprocess.Popen[str]:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        return subprocess.Popen([sys.executable, str(self._script)], text=True, **pipes)

    def close(self) -> int | None:
        """End it."""
        process, self._process = self._process, None
        if process is None:
            return None
        process.kill()
        process.communicate()
        return process.returncode
