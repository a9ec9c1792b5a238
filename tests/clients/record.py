"""What was run, as a report: one row a client, with its version, what passed, and why what did not run did not."""

from __future__ import annotations

import json
import platform
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

CLIENTS = {
    "test_openai_chat": ("openai",),
    "test_openai_texts": ("openai",),
    "test_openai_responses": ("openai",),
    "test_inceptionai": ("inceptionai",),
    "test_anthropic": ("anthropic",),
    "test_litellm": ("litellm",),
    "test_langchain": ("langchain-openai", "langchain-tests"),
    "test_agents": ("openai-agents", "mcp"),
    "test_openapi": ("schemathesis",),
    "test_documents": ("openai", "langchain-openai", "openai-agents"),
    "test_editors": (),
    "test_litellm_backend": ("litellm", "mcp"),
    "test_routed_openai": ("openai",),
    "test_routed_inceptionai": ("inceptionai",),
    "test_routed_langchain": ("langchain-openai", "langchain-tests"),
    "test_routed_litellm": ("litellm",),
    "test_routed_agents": ("openai-agents", "mcp"),
    "test_routed_openapi": ("schemathesis",),
    "test_routed_example": ("openai",),
}
"""Which packages a file runs."""


class Record:
    """Collects outcomes and writes them where the run was given a place."""

    def __init__(self, place: str | None, note: str) -> None:
        self._note = note
        self._place = None if place is None else Path(place)
        self._outcomes: dict[str, dict[str, str]] = defaultdict(dict)
        self._reasons: dict[str, dict[str, str]] = defaultdict(dict)
        self._facts: dict[str, dict[str, Any]] = defaultdict(dict)

    def add_fact(self, file: str, name: str, value: Any) -> None:
        """A measurement of a file."""
        self._facts[file][name] = value

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep how a test ended, and why if it did not pass."""
        path, _, name = report.nodeid.partition("::")
        if report.when != "call" and report.outcome == "passed":
            return
        file, name = Path(path).stem, name.replace("::", ".")
        expected = hasattr(report, "wasxfail")
        self._outcomes[file][name] = "expected failure" if expected and report.skipped else report.outcome
        if report.outcome != "passed":
            self._reasons[file][name] = report.wasxfail if expected else _reason(report)

    def pytest_sessionfinish(self) -> None:
        """Write the report."""
        if self._place is None:
            return
        rows = [self._row(file) for file in sorted(self._outcomes)]
        report = {"python": platform.python_version(), "processor": _processor(), "note": self._note, "files": rows}
        self._place.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        self._place.with_suffix(".md").write_text(_markdown(report), encoding="utf-8")

    def _row(self, file: str) -> dict[str, Any]:
        outcomes = list(self._outcomes[file].values())
        kinds = ("passed", "failed", "skipped", "expected failure")
        return {
            "file": file,
            "clients": {name: version(name) for name in CLIENTS.get(file, ())},
            **{kind: outcomes.count(kind) for kind in kinds},
            "tests": sorted(self._outcomes[file]),
            "reasons": self._reasons[file],
            "facts": self._facts[file],
        }


def _reason(report: pytest.TestReport) -> str:
    """One line."""
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    return " ".join(str(crash.message if crash else report.longrepr).split())[:300]


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    return next((line.partition(": ")[2] for line in text.splitlines() if line.startswith("model name")), "")


def _markdown(report: dict[str, Any]) -> str:
    head = f"`make clients`: Python {report['python']}, {report['processor']}. The server ran the default model. "
    head += report["note"]
    lines = ["# Clients that nobody here wrote", "", head.rstrip(), ""]
    lines += ["| file | clients | passed | failed | skipped | fails as expected |", "|---|---|---|---|---|---|"]
    for row in report["files"]:
        clients = ", ".join(f"{name} {number}" for name, number in row["clients"].items()) or "httpx"
        counts = [str(row[kind]) for kind in ("passed", "failed", "skipped", "expected failure")]
        lines.append(f"| `{row['file']}` | {clients} | {' | '.join(counts)} |")
    facts = [(row["file"], name, value) for row in report["files"] for name, value in row["facts"].items()]
    if facts:
        lines += ["", "## Measured", "", "| file | what | value |", "|---|---|---|"]
        lines += [f"| `{file}` | {name} | {value} |" for file, name, value in facts]
    reasons = [(row["file"], name, why) for row in report["files"] for name, why in row["reasons"].items()]
    if reasons:
        lines += ["", "## What did not pass, and why", "", "| test | outcome and reason |", "|---|---|"]
        lines += [f"| `{file}.{name}` | {why.replace('|', '/')} |" for file, name, why in reasons]
    lines += ["", "## What was run", ""]
    for row in report["files"]:
        names = ", ".join(name.rpartition(".")[2].removeprefix("test_").replace("_", " ") for name in row["tests"])
        lines.append(f"* `{row['file']}`: {names}.")
    return "\n".join(lines) + "\n"
