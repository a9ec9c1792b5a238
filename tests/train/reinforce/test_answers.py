"""Answers in a batch: their estimates against those of each answer alone, and the gradient of the loss by hand."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from daguerre.errors import InputError, UnsupportedError
from daguerre.train.reinforce.answers import batch_of, estimates, views_of
from daguerre.train.reinforce.estimates import DrawnAnswer
from daguerre.train.reinforce.loss import PolicyLoss
from daguerre.train.reinforce.options import ESTIMATES, Reinforce
from oracles.answer_views import exact, in_views, mean, upper

OPTIONS = Reinforce(group=2, reward="x:y", pairs=2, kl=0.3, clip=0.2, power=2.0)
CASES = [("causal", "left_to_right"), *((name, each) for name in ("full", "full_unshifted") for each in ESTIMATES)]


def some_answers(config, seed=0):
    """Two answers of unlike lengths, behind prompts of unlike lengths; one is better than the other."""
    generator = torch.Generator().manual_seed(seed)
    out = []
    for given, length, advantage in ((3, 5, 0.7), (5, 2, -0.7)):
        tokens = torch.randint(40, 90, (given + length,), generator=generator)
        tokens[0] = config.bos_id
        none = torch.zeros(0, dtype=torch.int64)
        steps = torch.randint(0, 3, (length,), generator=generator)
        asked = torch.arange(given, given + length)
        out.append(DrawnAnswer(tokens, asked, none, none, steps, float(advantage > 0), advantage))
    return out


def alone(model, answers, options, seed):
    """The estimates of each answer in a forward of its own, by the definitions."""
    generator = torch.Generator().manual_seed(seed)
    out = []
    for answer in answers:
        given = int(answer.asked[0])
        views = views_of(answer, options, model.config, generator)
        if model.config.context == "causal":
            out.append(exact(model, answer.tokens, given))
            continue
        asked = in_views(model, answer.tokens, given, views)
        bound = options.estimate == "spg" and answer.advantage < 0
        out.append(upper(views, asked, options.power) if bound else mean(views, asked))
    return torch.cat(out)


def test_a_batch_has_the_estimates_of_each_answer_alone(models, subtests):
    for name, estimate in CASES:
        with subtests.test(name, estimate=estimate), torch.no_grad():
            model = models[name].backbone
            options, answers = replace(OPTIONS, estimate=estimate), some_answers(model.config)
            found = estimates(model, batch_of(answers, options, model.config, 4))
            wanted = alone(model, answers, options, 4)
            assert found.tolist() == pytest.approx(wanted.tolist(), rel=1e-4, abs=1e-5)


def test_the_gradient_is_that_of_the_loss_by_hand(models, subtests):
    """-min(rA, clip(r)A) + kl (e^d - d - 1) with old weights and start given, differentiated by autograd."""
    for name, estimate in CASES:
        with subtests.test(name, estimate=estimate):
            check_gradient(models, name, estimate)


def check_gradient(models, name, estimate):
    options = replace(OPTIONS, estimate=estimate)
    ours, theirs = (copy.deepcopy(models[name].backbone).requires_grad_() for _ in range(2))
    answers = some_answers(ours.config)
    batch = batch_of(answers, options, ours.config, 4)
    with torch.no_grad():
        now = estimates(ours, batch)
    shift = torch.linspace(0.5, -0.5, len(now))  # so that some tokens are clipped
    old, start = now - shift, now + 0.2
    report = PolicyLoss(options)(ours, replace(batch, old=old, start=start))
    report.loss.backward()
    new = alone(theirs, answers, options, 4)
    total = 0.0
    for token in range(len(new)):
        ratio, gain = (new[token] - old[token]).exp(), batch.advantage[token]
        gap = start[token] - new[token]
        total = total + options.kl * (gap.exp() - gap - 1) - torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain)
    (total / len(new)).backward()
    assert report.loss.item() == pytest.approx(total.item() / len(new), rel=1e-4)
    assert 0 < report.parts["clipped"] < 1 and report.parts["kl"] > 0
    for (which, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        if other.grad is None:
            assert mine.grad is None or not mine.grad.any(), which
        else:
            assert torch.allclose(mine.grad, other.grad, rtol=1e-3, atol=1e-5), which


def test_what_follows_an_end_is_hidden_with_it_and_has_no_estimate(models):
    config = models["full_unshifted"].backbone.config
    answer = DrawnAnswer(
        torch.tensor([1, 62, 63, config.eos_id, config.eos_id, config.eos_id]),
        torch.tensor([1, 2, 3]), torch.tensor([4, 5]), torch.tensor([2, 2]), torch.tensor([1, 0, 2]),
    )  # fmt: skip
    batch = batch_of([answer], replace(OPTIONS, estimate="traced"), config, 0)
    mask = config.placeholder
    shown = [[1, mask, mask, mask, mask, mask], [1, mask, 63, mask, mask, mask], [1, 62, 63, mask, mask, mask]]
    assert batch.tokens.tolist() == shown
    assert (batch.target >= 0).nonzero().tolist() == [[0, 2], [1, 1], [2, 3]]
    assert len(batch.advantage) == 3


@pytest.mark.parametrize(
    ("name", "estimate", "said"),
    [("causal", "coupled", "exact"), ("causal", "spg", "exact"), ("block_shifted", "coupled", "block context")],
)
def test_a_model_without_such_an_estimate_is_refused(models, name, estimate, said):
    with pytest.raises(UnsupportedError, match=said):
        replace(OPTIONS, estimate=estimate).check_model(models[name].config)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"estimate": "copled"}, "coupled"),
        ({"group": 1}, "at least 2"),
        ({"temperature": 0.0}, "above 0"),
        ({"clip": 1.5}, "above 0 and below 1"),
        ({"command": ("true",)}, "leave out one"),
    ],
)
def test_wrong_options(values, said):
    with pytest.raises(InputError, match=said):
        replace(OPTIONS, **values)
