"""Each estimate against all masks and all orders of a made model over three tokens."""

import itertools
import math

import pytest
import torch

from daguerre.train.reinforce.estimates import Views, bounded, coupled, left_to_right, traced
from oracles.answer_views import mean, upper

LENGTH = 4
TABLE = -torch.rand(2**LENGTH, LENGTH, generator=torch.Generator().manual_seed(3)) * 3 - 0.1
"""log p(token | what is not hidden), by the bits of what is hidden: any conditional laws, consistent or not."""


def asked(hidden: torch.Tensor) -> torch.Tensor:
    return TABLE[(hidden.long() * 2 ** torch.arange(LENGTH)).sum(1)]


def sums(views: Views) -> float:
    return mean(views, asked(views.hidden)).sum().item()


def of_order(order: tuple[int, ...]) -> float:
    steps = torch.empty(LENGTH, dtype=torch.long)
    total = 0.0
    for step, place in enumerate(order):
        hidden = torch.zeros(1, LENGTH, dtype=torch.bool)
        hidden[0, list(order[step:])] = True
        total += asked(hidden)[0, place].item()
        steps[place] = step
    return total


ORDERS = list(itertools.permutations(range(LENGTH)))
LAW = math.log(sum(math.exp(of_order(order)) for order in ORDERS) / len(ORDERS))
LOWER = sum(map(of_order, ORDERS)) / len(ORDERS)


def all_views() -> Views:
    """Every mask; a token is hidden among 1 to LENGTH equally often, and among the masks of a size equally often."""
    hidden = torch.tensor([mask for mask in itertools.product([False, True], repeat=LENGTH) if any(mask)])
    sizes = hidden.sum(1, keepdim=True)
    ways = torch.tensor([[math.comb(LENGTH - 1, int(size) - 1)] for size in sizes])
    return Views(hidden, hidden / (LENGTH * ways))


def test_left_to_right_is_exact():
    assert sums(left_to_right(LENGTH)) == pytest.approx(of_order((0, 1, 2, 3)), abs=1e-5)


def test_a_trace_has_the_probability_of_its_order():
    assert sums(traced(torch.tensor([2, 0, 5, 1]))) == pytest.approx(of_order((1, 3, 0, 2)), abs=1e-5)


def test_steps_together_are_one_view():
    views = traced(torch.tensor([2, 0, 5, 1]), together=2)
    assert views.hidden.tolist() == [[True] * 4, [True, False, True, False]]
    assert views.weights.sum(0).tolist() == [1] * 4


def test_bounded_is_the_lower_bound_without_bias():
    generator = torch.Generator().manual_seed(0)
    drawn = torch.tensor([sums(bounded(LENGTH, 1, generator)) for _ in range(1600)])
    error = drawn.std().item() / len(drawn) ** 0.5
    assert abs(drawn.mean().item() - LOWER) < 4 * error < 0.2
    more = torch.tensor([sums(bounded(LENGTH, 8, generator)) for _ in range(400)])
    assert more.var() < drawn.var() / 5


def test_coupled_asks_each_token_once_in_a_pair():
    views = coupled(LENGTH, 3, torch.Generator().manual_seed(0))
    assert views.hidden[1:].sum(0).tolist() == [3] * LENGTH
    assert torch.allclose(views.weights.sum(0), torch.ones(LENGTH))


def test_the_bounds_are_on_their_sides():
    views = all_views()
    log_probs = asked(views.hidden)
    assert mean(views, log_probs).sum().item() == pytest.approx(LOWER, abs=1e-5)
    assert LOWER < LAW < upper(views, log_probs, LENGTH).sum().item()
    assert (upper(views, log_probs, 1.0) >= mean(views, log_probs)).all()


def test_the_upper_bound_has_a_finite_gradient():
    views = all_views()
    log_probs = asked(views.hidden).requires_grad_()
    upper(views, log_probs, 2.0).sum().backward()
    assert log_probs.grad is not None and log_probs.grad.isfinite().all()
