"""Earlier values of weights, put in place for forwards."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from daguerre.model import Model
from daguerre.models.core.batched import BatchLayout, run_batch
from daguerre.train.earlier import Earlier

TOKENS = torch.tensor([[5, 9, 17, 30, 4, 21]])


@pytest.mark.parametrize("enabled", [False, True])
def test_each_forward_has_its_own_values_also_within_one_autocast(
    make_model: Callable[..., Model], enabled: bool
) -> None:
    """Autocast keeps rounded weights by parameter: those of one forward must not serve the other."""
    model = make_model().backbone.requires_grad_(True)
    layout = BatchLayout.causal(TOKENS.shape[1])

    def logits() -> torch.Tensor:
        return model.logits(run_batch(model, TOKENS, layout)).float()

    def alone() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            return logits()

    start, earlier = alone().detach(), Earlier(model)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel()))
    now = alone().detach()
    with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
        with earlier.in_place(model):
            found = logits()
        after = logits()
        with earlier.in_place(model):
            again = logits()
    assert not torch.allclose(start, now, atol=0.1)
    assert torch.equal(found, start) and torch.equal(again, start) and not found.requires_grad
    assert torch.equal(after, now)
    after.sum().backward()
    assert all(weight.grad is not None for name, weight in model.named_parameters() if "layers" in name)


def test_weights_that_are_not_trained_are_left_alone(make_model: Callable[..., Model]) -> None:
    model = make_model().backbone.requires_grad_(False)
    name, weight = list(model.named_parameters())[-1]
    weight.requires_grad_(True)
    earlier = Earlier(model)
    assert list(earlier.values) == [name]
    with torch.no_grad():
        weight += 1.0
    with earlier.in_place(model):
        assert torch.equal(model.get_parameter(name), earlier.values[name])
    assert torch.equal(model.get_parameter(name), earlier.values[name] + 1.0)
