"""Calibration: known temperatures and biases come back, probabilities are those of the formula, files are checked."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from daguerre.errors import CheckpointError, DataError, InputError
from daguerre.sampling.logits import log_softmax
from daguerre.scoring.calibration import FILE, Calibration, fit, load_calibrations, save_calibrations


def answered(num: int, logits_NL: np.ndarray, seed: int = 0) -> np.ndarray:
    """Answers drawn from softmax(logits)."""
    drawn = np.random.default_rng(seed).random(num)[:, None]
    return (drawn > np.exp(log_softmax(logits_NL)).cumsum(axis=1)).sum(axis=1)


def test_the_temperature_of_two_scores_has_a_closed_form() -> None:
    """Scores 2 against 0 and right three times in four: p = 3/4 where 2 / T = log 3."""
    scores = np.tile([2.0, 0.0], (4, 1))
    calibration = fit(scores, np.array([0, 0, 0, 1]))

    assert calibration.temperature == pytest.approx(2 / np.log(3), abs=1e-7)
    assert np.exp(calibration.log_probabilities(scores[0], ["a", "b"])) == pytest.approx([0.75, 0.25])


def test_a_known_temperature_is_recovered() -> None:
    scores = np.random.default_rng(1).normal(0, 4, (20_000, 5)) - 100
    for temperature in (0.5, 1.0, 3.0):
        found = fit(scores, answered(20_000, scores / temperature)).temperature
        assert found == pytest.approx(temperature, rel=0.03)


def test_a_known_bias_is_recovered_with_the_temperature() -> None:
    scores = np.random.default_rng(2).normal(0, 3, (20_000, 3))
    bias = np.array([1.0, 0.0, -1.0])
    found = fit(scores, answered(20_000, scores / 2 + bias), ["a", "b", "c"])

    assert found.temperature == pytest.approx(2.0, rel=0.04)
    assert [found.bias[label] for label in "abc"] == pytest.approx(bias, abs=0.08)


def test_the_fit_is_the_minimum_of_the_loss() -> None:
    scores = np.random.default_rng(3).normal(0, 3, (200, 4))
    truth = answered(200, scores / 2)
    best = fit(scores, truth).temperature

    def loss(temperature: float) -> float:
        return -log_softmax(scores / temperature)[np.arange(200), truth].mean()

    assert loss(best) < min(loss(best * 1.02), loss(best / 1.02))


def test_scores_that_mislead_are_made_even_not_turned_around() -> None:
    found = fit(np.tile([2.0, 0.0], (10, 1)), np.ones(10, dtype=np.int64))

    assert found.temperature == pytest.approx(100.0)


def test_a_label_that_never_was_right_keeps_some_probability() -> None:
    found = fit(np.zeros((50, 3)), np.zeros(50, dtype=np.int64), ["a", "b", "c"])
    probs = np.exp(found.log_probabilities([0.0, 0.0, 0.0], ["a", "b", "c"]))

    assert probs[0] > 0.9
    assert probs[1] == pytest.approx(probs[2])
    assert probs[1] > 1e-3


def test_the_default_changes_nothing_but_the_sum() -> None:
    scores = [-3.0, -1.0, -70.0]
    logs = Calibration().log_probabilities(scores, ["a", "b", "c"])

    assert np.exp(logs).sum() == pytest.approx(1.0)
    assert np.diff(logs) == pytest.approx(np.diff(scores))


def test_calibrations_come_back_from_their_file(tmp_path: Path) -> None:
    own = {"keyword": Calibration(temperature=1.5, bias={"if": 0.25}), "name": Calibration(temperature=2.0)}
    save_calibrations(tmp_path, "f00", own)

    assert load_calibrations(tmp_path, "f00") == own
    with pytest.raises(CheckpointError, match="other weights"):
        load_calibrations(tmp_path, "bad")
    (tmp_path / FILE).write_text(json.dumps({"weights_sha256": "f00", "calibrations": {"x": {"temperature": 0}}}))
    with pytest.raises(CheckpointError, match=r"temperature above 0.*daguerre calibrate"):
        load_calibrations(tmp_path, "f00")
    (tmp_path / FILE).write_text("[]")
    with pytest.raises(CheckpointError, match="remove it"):
        load_calibrations(tmp_path, "f00")
    (tmp_path / FILE).unlink()
    assert load_calibrations(tmp_path, "f00") == {}


def test_calibrations_that_cannot_be_written_are_one_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"cannot write .*calibrate a copy"):
        save_calibrations(tmp_path / "file", "f00", {})


def test_nothing_to_fit_to_is_an_error() -> None:
    with pytest.raises(InputError, match="there are none"):
        fit(np.zeros((0, 2)), np.zeros(0, dtype=np.int64))
