"""The race of objectives: entries trained for a moment, measured, resumed, and written up."""

from __future__ import annotations

import importlib.util
import json
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from conftest import MakeModel
from daguerre.decoding.result import OPEN
from daguerre.train.recipe import load_recipe

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "race.py"
SMALL = "model.width=32 model.num_layers=1 model.mlp_width=48 stages.0.length=48 stages.0.sequences=2".split()


@pytest.fixture(scope="module")
def race() -> ModuleType:
    spec = importlib.util.spec_from_file_location("race", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look up their annotations
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def in_process(race: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Entries run in this process; the names of those that ran."""
    ran: list[str] = []

    def run(name: str, arguments: list[str]) -> int:
        ran.append(name)
        status: int = race.main(["--entry", name, *arguments])
        return status

    monkeypatch.setattr(race, "start", run)
    return ran


def test_every_entry_has_a_recipe_of_the_same_backbone_and_budget(race: ModuleType) -> None:
    recipes = {name: load_recipe(str(race.RECIPES / f"{name}.toml")) for name in race.ENTRIES}
    assert {path.stem for path in race.RECIPES.glob("*.toml")} == set(recipes)
    shapes = {
        (m.width, m.num_layers, m.num_heads, m.num_kv_heads, m.mlp_width, m.max_positions)
        for recipe in recipes.values()
        if (m := recipe.model) is not None
    }
    assert len(shapes) == len({(r.minutes, r.optim, tuple(r.stages), r.seed) for r in recipes.values()}) == 1
    small = load_recipe("small")
    assert recipes["mixture"].mixture == small.mixture
    assert recipes["mixture"].optim == small.optim


def test_two_entries_are_trained_measured_resumed_and_written_up(
    race: ModuleType, in_process: list[str], corpus: Path, tmp_path: Path
) -> None:
    arguments = ["--data", corpus, "--out", tmp_path / "race", "--minutes", 0.1, "--set", *SMALL]
    arguments += ["--heldout", textwrap.__file__, "--windows", 2, "--samples", 2, "--spans", 1]
    results, table = tmp_path / "race.json", tmp_path / "objectives.md"
    given = [*map(str, arguments), "--results", str(results), "--table", str(table)]
    assert race.main([*given, "--only", "ar"]) == 0
    assert race.main([*given, "--only", "ar", "conversion"]) == 0
    assert in_process == ["ar", "conversion"]
    ar, conversion = json.loads(results.read_text())
    assert [figure["layout"] for figure in ar["bits"]] == ["ar"]
    assert [figure["layout"] for figure in conversion["bits"]] == ["full"]
    assert set(ar["accuracy"]) == {"completion"}
    assert [point and point["forwards"] for point in ar["accuracy"]["completion"]] == [None] * 5 + [32]
    for task in ("infill", "completion"):
        assert [point["forwards"] for point in conversion["accuracy"][task]] == [1, 2, 4, 8, 16, 32]
    assert race.main([*given, "--report"]) == 0
    lines = table.read_text().splitlines()
    assert [line for line in lines if line.startswith("| `conversion`: DiffuGPT")]
    assert (tmp_path / "objectives.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--data CORPUS"),
        (["--data", "x", "--only", "mdlmm"], "did you mean 'mdlm'"),
        (["--data", "x", "--only", "conversion"], "starts from ar"),
        (["--report", "--results", "nowhere.json"], "run it first"),
    ],
)
def test_what_is_missing_is_one_line_and_status_two(
    race: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert race.main([*arguments, "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "facts", "task", "forwards"),
    [
        ("bd3", {"context": "block", "shift": False, "block_size": 16}, "completion", [None, 2, 4, 8, 16, 32]),
        ("mixture", {}, "infill", [1, 2, 4, 8, 16, 32]),
        (
            "hybrid",
            {"context": "full", "shift": False, "time_input": True, "process": "hybrid", "null_id": None},
            "infill",
            [1, 2, 4, 8, 16, 32],
        ),
    ],
)
def test_a_removed_span_is_filled_in_that_many_steps(
    race: ModuleType,
    make_model: MakeModel,
    name: str,
    facts: dict[str, Any],
    task: str,
    forwards: list[int | None],
) -> None:
    model = make_model(**facts)
    ids = np.random.default_rng(0).integers(16, 2048, race.PREFIX + race.SPAN + race.SUFFIX)
    assert task in race.ENTRIES[name].tasks
    points = [race.accuracy(model, [ids], task, steps) for steps in race.STEPS]
    assert [point and point["forwards"] for point in points] == forwards
    drawn, _ = race.fill(model, ids, task, 4)
    assert drawn.shape == (race.SPAN,)
    assert np.isin(drawn, model.config.ordinary_ids).all() or name == "hybrid"
    assert not np.isin(drawn, [model.config.mask_id, model.config.bos_id, model.config.pad_id]).any()


@pytest.mark.parametrize(("process", "masked"), [("uniform", False), ("hybrid", True)])
def test_frames_show_how_noise_turns_into_text(
    race: ModuleType, make_model: MakeModel, process: str, masked: bool
) -> None:
    model = make_model(context="full", shift=False, time_input=True, process=process, null_id=None)
    ids = np.array(model.tokenizer.encode(SCRIPT.read_text())[: race.PREFIX + race.SPAN + race.SUFFIX])
    frames = race.frames(model, ids, steps=32)
    assert frames["before"] + frames["true"] in SCRIPT.read_text()
    assert [step for step, _ in frames["shown"]] == ([] if masked else [0]) + [1, 4, 8, 16, 24, 32]
    assert (OPEN in frames["shown"][0][1]) == masked
    assert OPEN not in frames["shown"][-1][1]
    lines = race._shown(process, frames)
    assert lines[0] == f"## `{process}`: noise turns into text"
    assert sum(line.lstrip()[:1].isdigit() for line in lines) == (3 if masked else 4)  # 4, 16, 32, and the noise
