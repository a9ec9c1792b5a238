"""Log-probabilities of an answer's tokens, a forward for each view: what `train.reinforce` computes in one batch."""

from __future__ import annotations

import torch
from torch import Tensor

from daguerre.models.core.backbone import Backbone
from daguerre.models.core.batched import BatchLayout, Rows, run_batch
from daguerre.train.reinforce.estimates import Views


def in_views(model: Backbone, tokens: Tensor, given: int, views: Views) -> Tensor:
    """Of `tokens` (int64, prompt and answer) those behind the first `given`, [views, length]; for full context.

    A token that a view does not hide has a meaningless value.
    """
    answer = tokens[given:]
    masked = torch.where(views.hidden, model.config.mask_id, answer)
    shown = torch.cat([tokens[:given].expand(len(masked), -1), masked], 1)
    position = torch.arange(len(tokens), device=tokens.device).expand(len(shown), -1)
    hidden = run_batch(model, shown, BatchLayout(Rows.make(position, 1), 0, "full"))
    return _chosen(model, hidden[:, given - int(model.config.shift) :][:, : len(answer)], answer)


def exact(model: Backbone, tokens: Tensor, given: int) -> Tensor:
    """The same of a model that predicts the next token in causal context, [length]."""
    layout = BatchLayout.causal(len(tokens) - 1, device=tokens.device)
    hidden = run_batch(model, tokens[None, :-1], layout)
    return _chosen(model, hidden[:, given - 1 :], tokens[given:])[0]


def _chosen(model: Backbone, hidden: Tensor, answer: Tensor) -> Tensor:
    log_probs = model.logits(hidden).log_softmax(-1)
    return log_probs.gather(-1, answer.expand(len(hidden), -1)[..., None])[..., 0]


def mean(views: Views, log_probs: Tensor) -> Tensor:
    """Each token's weighted log-probability, [length], from those of each view, [views, length]."""
    return (views.weights * log_probs.masked_fill(~views.hidden, 0.0)).sum(0)


def upper(views: Views, log_probs: Tensor, power: float) -> Tensor:
    """Each token's 1/power log E[p^power], [length]: SPG's upper bound without its constant.

    It is never below `mean` when the weights of a token have the sum 1. Its sum is above the log-probability of
    decoding in a random order, for any model, if `power` is at least the length (Hölder) and the views are all.
    A few views give the logarithm of a mean, which is too low by Jensen.
    """
    total = torch.where(views.hidden, views.weights, 0.0).sum(0)
    terms = torch.where(views.hidden, views.weights / total, 0.0).log() + power * log_probs
    return total * terms.logsumexp(0) / power
