"""Thresholds of cascades: the target is missed as rarely as is promised, not much is given away, and files are read."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from daguerre.cli import app
from daguerre.errors import DataError
from daguerre.router.cascade_fit import CascadeRows, evidence_for, fit_cascade, read_cascade, reported, threshold_of
from daguerre.router.config import parse_config

TARGET, CONFIDENCE = 0.95, 0.8


def drawn(num: int, seed: int, shape: float = 2.0) -> CascadeRows:
    """Requests of which the small backend gets those right that it is sure of, more or less, and the large one .8."""
    rng = np.random.default_rng(seed)
    likelihood = rng.random(num)
    small = rng.random(num) < likelihood**shape
    return CascadeRows(likelihood=likelihood, small=small * 1.0, large=(rng.random(num) < 0.8) * 1.0)


def test_the_target_is_missed_as_rarely_as_is_promised_and_little_is_given_away() -> None:
    """S(t) = E[s; u >= t] + .8 t and E b = .8 are known, so is the least threshold that keeps the target."""
    grid = np.linspace(0, 1, 2001)
    kept = ((1 - grid**3) / 3 + 0.8 * grid) / 0.8
    best = float(grid[(kept >= TARGET).argmax()])
    found = np.array([threshold_of(drawn(1000, seed), TARGET, CONFIDENCE) for seed in range(100)], np.float64)
    assert (found < best - 1e-9).mean() <= 1 - CONFIDENCE + 3 * (0.16 / 100) ** 0.5
    assert (1 - found).mean() > 0.6 * (1 - best)


def test_a_small_backend_that_is_never_sure_has_no_threshold() -> None:
    rows = drawn(1000, 0)
    wrong = CascadeRows(likelihood=np.ones(1000), small=np.zeros(1000), large=rows.large)
    assert threshold_of(wrong, TARGET, CONFIDENCE) is None
    few = CascadeRows(likelihood=np.ones(40), small=np.ones(40), large=np.ones(40))
    assert threshold_of(few, TARGET, CONFIDENCE) is None
    cut = CascadeRows(likelihood=-np.ones(1000), small=np.zeros(1000), large=rows.large)
    found = reported(cut, threshold_of(cut, TARGET, CONFIDENCE))
    assert found.least is None and found.accepted == 0 and found.kept == 1


def test_the_bet_wins_no_more_than_chance_where_the_mean_is_not_above_0() -> None:
    rng = np.random.default_rng(0)
    gains = rng.choice([-0.95, 0.0, 1.0], size=(2000, 100), p=[0.2, 0.61, 0.19])  # whose mean is 0
    assert np.mean([evidence_for(one, 0.95) >= 5 for one in gains]) <= 0.2
    assert evidence_for(np.full(200, 0.05), 0.95) > 20


def lines(num: int = 400) -> list[dict[str, Any]]:
    rows = drawn(num, 7)
    outcomes = [{"s": small, "l": large} for small, large in zip(rows.small, rows.large, strict=True)]
    return [
        {"prompt": "p", "step": "infill", "likelihood": likelihood, "outcomes": each}
        for likelihood, each in zip(rows.likelihood, outcomes, strict=True)
    ]


def written(path: Path, some: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in some), encoding="utf-8")
    return path


def test_the_command_writes_tables_of_a_configuration(tmp_path: Path) -> None:
    log, out = written(tmp_path / "outcomes.jsonl", lines(1000)), tmp_path / "cascade.toml"
    more = ["--cascade", "s", "--target", "0.9", "--out", str(out)]
    done = CliRunner().invoke(app, ["route", "fit", str(log), *more])
    assert done.exit_code == 0 and "infill" in done.stdout, done.output
    told = json.loads(CliRunner().invoke(app, ["route", "fit", str(log), *more, "--json"]).stdout)
    found = tomllib.loads(out.read_text())["cascade"]
    assert found == {"small": "s", "least": {"infill": told["steps"]["infill"]["least"]}}
    low, high = told["steps"]["infill"]["kept_interval"]
    assert low < told["steps"]["infill"]["kept"] < high and low > 0.85
    backend = 'backends = [{name = "s", url = "http://h/v1", model = "m", needs = ["logprobs"]}]\n'
    assert parse_config(backend + out.read_text(), "f").cascade.least_of("infill") == found["least"]["infill"]
    strict = CliRunner().invoke(app, ["route", "fit", str(log), "--cascade", "s", "--target", "1", "--out", str(out)])
    assert isinstance(strict.exception, DataError) and "no threshold" in str(strict.exception)


def test_a_log_is_read_and_what_says_nothing_is_counted(tmp_path: Path) -> None:
    told = {"small": "s", "likelihood": 0.7, "whole": True}
    logged = [
        {"id": "1", "decision": {"step": "plan", "backend": "l"}, "backend": "l", "cascade": told},
        {"id": "2", "decision": {"step": "plan", "backend": "l"}, "backend": "s", "cascade": told},
        {"id": "3", "decision": {"step": "edit", "backend": "l"}, "backend": "l", "cascade": told | {"whole": False}},
        {"id": "4", "decision": {"step": "plan", "backend": "l"}, "backend": "l", "cascade": told},
        {"id": "5", "decision": {"step": "plan", "backend": "s"}, "backend": "s"},
        {"id": "6", "decision": {"step": "plan", "backend": "l"}, "backend": "l", "cascade": told | {"small": "t"}},
        {"id": "7", "decision": {"step": "plan", "backend": "l"}, "backend": "l", "cascade": told | {"score": 0.6}},
        {
            "id": "8",
            "decision": {"step": "plan", "backend": "l"},
            "backend": "l",
            "cascade": {"small": "s", "whole": True},
        },
        {"shadow_of": "1", "backend": "s", "grade": 0.0, "main_grade": 1.0, "grader": "tests"},
        {"shadow_of": "2", "backend": "l", "grade": 1.0, "main_grade": 0.5, "grader": "tests"},
        {"shadow_of": "3", "backend": "s", "grade": 0.0, "main_grade": 1.0, "grader": "tests"},
        {"shadow_of": "4", "backend": "s", "grade": 0.0, "main_grade": None, "grader": "exact"},
    ]
    steps, unused = read_cascade(written(tmp_path / "log.jsonl", logged), "s", None)
    assert steps["plan"].small.tolist() == [0.0, 0.5] and steps["plan"].large.tolist() == [1.0, 1.0]
    assert steps["plan"].likelihood.tolist() == [0.7, 0.7] and steps["edit"].likelihood.tolist() == [-1.0]
    left = [
        "requests without a cascade",
        "requests that another backend answered first",
        "answers without a likelihood",
    ]
    left += ["requests whose draft may have been taken as it is", "requests without the grades of both answers"]
    assert unused == dict.fromkeys(left, 1)


def test_files_without_an_answer_say_what_is_missing(tmp_path: Path, subtests: Any) -> None:
    three = {"outcomes": {"s": 1, "l": 1, "m": 1}, "likelihood": 0.5}
    for some, why in (
        ([{"outcomes": {"s": 1}, "likelihood": 0.5}], "no request with grades"),
        ([three], "--large"),
        ([three | {"outcomes": {"s": 1, "l": 1}, "likelihood": 7}], "line 1"),
        ([three | {"outcomes": {"s": 1, "l": 1}, "step": "sing"}], "step type"),
    ):
        with subtests.test(why=why), pytest.raises(DataError, match=why):
            fit_cascade(written(tmp_path / "x.jsonl", some), "s", None, TARGET, CONFIDENCE)
    found = fit_cascade(written(tmp_path / "y.jsonl", [three] * 60), "s", "m", TARGET, CONFIDENCE)
    assert found.steps["default"].rows == 60
