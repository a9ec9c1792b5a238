"""Pictures of a report: one for each task that has one, of what the report says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from daguerre.errors import MissingExtra
from daguerre.evals.pictures import PICTURES, draw_pictures
from daguerre.view import charts
from daguerre.view.charts import SIZE

PNG = b"\x89PNG\r\n"


def bits(layout: str, value: float, *, exact: bool = False) -> dict[str, Any]:
    positions = [value + 0.1, *[value] * 5, None, None]
    return {"layout": layout, "exact": exact, "value": value, "by_position": positions}


def setting(size: int | None, threshold: float | None, speed: float, lost: float) -> dict[str, Any]:
    return {
        "mode": "block" if size else "ar", "block_size": size, "policy": "threshold" if threshold else "confidence",
        "threshold": threshold, "similarity": 0.4, "similarity_difference": -lost,
        "similarity_difference_interval": [-lost - 0.01, 0.01 - lost], "tokens_per_forward": speed,
        "num": 200 if size == 4 else 50, "accuracy": 0.1 - lost, "difference": -lost, "same_as_ar": 1 - 8 * lost,
    }  # fmt: skip


def span(forwards: int, right: float) -> dict[str, Any]:
    return {
        "length": 16, "num": 200, "forwards": forwards, "token_accuracy": right, "token_interval": None,
        "exact": right / 4, "exact_interval": [right / 4 - 0.01, right / 4 + 0.02],
    }  # fmt: skip


def text(layout: str, length: int, steps: int | None, heat: float | None, nats: float | None) -> dict[str, Any]:
    return {
        "layout": layout, "length": length, "steps": steps, "temperature": heat, "nats": nats, "entropy": 3.0,
    }  # fmt: skip


def timely(task: str, way: str, forwards: int, right: float, filled: float) -> dict[str, Any]:
    interval = [right - 0.05, right + 0.05]
    return {
        "task": task, "way": way, "forwards": forwards, "num": 20, "filled": filled, "token_accuracy": right,
        "token_interval": interval,
    }  # fmt: skip


def decided(kind: str, labels: int, error: float) -> dict[str, Any]:
    bins = [{"num": 5, "confidence": 0.1 * i, "accuracy": 0.09 * i} for i in (4, 6, 9)]
    ways = {"uncalibrated": error, "temperature": error / 2}
    figures = [{"way": way, "calibration_error": value, "bins": bins} for way, value in ways.items()]
    return {"kind": kind, "num": 15, "labels": labels, "figures": figures, "majority": {"accuracy": 0.3}}


REPORT: dict[str, Any] = {
    "model": {"max_positions": 1024},
    "bits": [bits("ar", 1.0, exact=True), bits("16", 1.5), bits("full", 1.6), bits("chain 16", 1.1, exact=True)],
    "draft": {
        "prompts": 64, "match_by_position": [0.9, 0.5, 0.2], "match_stderr": [0.01, None, 0.03],
        "accepted_by_position": [0.9, 0.45, 0.1], "accepted_a_cycle": 2.45, "accepted_stderr": 0.05,
    },
    "completion": {
        "rows": [
            setting(None, None, 0.95, 0.0) | {"num": 200}, setting(4, 0.5, 1.6, 0.05), setting(4, 0.9, 1.1, 0.01),
            setting(8, 0.9, 1.2, 0.02), setting(8, None, 1.9, 0.1),
        ]
    },
    "steps": {
        "spans": [span(1, 0.3), span(2, 0.35), span(16, 0.4)],
        "texts": [
            text("canvas", 128, 2, 0.0, 1.5), text("canvas", 128, 128, 0.0, 0.5), text("block", 64, 2, 1.0, 4.0),
            text("block", 64, 64, 1.0, 3.0), text("ar", 128, None, 0.0, 0.4), text("truth", 64, None, None, 2.0),
        ],
    },
    "constrained": {
        "outcomes": [
            {
                "kind": kind, "method": method, "exact": share, "exact_interval": [share, share + 0.02],
                "begins": 0.5, "seconds": time,
            }
            for kind, shares in (("number", (0.4, 0.1, 0.08)), ("list", (0.2, 0.05, 0.04)))
            for method, share, time in zip(("constrained", "free", "healed"), shares, (0.1, 0.2, 0.3), strict=True)
        ]
    },
    "decide": {"outcomes": [decided("keyword", 35, 0.1), decided("digit", 10, 0.2)]},
}  # fmt: skip


REPORT["deadline"] = {
    "length": 32,
    "unhurried": {"infill": 9.5, "completion": 12.0},
    "rows": [
        timely(task, way, forwards, right, filled)
        for task in ("infill", "completion")
        for way, forwards, right, filled in (
            ("hurried", 2, 0.2, 1.0), ("hurried", 4, 0.3, 1.0), ("cut", 2, 0.1, 0.2), ("cut", 4, 0.2, 0.5),
        )
    ],
}  # fmt: skip
REPORT["concepts"] = {"shares": {"rates": [{"rate": 0.5, "cc": 0.8, "cc_known": 0.5, "cc_each": 0.9, "fvu": 0.2}]}}


def drawn(name: str, report: dict[str, Any] = REPORT) -> Any:
    """The figure of a part of a report."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE)
    PICTURES[name](figure, report)
    return figure


