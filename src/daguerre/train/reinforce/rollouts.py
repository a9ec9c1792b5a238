"""Answers that a model draws to prompts, in one batch of forwards, and their rewards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from daguerre.decoding.generate import Request, plan_of
from daguerre.decoding.plan import Plan
from daguerre.decoding.request import Decode
from daguerre.decoding.sample import Sample, Together
from daguerre.models.core.backbone import Backbone
from daguerre.models.denoiser import BackboneDenoiser
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.precision import Mixed
from daguerre.train.reinforce.estimates import DrawnAnswer
from daguerre.train.reinforce.options import Reinforce
from daguerre.train.reinforce.policy import advantages
from daguerre.train.reinforce.prompts import RewardedPrompt
from daguerre.train.reinforce.rewards import Rewards

AT_ONCE = 256
"""Answers that are drawn together."""
MODES = {"causal": "ar", "full": "full", "block": "block"}
"""How answers are drawn unless a recipe says it, by a model's context."""


@dataclass(frozen=True)
class Roller:
    """Draws and rewards answers with the weights that the model has at the time: a function of these, of the prompts
    and of the seed. `mixed` is the precision of the forwards.
    """

    model: Backbone
    tokenizer: Tokenizer
    options: Reinforce
    mixed: Mixed

    @cached_property
    def rewards(self) -> Rewards:
        """What answers are rewarded with."""
        return Rewards(self.options)

    @cached_property
    def _denoiser(self) -> BackboneDenoiser:
        return BackboneDenoiser(self.model, backend="torch")

    @torch.no_grad()
    def groups(self, prompts: Sequence[RewardedPrompt], seed: int) -> list[DrawnAnswer]:
        """A group of answers to each prompt, one after the other, with rewards and advantages."""
        group = self.options.group
        plans = [plan for i, prompt in enumerate(prompts) for plan in [self._plan(prompt, [seed, i])] * group]
        drawn = self._drawn(plans, group)
        asked = [prompt for prompt in prompts for _ in range(group)]
        rewards = self.rewards.of([(prompt, text) for prompt, (_, text) in zip(asked, drawn, strict=True)])
        gains = advantages(torch.tensor(rewards).view(-1, group), self.options.scaled).flatten().tolist()
        return [
            replace(answer, reward=reward, advantage=gain)
            for (answer, _), reward, gain in zip(drawn, rewards, gains, strict=True)
        ]

    @torch.no_grad()
    def best(self, prompts: Sequence[RewardedPrompt]) -> list[tuple[DrawnAnswer, float]]:
        """An answer to each prompt at temperature 0, and its reward."""
        drawn = self._drawn([self._plan(prompt, [0, 0], temperature=0.0) for prompt in prompts], 1)
        rewards = self.rewards.of([(prompt, text) for prompt, (_, text) in zip(prompts, drawn, strict=True)])
        return [(answer, reward) for (answer, _), reward in zip(drawn, rewards, strict=True)]

    def longest(self, prompt: RewardedPrompt) -> DrawnAnswer:
        """An answer that has every token it may have, not drawn: for the arithmetic of memory."""
        canvas = Sample(self._denoiser, self._plan(prompt, [0, 0]), 0, None).canvas
        asked = torch.cat([torch.arange(first, last) for first, last in canvas.gaps])
        none = torch.zeros(0, dtype=torch.int64)
        return DrawnAnswer(torch.from_numpy(canvas.tokens.copy()), asked, none, none, torch.arange(len(asked)))

    def _drawn(self, plans: Sequence[Plan], group: int) -> list[tuple[DrawnAnswer, str]]:
        out = []
        was_training = self.model.training
        self.model.eval()
        for first in range(0, len(plans), AT_ONCE):
            part = plans[first : first + AT_ONCE]
            samples = [Sample(self._denoiser, plan, (first + i) % group, None) for i, plan in enumerate(part)]
            with self.mixed():
                Together(self._denoiser.backend, samples).run()
            out += [(answer_of(sample, self.model.config.ends), sample.result().text) for sample in samples]
        self.model.train(was_training)
        return out

    def _plan(self, prompt: RewardedPrompt, seed: Sequence[int], **other: Any) -> Plan:
        decode = replace(self._decode(sum(prompt.gaps) or self.options.length, seed), **other)
        if prompt.gaps:
            sizes: dict[str, Any] = {"max_tokens": prompt.gaps, "min_tokens": prompt.gaps}
            return plan_of(
                self._denoiser, self.tokenizer, Request.of("fill", prompt.text, decode=decode, heal=False, **sizes)
            )
        return plan_of(
            self._denoiser,
            self.tokenizer,
            Request.of("generate", prompt.text, self.options.length, decode, heal=False, context="whole"),
        )

    def _decode(self, num: int, seed: Sequence[int]) -> Decode:
        """The options of a request whose gaps have so many tokens. By default answers are drawn in the order that
        their estimate has.
        """
        options, config = self.options, self.model.config
        left = options.estimate == "left_to_right"
        given: dict[str, Any] = {"mode": options.mode or MODES[config.context]}
        if not options.mode and left and config.context == "full":
            given |= {"mode": "block", "block_size": 1}
        for name in ("policy", "block_size", "threshold"):
            if getattr(options, name):
                given[name] = getattr(options, name)
        if options.steps:
            given["steps"] = min(options.steps, num)
        number = int(np.random.SeedSequence(list(seed)).generate_state(1, np.uint64)[0])
        return Decode(temperature=options.temperature, seed=number, **given)


def answer_of(sample: Sample, ends: Sequence[int]) -> DrawnAnswer:
    """What a sample drew. `ends` are the tokens that end a text."""
    canvas, step = sample.canvas, np.zeros(len(sample.canvas.tokens), dtype=np.int64)
    for event in sample.events:
        step[event.decision.positions] = event.step
    asked, behind, end = list[int](), list[int](), list[int]()
    for first, last in canvas.gaps:
        ended = False
        for position in range(first, last):
            if ended or canvas.open[position]:
                ended = True
                behind.append(position)
                end.append(max(0, len(asked) - 1))
                continue
            asked.append(position)
            ended = int(canvas.tokens[position]) in ends and not sample.plan.around
    place, followers, ends_of = (torch.tensor(each, dtype=torch.int64) for each in (asked, behind, end))
    return DrawnAnswer(torch.from_numpy(canvas.tokens.copy()), place, followers, ends_of, torch.from_numpy(step)[place])
