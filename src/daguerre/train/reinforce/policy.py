"""The loss of GRPO: advantages within a group of answers to one prompt, a clipped ratio, and KL to the frozen start."""

from __future__ import annotations

from typing import NamedTuple

import torch


class PolicyTerms(NamedTuple):
    """The loss with its gradient; the mean KL in nats and the share of clipped terms, for the curves."""

    loss: torch.Tensor
    kl: torch.Tensor
    clipped: torch.Tensor


def advantages(rewards: torch.Tensor, scaled: bool = True) -> torch.Tensor:
    """Rewards [prompts, answers] less the mean of their prompt, `scaled` by its standard deviation; 0 if all agree."""
    centered = rewards - rewards.mean(1, keepdim=True)
    return centered / (rewards.std(1, keepdim=True) + 1e-6) if scaled else centered


def policy_loss(
    new: torch.Tensor, old: torch.Tensor, start: torch.Tensor, advantage: torch.Tensor, *, clip: float, kl: float
) -> PolicyTerms:
    """The mean of -min(rA, clip(r)A) + kl * k3, where r = new / old and k3 = e^d - d - 1 with d = log start / new.

    All are log-probabilities of the same shape, under the same views; only `new` has a gradient.
    """
    ratio = (new - old.detach()).exp()
    plain, bounded = ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage
    gap = start.detach() - new
    divergence = gap.exp() - gap - 1
    loss = (kl * divergence - torch.minimum(plain, bounded)).mean()
    return PolicyTerms(loss, divergence.detach().mean(), (bounded < plain).float().mean())
