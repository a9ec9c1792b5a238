"""Where a value stands in the text of a TOML file, for errors."""

from __future__ import annotations

import re
from typing import Any


def line_of(text: str, place: tuple[Any, ...]) -> int:
    """The line, from 1, of the value at a place such as ("backends", 1, "price", "input"), or of the innermost table
    around it that the text names. Lines in strings of several lines may be taken for others.
    """
    found, table, seen = 1, tuple[Any, ...](), dict[str, int]()
    best = 0
    for number, line in enumerate(text.splitlines(), 1):
        if head := re.match(r"\s*(\[\[?)\s*([^\]]+?)\s*\]", line):
            path = tuple(part.strip().strip("\"'") for part in head[2].split("."))
            if head[1] == "[[":
                seen[head[2]] = seen.get(head[2], -1) + 1
            table = _numbered(path, seen)
            here = table
        elif pair := re.match(r"\s*([A-Za-z0-9_\-.\"']+)\s*=", line):
            here = (*table, *(part.strip("\"'") for part in pair[1].split(".")))
        else:
            continue
        size = len(place) if here[: len(place)] == place else len(here) if here == place[: len(here)] else 0
        if size > best:
            found, best = number, size
    return found


def _numbered(path: tuple[str, ...], seen: dict[str, int]) -> tuple[Any, ...]:
    """A table's path with the number of the item behind each array of tables."""
    out: list[Any] = []
    for place, part in enumerate(path):
        out.append(part)
        name = ".".join(path[: place + 1])
        if name in seen:
            out.append(seen[name])
    return tuple(out)
