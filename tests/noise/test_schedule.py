"""Every schedule of the table keeps its contract, checked against finite differences."""

from __future__ import annotations

import pytest
import torch

from daguerre.errors import InputError
from daguerre.noise.schedule import SCHEDULES, Linear, Polynomial, Schedule

ALL: list[Schedule] = [*(kind() for kind in SCHEDULES.values()), Polynomial(0.5), Polynomial(3.0)]
TIMES = torch.linspace(0.002, 0.998, 499, dtype=torch.float64)
each = pytest.mark.parametrize("schedule", ALL, ids=repr)


@each
def test_alpha_falls_from_one_to_zero(schedule: Schedule) -> None:
    ends = schedule.alpha(torch.tensor([0.0, 1.0], dtype=torch.float64))
    assert ends.tolist() == pytest.approx([1.0, 0.0], abs=1e-12)
    assert (schedule.alpha(TIMES).diff() < 0).all()


@each
def test_alpha_prime_is_the_slope_of_alpha_and_the_weight_that_of_the_log_of_the_masked_share(
    schedule: Schedule,
) -> None:
    """-alpha' / (1 - alpha) = d/dt log(1 - alpha)."""
    step = 1e-6
    slope = (schedule.alpha(TIMES + step) - schedule.alpha(TIMES - step)) / (2 * step)
    assert torch.allclose(schedule.alpha_prime(TIMES), slope, rtol=1e-6, atol=1e-8)
    assert (schedule.alpha_prime(TIMES) <= 0).all()
    masked = [(1 - schedule.alpha(TIMES + offset)).log() for offset in (-step, step)]
    assert torch.allclose(schedule.weight(TIMES), (masked[1] - masked[0]) / (2 * step), rtol=1e-5, atol=1e-7)


@each
def test_weight_times_masked_share_integrates_to_one_and_the_weight_stays_exact_in_float32(schedule: Schedule) -> None:
    """Every token is masked once on the way from t=0 to t=1. The substitution t = u^2 tames slopes at 0."""
    u = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    t = u**2
    values = schedule.weight(t) * (1 - schedule.alpha(t)) * 2 * u
    assert values.mean().item() == pytest.approx(1.0, abs=1e-5)
    small = torch.tensor([1e-9, 1e-5, 1e-3])  # where alpha rounds to one
    assert torch.allclose(schedule.weight(small).double(), schedule.weight(small.double()), rtol=1e-5)
    assert schedule.weight(small).isfinite().all()


def test_the_linear_weight_is_one_over_t() -> None:
    assert torch.allclose(Linear().weight(TIMES), 1 / TIMES)


def test_a_polynomial_of_power_one_is_linear() -> None:
    assert torch.allclose(Polynomial(1.0).alpha(TIMES), Linear().alpha(TIMES))


def test_a_power_that_no_schedule_has_is_refused() -> None:
    with pytest.raises(InputError, match="positive power"):
        Polynomial(0.0)
