"""Figures of matplotlib: how they are made, written and labeled, and the colors of reports.

Colors are those of Okabe and Ito, which the color-blind can tell apart; lines also differ in their markers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from daguerre.errors import MissingExtra
from daguerre.files import atomic_write

BLACK, BLUE, ORANGE, GREEN, RED, PURPLE, SKY = (
    "#000000", "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9",
)  # fmt: skip
COLORS, MARKERS = (BLACK, BLUE, GREEN, ORANGE, RED, SKY, PURPLE), "osD^vPX"
GRAY = "#5c6670"
SIZE, DPI = (8.2, 4.4), 110
"""Inches of a picture that is as wide as a README shows; dots an inch."""


def new_figure(width: float = SIZE[0], height: float = SIZE[1]) -> Any:
    """An empty figure of matplotlib, in inches. MissingExtra without it."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib", "train") from None
    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def write_figure(figure: Any, path: Path) -> None:
    """A figure as PNG; the file is whole, or as it was."""
    with atomic_write(path) as file:
        figure.savefig(file, format="png")


def confidence_scale() -> Any:
    """Confidence, 0 to 1, as a color: of viridis, without its darkest."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize

    return ScalarMappable(Normalize(0, 1), ListedColormap(colormaps["viridis"](np.linspace(0.25, 1, 256))))


def rgba(color: str) -> tuple[float, float, float, float]:
    """Red, green, blue and opacity of a color, 0 to 1."""
    from matplotlib.colors import to_rgba

    return to_rgba(color)


def add_frame(axes: Any, corner: tuple[float, float], width: float, height: float, color: str) -> None:
    """A frame around a rectangle, whose lower corner is given in the units of the axes."""
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle(corner, width, height, fill=False, edgecolor=color, linewidth=2.2, zorder=3))


def draw_parts(report: Mapping[str, Any], path: Path, pictures: Mapping[str, Callable[[Any, Any], None]]) -> list[Path]:
    """A picture of each part that a report has, beside its file: NAME-PART.png; NAME.png for a file that is named after
    the part. `pictures` draw on a figure, given the report; one that draws nothing makes no file.
    """
    out = []
    for name in [name for name in pictures if name in report]:
        figure = new_figure()
        pictures[name](figure, report)
        if figure.axes:
            alone = name in path.stem.split("-")
            out.append(path.with_name(f"{path.stem}.png" if alone else f"{path.stem}-{name}.png"))
            write_figure(figure, out[-1])
    return out


def titled(panel: Any, title: str, across: str = "", up: str = "", size: float = 12) -> Any:
    """A panel with its title, the labels of its axes and a grid."""
    panel.set_title(title, loc="left", fontsize=size)
    panel.set_xlabel(across)
    panel.set_ylabel(up)
    panel.grid(alpha=0.25)
    panel.spines[["top", "right"]].set_visible(False)
    return panel


def reach(values: Sequence[float], intervals: Sequence[Sequence[float] | None], times: float = 1) -> list[list[float]]:
    """How far the intervals, times a number, go below and above their values, for error bars; 0 where there is none."""
    both = list(zip(values, intervals, strict=True))
    return [[0.0 if ends is None else abs(times * ends[side] - value) for value, ends in both] for side in (0, 1)]


def in_percent(*panels: Any) -> None:
    """Shares on the upright axis, as percent."""
    for panel in panels:
        panel.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f}%")


def by_powers(panel: Any, numbers: Any) -> None:
    """A logarithmic axis across, with these numbers."""
    panel.set_xscale("log", base=2)
    panel.set_xticks(numbers, [f"{number:g}" for number in numbers])


def legend_below(panel: Any, title: str | None = None, ncols: int = 2, down: float = 0.17, size: float = 8.5) -> None:
    """A legend below the panel, so that it covers nothing."""
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, -down)}
    panel.legend(title=title, frameon=False, fontsize=size, title_fontsize=size, ncols=ncols, **place)


def legend_beside(panel: Any, title: str | None) -> None:
    """A legend beside the panel, so that it covers nothing."""
    panel.legend(title=title, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=9, alignment="left")


def legend_of_figure(figure: Any, panel: Any, ncols: int, size: float = 9) -> None:
    """A panel's legend below the whole figure."""
    handles = panel.get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=ncols, frameon=False, fontsize=size)
