"""Published models, as they are stored: `make real` brings them, and runs what only real weights show.

CI runs a small part of it. DAGUERRE_REAL_FULL=1 runs all, on every model.
"""

from __future__ import annotations

import os

import pytest

import daguerre
from daguerre.model import Model
from real.files import MODELS, bring

FULL = bool(os.environ.get("DAGUERRE_REAL_FULL"))


def some(all_of: int, few: int) -> int:
    """How many cases are run: all, or a few."""
    return all_of if FULL else few


def repeats_a_line(text: str) -> bool:
    """Whether a line is there three times in a row."""
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    return any(one == two == three for one, two, three in zip(lines, lines[1:], lines[2:], strict=False))


@pytest.fixture(scope="session")
def smollm2() -> Model:
    """SmolLM2-135M-Instruct."""
    return daguerre.load(bring("smollm2"))


@pytest.fixture(
    scope="session", params=[name for name in MODELS if name.startswith("coder")] if FULL else ["coder-0.5b"]
)
def coder(request: pytest.FixtureRequest) -> Model:
    """Qwen2.5-Coder-Instruct."""
    return daguerre.load(bring(request.param))
