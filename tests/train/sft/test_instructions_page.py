"""The example of docs/training.md: made, trained, broken off, resumed, and asked."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

import daguerre
from daguerre.cli import app
from daguerre.train.sft.presets import PRESETS
from daguerre.train.trainer import Trainer
from training_runs import rows

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "training.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## Instructions\n")[2].partition("\n## ")[0]
FEW = "steps=4 minutes=0 checkpoint_steps=2 eval_steps=0 precision=float32 stages.0.length=64 stages.0.sequences=1"


class BrokenOff(BaseException):
    """Raised in a step, as if the process ended there."""


def command() -> list[str]:
    """The first command of the section, for four short steps."""
    (line,) = re.findall(r"^daguerre (train sft --from .*?)  +#", SECTION, flags=re.M)
    line = re.sub(r" --max-minutes \S+", "", line)  # by which the weights would depend on the clock
    return [*shlex.split(line), *(f"--set={one}" for one in FEW.split())]


def call(*more: str) -> Result:
    return CliRunner().invoke(app, [*command(), *more])


def test_the_example_runs_and_a_run_that_was_broken_off_ends_with_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", SECTION, flags=re.S)
    exec(compile(code, "docs/training.md", "exec"), {})
    assert len((tmp_path / "rename.jsonl").read_text().splitlines()) == 280
    whole = call("--out=whole")
    assert whole.exit_code == 0, whole.output
    assert "280 rows: " in whole.output and "texts held out" in whole.output and "User: Rename" in whole.output

    after_step = Trainer._after_step

    def broken_off(made: Trainer) -> None:
        if made.progress.step == 3:
            raise BrokenOff
        after_step(made)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_after_step", broken_off)
        with pytest.raises(BrokenOff):
            call("--out=run")
    assert len(rows(tmp_path / "run")) == 3
    resumed = call("--resume", "--out=run")
    assert resumed.exit_code == 0, resumed.output
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
