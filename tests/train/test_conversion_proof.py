"""The proof of conversions, trained and reported for a moment."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from recipe_scripts import recipe_scripts

TINY = "model.width=32 model.num_layers=1 model.num_heads=2 model.num_kv_heads=1 model.mlp_width=32".split()


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    with recipe_scripts("conversion", "prove") as found:
        module: ModuleType = found.prove
        monkeypatch.setattr(module, "TEXTS", 3)
        monkeypatch.setattr(module, "DRAWS", 2)
        monkeypatch.setattr(module, "CHARACTERS", 80)
        yield module


def test_a_model_is_converted_and_one_trained_from_scratch(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "".join(json.dumps({"text": f"def f{i}(a):\n    return a + {i}\n"}) + "\n" for i in range(300))
    (tmp_path / "library.jsonl").write_text(lines)
    start = script.train(tmp_path, "ar", 2, TINY, None) / "model"
    for to, shape in script.SHAPES.items():
        script.train(tmp_path, f"{to}-converted", 2, [f"convert.to={to}", "anneal=0"], start)
        script.train(tmp_path, f"{to}-lora", 2, [f"convert.to={to}", "anneal=0", *script.LORA], start)
        script.train(tmp_path, f"{to}-scratch", 2, [*shape, *TINY], None)
    monkeypatch.setattr(script, "RESULTS", tmp_path)
    script.report(tmp_path)
    said = (tmp_path / "conversion.md").read_text()
    assert all(f"| {to} | 2 |" in said for to in ("diffullama", "sdar", "fast_dllm"))
    assert (tmp_path / "conversion.png").stat().st_size > 1000
    runs = json.loads((tmp_path / "conversion.json").read_text())["runs"]
    assert len(runs) == 10 and all(0 < run["bits"] < 20 for run in runs)
    some = script.page([run for run in runs if run["name"] not in ("sdar-lora", "diffullama-converted")])
    lines = {line.split(" | ")[0]: [cell.strip() for cell in line.split("|")[2:-1]] for line in some.splitlines()}
    assert [bool(cell) for cell in lines["| diffullama"]] == [True, True, False, True, True]
    assert [bool(cell) for cell in lines["| sdar"]] == [True, True, True, False, True]


def test_rows_are_whole_lines_of_the_library(script: ModuleType, tmp_path: Path) -> None:
    text = "".join(f"value_{i} = {i} * {i}\n" for i in range(300))
    (tmp_path / "one.py").write_text(text)
    found = list(script.rows(tmp_path))
    assert "".join(found) == text
    assert len(found) > 3
