"""What a proof or a benchmark found, written down: JSON, a page in Markdown, and a picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from daguerre.errors import MissingExtra
from daguerre.files import atomic_write

DPI = 110


def write_json(path: Path, values: Any) -> None:
    """Values as indented JSON; the file is whole, or as it was."""
    with atomic_write(path) as file:
        file.write((json.dumps(values, indent=1) + "\n").encode())


def write_report(path: Path, values: Any, page: str) -> None:
    """Values as JSON, and a page of the same name in Markdown."""
    write_json(path, values)
    with atomic_write(path.with_suffix(".md")) as file:
        file.write(page.encode())


def new_figure(width: float, height: float) -> Any:
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
    """A figure as PNG."""
    with atomic_write(path) as file:
        figure.savefig(file, format="png")
