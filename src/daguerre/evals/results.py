"""What a proof or a benchmark found, written down: JSON, a page in Markdown, and a picture."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from daguerre.files import atomic_write
from daguerre.view.charts import write_figure


def write_json(path: Path, values: Any, allow_nan: bool = True) -> None:
    """Values as indented JSON; the file is whole, or as it was."""
    with atomic_write(path) as file:
        file.write((json.dumps(values, indent=1, ensure_ascii=False, allow_nan=allow_nan) + "\n").encode())


def write_page(path: Path, page: str) -> None:
    """A page of Markdown, whose file has the name of `path` and ends in .md; it is whole, or as it was."""
    with atomic_write(path.with_suffix(".md")) as file:
        file.write(page.encode())


def write_report(path: Path, values: Any, page: str, figure: Any = None) -> None:
    """Values as JSON, and a page and a picture of the same name in Markdown and PNG. The path may end in anything."""
    write_json(path.with_suffix(".json"), values)
    write_page(path, page)
    if figure is not None:
        write_figure(figure, path.with_suffix(".png"))


def publish(path: Path | None, values: Any, page: str, figure: Any = None) -> None:
    """Print a page; and write the report where there is a path."""
    sys.stdout.write(page)
    if path is not None:
        write_report(path, values, page, figure)


def read_lines(path: Path) -> list[Any]:
    """The values of a file with one in each line; none where there is no file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def write_lines(path: Path, values: Iterable[Any]) -> None:
    """One value in each line of a file, which is whole, or as it was."""
    with atomic_write(path) as file:
        file.write("".join(json.dumps(value) + "\n" for value in values).encode())
