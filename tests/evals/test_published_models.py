"""Evaluations run on published models: likelihoods by their context, generation by their defaults."""

from __future__ import annotations

from pathlib import Path

import pytest

import daguerre
from daguerre.decoding.options import Decode
from daguerre.evals.documents import read_documents
from daguerre.evals.harness import evaluate
from daguerre.evals.lm_eval import Answers, Options
from daguerre.evals.options import QUICK, EvalOptions
from published import CASES

TEXT = "import os\n\n\ndef size(path):\n    return os.stat(path).st_size\n"


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
    answers = Answers(Options(model=model), Decode())
    value, _ = answers.continuation("def size(path):\n    return", " 1\n")
    written = answers.generate("import ", {"max_gen_toks": 6})

    assert {row["layout"] for row in report["bits"]} == layouts
    assert answers.likelihood.startswith(likelihood) and value < 0 and answers.whole(TEXT) < value
    assert written == model.generate("import ", 6).text
