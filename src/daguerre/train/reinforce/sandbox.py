"""Rewards by commands: a child process with limits of time and memory, and without new sockets (Linux).

The limits stop accidents of generated code: loops, memory, large files, the network. They are no wall against an
attacker: the child reads what its user may read and writes where its user may write.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from daguerre.errors import InputError, UnsupportedError
from daguerre.train.reinforce import confine


@dataclass(frozen=True)
class Sandbox:
    """`seconds` of wall time and of processor time, and `megabytes` of address space for each process."""

    seconds: float = 5.0
    megabytes: int = 512

    def __post_init__(self) -> None:
        if sys.platform != "linux" or platform.machine() not in confine.SYSTEM_CALLS:
            raise UnsupportedError("rewards by commands need Linux on x86_64 or aarch64: use a Python function")
        if subprocess.run(self._confined(["true"]), check=False, capture_output=True).returncode:
            raise UnsupportedError("this system refuses the limits of a sandbox: use a Python function as the reward")

    def reward(self, command: Sequence[str], prompt: str, answer: str, more: Mapping[str, Any] | None = None) -> float:
        """The number in the last line that the command prints, 1 if it prints nothing; 0 if it fails or is stopped.

        The command reads {"prompt": ..., "answer": ...} and what `more` has from its standard input, in an empty folder
        of its own, so files that it is given as arguments need absolute paths.
        """
        found = shutil.which(command[0])
        if found is None:
            raise InputError(f"the command of the reward is not found: {command[0]}")
        whole = [os.path.abspath(found), *command[1:]]
        question = json.dumps({**(more or {}), "prompt": prompt, "answer": answer}).encode()
        with (
            tempfile.TemporaryDirectory() as folder,
            tempfile.TemporaryFile() as asked,
            tempfile.TemporaryFile() as out,
        ):
            asked.write(question)
            asked.seek(0)
            child = subprocess.Popen(
                self._confined(whole), stdin=asked, stdout=out, stderr=subprocess.DEVNULL, cwd=folder,
                env={"PATH": os.environ.get("PATH", os.defpath)}, start_new_session=True,
            )  # fmt: skip
            try:
                failed = child.wait(self.seconds) != 0
            except subprocess.TimeoutExpired:
                failed = True
            finally:
                _end(child)
            out.seek(0)
            return 0.0 if failed else _number(out.read(confine.MAX_FILE))

    def _confined(self, command: Sequence[str]) -> list[str]:
        """The command behind `confine.py`: limits set between fork and exec are unsafe where there are threads."""
        return [sys.executable, "-I", "-S", confine.__file__, str(self.seconds), str(self.megabytes), *command]


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ends the child and what it started in its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _number(printed: bytes) -> float:
    lines = printed.decode(errors="replace").split("\n")
    last = next((line for line in reversed(lines) if line.strip()), "1")
    try:
        found = float(last)
    except ValueError:
        return 0.0
    return found if math.isfinite(found) else 0.0
