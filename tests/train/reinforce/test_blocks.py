"""Answers in block context: their estimates beside a forward for each view of each block, as decoding computes it."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch

from daguerre.errors import UnsupportedError
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.batched import BatchLayout, Rows, run_batch
from daguerre.train.reinforce.answers import batch_of, estimates
from daguerre.train.reinforce.blocks import block_views
from daguerre.train.reinforce.estimates import DrawnAnswer
from daguerre.train.reinforce.loss import PolicyLoss
from daguerre.train.reinforce.options import ESTIMATES, Reinforce
from oracles.answer_views import mean, upper

OPTIONS = Reinforce(group=2, reward="x:y", pairs=2, kl=0.3, clip=0.2, power=2.0)
SHAPES: dict[str, dict[str, Any]] = {
    "block": {"context": "block", "shift": False, "block_size": 4},
    "clean anchor": {"context": "block", "block_size": 4, "anchor": "clean"},
}


@pytest.fixture(params=SHAPES)
def backbone(request: Any, make_model: Any) -> Backbone:
    model: Backbone = make_model(max_positions=64, **SHAPES[request.param]).backbone
    return model


def some_answers() -> list[DrawnAnswer]:
    """Answers behind prompts that end within a block and with one; one ends early, and a part of its block follows."""
    generator, out = torch.Generator().manual_seed(0), list[DrawnAnswer]()
    for given, length, behind, advantage in ((3, 7, 0, 0.7), (4, 1, 0, -0.2), (5, 5, 2, -0.7)):
        tokens = torch.randint(40, 90, (given + length + behind,), generator=generator)
        asked = torch.arange(given, given + length)
        after = torch.arange(given + length, given + length + behind)
        steps = torch.randint(0, 3, (length,), generator=generator)
        out.append(DrawnAnswer(tokens, asked, after, torch.full_like(after, length - 1), steps, 0.0, advantage))
    return out


def alone(model: Backbone, answers: list[DrawnAnswer], options: Reinforce, seed: int) -> torch.Tensor:
    """The estimates, a forward for each view of each block: the text up to its end, with what the view hides."""
    config, generator, out = model.config, torch.Generator().manual_seed(seed), []
    size, ahead = config.block_size, config.noisy_offset
    assert size is not None

    def laws(tokens: torch.Tensor) -> torch.Tensor:
        layout = BatchLayout(Rows.make(torch.arange(len(tokens))[None]), len(tokens), "block", size)
        return model.logits(run_batch(model, tokens[None], layout)[0]).log_softmax(-1)

    for answer in answers:
        found = torch.zeros(len(answer.asked))
        blocks = list(block_views(answer, options, config, generator))
        for number, position in enumerate(answer.asked.tolist()):
            if config.anchor == "clean" and position % size == 0:
                found = found.index_put(
                    (torch.tensor([number]),), laws(answer.tokens[:position])[position - 1, answer.tokens[position]]
                )
        for start, numbers, views in blocks:
            stop, asked = min(start + size, len(answer.tokens)), answer.asked[numbers]
            each = []
            for hidden in views.hidden:
                shown = answer.tokens[:stop].clone()
                shown[asked[hidden]] = config.placeholder
                if hidden[-1] and numbers[-1] == len(answer.asked) - 1:  # the end is hidden, and what follows from it
                    shown[answer.behind[answer.behind < stop]] = config.placeholder
                each.append(laws(shown)[asked - ahead, answer.tokens[asked]])
            bound = options.estimate == "spg" and answer.advantage < 0
            log_probs = torch.stack(each)
            value = upper(views, log_probs, options.power) if bound else mean(views, log_probs)
            found = found.index_put((numbers,), value)
        out.append(found)
    return torch.cat(out)


def test_a_batch_has_the_estimates_and_the_gradient_of_each_block_alone(
    backbone: Backbone, subtests: pytest.Subtests
) -> None:
    for estimate in ESTIMATES:
        with subtests.test(estimate):
            check_estimate(backbone, estimate)


def check_estimate(backbone: Backbone, estimate: str) -> None:
    options, answers = replace(OPTIONS, estimate=estimate), some_answers()
    options.check_model(backbone.config)
    ours, theirs = (copy.deepcopy(backbone).requires_grad_() for _ in range(2))
    found = estimates(ours, batch_of(answers, options, ours.config, 4))
    wanted = alone(theirs, answers, options, 4)
    assert found.tolist() == pytest.approx(wanted.tolist(), rel=1e-4, abs=1e-5)
    weights = torch.linspace(1, 2, len(found))
    (weights * found).sum().backward()
    (weights * wanted).sum().backward()
    for (which, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        if other.grad is not None:
            assert mine.grad is not None and torch.allclose(mine.grad, other.grad, rtol=1e-3, atol=1e-4), which


def test_from_left_to_right_it_is_the_law_of_that_order(backbone: Backbone) -> None:
    """Each token given all before it, with masks to the end of its block."""
    config, answers = backbone.config, some_answers()
    with torch.no_grad():
        found = estimates(backbone, batch_of(answers, OPTIONS, config, 0))
    size, ahead, wanted = config.block_size, config.noisy_offset, list[float]()
    assert size is not None
    for answer in answers:
        for position in answer.asked.tolist():
            led = config.anchor == "clean" and position % size == 0
            stop = position if led else min((position // size + 1) * size, len(answer.tokens))
            shown = answer.tokens[:stop].clone()
            shown[position:] = config.placeholder
            layout = BatchLayout(Rows.make(torch.arange(stop)[None]), stop, "block", size)
            with torch.no_grad():
                logits = backbone.logits(run_batch(backbone, shown[None], layout)[0])[position - (1 if led else ahead)]
            wanted.append(float(logits.log_softmax(-1)[answer.tokens[position]]))
    assert found.tolist() == pytest.approx(wanted, rel=1e-4, abs=1e-5)


def test_a_loss_is_a_mean_over_the_tokens_of_all_answers(backbone: Backbone) -> None:
    options, answers = replace(OPTIONS, estimate="coupled", kl=0.0), some_answers()
    report = PolicyLoss(options)(backbone, batch_of(answers, options, backbone.config, 1))
    gains = [answer.advantage for answer in answers for _ in answer.asked]
    assert report.loss.item() == pytest.approx(-sum(gains) / len(gains))  # every ratio is 1


def test_a_masked_row_before_a_block_is_no_anchor_of_an_estimate(make_model: Any) -> None:
    config = make_model(context="block", block_size=8, max_positions=64).backbone.config
    with pytest.raises(UnsupportedError, match="no estimate"):
        replace(OPTIONS, estimate="coupled").check_model(config)
