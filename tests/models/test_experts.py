"""A mixture of experts by itself: which experts a row gets, whatever the others get. `test_shapes` has its formulas."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from daguerre.models.core.config import Experts
from daguerre.models.core.experts import Mixture

GROUPED: dict[str, Any] = {"num_groups": 4, "kept_groups": 2, "score": "sigmoid", "bias": True, "normalized": True}


def mixture(**facts: Any) -> Mixture:
    """Random, of rows of 16 numbers."""
    torch.manual_seed(4)
    experts = Experts(**({"num": 12, "per_token": 3, "width": 20} | facts))
    made = Mixture(16, experts, F.silu, None).eval().requires_grad_(False)
    if made.expert_bias is not None:
        made.expert_bias.normal_(0, 0.1)
    return made


def rows(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, 16, generator=torch.Generator().manual_seed(8))


@pytest.mark.parametrize("facts", [{}, GROUPED])
def test_a_row_has_the_experts_and_the_result_that_it_has_alone(facts: dict[str, Any]) -> None:
    """Whatever the others choose: there is no capacity. Even if all of them choose the same experts."""
    made, x = mixture(**facts), rows(30)
    chosen, weights = made.choose(x)
    alone = [made.choose(row[None]) for row in x]
    assert torch.equal(chosen, torch.cat([one for one, _ in alone]))
    assert torch.allclose(weights, torch.cat([other for _, other in alone]), atol=1e-6)
    assert torch.allclose(made(x), torch.cat([made(row[None]) for row in x]), atol=1e-5)
    crowded = torch.cat([x[:1].expand(200, -1), x])
    assert torch.allclose(made(crowded)[200:], made(x), atol=1e-5)
    order = torch.randperm(30, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(made(x[order]), made(x)[order], atol=1e-5)


def test_rows_may_have_any_leading_dimensions_and_there_may_be_none() -> None:
    made, x = mixture(), rows(3, 5)
    assert torch.allclose(made(x).flatten(0, 1), made(x.flatten(0, 1)), atol=1e-6)
    assert made(x[:0]).shape == (0, 5, 16)


def test_groups_limit_the_choice_to_the_best_of_them() -> None:
    chosen, weights = mixture(**GROUPED, scale=2.5).choose(rows(60))
    groups = (chosen // 3).tolist()
    assert all(len(set(row)) <= 2 for row in groups)
    assert max(len(set((row // 3).tolist())) for row in mixture().choose(rows(60))[0]) == 3
    assert (chosen.diff(dim=1) > 0).all()
    assert torch.allclose(weights.sum(1), torch.full((60,), 2.5))


@pytest.mark.parametrize("facts", [{}, {"num_groups": 4, "kept_groups": 2}])
@pytest.mark.parametrize("num", [12, 160])
def test_of_equal_scores_the_first_are_chosen(facts: dict[str, Any], num: int) -> None:
    made = mixture(num=num, **facts)
    made.router.weight.zero_()
    assert made.choose(rows(40))[0].tolist() == [[0, 1, 2]] * 40


def test_the_router_is_in_float32_whatever_computes_the_experts() -> None:
    """A choice in bfloat16 would be another one in a row out of about ten."""
    made, x = mixture(num=64, per_token=8), rows(200).bfloat16().float()
    made.router.weight.copy_(made.router.weight.bfloat16().float())
    want = made.choose(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert made(x).isfinite().all()
        got = made.choose(x)
    assert all(torch.equal(one, other) for one, other in zip(got, want, strict=True))
    small = made.to(torch.bfloat16).choose(x.bfloat16())
    assert all(torch.equal(one, other) for one, other in zip(small, want, strict=True))
    rounded = F.linear(x.bfloat16(), made.router.weight).softmax(-1).topk(8).indices.sort().values
    assert (rounded != want[0]).any(1).sum() > 5


def test_gradients_reach_the_router_and_the_chosen_experts() -> None:
    made, x = mixture(**GROUPED).requires_grad_(True), rows(40)
    made(x).square().sum().backward()  # type: ignore[no-untyped-call]
    chosen = set(made.choose(x)[0].flatten().tolist())
    assert 6 < len(chosen) < 12
    for weight in (made.router.weight, made.gate_up.weight, made.down.weight):
        assert weight.grad is not None
        assert set(weight.grad.flatten(1).abs().amax(1).nonzero().flatten().tolist()) == chosen
