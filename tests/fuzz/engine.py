"""Runs cases in a child process, with limits of time and memory, and makes what it finds small.

Time is the processor's, so that a busy machine makes no findings; a case that computes nothing has ten times as long.
"""

from __future__ import annotations

import json
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from fuzz.child import LENGTH, found_target
from fuzz.mutate import parsed, places
from fuzz.target import Target

ROOT = Path(__file__).parents[2]
CORPUS = Path(__file__).with_name("corpus")
TICKS = os.sysconf("SC_CLK_TCK")
SETUP = 300.0
"""Seconds in which a target has to be ready."""


@dataclass(frozen=True)
class Finding:
    """A case that did not end as it should. kind: where it broke, the same for all cases of one fault; why: the
    traceback, or where it was when it was stopped.
    """

    target: str
    data: bytes
    kind: str
    why: str


class Child:
    """The process that runs cases; it is started again after a case that it does not survive."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._said: Any = None
        self._ready = set[str]()

    def close(self) -> str:
        """End the process; the last of what it said."""
        if self._process is None:
            return ""
        self._process.kill()
        self._process.communicate()
        self._process = None
        self._ready.clear()
        with self._said as said:
            said.seek(0)
            return str(said.read()[-4_000:].decode("utf-8", "replace"))

    def run(self, where: str, data: bytes) -> Finding | None:
        """Run one case of a target."""
        target = found_target(where)
        process = self._started()
        assert process.stdin is not None
        left = memoryview(pickle.dumps((where, data)))
        while left:
            left = left[process.stdin.write(left) :]
        if where not in self._ready:
            if self._answer(SETUP, SETUP) != "ready":
                raise RuntimeError(f"the target {where} cannot be made:\n{self.close()}")
            self._ready.add(where)
        answer = self._answer(target.seconds, 10 * target.seconds)
        if answer is None or isinstance(answer, tuple):
            return None if answer is None else Finding(where, data, *answer)
        if answer == "late":
            process.send_signal(signal.SIGUSR1)  # faulthandler says where it is
            time.sleep(0.5)
        said = self.close()
        kind = (
            f"takes more than {target.seconds:g} s" if answer == "late" else f"ends the process ({process.returncode})"
        )
        return Finding(where, data, kind, said)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            paths = [str(ROOT / "src"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
            self._said = tempfile.TemporaryFile()  # noqa: SIM115 (closed in `close`)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "fuzz.child"],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                bufsize=0,
            )
        return self._process

    def _answer(self, seconds: float, wall: float) -> Any:
        """What the process says; "late" after so much time, "gone" if it ends."""
        assert self._process is not None and self._process.stdout is not None
        began, spent = time.monotonic(), self._spent()
        while not select.select([self._process.stdout], [], [], 0.2)[0]:  # unbuffered: nothing waits unseen
            if self._spent() - spent > seconds or time.monotonic() - began > wall:
                return "late"
        size = self._process.stdout.read(LENGTH.size)
        content = b""
        while size and len(content) < LENGTH.unpack(size)[0]:
            content += self._process.stdout.read(LENGTH.unpack(size)[0] - len(content)) or b""
        if not size:
            self._process.wait()
            return "gone"
        return pickle.loads(content)

    def _spent(self) -> float:
        """The processor time of the process, in seconds."""
        assert self._process is not None
        try:
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / TICKS


def cases(target: Target, seed: int, num: int | None = None) -> Iterator[bytes]:
    """The seeds, and then changed ones: `num`, or without end. They depend on `seed` alone."""
    seeds = [*target.seeds(), *(path.read_bytes() for path in past(target.name))]
    yield from seeds
    random, number = Random(f"{target.name} {seed}"), 0
    while num is None or number < num:
        yield target.change(random.choice(seeds), seeds, random)
        number += 1


def past(name: str) -> list[Path]:
    """Files of the corpus: what was found once, and is right now."""
    return sorted((CORPUS / name).glob("*")) if (CORPUS / name).is_dir() else []


def smaller(child: Child, finding: Finding, tries: int = 200, seconds: float = 60.0) -> Finding:
    """A finding of the same kind with less in it: pieces are left out while it stays one."""
    best, end = finding, time.monotonic() + seconds
    for _ in range(tries):
        less = next((one for one in _without(best.data) if time.monotonic() < end and _same(child, best, one)), None)
        if less is None:
            return best
        best = Finding(best.target, less, best.kind, best.why)
    return best


def _same(child: Child, finding: Finding, data: bytes) -> bool:
    again = child.run(finding.target, data)
    return again is not None and again.kind == finding.kind


def _without(data: bytes) -> Iterator[bytes]:
    """`data` with a part left out, large parts first: a place in the tree of JSON, or bytes."""
    value = parsed(data)
    if value is not None:
        for number in range(sum(1 for _ in places(value))):
            tree = parsed(data)
            held, key = next(islice(places(tree), number, None))
            del held[key]
            yield json.dumps(tree).encode()
        return
    size = len(data) // 2
    while size:
        for at in range(0, len(data), size):
            yield data[:at] + data[at + size :]
        size //= 2
