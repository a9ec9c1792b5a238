"""The picture of a run on pairs, and a log that an older version began."""

from __future__ import annotations

from pathlib import Path

import pytest

from daguerre.train.curves import draw_curves, read_columns
from daguerre.train.report import CsvLog

STEP = "step,tokens,minutes,tokens_per_second,lr_factor,preference,margin,accuracy,chosen,rejected,drift,variance"


@pytest.mark.parametrize("variance", [0.0, 0.04])
def test_a_run_on_pairs_has_panels_of_its_own(tmp_path: Path, variance: float) -> None:
    pytest.importorskip("matplotlib")
    rows = [f"{i},{9 * i},0.1,90,1,{0.7 - 0.01 * i},{0.02 * i},0.6,0.1,-0.1,0.001,{variance}" for i in range(1, 9)]
    (tmp_path / "log.csv").write_text("\n".join([STEP, *rows, ""]))
    (tmp_path / "held.csv").write_text("step,preference,margin,accuracy\n0,0.693,0,0.5\n8,0.64,0.1,0.7\n")
    assert draw_curves(tmp_path).stat().st_size > 10_000


def test_a_log_keeps_the_columns_that_it_began_with(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("step,loss\n1,2.5\n")
    CsvLog(tmp_path / "log.csv", 1).write({"step": 2, "loss": 2.25, "margin": 1.0})
    columns = read_columns(tmp_path / "log.csv")
    assert list(columns) == ["step", "loss"] and columns["loss"].tolist() == [2.5, 2.25]
