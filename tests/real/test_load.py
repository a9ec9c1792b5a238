"""A published model under load, in short: nobody waits for somebody else's prompt. `make load` measures it."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from daguerre.model import Model
from daguerre.server.app import make_app
from daguerre.server.models import ModelPool
from server.conftest import running

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "serving_real.py"


def test_streams_and_a_newcomer_go_on_while_a_long_prompt_is_read(
    smollm2: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    script = importlib.import_module("serving_real")
    with running(make_app(ModelPool({"m": lambda: smollm2}))) as url:
        found = script.long_prompt(url, script.tokens_of(url, script.source("decoding"), 1201), 2)
    assert found["newcomer_before_it"] and found["fewest_pieces"] >= 4
