"""The parts together: answers of one token, rewarded when it is an even one."""

import copy

import torch

from daguerre.train.reinforce.estimates import left_to_right
from daguerre.train.reinforce.policy import advantages, policy_loss
from oracles.answer_views import in_views, mean

PROMPT = torch.tensor([1, 12, 30])


def test_the_reward_rises(models):
    torch.manual_seed(0)
    policy = copy.deepcopy(models["full_unshifted"].backbone).requires_grad_()
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    views, choices = left_to_right(1), torch.arange(10, 26)

    def of(model):
        asked = [in_views(model, torch.cat([PROMPT, choice[None]]), len(PROMPT), views) for choice in choices]
        return torch.cat([mean(views, each) for each in asked]).log_softmax(0)

    with torch.no_grad():
        start = of(policy)
    before = start.exp()[::2].sum().item()
    for _ in range(15):
        old = of(policy)
        drawn = old.detach().exp().multinomial(16, replacement=True)
        gain = advantages((choices[drawn] % 2 == 0).float()[None])[0]
        report = policy_loss(old[drawn], old[drawn], start[drawn], gain, clip=0.2, kl=0.01)
        optimizer.zero_grad()
        report.loss.backward()
        optimizer.step()
    with torch.no_grad():
        after = of(policy).exp()[::2].sum().item()
    assert before < 0.9 and after > before + 0.3 * (1 - before), (before, after)
