"""What `tools/house.py` counts stays within bounds."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BOUNDS = {
    "median lines of a function": 8,
    "functions over 60 lines": 0,
    "files over 500 lines": 0,
    "files a completion crosses": 25,
    "functions it crosses": 140,
    "files of decoding": 22,
    "floors of decoding": 10,
    "modules that compare a mode's name": 0,
    "class names in two or more files": 10,
    "pages over 250 lines": 0,
    "lines of pages over 120 columns": 0,
}
"""The most that each count may be."""


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="files are those that git tracks")
def test_counts_stay_within_their_bounds() -> None:
    found = runpy.run_path(str(ROOT / "tools" / "house.py"))["counts"](ROOT)
    over = {name: (found[name], bound) for name, bound in BOUNDS.items() if found[name] > bound}
    assert not over, "each count with its bound"
