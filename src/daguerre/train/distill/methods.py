"""The losses of the three methods, each a function of (what the run is, a batch, random numbers) to terms of tokens.

Letters: N tokens of answers, G groups, A tokens that are learned, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from daguerre.models.core.backbone import Backbone
from daguerre.train.batch import Batch, entropy
from daguerre.train.distill.answers import AnswerTokens, answers_of, logits_of, times, with_visible
from daguerre.train.distill.options import Distill
from daguerre.train.distill.rollout import Choice, Open, Rollout, by_policy, roll_out, top
from daguerre.train.earlier import Teacher
from daguerre.train.reinforce.policy import advantages


@dataclass(frozen=True)
class Lesson:
    """One micro-batch: the student, its teacher, the recipe's options, the share of the run, and random numbers."""

    student: Backbone
    teacher: Teacher
    options: Distill
    batch: Batch
    share: float
    generator: torch.Generator
    attn_impl: str

    @property
    def offset(self) -> int:
        return self.student.config.noisy_offset

    @property
    def steps(self) -> int:
        """Of a static policy of the teacher: half as many in each round of sdtt."""
        return max(1, self.options.steps >> self.teacher.round) if self.options.method == "sdtt" else self.options.steps

    def logits(self, batch: Batch, answers: AnswerTokens, which: Tensor, visible: Tensor, tokens: Tensor) -> Tensor:
        """The student's logits of some of the answers' tokens, `which` (N,), in a state."""
        shown = with_visible(batch, answers, visible, tokens)
        return logits_of(self.student, batch, answers.predicts[which], shown, self.attn_impl)

    def decoded(self, batch: Batch, answers: AnswerTokens, **how: Any) -> Rollout:
        """What the model, as it is now, decodes by the recipe's policy."""
        choose, temperature = by_policy(self.options, self.steps), self.options.temperature
        return roll_out(
            self.student, batch, answers, choose, self.generator, self.attn_impl, temperature=temperature, **how
        )


@dataclass(frozen=True)
class Terms:
    """The loss, with gradient; its mean over learned tokens, for the logs, and their number; what is reported too."""

    loss: Tensor
    mean: float
    num: int
    parts: dict[str, float]


def kl(teacher: Tensor, student: Tensor) -> Tensor:
    """KL(teacher || student) in nats (A,), float32, of log-probabilities (A, V), some of which may be minus infinity in
    both.
    """
    never = teacher == float("-inf")
    gap = teacher.masked_fill(never, 0.0) - student.masked_fill(never, 0.0)
    return (teacher.exp() * gap).sum(-1)


def mean_of(values: Tensor, parts: dict[str, float]) -> Terms:
    """The mean of terms (A,); 0 with a gradient of zeros where there are none."""
    loss = values.sum() / max(1, len(values))
    return Terms(loss, float(loss.detach()), len(values), parts)


# ---- Self-Distillation Through Time ---------------------------------------------------------------------------------


def sdtt(lesson: Lesson) -> Terms:
    """The mean KL of masked tokens, in a state of the data, to what the teacher says when it commits them."""
    batch, answers = lesson.batch, answers_of(lesson.batch, lesson.offset)
    visible = random_state(answers, lesson.generator)
    with lesson.teacher.in_place(lesson.student):
        found = lesson.decoded(batch, answers, visible=visible, most=lesson.options.skip, keeps_laws=True)
    assert found.log_probs is not None
    log_probs = lesson.logits(batch, answers, ~visible, visible, answers.target).log_softmax(-1)
    return mean_of(kl(found.log_probs[~visible], log_probs), {})


def random_state(answers: AnswerTokens, generator: torch.Generator) -> Tensor:
    """Which tokens are visible, bool (N,): in each group a share uniform on [0, 1), stratified over groups, at random;
    at least one is masked.
    """
    num, device = answers.num_groups, answers.group.device
    offset = torch.rand((), generator=generator, device=device)
    levels = (offset + torch.randperm(num, generator=generator, device=device) / num) % 1.0
    count = (levels * answers.sizes).long().clamp(max=answers.sizes - 1)
    order = torch.rand(len(answers.group), generator=generator, device=device)
    return top(order, answers.group, count)


# ---- pseudo-trajectories --------------------------------------------------------------------------------------------


