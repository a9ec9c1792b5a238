"""First hitting through the main path: the distribution of the absorbing process, without its empty steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from daguerre.canvas import Canvas
from daguerre.decoding.denoise import Deadline, denoise
from daguerre.decoding.sampler import TokenSampler
from daguerre.models.forward import Answer
from daguerre.models.session import Counts
from daguerre.noise.process import Absorbing
from daguerre.sampling.logits import Proposals, SamplingParams
from daguerre.sampling.policies import FirstHitting, Policy, Progress, Random
from daguerre.sampling.random import Counter
from daguerre.trace import Event
from driving import run_steps
from enumerated import JOINT, MASK, NOISY, V, exact_denoiser

with np.errstate(divide="ignore"):
    TABLE = np.log(exact_denoiser(Absorbing(MASK), NOISY, 0.5).numpy()).reshape(V, V, 2, V)
NUM_RUNS = 1000


class Exact:
    """A session that answers with the exact logits of the joint distribution at positions 1 and 2, and the run of a
    policy with it."""

    draws, threshold, deadline = False, 0.0, Deadline(None)

    def __init__(self, policy: Policy, seed: int) -> None:
        self.policy, self.session, self.counts = policy, self, Counts()
        self.sampler = TokenSampler(SamplingParams(1.0), Counter(seed), reads=policy.reads)

    def ask(self, canvas: Canvas, positions: np.ndarray, ask: Any) -> Any:
        yield from ()
        self.counts.forwards += 1
        first, second = np.where(canvas.open, MASK, canvas.tokens)[1:3]
        return Answer(logits=TABLE[first, second][positions - 1])

    def min_commits(self, canvas: Canvas) -> int:
        return 0


def run(policy: Policy, seed: int) -> list[Event]:
    canvas = Canvas.lay_out([[4]], [2], MASK).at((1, 3))
    return run_steps(denoise(Exact(policy, seed), canvas, [], lambda now: False))[0]  # type: ignore[arg-type]


def share_of_pairs(policy: Policy) -> tuple[torch.Tensor, float]:
    """How often each pair was written, (V, V), and the mean number of forwards."""
    runs = [run(policy, seed) for seed in range(NUM_RUNS)]
    pairs = torch.tensor(np.array([events[-1].canvas.tokens[1:] for events in runs]))
    share = torch.bincount(pairs @ torch.tensor([V, 1]), minlength=V * V).view(V, V).double() / len(runs)
    return share, float(np.mean([len(events) for events in runs]))


def follows(share: torch.Tensor, expected: torch.Tensor) -> bool:
    """Pearson's chi-square within 4 sigma of its mean, and nothing of probability zero."""
    possible = expected > 1e-9
    statistic = NUM_RUNS * float(((share - expected) ** 2 / expected)[possible].sum())
    freedom = int(possible.sum()) - 1
    return statistic < freedom + 4 * (2 * freedom) ** 0.5 and not share[~possible].any()


def two_steps() -> torch.Tensor:
    """The distribution of ancestral sampling in two steps, t = 1, 1/2, 0: half of the masks go in each."""
    out, process = torch.zeros(V, V, dtype=torch.float64), Absorbing(MASK)
    start = exact_denoiser(process, torch.tensor([[MASK, MASK]]), 1.0)
    first = process.posterior(torch.tensor([[MASK, MASK]]), start, 1.0, 0.5)[0]
    middle = (first[0, :, None] * first[1]).flatten()
    second = process.posterior(NOISY, exact_denoiser(process, NOISY, 0.5), 0.5, 0.0)
    for chance, ends in zip(middle, second, strict=True):
        out += chance * ends[0, :, None] * ends[1]
    return out


def test_one_token_a_forward_reproduces_the_joint_distribution() -> None:
    share, forwards = share_of_pairs(FirstHitting())
    assert forwards == 2
    assert follows(share, JOINT)
    assert not follows(share, two_steps())


def test_in_steps_it_is_ancestral_sampling_without_the_empty_ones() -> None:
    """Both positions fall into the same half of the share with probability 1/2, and then take one forward."""
    share, forwards = share_of_pairs(FirstHitting(2))
    assert forwards == pytest.approx(1.5, abs=4 * 0.5 / NUM_RUNS**0.5)
    assert follows(share, two_steps())
    assert not follows(share, JOINT)


def test_n_positions_take_exactly_n_forwards_in_any_order(subtests: pytest.Subtests) -> None:
    for num in (1, 3, 8):
        with subtests.test(str(num)):
            orders = set()
            for seed in range(50):
                left = Proposals(np.arange(num), np.arange(num), np.ones(num) / 2)
                order = []
                for step in range(FirstHitting().bound(num)):
                    decision = FirstHitting().decide(left, Progress(step, step, num), Counter(seed))
                    assert len(decision) == 1
                    order.append(int(decision.positions[0]))
                    left = left.keep(left.positions != decision.positions[0])
                assert sorted(order) == list(range(num))
                orders.add(tuple(order))
            assert len(orders) >= {1: 1, 3: 6, 8: 45}[num]


def test_a_position_keeps_its_share_whatever_is_open_beside_it() -> None:
    """What is left later comes in the order that it would have come in alone."""
    num = 12
    every = Proposals(np.arange(num), np.arange(num), np.ones(num) / 2)
    first = FirstHitting(3).decide(every, Progress(0, 0, num), Counter(4))
    rest = every.keep(~np.isin(every.positions, first.positions))
    second = FirstHitting(3).decide(rest, Progress(1, 1, num), Counter(4))
    assert first.confidence.min() > second.confidence.max()
    alone = every.keep(np.isin(every.positions, second.positions))
    assert np.array_equal(FirstHitting(3).decide(alone, Progress(7, 9, num), Counter(4)).confidence, second.confidence)


def test_it_has_the_distribution_but_not_the_steps_of_the_random_policy() -> None:
    """One position a step, the policy "random" has the same distribution; its steps have fixed sizes, these do not."""
    sizes = {len(run(FirstHitting(2), seed)) for seed in range(20)}
    assert sizes == {1, 2}
    assert {len(run(Random(2), seed)) for seed in range(20)} == {2}
