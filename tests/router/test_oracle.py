"""The oracle of shadows: against a linear program, and cases that a reader can add up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from daguerre.router.analyze import analyze
from daguerre.router.config import Config
from daguerre.router.oracle import Frontier, lost, shadows_of
from daguerre.router.rows import read_rows
from daguerre.router.tables import tables
from made_logs import answered, decided, draw, shadow, write
from routing import backend, config, request

TWO = config(backend("a", price={"request": 0.01}), backend("b", price={"request": 0.05}))


def program(costs: np.ndarray, grades: np.ndarray, cost: float) -> float:
    """The largest sum of grades for a sum of costs: x is the share of each request that the second option has."""
    from scipy.optimize import linprog

    more, gain = costs[:, 1] - costs[:, 0], grades[:, 1] - grades[:, 0]
    found = linprog(-gain, A_ub=[more], b_ub=[cost - costs[:, 0].sum()], bounds=(0, 1))
    return float(grades[:, 0].sum() - found.fun)


def test_the_oracle_is_the_best_of_a_linear_program() -> None:
    rng = np.random.default_rng(0)
    for _ in range(30):
        num = int(rng.integers(2, 12))
        costs, grades = rng.choice([0.5, 1.0, 2.0, 5.0], (num, 2)), rng.choice([0.0, 0.5, 1.0], (num, 2))
        counts = rng.integers(1, 4, num).astype(float)
        frontier = Frontier.of(costs, grades)
        quality, _ = lost(frontier, costs[:, 0], grades[:, 0], counts)
        again = np.repeat(np.arange(num), counts.astype(int))
        best = program(costs[again], grades[again], costs[again, 0].sum())
        assert quality == pytest.approx((best - grades[again, 0].sum()) / len(again), abs=1e-9)


def test_the_cost_that_the_oracle_saves_is_the_least_that_reaches_the_grade() -> None:
    from scipy.optimize import linprog

    rng = np.random.default_rng(1)
    for _ in range(30):
        costs, grades = rng.random((9, 2)), rng.choice([0.0, 0.5, 1.0], (9, 2))
        _, dollars = lost(Frontier.of(costs, grades), costs[:, 0], grades[:, 0])
        more, gain = costs[:, 1] - costs[:, 0], grades[:, 1] - grades[:, 0]
        found = linprog(more, A_ub=[-gain], b_ub=[0.0], bounds=(0, 1))
        assert dollars == pytest.approx(-found.fun / 9, abs=1e-9)


def test_a_router_that_did_the_best_has_no_regret() -> None:
    costs, grades = np.array([[1.0, 5.0], [5.0, 1.0], [1.0, 5.0]]), np.array([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0]])
    assert lost(Frontier.of(costs, grades), costs[:, 0], grades[:, 0]) == (0.0, 0.0)


def test_shadows_are_counted_by_both_backends_and_regret_is_added_up_by_hand(tmp_path: Path) -> None:
    lines = []
    for number, (main, second) in enumerate([(1.0, 1.0), (0.0, 1.0), (1.0, 0.0), (1.0, None)]):
        line, _ = decided(number, request(), TWO)
        lines += [shadow(f"r{number}", "b", second, main, 0.05), answered(line, "a", 10.0, 0.01)]
    lines.append(shadow("gone", "b", 1.0, 1.0, 0.05))
    found = shadows_of(read_rows(write(tmp_path / "log.jsonl", TWO, lines)))
    assert (found.num, found.orphans, len(found.pairs)) == (4, 1, 1)
    pair = found.pairs[0]
    assert (pair.main, pair.second, pair.num) == ("a", "b", 3)
    assert (pair.main_quality.value, pair.second_quality.value, pair.difference.value) == (
        pytest.approx(2 / 3), pytest.approx(2 / 3), pytest.approx(0),
    )  # fmt: skip
    assert found.regret is not None and found.regret.num == 3
    assert found.regret.quality.value == pytest.approx(0) and found.regret.router == pytest.approx((0.01, 2 / 3))
    assert found.regret.curve[0] == pytest.approx((0.01, 2 / 3)) and found.regret.curve[-1] == pytest.approx(
        (0.07 / 3, 1)
    )


def test_answers_that_are_the_same_are_agreement_and_no_grades(tmp_path: Path) -> None:
    lines = []
    for number in range(40):
        line, _ = decided(number, request(), TWO)
        lines.append(answered(line, "a", 10.0, 0.01, grade=0.5))
        lines.append(shadow(f"r{number}", "b", float(number < 30), None, 0.05, grader="exact"))
    path = write(tmp_path / "log.jsonl", TWO, lines)
    found = shadows_of(read_rows(path))
    assert not found.pairs and found.regret is None and found.why is not None
    (one,) = found.agreement
    assert (one.main, one.second, one.same.num, one.same.value) == ("a", "b", 40, 0.75)
    analysis = analyze(path, TWO)
    assert analysis.other is not None and analysis.other.both_known is None
    assert analysis.other.quality.estimates["dr"].value == pytest.approx(0.5)
    assert "Agreement of shadows" in [each.title for each in tables(analysis)]


def test_an_answer_that_was_graded_alone_is_no_shadow(tmp_path: Path) -> None:
    line, _ = decided(0, request(), TWO)
    alone = {"shadow_of": "r0", "backend": None, "grader": "judge", "grade": None, "main_grade": 0.25}
    analysis = analyze(write(tmp_path / "log.jsonl", TWO, [answered(line, "a", 10.0, 0.01), alone]))
    assert analysis.shadows.num == 0 and analysis.overall.quality is not None
    assert analysis.overall.quality.value == 0.25 and set(analysis.backends) == {"a"}


def test_regret_is_told_only_with_two_grades_and_costs(tmp_path: Path) -> None:
    line, _ = decided(0, request(), TWO)
    path = write(tmp_path / "log.jsonl", TWO, [answered(line, "a", 10.0, 0.01)])
    why = shadows_of(read_rows(path)).why
    assert why is not None and "[shadow]" in why and "[grader]" in why
    write(path, TWO, [answered(line, "a", 10.0, 0.01), shadow("r0", "b", None, None, 0.05)])
    found = shadows_of(read_rows(path))
    assert found.why is not None and "two shadows" in found.why and found.regret is None


def test_regret_of_a_random_log_is_inside_its_interval_and_falls_with_a_better_router(tmp_path: Path) -> None:
    def right(name: str, step: str) -> float:
        return {"a": {"plan": 0.9, "facts": 0.2}, "b": {"plan": 0.9, "facts": 0.9}}[name][step]

    def router(weak: str) -> Config:
        """Sends one step type to the dearer backend, and all else to the cheaper one."""
        return config(
            backend("a", price={"request": 0.01}, quality={weak: 0.2, "default": 0.9}),
            backend("b", price={"request": 0.05}, quality={"default": 0.9}),
            steps={weak: {"quality": 0.5}},
        )

    regrets = []
    for weak in ("plan", "facts"):
        each = router(weak)
        rows = read_rows(write(tmp_path / weak, each, draw(each, 400, right, shadows=1.0)))
        found = shadows_of(rows).regret
        assert found is not None and found.cost is not None
        for one in (found.quality, found.cost):
            assert one.low is not None and one.high is not None and one.low <= one.value <= one.high
        regrets.append((found.quality.value, found.cost.value, found.router[1]))
    (bad_quality, bad_cost, bad_grade), (good_quality, good_cost, good_grade) = regrets
    assert good_grade > bad_grade + 0.2
    assert 0 < good_quality < bad_quality - 0.2 and 0 < good_cost < bad_cost
