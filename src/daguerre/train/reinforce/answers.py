"""Answers as the rows of a forward, one row of tokens for each view of each answer (in block context one for each
answer: `blocks`), and the log-probabilities of their tokens.

Letters: B rows of tokens, R tokens of a row, G tokens of all answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from daguerre.models.core.backbone import Backbone
from daguerre.models.core.batched import PADDING, BatchLayout, Rows, run_batch
from daguerre.models.core.config import ModelConfig
from daguerre.train.batch import Batch
from daguerre.train.noising import IGNORE
from daguerre.train.reinforce.blocks import rows_in_blocks
from daguerre.train.reinforce.estimates import DrawnAnswer, Views, drawn_views
from daguerre.train.reinforce.options import Reinforce


@dataclass(frozen=True, kw_only=True)
class PolicyBatch(Batch):
    """Answers in a batch: `weight` is that of a token in its view, and `slot` (B, R) the number of that token, 0 to
    G - 1. `advantage`, `old` and `start` are (G,): how good each token's answer was, and its estimate under the
    weights that drew it and under those that the run began with; None: as it is now.

    `power` is that of the upper bound, which tokens of a negative advantage have; 0: all have the mean. `reward`,
    `length` and `agree` are means over the answers: rewards, tokens, and the share whose group agrees.
    """

    slot: Tensor
    advantage: Tensor
    old: Tensor | None = None
    start: Tensor | None = None
    power: float = 0.0
    reward: float = 0.0
    length: float = 0.0
    agree: float = 0.0


def views_of(answer: DrawnAnswer, options: Reinforce, config: ModelConfig, generator: torch.Generator) -> Views:
    """The views that an answer is estimated in, where they are of all of it: in causal and full context."""
    num = len(answer.asked)
    if config.context == "causal":  # all of them in one forward
        return Views(torch.ones(1, num, dtype=torch.bool), torch.ones(1, num))
    return drawn_views(answer.steps, options, generator)


def batch_of(answers: Sequence[DrawnAnswer], options: Reinforce, config: ModelConfig, seed: int) -> PolicyBatch:
    """Answers in their views, which are drawn by `seed`."""
    generator = torch.Generator().manual_seed(seed)
    made = rows_in_blocks if config.context == "block" else _rows_of_canvases
    tokens, layout, target, weight, slot = made(answers, options, config, generator)
    none = torch.zeros_like(tokens)
    advantage = torch.cat([torch.full((len(answer.asked),), answer.advantage) for answer in answers])
    return PolicyBatch(
        tokens, layout, target, weight, none - 1, none, torch.zeros_like(weight), none - 1, 1.0,
        sum(len(answer.tokens) for answer in answers), slot=slot, advantage=advantage,
        power=options.power if options.estimate == "spg" else 0.0,
        reward=float(np.mean([answer.reward for answer in answers])),
        length=float(np.mean([len(answer.asked) for answer in answers])),
        agree=float(np.mean([answer.advantage == 0 for answer in answers])),
    )  # fmt: skip


def _rows_of_canvases(
    answers: Sequence[DrawnAnswer], options: Reinforce, config: ModelConfig, generator: torch.Generator
) -> tuple[Tensor, BatchLayout, Tensor, Tensor, Tensor]:
    """Tokens, layout, targets, weights and slots in causal and full context: a sequence for each view."""
    views = [views_of(answer, options, config, generator) for answer in answers]
    size, num = max(len(answer.tokens) for answer in answers), sum(len(each.hidden) for each in views)
    tokens = torch.full((num, size), config.pad_id)
    span, target, slot = (torch.full_like(tokens, value) for value in (PADDING, IGNORE, 0))
    weight, first, made = torch.zeros(num, size), 0, 0
    for answer, each in zip(answers, views, strict=True):
        rows, length = slice(first, first + len(each.hidden)), len(answer.asked)
        tokens[rows, : len(answer.tokens)] = _shown(answer, each, config)
        span[rows, : len(answer.tokens)] = 1
        read = answer.asked - int(config.shift)
        asked = each.hidden & (each.weights > 0)
        target[rows, read] = torch.where(asked, answer.tokens[answer.asked], IGNORE)
        slot[rows, read] = torch.arange(made, made + length).expand(len(asked), -1)
        weight[rows, read] = each.weights * asked
        first, made = rows.stop, made + length
    position = torch.arange(size).expand(num, -1)
    causal = config.context == "causal"
    labels = Rows.make(position) if causal else Rows.make(position, span)
    return tokens, BatchLayout(labels, size if causal else 0, config.context, plain=causal), target, weight, slot


def _shown(answer: DrawnAnswer, views: Views, config: ModelConfig) -> Tensor:
    """The canvas in each view, (V, T). In causal context no token sees itself, so nothing is hidden."""
    shown = answer.tokens.expand(len(views.hidden), -1).clone()
    if config.context == "causal":
        return shown
    positions = torch.cat([answer.asked, answer.behind])
    hidden = torch.cat([views.hidden, views.hidden[:, answer.end]], 1)
    shown[:, positions] = torch.where(hidden, config.placeholder, shown[:, positions])
    return shown


def estimates(model: Backbone, batch: PolicyBatch, attn_impl: str = "sdpa") -> Tensor:
    """The estimated log-probability of each token of the answers, (G,): see `gathered`."""
    hidden = run_batch(model, batch.tokens, batch.layout, attn_impl=attn_impl)
    asked = batch.target != IGNORE
    logits = model.logits(hidden[asked]).float()
    log_probs = logits.log_softmax(-1).gather(-1, batch.target[asked][:, None])[:, 0]
    return gathered(log_probs, batch.weight[asked], batch.slot[asked], batch)


def gathered(log_probs: Tensor, weight: Tensor, slot: Tensor, batch: PolicyBatch) -> Tensor:
    """Estimates (G,) from the log-probabilities in views, their weights, and the numbers of their tokens: the weighted
    sum or, where the batch has a power and an advantage is negative, SPG's upper bound without its constant.
    """
    num = len(batch.advantage)
    mean = log_probs.new_zeros(num).index_add(0, slot, weight * log_probs)
    if not batch.power:
        return mean
    total = weight.new_zeros(num).index_add(0, slot, weight)
    terms = (weight / total[slot]).log() + batch.power * log_probs
    greatest = terms.new_full((num,), -torch.inf).scatter_reduce(0, slot, terms.detach(), "amax")
    sums = log_probs.new_zeros(num).index_add(0, slot, (terms - greatest[slot]).exp())
    upper = total * (greatest + sums.log()) / batch.power
    return torch.where(batch.advantage < 0, upper, mean)
