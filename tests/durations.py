"""How long each file of tests took in the last run: `make durations`.

    python tests/durations.py [--least SECONDS] [--most-files N]

A run writes `.pytest_cache/durations.json`: seconds by test, of its setup, call and teardown together.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path

import pytest

FILE = Path(".pytest_cache/durations.json")
LONG = 5.0
"""Seconds over which a test is named: it should be made smaller, or belong to a part (CONTRIBUTING.md)."""


class Durations:
    """A plugin of pytest that keeps the durations of a run, of all processes together."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self.seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not isinstance(report, pytest.SubtestReport):  # a part of a call, which counts it
            self.seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        if self.seconds:
            self.path.parent.mkdir(exist_ok=True)
            self.path.write_text(json.dumps(self.seconds, indent=0, sort_keys=True) + "\n", encoding="utf-8")


def report(seconds: dict[str, float], most_files: int, least: float) -> str:
    """A table of files by time, and of the tests that took longer than `least` seconds."""
    files: dict[str, list[float]] = defaultdict(list)
    for test, took in seconds.items():
        files[test.partition("::")[0]].append(took)
    lines = [f"{sum(seconds.values()):8.1f} s  {len(seconds):5} tests  {len(files)} files"]
    lines += [
        f"{sum(took):8.1f} s  {len(took):5} tests  {name}"
        for name, took in sorted(files.items(), key=lambda item: -sum(item[1]))[:most_files]
    ]
    long = sorted(((took, test) for test, took in seconds.items() if took > least), reverse=True)
    return "\n".join([*lines, "", f"Tests over {least:g} s:", *(f"{took:8.1f} s  {test}" for took, test in long)])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--least", type=float, default=LONG, help="name tests that took longer than this many seconds")
    parser.add_argument("--most-files", type=int, default=40, help="files that are shown")
    arguments = parser.parse_args(argv)
    path = Path(__file__).resolve().parents[1] / FILE
    if not path.exists():
        sys.stderr.write("No run has been kept: run make test first\n")
        return 2
    sys.stdout.write(report(json.loads(path.read_text(encoding="utf-8")), arguments.most_files, arguments.least) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
