"""Pictures of the recorded reports: no legend over data, no words over words or over the edge; levels told apart."""

from __future__ import annotations

import json
import shutil
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daguerre.evals.bench.pictures import draw as draw_bench
from daguerre.evals.pictures import draw_pictures
from daguerre.model import Model
from daguerre.train.curves import LEVELS, draw_curves
from daguerre.train.noising import NUM_LEVELS
from daguerre.view.picture import figure_of

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
REPORTS = [*sorted(path.stem for path in RESULTS.glob("default-*.json")), "concepts"]


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The faults of figures, which are looked at in place of being written."""
    from matplotlib.figure import Figure

    from drawn import faults

    faulty: list[str] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: faulty.extend(faults(figure)))
    return faulty


@pytest.mark.parametrize("name", REPORTS)
def test_pictures_of_a_report_can_be_read(name: str, found: list[str], tmp_path: Path) -> None:
    draw_pictures(json.loads((RESULTS / f"{name}.json").read_text()), tmp_path / f"{name}.json")
    assert found == []


@pytest.mark.parametrize("name", ["speed", "speed-avx2"])
def test_pictures_of_speed_can_be_read(name: str, found: list[str], tmp_path: Path) -> None:
    draw_bench(json.loads((RESULTS / f"{name}.json").read_text()), tmp_path / f"{name}.json")
    assert found == []


@pytest.mark.parametrize("name", ["default", "default-settle-4", "default-draft-3"])
def test_curves_can_be_read(name: str, found: list[str], tmp_path: Path) -> None:
    for kept, wanted in (("training", "log"), ("held", "held")):
        shutil.copy(RESULTS / f"{name}-{kept}.csv", tmp_path / f"{wanted}.csv")
    draw_curves(tmp_path)
    assert found == []


def test_noise_levels_are_told_apart() -> None:
    """Each has a marker of its own, and a color that is far from every other one in CIELAB."""
    from matplotlib.colors import to_rgb

    colors = [lab(np.array(to_rgb(color))) for color, _ in LEVELS]
    assert len(LEVELS) == NUM_LEVELS == len({marker for _, marker in LEVELS})
    assert min(float(np.linalg.norm(a - b)) for a, b in combinations(colors, 2)) > 25


def lab(rgb: np.ndarray) -> np.ndarray:
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    share = to_xyz @ linear / np.array([0.9505, 1.0, 1.089])
    x, y, z = np.where(share > 216 / 24389, np.cbrt(share), (24389 / 27 * share + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("words", ["def", "collections.abc.MutableMapping", "深層学習 = 1\n\n\n\t"])
def test_a_cell_is_as_wide_as_its_token(words: str, causal: Model) -> None:
    from drawn import faults

    figure = figure_of(causal.fill(f"import {words}\n<gap>\nx = {words}\n", 6, heal=False), causal.tokenizer)
    assert faults(figure) == []
    axes = figure.axes[0]
    edges = axes.transData.transform(
        np.column_stack([axes.get_xticks(minor=True), np.zeros(len(axes.get_xticks()) + 1)])
    )
    for text in [*axes.texts, *axes.get_xticklabels()]:
        box = text.get_window_extent()
        if text.get_text():
            column = int(np.searchsorted(edges[:, 0], (box.x0 + box.x1) / 2)) - 1
            assert edges[column, 0] <= box.x0 and box.x1 <= edges[column + 1, 0], text.get_text()


def figure() -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=(4, 3))
    FigureCanvasAgg(made)
    return made, made.subplots()


def test_faults_are_found() -> None:
    from drawn import faults

    made, panel = figure()
    panel.plot([0, 1], [0, 1], label="a line")
    panel.legend(loc="center")
    assert any("covers 1 parts" in fault for fault in faults(made))

    made, panel = figure()
    panel.bar([0, 1], [1, 1], label="a bar")
    panel.legend(loc="lower left")
    assert any("covers" in fault for fault in faults(made))

    made, panel = figure()
    panel.text(0.5, 0.5, "some words")
    panel.text(0.55, 0.5, "others")
    panel.set_title("a title that is much longer than its picture is wide " * 2)
    assert [fault.split(" ", 1)[0] for fault in faults(made)] == ["'a", "'some"]

    made, panel = figure()
    panel.plot([0, 1], [0, 1], label="a line")
    panel.legend(loc="upper left")
    assert faults(made) == []
