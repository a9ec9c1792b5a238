"""The picture of a run, and what a run does without matplotlib."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from daguerre.errors import DataError, MissingExtra
from daguerre.train.curves import draw_curves, read_columns, smooth
from daguerre.train.noising import NUM_LEVELS
from daguerre.train.report import CsvLog

PNG = b"\x89PNG\r\n\x1a\n"


def write_run(folder: Path, steps: int, held: bool) -> None:
    log, held_log = CsvLog(folder / "log.csv", 0), CsvLog(folder / "held.csv", 0)
    for step in range(1, steps + 1):
        loss = 2 + 5 / step
        row = {"step": step, "tokens": step * 100, "minutes": step / 60, "clean": loss, "lr_factor": 0.5}
        levels = {f"masked_{i}": float("nan") if step % 2 else loss for i in range(NUM_LEVELS)}
        log.write({**row, "tokens_per_second": 1000.0, **levels})
        if held and step % 2 == 0:
            matches = {f"match_{i}": 1 / i for i in range(1, 17)}
            held_log.write({"step": step, "clean_bpb": loss, "accepted": 2.0, **levels, **matches})


@pytest.mark.parametrize(("steps", "held"), [(1, False), (7, False), (2, True), (500, True)])
def test_a_run_of_any_length_is_drawn(tmp_path: Path, steps: int, held: bool) -> None:
    pytest.importorskip("matplotlib")
    write_run(tmp_path, steps, held)
    path = draw_curves(tmp_path)
    assert path == tmp_path / "curves.png"
    assert path.read_bytes().startswith(PNG)
    assert not list(tmp_path.glob("*.tmp"))


def test_drawing_touches_no_global_figure(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write_run(tmp_path, 3, held=True)
    draw_curves(tmp_path)
    if "matplotlib.pyplot" in sys.modules:
        assert not sys.modules["matplotlib.pyplot"].get_fignums()


def test_a_folder_without_a_log_is_an_error(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(DataError, match=r"no log\.csv"):
        draw_curves(tmp_path)


def test_without_matplotlib_the_error_has_the_command_that_installs_it(
    tmp_path: Path, hide_matplotlib: Callable[[], None]
) -> None:
    hide_matplotlib()
    write_run(tmp_path, 3, held=True)
    with pytest.raises(MissingExtra, match=r"pip install 'daguerre\[train\]'"):
        draw_curves(tmp_path)


def test_a_smoothed_column_keeps_its_mean_and_skips_what_is_missing() -> None:
    step = np.arange(1.0, 1001.0)
    value = np.where(step % 2 == 0, np.nan, step)
    xs, ys = smooth(step, value, 100)
    assert len(xs) == 100
    assert ys == pytest.approx(xs - 0.5, abs=0.5)
    assert len(smooth(step[:3], value[:3], 100)[0]) == 3


def test_columns_of_a_damaged_file_are_missing_numbers(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("step,clean\n1,2.5\n2,\n3,what\n4\n")
    columns = read_columns(tmp_path / "log.csv")
    assert columns["step"].tolist() == [1, 2, 3, 4]
    assert np.array_equal(columns["clean"], [2.5, np.nan, np.nan, np.nan], equal_nan=True)
    assert read_columns(tmp_path / "none.csv") == {}
