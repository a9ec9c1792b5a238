"""JSON objects in files: read in one place, so that a damaged file is one line everywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from daguerre.errors import CheckpointError, DaguerreError


def read_json(path: Path, *, hint: str = "check the path", required: bool = False) -> dict[str, Any]:
    """The JSON object in a file; empty where there is no such file, unless it is `required`.

    CheckpointError, in one line, for a file that cannot be read, which ends with `hint`, or that is no JSON object.
    """
    try:
        content = path.read_bytes()
    except (OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError) and not required:
            return {}
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise CheckpointError(f"cannot read {path} ({reason}): {hint}") from None
    return parse_json(content, str(path))


def parse_json(content: bytes | str, name: str, error: type[DaguerreError] = CheckpointError) -> dict[str, Any]:
    """The JSON object that is the `content` of the file `name`; an `error`, in one line, where it is none."""
    try:
        values = json.loads(content)
    except RecursionError:
        raise error(f"{name} is nested too deeply for JSON: copy it again") from None
    except ValueError as reason:
        raise error(f"{name} is not JSON ({str(reason)[:100]}): copy it again") from None
    if not isinstance(values, dict):
        raise error(f"{name} is not a JSON object: copy it again")
    return values