def labels(panel: Any) -> list[str]:
    return [text.get_text() for text in panel.get_legend().get_texts()]


def test_a_picture_is_drawn_for_each_task_that_the_report_has(tmp_path: Path) -> None:
    paths = draw_pictures(REPORT, tmp_path / "report.json")
    some = draw_pictures(
        {"model": REPORT["model"], "draft": REPORT["draft"], "infill": {}}, tmp_path / "some-draft.json"
    )

    assert [path.name for path in paths] == [f"report-{name}.png" for name in PICTURES]
    assert [path.name for path in some] == ["some-draft.png"]
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in (*paths, *some)}
    assert all(path.read_bytes().startswith(PNG) for path in paths)


def test_bits_are_drawn_where_windows_reach() -> None:
    panel = drawn("bits").axes[0]

    ar, block, *_ = panel.get_lines()
    assert list(ar.get_ydata()) == pytest.approx([1.1, 1, 1, 1, 1, 1])
    assert ar.get_xdata()[0] == pytest.approx(1023 / 16)
    assert (ar.get_linestyle(), block.get_linestyle()) == ("-", "--")
    assert labels(panel)[:2] == ["ar: 1.000", "spans of 16, bound: 1.500"]
    assert labels(panel)[3] == "spans of 16, left to right: 1.100"
    assert panel.get_xlabel().endswith("tokens")
    assert panel.get_ylabel() == "bits per byte"


def test_drafts_are_drawn_with_their_errors() -> None:
    panel = drawn("draft").axes[0]

    assert "2.45 ± 0.05 tokens accepted per cycle" in panel.get_title(loc="left")
    assert [list(line.get_ydata()) for line in panel.get_lines() if len(line.get_ydata()) == 3][-1] == [0.9, 0.45, 0.1]
    (errors,) = panel.collections
    assert [segment[1][1] - segment[0][1] for segment in errors.get_segments()] == pytest.approx([0.02, 0, 0.06])


def test_settings_are_drawn_by_block_size_and_threshold() -> None:
    panel = drawn("completion").axes[0]

    assert labels(panel) == [
        "ar: similarity 0.40", "blocks of 4", "blocks of 8", "threshold 0.5", "threshold 0.9", "fixed number of steps",
    ]  # fmt: skip
    line = next(line for line in panel.get_lines() if line.get_label() == "blocks of 4")
    assert list(zip(*line.get_data(), strict=True)) == [pytest.approx((1.1, -0.01)), pytest.approx((1.6, -0.05))]


