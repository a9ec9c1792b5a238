"""`daguerre eval`: killed and started again, it goes on; a first look takes few examples and says so."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from commands import PROGRAM, daguerre

ASKED = ("eval", "default", "--quick", "--what", "infill", "--what", "completion", "--lines", "2", "--spans", "1")


@pytest.mark.slow
def test_a_killed_evaluation_goes_on(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = [PROGRAM, *ASKED, "--out", str(report)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 200
    while not report.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    first = json.loads(report.read_text())  # whole, whenever the process died

    assert "infill" in first
    ran = daguerre(*command[1:])
    last = json.loads(report.read_text())
    assert ran.returncode == 0, ran.stderr
    assert f"infill of {report}: kept" in ran.stderr or "infill, completion of" in ran.stderr
    assert last["infill"] == first["infill"]
    assert "completion" in last
    assert "A quick look at few examples" in ran.stdout
    assert report.with_suffix(".md").exists()

    other = daguerre(*command[1:], "--lines", "1")
    assert "settings.lines: 2, now 1" in other.stderr
    fresh = daguerre(*ASKED[:4], "infill", "--lines", "1", "--spans", "1", "--out", report, "--fresh")
    assert fresh.returncode == 0, fresh.stderr
    assert "kept" not in fresh.stderr
