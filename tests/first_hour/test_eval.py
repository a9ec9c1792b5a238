"""`daguerre eval`: killed and started again, it goes on; a first look takes few examples and says so."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from commands import Running, daguerre

ASKED = ("eval", "default", "--quick", "--what", "infill", "--what", "completion", "--lines", "2", "--spans", "1")


@pytest.mark.slow
def test_a_killed_evaluation_goes_on(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = (*ASKED, "--out", report)
    with open(os.devnull, "r+b") as nothing:
        running = Running(command, (nothing.fileno(),) * 3)
    end = time.monotonic() + 600
    while not report.exists() and running.poll() is None and time.monotonic() < end:
        time.sleep(0.02)
    running.send_signal(signal.SIGKILL)
    running.wait()
    first = json.loads(report.read_text())  # whole, whenever the process died

    assert "infill" in first
    ran = daguerre(*command)
    last = json.loads(report.read_text())
    assert ran.returncode == 0, ran.stderr
    assert f"infill of {report}: kept" in ran.stderr or "infill, completion of" in ran.stderr
    assert last["infill"] == first["infill"]
    assert "completion" in last
    assert "A quick look at few examples" in ran.stdout
    assert report.with_suffix(".md").exists()

    other = daguerre(*command, "--lines", "1")
    assert "settings.lines: 2, now 1" in other.stderr
    fresh = daguerre(*ASKED[:4], "infill", "--lines", "1", "--spans", "1", "--out", report, "--fresh")
    assert fresh.returncode == 0, fresh.stderr
    assert "kept" not in fresh.stderr