def trajectories(lesson: Lesson) -> Terms:
    """The mean cross-entropy, in states of the teacher's decoding, of what it commits in the next steps."""
    options = lesson.options
    answers = answers_of(lesson.batch, lesson.offset)
    with lesson.teacher.in_place(lesson.student):
        found = lesson.decoded(lesson.batch, answers)
    right = answers.all_of_group(found.tokens == answers.target)
    num = options.states
    batch, found, right = times(lesson.batch, num), taught(found, num), right.repeat(num)
    answers = answers_of(batch, lesson.offset)
    first = state_step(found.steps, options.between(options.noise, lesson.share), lesson.generator)[answers.group]
    window = options.between(options.window, lesson.share)
    learned = (found.step >= first) & (found.step < first + window)
    if options.only_right:
        learned &= right[answers.group]
    logits = lesson.logits(batch, answers, learned, found.step < first, found.tokens)
    values = F.cross_entropy(logits, found.tokens[learned], reduction="none")
    mean = mean_of(values, {"right": float(right.float().mean()), "steps": float(found.steps.float().mean())})
    if not options.certainty:
        return mean
    agrees = (logits.argmax(-1) == found.tokens[learned]).float()
    return Terms(mean.loss + options.certainty * (agrees * entropy(logits)).mean(), mean.mean, mean.num, mean.parts)


def state_step(steps: Tensor, noise: float, generator: torch.Generator) -> Tensor:
    """The first step (G,) that a state has not taken: of all `steps` (G,) a share up to `noise` is still to come, and
    at least one step.
    """
    left = torch.rand(len(steps), generator=generator, device=steps.device) * noise * steps
    return steps - left.ceil().long().clamp(min=1)


def taught(found: Rollout, num: int) -> Rollout:
    """A rollout of a batch as one of the batch `num` times."""
    return Rollout(found.tokens.repeat(num), found.step.repeat(num), found.steps.repeat(num))


# ---- on-policy minimization of steps --------------------------------------------------------------------------------


def on_policy(lesson: Lesson) -> Terms:
    """REINFORCE with the mean of a text's rollouts as its baseline, on one step of each rollout, drawn uniformly, which
    stands for all; and the KL of what is masked there to the teacher. The value of a rollout is 1 / steps if it is
    right, else 0.
    """
    options, num = lesson.options, lesson.options.rollouts
    batch = times(lesson.batch, num)
    answers = answers_of(batch, lesson.offset)
    choose = by_chance(options.sharpness, options.steps)
    found = roll_out(lesson.student, batch, answers, choose, lesson.generator, lesson.attn_impl, temperature=1.0)
    right = answers.all_of_group(found.tokens == goal_of(lesson, num, answers))
    value = right.float() / found.steps
    worth = advantages(value.view(num, -1).T, scaled=False).T.flatten()
    drawn = torch.rand(answers.num_groups, generator=lesson.generator, device=worth.device)
    step = (drawn * found.steps).long()[answers.group]
    masked = found.step >= step
    visible = ~masked
    logits = lesson.logits(batch, answers, masked, visible, found.tokens)
    log_probs = logits.log_softmax(-1)
    forced = (step == options.steps - 1)[masked]
    each = log_policy(log_probs, found.tokens[masked], (found.step == step)[masked], forced, options.sharpness)
    with lesson.teacher.in_place(lesson.student):
        start = lesson.logits(batch, answers, masked, visible, found.tokens).log_softmax(-1)
    scale = (found.steps * answers.num_groups / len(answers.group))[answers.group][masked]  # per token of an answer
    gain = (worth[answers.group][masked] * scale * each).sum() / answers.num_groups
    away = kl(start, log_probs).mean()
    loss = options.kl * away - gain
    figures = {"right": right.float().mean(), "steps": found.steps.float().mean(), "kl": away.detach()}
    return Terms(loss, float(value.mean()), len(each), {name: float(figure) for name, figure in figures.items()})


def by_chance(sharpness: float, most: int) -> Choice:
    """Each token on its own with probability p^sharpness, p that of the likeliest; all of them in step `most`."""

    def choose(opened: Open, generator: torch.Generator) -> Tensor:
        chance = opened.probs.amax(-1) ** sharpness
        drawn = torch.rand(len(chance), generator=generator, device=chance.device)
        return (drawn < chance) | (opened.step >= most - 1)

    return choose


def log_policy(log_probs: Tensor, tokens: Tensor, committed: Tensor, forced: Tensor, sharpness: float) -> Tensor:
    """The log-probability (A,) of what `by_chance` did with each open token in a step: it drew `tokens` and committed
    them, or left them. Where it must commit all, the draw alone has a probability.
    """
    chance = sharpness * log_probs.amax(-1)
    token = log_probs.gather(-1, tokens[:, None])[:, 0]
    left = torch.log(-torch.expm1(chance.clamp(max=-1e-6)))
    return torch.where(committed, token + torch.where(forced, 0.0, chance), left)


def goal_of(lesson: Lesson, num: int, answers: AnswerTokens) -> Tensor:
    """The tokens (N,) of answers that are right, of the batch `num` times."""
    if lesson.options.goal == "data":
        return answers.target
    with lesson.teacher.in_place(lesson.student):
        found = lesson.decoded(lesson.batch, answers_of(lesson.batch, lesson.offset))
    return found.tokens.repeat(num)


METHODS: dict[str, Callable[[Lesson], Terms]] = {"sdtt": sdtt, "trajectories": trajectories, "on_policy": on_policy}
