"""How a value is written for a schema."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from daguerre.sampling.constraints.schema import Schema
from oracles import written_json as writing


@pytest.fixture(scope="session")
def written() -> Callable[[Schema, Any], list[str]]:
    """written(schema, value): the texts, of which an automaton accepts one if the value is valid."""
    return writing.written
