"""The three losses of distillation, against their definitions written by hand."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from answers import STAGE, hidden_answers
from daguerre.model import Model
from daguerre.models.core.backbone import Backbone
from daguerre.train.batch import Batch
from daguerre.train.distill.answers import answers_of, logits_of, times, with_visible
from daguerre.train.distill.loss import Distillation
from daguerre.train.distill.methods import (
    METHODS,
    Lesson,
    by_chance,
    kl,
    log_policy,
    on_policy,
    random_state,
    sdtt,
    state_step,
    trajectories,
)
from daguerre.train.distill.options import Distill
from daguerre.train.distill.rollout import Open, by_policy, drawn, roll_out
from daguerre.train.earlier import Teacher
from daguerre.train.noising import IGNORE
from daguerre.train.optim import Average

MakeModel = Callable[..., Model]
FULL = {"context": "full", "shift": False}


def two(make_model: MakeModel, **facts: Any) -> tuple[Backbone, Backbone]:
    """A student, and a teacher that differs."""
    student = copy.deepcopy(make_model(**facts).backbone).requires_grad_()
    teacher = copy.deepcopy(make_model(seed=1, **facts).backbone)
    return student, teacher


def lesson_of(student: Backbone, teacher: Backbone, batch: Batch, seed: int = 0, **options: Any) -> Lesson:
    held = Teacher(student)
    held.renew(dict(teacher.named_parameters()))
    generator = torch.Generator().manual_seed(seed)
    return Lesson(student, held, Distill(**options), batch, 1.0, generator, "sdpa")


def test_sdtt_is_the_kl_to_what_the_teacher_says_when_it_commits(make_model: MakeModel, tmp_path: Path) -> None:
    """By hand: of each text, two steps of the teacher at one token a step, each a forward of its own."""
    student, teacher = two(make_model, **FULL)
    batch = hidden_answers(make_model(**FULL), tmp_path).draw(0, STAGE)
    answers = answers_of(batch, 0)
    lesson = lesson_of(student, teacher, batch, seed=5, policy="confidence", steps=1 << 20, skip=2)
    visible = random_state(answers, torch.Generator().manual_seed(5))
    assert 0 < int(visible.sum()) < len(visible)
    every = answers.predicts
    taught: dict[int, Tensor] = {}
    masked, tokens = ~visible, answers.target.clone()
    for _ in range(2):
        logits = logits_of(teacher, batch, every, with_visible(batch, answers, ~masked, tokens), "sdpa")
        law = logits.log_softmax(-1).detach()
        taught |= {i: law[i] for i in torch.nonzero(masked)[:, 0].tolist()}
        for group in range(answers.num_groups):
            still = torch.nonzero(masked & (answers.group == group))[:, 0]
            if len(still):
                best = int(still[law[still].max(-1).values.argmax()])
                tokens[best], masked[best] = law[best].argmax(), False
    state = with_visible(batch, answers, visible, answers.target)
    said = logits_of(student, batch, every, state, "sdpa").log_softmax(-1)
    by_hand = []
    for i in torch.nonzero(~visible)[:, 0].tolist():
        pair = said[i].double().clamp(min=-1e30), taught[i].double().clamp(min=-1e30)
        by_hand.append(F.kl_div(*pair, reduction="sum", log_target=True))
    terms = sdtt(lesson)
    assert terms.loss.dtype is torch.float32
    assert terms.num == len(by_hand)
    assert float(terms.loss.detach()) == pytest.approx(float(torch.stack(by_hand).mean().detach()), rel=1e-4)


def test_with_one_step_and_the_same_weights_there_is_nothing_to_learn(make_model: MakeModel, tmp_path: Path) -> None:
    student, _ = two(make_model, **FULL)
    batch = hidden_answers(make_model(**FULL), tmp_path).draw(0, STAGE)
    assert float(sdtt(lesson_of(student, student, batch, skip=1)).loss.detach()) == pytest.approx(0.0, abs=1e-6)
    assert float(sdtt(lesson_of(student, student, batch, skip=3)).loss.detach()) > 1e-3


def test_trajectories_are_learned_in_states_of_their_order_within_a_window(
    make_model: MakeModel, tmp_path: Path
) -> None:
    student, teacher = two(make_model, **FULL)
    batch = hidden_answers(make_model(**FULL), tmp_path).draw(0, STAGE)
    how: dict[str, Any] = {"policy": "margin", "steps": 6, "states": 2, "window": (2.0, 2.0), "certainty": 0.0}
    terms = trajectories(lesson_of(student, teacher, batch, seed=3, **how))
    answers, generator = answers_of(batch, 0), torch.Generator().manual_seed(3)
    found = roll_out(teacher, batch, answers, by_policy(Distill(**how), 6), generator, "sdpa")
    first = state_step(found.steps.repeat(2), 1.0, generator)
    assert len(set(first.tolist())) > 1
    losses = []
    for copy_number, group in product(range(2), range(answers.num_groups)):
        start = int(first[copy_number * answers.num_groups + group])
        mine = answers.group == group
        state = with_visible(batch, answers, mine & (found.step < start), found.tokens)
        logits = logits_of(student, batch, answers.predicts, state, "sdpa")
        losses += [
            F.cross_entropy(logits[i], found.tokens[i])
            for i in torch.nonzero(mine & (found.step >= start) & (found.step < start + 2))[:, 0].tolist()
        ]
    assert terms.num == len(losses)
    assert float(terms.loss.detach()) == pytest.approx(float(torch.stack(losses).mean().detach()), rel=1e-4)
    none = trajectories(lesson_of(student, teacher, batch, **{**how, "only_right": True}))
    assert none.num == 0 and float(none.loss.detach()) == 0.0  # a random model is never right
    none.loss.backward()


def test_a_state_is_within_the_share_of_steps_that_the_curriculum_has() -> None:
    steps = torch.full((4000,), 8)
    first = state_step(steps, 0.5, torch.Generator().manual_seed(0))
    assert set(first.tolist()) == {4, 5, 6, 7}
    assert set(state_step(steps, 1.0, torch.Generator().manual_seed(0)).tolist()) == set(range(8))
    options = Distill(noise=(0.2, 1.0), window=(1.0, 5.0), curriculum=0.5)
    assert options.between(options.noise, 0.25) == pytest.approx(0.6)
    assert options.between(options.window, 0.9) == 5.0


@pytest.mark.parametrize("forced", [False, True])
def test_the_policy_of_rollouts_is_a_distribution_over_what_a_step_may_do(forced: bool) -> None:
    """Two open tokens of three values: every outcome enumerated, and their frequencies."""
    logits = torch.tensor([[0.5, 0.1, -1.0], [2.0, -0.4, 0.3]]).double()
    log_probs, sharpness = logits.log_softmax(-1), 1.7
    choices = [0, 1, 2] if forced else [None, 0, 1, 2]
    flags = torch.tensor([forced, forced])

    def law(outcome: tuple[int | None, ...]) -> float:
        tokens = torch.tensor([0 if each is None else each for each in outcome])
        committed = torch.tensor([each is not None for each in outcome])
        return float(log_policy(log_probs, tokens, committed, flags, sharpness).sum().exp())

    laws = {outcome: law(outcome) for outcome in product(choices, repeat=2)}
    assert sum(laws.values()) == pytest.approx(1.0, abs=1e-9)
    generator, num = torch.Generator().manual_seed(0), 8000
    probs = log_probs.exp().float().repeat(num, 1)
    proposed = drawn(probs, 1.0, generator)
    opened = Open(probs, proposed, torch.zeros(2 * num), 0, torch.tensor([2 * num]))
    chosen = by_chance(sharpness, 1 if forced else 9)(opened, generator)
    seen = [int(t) if c else None for t, c in zip(proposed.tolist(), chosen.tolist(), strict=True)]
    for outcome, wanted in laws.items():
        share = sum(pair == outcome for pair in zip(seen[::2], seen[1::2], strict=True)) / num
        assert share == pytest.approx(wanted, abs=0.015)


def test_on_policy_follows_the_gradient_of_its_mean_value(make_model: MakeModel, tmp_path: Path) -> None:
    """Answers of one token: each step commits it with probability c = p^k, and the third must. So the mean is
    p_right (c + c (1 - c) / 2 + (1 - c)^2 / 3), whose gradient is that of many rollouts."""
    student, _ = two(make_model, **FULL)
    maker = hidden_answers(make_model(**FULL), tmp_path)
    batch = maker.draw(0, STAGE)
    answers = answers_of(batch, 0)
    first = answers.predicts[[int((answers.group == g).nonzero()[0]) for g in range(answers.num_groups)]]
    one = torch.full_like(batch.target, IGNORE).flatten()
    logits = logits_of(student, batch, first, batch.tokens, "sdpa")
    one[first] = logits.argmax(-1)  # right is what is likely, so that it happens
    batch, tokens = replace(batch, target=one.view_as(batch.target)), batch.tokens
    num, sharpness = 600, 1.0
    how: dict[str, Any] = {"method": "on_policy", "rollouts": num, "sharpness": sharpness, "steps": 3, "kl": 0.0}
    weight = student.get_parameter("layers.0.attention.qkv.weight")
    terms = on_policy(lesson_of(student, student, batch, seed=1, **how))
    (got,) = torch.autograd.grad(-terms.loss, weight)
    log_probs = logits_of(student, batch, first, tokens, "sdpa").log_softmax(-1)
    c, right = log_probs.amax(-1).exp() ** sharpness, log_probs.amax(-1).exp()
    mean = (right * (c + c * (1 - c) / 2 + (1 - c) ** 2 / 3)).mean()
    (wanted,) = torch.autograd.grad(mean, weight)
    assert terms.mean == pytest.approx(float(mean.detach()), rel=0.05)
    assert float(F.cosine_similarity(got.flatten(), wanted.flatten(), dim=0)) > 0.98
    assert float(got.norm() / wanted.norm()) == pytest.approx(1.0, abs=0.1)


def test_kl_is_that_of_distributions_with_impossible_tokens() -> None:
    p = torch.tensor([[0.5, 0.5, 0.0]]).log()
    q = torch.tensor([[0.25, 0.75, 0.0]]).log().requires_grad_()
    value = kl(p, q)
    assert float(value.detach()) == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(0.5 / 0.75))
    value.sum().backward()
    assert q.grad is not None and torch.isfinite(q.grad).all()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("mixed", [False, True])
def test_gradients_reach_the_student_and_its_weights_come_back(
    make_model: MakeModel, tmp_path: Path, method: str, mixed: bool
) -> None:
    """Under autocast, too, which caches rounded weights by parameter: the teacher's must not be the student's."""
    student, teacher = two(make_model)  # causal
    batch = hidden_answers(make_model(), tmp_path).draw(0, STAGE)
    before = {name: weight.detach().clone() for name, weight in student.named_parameters()}
    options = Distill(method=method, sharpness=0.5, steps=4)
    held = Teacher(student)
    held.renew(dict(teacher.named_parameters()))
    loss = Distillation(options, held, Average(student, 0.9))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
        report = loss.at(0.5)(student, batch)
    report.loss.backward()
    assert all(torch.equal(before[name], weight) for name, weight in student.named_parameters())
    norms = {name: float(weight.grad.norm()) for name, weight in student.named_parameters() if weight.grad is not None}
    assert sum(norm > 0 for norm in norms.values()) > 0.8 * len(before)
    assert report.clean_count > 0 and report.clean_sum > 0


def test_in_a_new_round_the_average_of_the_student_teaches(make_model: MakeModel) -> None:
    student, _ = two(make_model, **FULL)
    average = Average(student, 0.9)
    loss = Distillation(Distill(rounds=3), Teacher(student), average)
    old = {name: value.clone() for name, value in loss.teacher.values.items()}
    for value in average.values.values():
        value.add_(1.0)
    assert loss.at(0.32).teacher.round == 0
    assert all(torch.equal(old[name], value) for name, value in loss.teacher.values.items())
    assert loss.at(0.34).teacher.round == 1
    assert all(torch.equal(old[name] + 1, value) for name, value in loss.teacher.values.items())
    other = Distillation(Distill(rounds=3), Teacher(student), average)
    other.teacher.load(loss.teacher.state())
    assert other.teacher.round == 1
    assert all(torch.equal(loss.teacher.values[name], value) for name, value in other.teacher.values.items())


def test_repeats_are_of_the_same_texts(make_model: MakeModel, tmp_path: Path) -> None:
    batch = hidden_answers(make_model(**FULL), tmp_path).draw(0, STAGE)
    assert torch.equal(times(batch, 3).tokens, batch.tokens.repeat(3, 1))
