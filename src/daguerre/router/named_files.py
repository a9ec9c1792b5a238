"""Reading files that a configuration names, with an error that says what is wrong with one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from daguerre.errors import DataError, InputError
from daguerre.router.quality import QualityModel


def key_in(path: Path, backend: str) -> str:
    """A backend's API key. InputError for a file that cannot be read or has none."""
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"backend {backend!r}: cannot read its key from {path}: {error}") from None
    if not key:
        raise InputError(f"backend {backend!r}: {path} is empty")
    return key


def quality_in(path: Path, backends: Sequence[str]) -> QualityModel:
    """A model of quality. DataError for a file that cannot be read, is none, or knows none of the backends."""
    found = QualityModel.load(path)
    if set(backends).isdisjoint(found.backends):
        said = f"{path} was fitted for {', '.join(found.backends)}, and the backends here are {', '.join(backends)}"
        raise DataError(f"{said}: rename them, or run `daguerre route fit` on a log of these")
    return found
