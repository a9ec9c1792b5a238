"""The example of an agent does what it says: where each step goes, and a bill that the log of decisions has too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from routed import LOG, requests_in, routing

from served import Served

EXAMPLE = Path(__file__).parents[2] / "examples" / "routing"
WARM = 8
"""Requests that the table leaves out."""


def test_the_agent_costs_less_after_routing_and_the_log_has_the_same_bill(
    served: Served, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    text = (EXAMPLE / "route.toml").read_text(encoding="utf-8")
    text = text.replace("http://127.0.0.1:8000", served.url).replace("decisions.jsonl", str(tmp_path / LOG))
    with routing(request.config.getoption("--daguerre"), tmp_path, text) as router:
        command = [sys.executable, str(EXAMPLE / "agent.py"), "--router", router.url, "--rounds", "1"]
        said = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert said.returncode == 0, said.stderr

    head, *rows, all_ = (line.split() for line in said.stdout.replace("look up", "look_up").splitlines())
    assert head == ["step", "type", "before", "ms", "$", "/", "1000", "after", "ms", "$", "/", "1000"]
    assert [(row[0], row[1], row[2], row[5]) for row in rows] == [
        ("classify", "classify", "strong", "drafts"),
        ("look_up", "look_up", "strong", "drafts"),
        ("plan", "plan", "strong", "strong"),
        ("act", "infill", "strong", "blocks"),
    ]
    lines = requests_in(tmp_path / LOG)[WARM:]
    assert len(lines) == 2 * 3 * len(rows) and all(line["tokens"]["counted"] for line in lines)
    wished = [line["decision"]["rule"] == "wish" for line in lines]
    for column, before in ((2, True), (4, False)):
        cost = sum(line["cost"] for line, wish in zip(lines, wished, strict=True) if wish is before)
        assert float(all_[column]) == pytest.approx(1000 * cost / 3, abs=1e-4)
    assert float(all_[4]) < float(all_[2]) / 2
