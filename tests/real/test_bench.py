"""`daguerre bench --what real` in a short form: SmolLM2 beside llama.cpp, the same file."""

from __future__ import annotations

import pytest

from daguerre.evals.bench import real, run
from daguerre.evals.bench.real_report import Real
from real.files import bring, bring_llama_cpp

SIZES = {"PROMPT": 48, "NEW": 6, "CONTEXT": 24, "CROWD_PROMPT": 8, "CROWD_NEW": 4, "WINDOW": 128, "WINDOWS": 4}


def test_a_published_file_is_measured_beside_llama_cpp(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SIZES.items():
        monkeypatch.setattr(real, name, value)
    options = run.BenchOptions(model=str(bring("smollm2")), llama_cpp=str(bring_llama_cpp()), rounds=1, threads=(1,))
    found = run.bench(["real"], options)["real"]["threads"]["1"]

    assert found["missing"] is None
    figures = Real(found)
    exact, ours, theirs = (figures.bits(name) for name in (real.FLOAT32, real.OURS, real.LLAMA))
    assert exact is not None and ours == pytest.approx(exact, rel=0.01) and theirs == pytest.approx(exact, rel=0.01)
    written = [found["sides"][name]["rounds"][0]["tokens"] for name in (real.OURS, real.LLAMA)]
    assert written[0][0] == written[1][0], "later tokens may differ: numbers of 8 bits are not the same numbers"
    assert len(written[0]) == len(written[1])
