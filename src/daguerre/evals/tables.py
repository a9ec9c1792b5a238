"""Tables in Markdown, and how their cells are written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from daguerre.evals.bits import CHAIN

Row = dict[str, Any]
Column = Callable[[Row], str]
"""What a column of a table shows of a row."""


def table(header: Sequence[str], rows: Iterable[Sequence[object]], left: int = 1) -> str:
    """A Markdown table, its columns after the first, or after so many, aligned to the right."""
    aligned = ["---" if place < left else "---:" for place in range(len(header))]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in [header, aligned, *rows])


def table_of(columns: dict[str, Column], rows: Iterable[Row]) -> str:
    """A table of `columns`, by their header."""
    return table(list(columns), [[cell(row) for cell in columns.values()] for row in rows])


def text(form: str) -> Column:
    """A format string, filled with the row's values."""
    return form.format_map


def percent(name: str) -> Column:
    """A share, with its interval where the row has one."""
    return lambda row: share(row[name], row.get(f"{name}_interval"))


def bracketed(value: float, interval: Sequence[float] | None, form: str, times: float = 1) -> str:
    """A number in a form, such as ".2f", and times another one, with its interval where there is one."""
    ends = [] if interval is None else [f"{times * end:{form}}" for end in interval]
    return f"{times * value:{form}}" + (f" [{', '.join(ends)}]" if ends else "")


def share(value: float, interval: Sequence[float] | None) -> str:
    """A share in percent, with its interval."""
    return bracketed(value, interval, ".1f", 100)


def between(value: float, low: float, high: float, digits: int = 1) -> str:
    """A share in percent, with its interval in words."""
    middle, *ends = (f"{100 * each:.{digits}f}" for each in (value, low, high))
    return f"{middle}% ({ends[0]} to {ends[1]})"


def difference(value: float, interval: Sequence[float]) -> str:
    """A difference of shares in percent, with its interval."""
    return bracketed(value, interval, "+.1f", 100)


def ratio(value: float, interval: Sequence[float] | None) -> str:
    """A number, with its interval where there is one."""
    return bracketed(value, interval, ".2f")


def optional(value: float | None, digits: int) -> str:
    """A number with that many digits; nothing for None."""
    return "" if value is None else f"{value:.{digits}f}"


def plus_minus(error: float | None, digits: int = 2) -> str:
    """A standard error after its figure; nothing for None."""
    return "" if error is None else f" ± {error:.{digits}f}"


def counted(num: int | str, name: str) -> str:
    """1 thread, 2 threads."""
    return f"{num} {name}" if int(num) == 1 else f"{num} {name}s"


def layout_name(layout: str) -> str:
    """A layout of `bits` in words."""
    if layout.startswith(CHAIN):
        return f"{layout_name(layout.removeprefix(CHAIN))}, left to right"
    return f"spans of {layout}" if layout.isdecimal() else layout
