"""GRPO's advantages, clipping and KL against closed forms."""

import math

import pytest
import torch

from daguerre.train.reinforce.policy import advantages, policy_loss


def test_advantages():
    rewards = torch.tensor([[1.0, 0.0], [2.0, 2.0]])
    assert advantages(rewards, scaled=False).tolist() == [[0.5, -0.5], [0.0, 0.0]]
    assert advantages(rewards)[0, 0].item() == pytest.approx(math.sqrt(0.5), abs=1e-4)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [(1.5, 1.0, -1.2, 0.0), (1.5, -1.0, 1.5, 1.5), (0.5, 1.0, -0.5, -0.5), (0.5, -1.0, 0.8, 0.0)],
)
def test_clipping(ratio, advantage, loss, slope):
    new = torch.tensor([math.log(ratio)], requires_grad=True)
    found = policy_loss(new, torch.zeros(1), new.detach(), torch.tensor([advantage]), clip=0.2, kl=0.0)
    found.loss.backward()
    assert found.loss.item() == pytest.approx(loss)
    assert new.grad is not None and new.grad.item() == pytest.approx(slope)
    assert found.clipped.item() == (slope == 0)


def test_kl_is_that_of_the_laws():
    """The mean of k3 under the policy is KL(policy, start)."""
    law, start = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.3, 0.3, 0.4])
    new, old = law.log(), start.log()
    k3 = [policy_loss(new[i], new[i], old[i], torch.zeros(()), clip=0.2, kl=1.0).kl for i in range(3)]
    assert (law * torch.stack(k3)).sum().item() == pytest.approx((law * (law / start).log()).sum().item(), abs=1e-6)
