"""What the recorder of latencies asks for: nothing that its servers refuse as too long."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


def test_a_material_has_no_more_sentences_than_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.delitem(sys.modules, "routing_requests", raising=False)
    from routing_requests import request

    def sentences(body: dict[str, Any]) -> int:
        return int(body["messages"][-1]["content"].partition("\n\n")[2].count("."))

    long = [number for number in range(100) if sentences(request(number, "summarize")) > 20]
    assert long
    for number in range(100):
        whole, cut = request(number, "summarize"), request(number, "summarize", most=20)
        assert sentences(cut) == min(20, sentences(whole))
        assert number in long or cut == whole
