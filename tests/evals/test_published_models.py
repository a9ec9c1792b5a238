"""Evaluations run on published models: likelihoods by their context, generation by their defaults."""

from __future__ import annotations

from pathlib import Path

import pytest

import daguerre
from daguerre.evals.documents import read_documents
from daguerre.evals.harness import evaluate
from daguerre.evals.lm_eval import HarnessAnswers, HarnessOptions
from daguerre.evals.options import QUICK, EvalOptions
from published import CASES

pytestmark = pytest.mark.usefixtures("few")
TEXT = "import os\n\n\ndef size(path):\n    return os.stat(path).st_size\n"
LONGER = TEXT.replace("    return", "    total = 1\n    return")


@pytest.mark.parametrize(
    ("name", "layouts", "likelihood"),
    [("qwen2", {"ar"}, "exact"), ("dream", {"full"}, "lower bounds"), ("sdar", {"4", "chain 4"}, "lower bounds")],
)
def test_a_published_model_is_evaluated(name: str, layouts: set[object], likelihood: str, tmp_path: Path) -> None:
    folder = CASES[name].write(tmp_path)
    for number in range(4):
        (tmp_path / f"{number}.py").write_text(f"NUMBER = {number}\n{TEXT}")

    report = evaluate(folder, read_documents(tmp_path)[0], EvalOptions.flat(QUICK, {"what": ["bits"]}))
    model = daguerre.load(folder, dtype="float32")
    answers = HarnessAnswers(HarnessOptions(model=model))
    seeded = HarnessAnswers.of({"model": model, "seed": 3})
    value, _ = answers.continuation("def size(path):\n    return", " 1\n")
    written = answers.generate("import ", {"max_gen_toks": 6})

    assert {row["layout"] for row in report["bits"]} == layouts
    assert answers.likelihood.startswith(likelihood) and value < 0 and answers.whole(TEXT) < value
    assert written == model.generate("import ", 6).text
    assert seeded.generate("import ", {"max_gen_toks": 6}) == model.generate("import ", 6, seed=3).text


@pytest.mark.parametrize(
    ("name", "ran"),
    [
        ("dream", {"bits", "tokens", "correction", "deadline", "decide"}),
        ("sdlm", {"bits", "completion", "tokens", "correction", "deadline", "decide"}),
    ],
)
def test_tasks_show_lines_that_a_model_can_begin_with(name: str, ran: set[str], tmp_path: Path) -> None:
    """These predict nothing without a token before it; each first line would be one of the examples."""
    folder = CASES[name].write(tmp_path)
    for number in range(3):
        (tmp_path / f"{number}.py").write_text(f"NUMBER = {number}\n{LONGER}")
    few = dict.fromkeys(("grid_lines", "spans", "texts", "edits", "literals"), 1) | {"prompts": 2}

    report = evaluate(
        folder, read_documents(tmp_path)[0], EvalOptions.flat(QUICK, few | {"lines": 4, "questions": 2, "samples": 2})
    )

    assert set(report["seconds"]) == ran


def test_a_model_of_few_positions_skips_what_has_no_room(tmp_path: Path) -> None:
    folder = CASES["dream"].write(tmp_path, max_position_embeddings=40)
    for number in range(3):
        (tmp_path / f"{number}.py").write_text(f"NUMBER = {number}\n{LONGER}")
    few = dict.fromkeys(("lines", "grid_lines", "spans", "texts", "edits", "literals"), 1) | {"prompts": 2}

    options = EvalOptions.flat(QUICK, few | {"questions": 2, "samples": 2})
    report = evaluate(folder, read_documents(tmp_path)[0], options)

    for task in ("tokens", "deadline"):
        assert f"'{task}' needs 68 positions and the model has 40: leave it out" in report["skipped"][task]
    assert "decide" in report["seconds"] or "no question can be made that fits" in report["skipped"]["decide"]
