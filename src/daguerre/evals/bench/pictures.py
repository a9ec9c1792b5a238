"""A report of `daguerre bench` as pictures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from daguerre.evals.bench.family_report import paint as paint_families
from daguerre.evals.bench.job import RANDOM
from daguerre.evals.bench.report import threads_text
from daguerre.evals.bench.rows import PRODUCTS, TORCH, crossing
from daguerre.evals.bench.sides import OURS
from daguerre.view.charts import BLUE, GRAY, GREEN, ORANGE, RED, SIZE, by_powers, draw_parts, legend_below, titled

LINES = {
    "native float32": ("o-", BLUE),
    "native bfloat16": ("o-", GREEN),
    "native int8": ("o-", ORANGE),
    TORCH: ("^-", RED),
    PRODUCTS: ("s--", GRAY),
}
"""How each side of part "rows" is drawn."""
BAR = 0.17
"""Inches between two bars, which is what a line of their labels takes."""


def draw(report: dict[str, Any], path: Path) -> list[Path]:
    """NAME-peers.png and NAME-modes.png, tokens a second; NAME-rows.png, what rows cost and where lines cross; and
    NAME-families.png, or NAME.png for a file that is named after this part. MissingExtra without matplotlib.
    """
    paints = {"peers": _sides, "modes": _sides, "rows": _rows, "families": paint_families}
    return draw_parts(report, path, {name: _of_part(name, paint) for name, paint in paints.items()})


def _of_part(name: str, paint: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    return lambda figure, report: paint(figure, report[name])


def _sides(figure: Any, part: dict[str, Any]) -> None:
    """A bar for each side and number of threads, those of Daguerre in color."""
    panel = figure.subplots()
    names = list(dict.fromkeys(name for found in part["threads"].values() for name in found["sides"]))
    height = 0.8 / len(part["threads"])
    figure.set_size_inches(SIZE[0], 0.9 + BAR * len(names) * len(part["threads"]))
    for index, found in enumerate(part["threads"].values()):
        for place, name in enumerate(names):
            if name in found["sides"]:
                value = found["sides"][name]["tokens_per_second"]
                color = BLUE if name in OURS else GRAY
                panel.barh(place + index * height, value, height, color=color, alpha=0.6 + 0.4 * index)
                panel.annotate(f" {value:.0f}", (value, place + index * height), va="center", fontsize=8)
    panel.set_yticks([place + height * (len(part["threads"]) - 1) / 2 for place in range(len(names))], names)
    panel.invert_yaxis()
    panel.set_xlabel("tokens a second, end to end")
    order = ", below it ".join(map(threads_text, part["threads"]))
    panel.set_title(f"Daguerre (blue) beside others: {order}", loc="left", fontsize=12)
    panel.spines[["top", "right"]].set_visible(False)


def _rows(figure: Any, part: dict[str, Any]) -> None:
    """Left: a forward by its rows. Right: tokens a second by requests at once, and where the lines cross."""
    threads, found = list(part["threads"].items())[-1]
    figure.set_size_inches(SIZE[0], SIZE[1] + 0.8)
    left, right = figure.subplots(1, 2)
    for name, (style, color) in LINES.items():
        if name in (sides := found["models"][RANDOM]["sides"]):
            left.plot(sides[name]["rows"], sides[name]["ms"], style, color=color, label=name)
    titled(left, f"A forward by its rows, {threads_text(threads)}", "rows", "ms", 11)
    many = [point["requests"] for point in found["concurrency"]]
    ar = [1e3 * point["requests"] / point["ar_ms"] for point in found["concurrency"]]
    right.plot(many, ar, "o-", color=GRAY, label="autoregressive")
    for per_forward, color in ((1.5, ORANGE), (2.0, RED), (4.0, GREEN)):
        block = [1e3 * per_forward * point["requests"] / point["block_ms"] for point in found["concurrency"]]
        place = crossing(found["concurrency"], per_forward)
        where = "never slower here" if place is None else "slower from 1" if place == 0 else f"slower from {place:.1f}"
        right.plot(many, block, "s-", color=color, label=f"blocks, {per_forward:g} a forward: {where}")
    by_powers(right, many)
    titled(right, "Tokens a second, all requests together", "requests at once", size=11)
    for panel in (left, right):
        panel.set_ylim(bottom=0)
        legend_below(panel, ncols=1, down=0.13)
