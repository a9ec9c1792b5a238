"""What a run says and writes: held-out text before and after, logs, pictures, TensorBoard."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daguerre.errors import MissingExtra
from daguerre.models.tokenizer import Tokenizer
from daguerre.train import report
from daguerre.train.noising import NUM_LEVELS
from daguerre.train.report import CsvLog, _change
from daguerre.train.shards import write_shards
from daguerre.train.trainer import Trainer
from training_runs import ADAPT, RECIPE, rows, run


def test_a_run_from_a_model_says_what_held_out_text_costs_before_and_after(
    corpus: Path, reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"start_from": str(reference / "model")}
    first = Trainer(replace(ADAPT, steps=2), tmp_path / "run", corpus, **options)
    before = first.figures.evaluate().clean_bpb
    first.run()
    last = Trainer(ADAPT, tmp_path / "run", corpus, resume=True)
    last.run()
    after = last.figures.evaluate().clean_bpb
    held = rows(tmp_path / "run", "held.csv")
    assert [int(row["step"]) for row in held] == [0, 2, 3]
    assert [float(held[i]["clean_bpb"]) for i in (0, 2)] == pytest.approx([before, after], rel=1e-5)
    printed = capsys.readouterr().err
    change = f"({abs(1 - after / before):.1%} {'lower' if after < before else 'higher'})"
    assert f"held-out text, next-token: {before:.3f} bits/byte before, {after:.3f} after {change}" in printed
    assert printed.count("held-out text") == 2
    assert "training text: 4 files, " in printed
    assert "held out: 1 file, " in printed


def test_a_change_of_a_model_without_next_tokens_is_that_of_its_masked_loss() -> None:
    """A level without a mask in either evaluation is left out."""
    held = {"clean_bpb": np.array([math.nan, math.nan])}
    held |= {f"masked_{level}": np.array([2.0 + level, 3.0 + level]) for level in range(NUM_LEVELS)}
    held["masked_7"] = np.array([math.nan, 1.0])
    assert _change(held) == "held-out text, masked: 5.000 bits/token before, 6.000 after (20.0% higher)"
    drafts = {**held, "overlap_1": np.array([0.5, 0.625])}
    assert _change(drafts) == "held-out text, overlap at place 1: 0.500 before, 0.625 after"


def test_without_matplotlib_training_works_and_says_once_how_to_get_pictures(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(folder: Path) -> Path:
        raise MissingExtra("matplotlib", "train")

    monkeypatch.setattr(report, "draw_curves", missing)
    Trainer(replace(RECIPE, steps=4, eval_steps=1), tmp_path / "run", corpus).run()
    assert capsys.readouterr().err.count("pip install 'daguerre[train]'") == 1


def test_without_tensorboard_training_works_and_says_once_how_to_get_it(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(report, "draw_curves", lambda run: run)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    Trainer(replace(RECIPE, steps=4, eval_steps=1), tmp_path / "run", corpus).run()
    printed = capsys.readouterr().err
    assert (
        printed.count("no TensorBoard events: tensorboard is not installed: run `pip install 'daguerre[train]'`") == 1
    )
    assert "held out at step 4" in printed


def test_a_run_writes_tensorboard_events_and_a_picture(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("tensorboard")
    monkeypatch.undo()
    run(replace(RECIPE, steps=2), tmp_path / "run", corpus)
    assert (tmp_path / "run" / "curves.png").stat().st_size > 1000
    assert list((tmp_path / "run" / "tensorboard").glob("events*"))


def test_a_log_drops_rows_behind_the_resumed_step_and_half_a_row(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    log = CsvLog(path, 0)
    for step in (0, 1, 2, 30):
        log.write({"step": step, "loss": step / 3})
    with path.open("a") as file:
        file.write("1,0.3")
    resumed = CsvLog(path, 2)
    resumed.write({"step": 2, "loss": 9.0})
    resumed.write({"step": 3, "loss": 1.0})
    assert path.read_text() == "step,loss\n0,0\n1,0.333333\n2,0.666667\n3,1\n"


def test_a_log_of_a_run_without_a_checkpoint_begins_again(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    CsvLog(path, None).write({"step": 0, "loss": 0.5})
    again = CsvLog(path, None)
    again.write({"step": 0, "loss": 0.25})
    assert path.read_text() == "step,loss\n0,0.25\n"
    CsvLog(path, 0).write({"step": 0, "loss": 9.0})  # resumed before its first step
    assert path.read_text() == "step,loss\n0,0.25\n"
    path.write_text("ste")
    CsvLog(path, None).write({"step": 1, "loss": 0.125})
    assert path.read_text() == "step,loss\n1,0.125\n"


def test_a_corpus_without_validation_documents_can_be_trained_on_and_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = Path(json.__file__).read_text()
    write_shards(tmp_path / "data", {"train": [text], "val": []}, Tokenizer.default("2k"))
    Trainer(replace(RECIPE, steps=2), tmp_path / "run", tmp_path / "data").run()
    assert "no validation split" in capfd.readouterr().err
