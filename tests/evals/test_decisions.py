"""Decisions measured: fitted and tested apart, beside a rule that knows no text."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from daguerre.errors import DataError, InputError
from daguerre.evals import decisions
from daguerre.evals.decisions import calibrate_folder, make_all, measure_kind, split_documents
from daguerre.evals.questions import QuestionExample
from daguerre.heldout import Document
from daguerre.model import Model, load
from daguerre.models.loading import save_model
from daguerre.scoring.calibration import FILE, Calibration
from daguerre.scoring.decisions import Choice, Score


def document(text: str) -> Document:
    return Document("p", "1", "", "a", hashlib.sha256(text.encode()).hexdigest(), text)


DOCUMENTS = [document(f"def f_{i}(a, b):\n    if a == {i}:\n        return b\n    x = {i}\n" * 4) for i in range(6)]


def questions(truths: list[int], name: str) -> list[QuestionExample]:
    labels = Choice(labels=["a", "b"])
    return [QuestionExample(document(f"{name}{i // 2}"), 0, "", labels, truth) for i, truth in enumerate(truths)]


def scored(monkeypatch: pytest.MonkeyPatch, scores: dict[str, list[list[float]]]) -> None:
    """Answers to questions as given, by the first letter of their documents' text."""

    def answer_all(
        model: object, examples: list[QuestionExample], *rest: object
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return (
            np.array(scores[examples[0].document.text[0]]),
            np.array([e.truth for e in examples]),
            np.ones((len(examples), 2)),
        )

    monkeypatch.setattr(decisions, "answer_all", answer_all)


def test_documents_are_split_by_their_hash() -> None:
    to_fit, to_test = split_documents(DOCUMENTS)

    assert (len(to_fit), len(to_test)) == (2, 4)
    assert {d.sha256 for d in to_fit} | {d.sha256 for d in to_test} == {d.sha256 for d in DOCUMENTS}
    assert split_documents(DOCUMENTS[::-1]) == (to_fit, to_test)
    with pytest.raises(DataError, match="two files or more"):
        split_documents(DOCUMENTS[:1])


def test_figures_are_those_of_the_test_part_beside_the_majority_of_the_other(
    causal: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores of 2 against 0; of those to fit to three in four are right, and most are "a"."""
    scored(monkeypatch, {"f": [[2, 0], [2, 0], [2, 0], [2, 0]], "t": [[2, 0], [2, 0], [0, 2], [0, 2]]})
    outcome = measure_kind(causal, questions([0, 0, 0, 1], "f"), questions([0, 1, 1, 1], "t"), "keyword")
    before, after, biased = outcome.figures
    sure = 1 / (1 + np.exp(-2))

    assert outcome.temperature == pytest.approx(2 / np.log(3), abs=1e-6)
    assert (outcome.num, outcome.fitted, outcome.documents, outcome.majority_label) == (4, 4, 2, "a")
    assert (outcome.majority.accuracy, outcome.majority.calibration_error) == (0.25, 0.5)
    assert outcome.majority.brier == pytest.approx((1 * 2 * 0.25**2 + 3 * 2 * 0.75**2) / 4)
    assert (before.accuracy, before.difference) == (0.75, 0.5)
    assert before.calibration_error == pytest.approx(abs(0.75 - sure))
    assert after.calibration_error == pytest.approx(0, abs=1e-6)
    assert after.brier == pytest.approx((3 * 2 * 0.25**2 + 2 * 0.75**2) / 4)
    assert after.nats == pytest.approx(-(3 * np.log(0.75) + np.log(0.25)) / 4)
    assert biased.way == "temperature and biases"
    assert set(outcome.calibration.bias) == {"a", "b"}
    low, high = before.difference_interval or (0, 0)
    assert low < 0.5 < high


def test_labels_that_change_have_no_bias(causal: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    scored(monkeypatch, {"f": [[2, 0]] * 4, "t": [[2, 0]] * 4})
    outcome = measure_kind(causal, questions([0, 0, 0, 1], "f"), questions([0, 0, 0, 1], "t"), "name")

    assert [figures.way for figures in outcome.figures] == ["uncalibrated", "temperature"]
    assert outcome.calibration == Calibration(temperature=outcome.temperature)
    assert outcome.majority_label == "0"


def test_a_measurement_is_repeatable_in_any_number_of_processes(causal: Model) -> None:
    to_fit, to_test = (make_all(causal, part, 4, 0)["digit"] for part in split_documents(DOCUMENTS))
    steps: list[tuple[str, int, int]] = []
    outcome = measure_kind(causal, to_fit, to_test, "digit", progress=lambda *step: steps.append(step))
    again = measure_kind(causal, to_fit, to_test, "digit")

    assert isinstance(to_fit[0].question, Score)
    assert outcome.figures == again.figures
    assert outcome.calibration == again.calibration
    assert outcome.rows == again.rows > 10
    assert steps[0] == ("digit, to fit", 0, 4)
    assert steps[-1] == ("digit", 4, 4)


def test_a_folder_is_calibrated_and_its_model_knows(causal: Model, tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model", causal.backbone, causal.tokenizer)
    path, fitted = calibrate_folder(str(folder), DOCUMENTS, 4)

    assert path == folder / FILE
    assert load(folder).calibrations == fitted
    assert {"digit", "keyword", "returns", "operator"} <= set(fitted)
    (answer,) = load(folder).decide("x =", [Score(before=" ", low=0, high=9, after="\n", calibration="digit")])
    assert answer.calibration == fitted["digit"]
    body = json.loads(path.read_text())
    assert body["weights_sha256"] == json.loads((folder / "config.json").read_text())["weights_sha256"]
    with pytest.raises(InputError, match="2 or more"):
        calibrate_folder(str(folder), DOCUMENTS, 1)
    with pytest.raises(DataError, match="no question can be made"):
        calibrate_folder(str(folder), [document("x"), document("y")], 4)
