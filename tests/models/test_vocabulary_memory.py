"""Draws from a vocabulary of 150,000: the memory of a forward does not grow with its rows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends import needs_compiler
from daguerre.models.backends.native_backend import NativeBackend
from daguerre.models.forward import Draws, Forward, Hidden, LogProbs, Rules
from daguerre.sampling.random import Counter
from forwards import causal_layout

VOCABULARY, ROWS = 151_936, 700
WHOLE = VOCABULARY * ROWS * 4
"""Bytes of the logits of all rows: 425 million."""
RULES = Rules(temperature=1.0, rng=Counter(1, 0))
POSITIONS = np.arange(ROWS) + 1
ASKS: dict[str, Any] = {
    "greedy": Draws(Rules(), POSITIONS),
    "random": Draws(RULES, POSITIONS, entropy=True),
    "scores": LogProbs(np.full(ROWS, 500)),
}
pytestmark = [needs_compiler, pytest.mark.slow]


def peak() -> int:
    """The most bytes that were resident since `forget`."""
    found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


def forget() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError as error:
        pytest.skip(f"this system does not tell a process's peak memory ({error})")


@pytest.mark.parametrize("name", ASKS)
def test_logits_of_few_rows_are_in_memory_at_a_time(make_model: Any, name: str) -> None:
    facts = {"width": 64, "num_layers": 1, "num_heads": 2, "num_kv_heads": 2, "mlp_width": 64}
    backbone = make_model(vocab_size=VOCABULARY, max_positions=1024, **facts).backbone
    backend = NativeBackend(backbone, "int8")
    tokens, wanted = np.arange(300, 300 + ROWS), np.arange(ROWS, dtype=np.int32)
    for ask in (Hidden(), ASKS[name]):
        forget()
        before = peak()
        (answer,) = backend.forward([Forward(tokens, causal_layout(0, ROWS), None, wanted, ask)])
        assert peak() - before < WHOLE / 4
    assert answer.hidden is None
