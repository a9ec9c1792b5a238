"""Every schedule of the table keeps its contract, checked against finite differences."""

from __future__ import annotations

import pytest
import torch

from daguerre.errors import InputError
from daguerre.noise.schedule import SCHEDULES, Linear, Polynomial, Schedule, make_schedule

ALL: list[Schedule] = [*(kind() for kind in SCHEDULES.values()), Polynomial(0.5), Polynomial(3.0)]
TIMES = torch.linspace(0.002, 0.998, 499, dtype=torch.float64)
each = pytest.mark.parametrize("schedule", ALL, ids=repr)


@each
def test_alpha_falls_from_one_to_zero(schedule: Schedule) -> None:
    ends = schedule.alpha(torch.tensor([0.0, 1.0], dtype=torch.float64))
    assert ends.tolist() == pytest.approx([1.0, 0.0], abs=1e-12)
    assert (schedule.alpha(TIMES).diff() < 0).all()


@each
def test_alpha_prime_is_the_slope_of_alpha(schedule: Schedule) -> None:
    step = 1e-6
    slope = (schedule.alpha(TIMES + step) - schedule.alpha(TIMES - step)) / (2 * step)
    assert torch.allclose(schedule.alpha_prime(TIMES), slope, rtol=1e-6, atol=1e-8)
    assert (schedule.alpha_prime(TIMES) <= 0).all()


@each
def test_the_weight_is_the_slope_of_the_log_of_the_masked_share(schedule: Schedule) -> None:
    """-alpha' / (1 - alpha) = d/dt log(1 - alpha)."""
    step = 1e-6
    masked = [(1 - schedule.alpha(TIMES + offset)).log() for offset in (-step, step)]
    assert torch.allclose(schedule.weight(TIMES), (masked[1] - masked[0]) / (2 * step), rtol=1e-5, atol=1e-7)


@each
def test_weight_times_masked_share_integrates_to_one(schedule: Schedule) -> None:
    """Every token is masked once on the way from t=0 to t=1. The substitution t = u^2 tames slopes at 0."""
    u = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    t = u**2
    values = schedule.weight(t) * (1 - schedule.alpha(t)) * 2 * u
    assert values.mean().item() == pytest.approx(1.0, abs=1e-5)


@each
def test_the_weight_stays_exact_in_float32_where_alpha_rounds_to_one(schedule: Schedule) -> None:
    t = torch.tensor([1e-9, 1e-5, 1e-3])
    assert torch.allclose(schedule.weight(t).double(), schedule.weight(t.double()), rtol=1e-5)
    assert schedule.weight(t).isfinite().all()


def test_the_linear_weight_is_one_over_t() -> None:
    assert torch.allclose(Linear().weight(TIMES), 1 / TIMES)


def test_a_polynomial_of_power_one_is_linear() -> None:
    assert torch.allclose(Polynomial(1.0).alpha(TIMES), Linear().alpha(TIMES))


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_name_makes_its_schedule(name: str) -> None:
    assert isinstance(make_schedule(name), SCHEDULES[name])


def test_options_reach_the_schedule() -> None:
    assert make_schedule("polynomial", power=3.0) == Polynomial(3.0)


def test_a_wrong_name_option_or_power_is_an_error_that_names_it() -> None:
    with pytest.raises(InputError, match="did you mean 'cosine'"):
        make_schedule("cosin")
    with pytest.raises(InputError, match="linear schedule has no option 'power'"):
        make_schedule("linear", power=2.0)
    with pytest.raises(InputError, match="positive power"):
        Polynomial(0.0)
