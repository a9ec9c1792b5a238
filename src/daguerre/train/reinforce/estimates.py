"""Estimates of an answer's log-probability, all of one form: what is hidden, and what each hidden token weighs.

An estimator draws `Views`; the policy, its older version and the frozen start are asked about the same ones, so that
the noise of the masks cancels in their ratios.

    left_to_right   the exact likelihood of decoding from left to right (JustGRPO); a causal model has it in one forward
    coupled         a mask, its complement, and everything hidden: each token twice (coupled-GRPO, arXiv 2506.20639)
    bounded         the same pairs, weighed so that the weighted sum is the evidence lower bound without bias (SPG)
    traced          the states that decoding went through, some steps at once (TraceRL)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from daguerre.train.reinforce.options import Reinforce


@dataclass(frozen=True)
class DrawnAnswer:
    """A prompt with the answer that was drawn to it.

    tokens     int64 (T,), the whole canvas
    asked      int64 (L,), the positions of the answer's tokens, up to the first end of text of each gap
    behind     int64 (P,), positions behind such an end, which follow from it
    end        int64 (P,), for each of these the number of its end among the answer's tokens
    steps      int64 (L,), the forward that committed each token
    reward, advantage   what it got, and by how much that is above the mean of its group
    """

    tokens: torch.Tensor
    asked: torch.Tensor
    behind: torch.Tensor
    end: torch.Tensor
    steps: torch.Tensor
    reward: float = 0.0
    advantage: float = 0.0


@dataclass(frozen=True)
class Views:
    """`hidden`, bool [views, length]: the masked tokens; `weights`, [views, length]: 0 where nothing is hidden."""

    hidden: torch.Tensor
    weights: torch.Tensor


def left_to_right(length: int) -> Views:
    """View i hides tokens i and later, and asks for token i."""
    return Views(torch.ones(length, length, dtype=torch.bool).triu(), torch.eye(length))


def coupled(length: int, pairs: int, generator: torch.Generator) -> Views:
    """Everything hidden, and pairs of complementary masks; a token's estimate is its mean."""
    hidden = _paired(length, pairs, generator)
    return Views(hidden, hidden.float() / (pairs + 1))


def bounded(length: int, pairs: int, generator: torch.Generator) -> Views:
    """`coupled`'s views with the weights of the lower bound, under which a token is hidden with 0 to length - 1 others
    equally often.

    In a pair a token is hidden among s with probability 2s / (length (length - 1)), so it weighs (length - 1) / 2s.
    """
    hidden = _paired(length, pairs, generator)
    weights = hidden * (length - 1) / (2 * pairs * hidden.sum(1, keepdim=True))
    weights[0] = 1 / length
    return Views(hidden, weights)


def traced(steps: torch.Tensor, together: int = 1) -> Views:
    """The states of a decoding in which token i was committed in step `steps[i]`; `together` steps are one view."""
    order = steps.unique(return_inverse=True)[1] // together
    view = torch.arange(int(order.max()) + 1).unsqueeze(1)
    return Views(order >= view, (order == view).float())


def drawn_views(steps: torch.Tensor, options: Reinforce, generator: torch.Generator) -> Views:
    """The views of tokens that were committed in these steps, int64 [length], by the estimate of a recipe."""
    num = len(steps)
    if options.estimate == "traced":
        return traced(steps, options.together)
    if options.estimate == "left_to_right" or num == 1:
        return left_to_right(num)
    return (bounded if options.estimate == "spg" else coupled)(num, options.pairs, generator)


def _paired(length: int, pairs: int, generator: torch.Generator) -> torch.Tensor:
    """Bool [1 + 2 pairs, length]: everything, then masks of 1 to length - 1 tokens and their complements."""
    sizes = torch.randint(1, length, (pairs, 1), generator=generator)
    ranks = torch.rand(pairs, length, generator=generator).argsort(1).argsort(1)
    masks = ranks < sizes
    return torch.cat([torch.ones(1, length, dtype=torch.bool), masks, ~masks])
