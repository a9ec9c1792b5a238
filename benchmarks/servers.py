"""Servers that benchmarks start."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def serving(*options: str, threads: int | None = None) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`daguerre serve` with these options: its address, and its process, which is ended afterwards."""
    command = [sys.executable, "-m", "daguerre", "serve", "--port", "0", *options]
    environment = os.environ | ({} if threads is None else {"OMP_NUM_THREADS": str(threads)})
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    lines = list[str]()
    for line in process.stderr:
        lines.append(line)
        if found := re.search(r"daguerre: serving .* at (http://\S+)", line):
            break
    else:
        sys.exit(f"the server did not start: {''.join(lines)}")
    reader = subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL)  # the log is not looked at
    try:
        yield found[1], process
    finally:
        process.terminate()
        process.wait(60)
        reader.wait()
        process.stderr.close()
