"""The example of docs/training.md, with real processes: made, trained, killed, resumed, and asked."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import daguerre
from daguerre.train.sft.presets import PRESETS
from training_runs import rows

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "training.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## Instructions\n")[2].partition("\n## ")[0]
FEW = "steps=6 minutes=0 checkpoint_steps=2 eval_steps=0 precision=float32 stages.0.length=64 stages.0.sequences=2"


def command() -> list[str]:
    """The first command of the section, for a few short steps."""
    (line,) = re.findall(r"^daguerre (train sft --from .*?)  +#", SECTION, flags=re.M)
    line = re.sub(r" --max-minutes \S+", "", line)  # by which the weights would depend on the clock
    return [sys.executable, "-m", "daguerre", *shlex.split(line), *(f"--set={one}" for one in FEW.split())]


def start(arguments: list[str], folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(arguments, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_the_example_runs_and_a_run_that_was_killed_ends_with_the_same_weights(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", SECTION, flags=re.S)
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    assert len((tmp_path / "rename.jsonl").read_text().splitlines()) == 280
    whole, killed = start([*command(), "--out=whole"], tmp_path), start([*command(), "--out=run"], tmp_path)
    until = time.monotonic() + 600  # against a process that hangs
    while len(rows(tmp_path / "run")) < 3 and time.monotonic() < until and killed.poll() is None:
        time.sleep(0.01)
    os.kill(killed.pid, signal.SIGKILL)
    error = killed.communicate(timeout=600)[1]
    assert killed.returncode == -signal.SIGKILL, error
    assert 3 <= len(rows(tmp_path / "run")) < 6
    said = whole.communicate(timeout=600)
    assert whole.returncode == 0, said[1]
    assert "280 rows: " in said[1] and "texts held out" in said[1] and "User: Rename" in said[1]
    resumed = start([*command(), "--resume", "--out=run"], tmp_path)
    error = resumed.communicate(timeout=600)[1]
    assert resumed.returncode == 0, error
    weights = "model/model.safetensors"
    assert (tmp_path / "run" / weights).read_bytes() == (tmp_path / "whole" / weights).read_bytes()
    model = daguerre.load(tmp_path / "run" / "model", backend="torch")
    (asked,) = re.findall(r"\$'(.*)'$", SECTION, flags=re.M)
    prompt = asked.encode().decode("unicode_escape")
    assert prompt.startswith("User: Rename") and prompt.endswith("Assistant:")
    assert model.generate(prompt, 4).usage.completion_tokens <= 4


def test_the_page_has_every_preset() -> None:
    listed = re.findall(r"^\| `(\w+)` \|", SECTION, flags=re.M)
    assert set(listed) == set(PRESETS)
