"""An evaluation that goes on: tasks of an unfinished report are kept where they were measured with the same.

The report's file is written as each task ends, so a run that is stopped loses the task that was running and no other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

IDENTITY = ("model", "data", "settings", "machine")
"""What two runs must have in common: the parts of a report that say what was measured, on what, and with what."""


@dataclass(frozen=True)
class KeptTasks:
    """Tasks of an earlier report, with their seconds; or why there are none to be kept."""

    tasks: Mapping[str, Any] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    differs: str | None = None

    @classmethod
    def of(cls, path: Path, now: Mapping[str, Any], names: Sequence[str]) -> KeptTasks:
        """The tasks called `names` of the report in a file, if it begins as the one `now` does."""
        try:
            before = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return cls()
        if not isinstance(before, dict) or not all(isinstance(before.get(part), dict) for part in IDENTITY):
            return cls()
        differs = difference(before, now)
        if differs is not None:
            return cls(differs=differs)
        seconds = before.get("seconds", {})
        found = {name: before[name] for name in names if name in before and name in seconds}
        return cls(found, {name: seconds[name] for name in found})


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """The first fact that two reports do not have in common, as in "settings.lines: 200, now 16"; None for none."""
    now = json.loads(json.dumps({part: now[part] for part in IDENTITY}))  # tuples are lists there
    for part in IDENTITY:
        for name in sorted(before[part].keys() | now[part].keys()):
            old, new = before[part].get(name), now[part].get(name)
            if old != new:
                return f"{part}.{name}: {old!r:.60}, now {new!r:.60}"
    return None