def test_parallelism_is_drawn_by_policy_dotted_where_not_all_lines_ran() -> None:
    figure = drawn("completion")

    _, same, exact = figure.axes
    assert labels(exact) == ["threshold, 200 lines", "confidence, 50 lines", "threshold, 50 lines", "ar"]
    whole, fixed, some, ar = same.get_lines()
    assert list(zip(*whole.get_data(), strict=True)) == [pytest.approx((1.1, 92)), pytest.approx((1.6, 60))]
    assert [line.get_linestyle() for line in (whole, fixed, some)] == ["-", ":", ":"]
    assert whole.get_color() == some.get_color() != fixed.get_color()
    assert [list(line.get_data()[1]) for line in (ar, exact.get_lines()[3])] == [[100], [10]]
    assert list(exact.get_lines()[1].get_xdata()) == [1.9]


def test_steps_are_drawn_as_accuracy_by_forwards_and_as_likelihood_by_entropy() -> None:
    figure = drawn("steps")

    spans, texts = figure.axes
    assert next(list(line.get_ydata()) for line in spans.get_lines() if len(line.get_ydata()) == 3) == [30, 35, 40]
    assert [tick.get_text() for tick in spans.get_xticklabels()] == ["1", "2", "16"]
    assert {note.get_text() for note in texts.texts} == {"2", "128", "64"}
    assert [list(line.get_ydata()) for line in texts.get_lines()[:4]] == [[1.5, 0.5], [4.0, 3.0], [0.4], [2.0]]
    assert labels(texts)[:2] == ["canvas of 128 tokens, by steps", "block of 64 tokens, by steps"]


def test_what_a_model_could_not_be_asked_is_not_drawn(tmp_path: Path) -> None:
    texts = [text("block", 64, 2, 0.0, None)]
    figure = drawn("steps", {"steps": {"spans": REPORT["steps"]["spans"], "texts": texts}})

    assert len(figure.axes) == 1
    nothing = {"model": REPORT["model"], "steps": {"spans": [], "texts": texts}}
    assert draw_pictures(nothing, tmp_path / "r.json") == list(tmp_path.iterdir()) == []


def test_decisions_are_drawn_before_and_after_calibration() -> None:
    figure = drawn("decide")

    keyword, digit = figure.axes
    assert keyword.get_title(loc="left") == "keyword: 15 of 35 labels"
    assert labels(digit) == ["uncalibrated: 0.200", "temperature: 0.100", "always the majority"]
    assert list(keyword.get_lines()[1].get_xdata()) == pytest.approx([0.4, 0.6, 0.9])
    assert list(keyword.get_lines()[1].get_ydata()) == pytest.approx([0.36, 0.54, 0.81])


def test_without_matplotlib_the_extra_is_named(hide_matplotlib: Callable[[], None], tmp_path: Path) -> None:
    hide_matplotlib()
    with pytest.raises(MissingExtra, match=r"daguerre\[train\]"):
        draw_pictures(REPORT, tmp_path / "report.json")
    assert list(tmp_path.iterdir()) == []


def test_no_two_lines_of_a_picture_look_the_same() -> None:
    looks = list(zip(charts.COLORS, charts.MARKERS, strict=True))
    assert len(set(charts.COLORS)) == len(set(charts.MARKERS)) == len(looks) >= 7


def test_deadlines_are_drawn_as_what_is_right_and_what_is_filled() -> None:
    figure = drawn("deadline")

    infill, completion = figure.axes
    assert infill.get_title(loc="left") == "Infill of 32 tokens"
    lines = [list(line.get_ydata()) for line in infill.get_lines() if len(line.get_ydata()) == 2]
    for values in ([20, 30], [100, 100], [10, 20], [20, 50]):
        assert any(line == pytest.approx(values) for line in lines)
    assert [tick.get_text() for tick in completion.get_xticklabels()] == ["2", "4"]
    (legend,) = figure.legends
    assert len(legend.get_texts()) == 5


def test_constrained_and_unconstrained_stand_side_by_side() -> None:
    figure = drawn("constrained")

    exact, seconds = figure.axes
    assert [round(bar.get_height()) for bar in exact.patches] == [40, 20, 10, 5, 8, 4]
    assert [bar.get_height() for bar in seconds.patches] == [0.1, 0.1, 0.2, 0.2, 0.3, 0.3]
    assert [tick.get_text() for tick in exact.get_xticklabels()] == ["number", "list"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "begins with it",
        "constrained",
        "free",
        "healed",
    ]
