"""Decoding the answers of a batch, many at once, by a policy: the reference for it is the engine's (a test).

Letters: N tokens of answers, A of them still masked, G groups.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from daguerre.models.core.backbone import Backbone
from daguerre.train.batch import Batch
from daguerre.train.distill.answers import AnswerTokens, logits_of, sequences_of, with_visible
from daguerre.train.distill.options import Distill

ENDLESS = 1 << 30


@dataclass(frozen=True)
class Open:
    """Tokens that are still masked, before a step: their probabilities, float32 (A, V); what is proposed for each,
    int64 (A,); their groups. `step`, from 0; `start`, (G,): how many tokens each group had masked at first.
    """

    probs: Tensor
    proposed: Tensor
    group: Tensor
    step: int
    start: Tensor


Choice = Callable[[Open, torch.Generator], Tensor]
"""Which of the open tokens are committed, bool (A,)."""


@dataclass(frozen=True)
class Rollout:
    """What was decoded: the token of each place, int64 (N,), the step that committed it, -1 where it was visible from
    the first or is still masked, and the number of steps of each group, (G,). `log_probs`, where asked for, float32
    (N, V): the model's of each token when it was committed, or in the last step.
    """

    tokens: Tensor
    step: Tensor
    steps: Tensor
    log_probs: Tensor | None = None


@torch.no_grad()
def roll_out(
    model: Backbone,
    batch: Batch,
    answers: AnswerTokens,
    choose: Choice,
    generator: torch.Generator,
    attn_impl: str,
    *,
    temperature: float = 0.0,
    visible: Tensor | None = None,
    most: int = ENDLESS,
    keeps_laws: bool = False,
) -> Rollout:
    """Decode from a state, in which the data's tokens are `visible` (N,), for `most` steps. Sequences that have no
    masked token left are left out of forwards.
    """
    tokens = answers.target.clone()
    masked = torch.ones_like(tokens, dtype=torch.bool) if visible is None else ~visible
    start = answers.per_group(masked).long()
    when, steps = torch.full_like(tokens, -1), torch.zeros_like(start)
    distributions, num_rows, step = None, batch.tokens.shape[1], 0
    while step < most and bool(masked.any()):
        still = torch.nonzero(masked)[:, 0]
        rows = answers.predicts[still]
        sequences, place = torch.unique(rows // num_rows, return_inverse=True)
        shown = with_visible(batch, answers, ~masked, tokens)[sequences]
        part = batch if len(sequences) == len(batch.tokens) else sequences_of(batch, sequences)
        logits = logits_of(model, part, place * num_rows + rows % num_rows, shown, attn_impl)
        if keeps_laws:
            distributions = (
                logits.new_full((len(tokens), logits.shape[-1]), float("-inf"))
                if distributions is None
                else distributions
            )
            distributions[still] = logits.log_softmax(-1)
        probs, group = logits.softmax(-1), answers.group[still]
        proposed = drawn(probs, temperature, generator)
        chosen = choose(Open(probs, proposed, group, step, start), generator)
        tokens[still[chosen]], when[still[chosen]] = proposed[chosen], step
        steps[group.unique()] = step + 1
        masked[still[chosen]] = False
        step += 1
    torch.clear_autocast_cache()  # its copies of the weights have no gradient
    return Rollout(tokens, when, steps, distributions)


def drawn(probs: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    """A token of each distribution (A, V): the most likely, or a draw by exponential races in float64."""
    if not temperature:
        return probs.argmax(-1)
    logs = probs.double().log() / temperature
    noise = torch.empty_like(logs).exponential_(generator=generator)
    return (logs - noise.log()).argmax(-1)


def by_policy(options: Distill, steps: int) -> Choice:
    """The choice of the recipe's policy; `steps` are those of a static one."""

    def choose(opened: Open, generator: torch.Generator) -> Tensor:
        each = torch.arange(len(opened.proposed), device=opened.proposed.device)
        sure = opened.probs[each, opened.proposed]
        if options.policy == "threshold":
            return (sure >= options.threshold) | top(sure, opened.group, torch.ones_like(opened.start))
        count = step_sizes(opened.start, steps, opened.step)
        return top(scores(options.policy, opened, generator), opened.group, count)

    return choose


def scores(policy: str, opened: Open, generator: torch.Generator) -> Tensor:
    """What a static policy ranks open tokens by, the highest first."""
    probs = opened.probs
    if policy == "random":
        return torch.rand(len(probs), generator=generator, device=probs.device)
    if policy == "entropy":
        return torch.special.xlogy(probs, probs).sum(-1)
    if policy == "margin":
        best = probs.topk(2, dim=-1).values
        return best[:, 0] - best[:, 1]
    return probs.gather(-1, opened.proposed[:, None])[:, 0]


def step_sizes(start: Tensor, steps: int, step: int) -> Tensor:
    """How many tokens a static policy commits of each group (G,) in a step: equal numbers, the first ones one more."""
    num = start.clamp(min=1, max=steps)
    return (start // num + (step < start % num).long()).clamp(min=1)


def top(score: Tensor, group: Tensor, count: Tensor) -> Tensor:
    """The `count` (G,) highest of each group, bool (A,); the leftmost first among equals."""
    order = torch.argsort(score, descending=True, stable=True)
    order = order[torch.argsort(group[order], stable=True)]
    sizes = torch.bincount(group, minlength=len(count))
    place = torch.arange(len(score), device=score.device) - (sizes.cumsum(0) - sizes)[group[order]]
    chosen = torch.zeros(len(score), dtype=torch.bool, device=score.device)
    chosen[order] = place < count[group[order]]
    return chosen
