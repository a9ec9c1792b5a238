"""How long Daguerre takes to start, and what a server holds that serves the package's model.

    python benchmarks/starting.py [FILE.gguf ...] --out benchmarks/results/starting

Each figure is the median of processes of their own: an import, the help, 16 tokens of the default model; and with each
file the seconds until the first text of `daguerre generate "def f" --max-tokens 1`, without packed weights that are
kept, and with them. The file is read once before, so that the disk plays no part. Leave the machine idle.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
from servers import serving

from daguerre.evals.machine import machine_facts, memory
from daguerre.evals.results import publish
from daguerre.evals.tables import table
from daguerre.files import cache_folder

DAGUERRE = [sys.executable, "-m", "daguerre"]
COMMANDS = {
    "`import daguerre`": [sys.executable, "-c", "import daguerre"],
    "`daguerre --help`": [*DAGUERRE, "--help"],
    '`daguerre generate "def f" --max-tokens 16`': [*DAGUERRE, "generate", "def f", "--max-tokens", "16"],
}
FIRST, NEXT = 3, 5
"""Processes that pack a file's weights, and that find them packed."""


def seconds_of(command: list[str]) -> float:
    """Seconds from the start of a process to its end."""
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began


def first_text(model: Path, cache: Path) -> float:
    """Seconds from the start of a process to the first byte of its text; returns when it has ended."""
    command = [*DAGUERRE, "generate", "def f", "--model", str(model), "--max-tokens", "1"]
    environment = os.environ | {"DAGUERRE_CACHE": str(cache), "PYTHONUNBUFFERED": "1"}
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        seconds = time.perf_counter() - began
        process.stdout.read()
    if process.returncode:
        sys.exit(f"{model} cannot be used: {' '.join(command)}")
    return seconds


def of_file(model: Path) -> dict[str, Any]:
    """The seconds to a file's first text, the first time and the next times."""
    with model.open("rb") as file:
        while file.read(1 << 24):
            pass
    first = []
    for _ in range(FIRST):
        with fresh_cache() as place:
            first.append(first_text(model, Path(place)))
    with fresh_cache() as place:
        first_text(model, Path(place))
        after = [first_text(model, Path(place)) for _ in range(NEXT)]
    return {"bytes": model.stat().st_size, "first": statistics.median(first), "next": statistics.median(after)}


def fresh_cache() -> tempfile.TemporaryDirectory[str]:
    """A folder for a cache that has the compiled kernels and nothing else."""
    made, kept = tempfile.TemporaryDirectory(), cache_folder()
    if kept is not None and (kept / "compiled").is_dir():
        (Path(made.name) / "compiled").symlink_to(kept / "compiled")
    return made


def held_by_a_server() -> int:
    """Bytes of memory that `daguerre serve` holds after one answer of the default model."""
    with serving("--model", "default") as (url, process):
        asked = {"prompt": "def f", "max_tokens": 16}
        httpx2.post(f"{url}/v1/completions", json=asked, timeout=60).raise_for_status()
        return memory("VmRSS", process.pid)


def lines(found: dict[str, Any]) -> Iterator[str]:
    """The page of what was found."""
    yield "# Starting\n"
    yield table(["", "seconds"], [[name, f"{value:.2f}"] for name, value in found["commands"].items()]) + "\n"
    if found["files"]:
        cells = [
            [name, f"{one['bytes'] / 1e6:,.0f}", f"{one['first']:.2f}", f"{one['next']:.2f}"]
            for name, one in found["files"].items()
        ]
        yield table(["first text of", "MB", "seconds, the first time", "the next times"], cells) + "\n"
    yield f"`daguerre serve` with the default model holds {found['server'] / 1e6:.0f} MB.\n"
    facts = found["facts"]
    yield f"{facts['processor']}, {facts['cores']} cores, instruction set {facts['instruction_set']}; medians.\n"


def main() -> None:
    """Measure, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    commands = {}
    for name, command in COMMANDS.items():
        seconds_of(command)  # which compiles what is imported
        commands[name] = statistics.median(seconds_of(command) for _ in range(NEXT))
    files = {path.name: of_file(path) for path in given.files}
    found = {"commands": commands, "files": files, "server": held_by_a_server(), "facts": machine_facts()}
    publish(given.out, found, "\n".join(lines(found)))


if __name__ == "__main__":
    main()
