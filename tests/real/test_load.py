"""A published model under load, in short: nobody waits for somebody else's prompt. `make load` measures it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from daguerre.model import Model
from daguerre.server.app import make_app
from daguerre.server.models import ModelPool
from server.conftest import running

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "serving_real.py"


def test_streams_and_a_newcomer_go_on_while_a_long_prompt_is_read(smollm2: Model) -> None:
    spec = importlib.util.spec_from_file_location("serving_real", SCRIPT)
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(script := importlib.util.module_from_spec(spec))
    with running(make_app(ModelPool({"m": lambda: smollm2}))) as url:
        found = script.long_prompt(url, 1200, 2)
    assert found["newcomer_before_it"] and found["fewest_pieces"] >= 4
