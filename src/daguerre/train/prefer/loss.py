"""The loss of a batch of pairs, and the frozen start that margins are compared to.

Letters: B sequences, R rows, P pairs, N draws of masks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from daguerre.errors import InputError, UnsupportedError
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.batched import CLEAN, run_batch
from daguerre.models.core.config import ModelConfig
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.batch import Batch, BatchLoss, LossReport
from daguerre.train.distill.methods import kl
from daguerre.train.earlier import Reference
from daguerre.train.noising import IGNORE
from daguerre.train.prefer.batches import PairBatch, PairBatches
from daguerre.train.prefer.options import Prefer, pair_loss
from daguerre.train.prefer.rows import PairReader
from daguerre.train.sft.corpus import is_pairs
from daguerre.train.sft.method import FineTuning
from daguerre.train.sft.presets import AnswerLoss
from daguerre.train.shards import Shard


class AnswerLogProbs(NamedTuple):
    """Of each text, chosen and rejected in turn: the log-probability of its answer or the estimate of its bound, (2P,);
    and the estimates of each draw of masks alone, (2P, N), N = 0 where it is exact.
    """

    mean: Tensor
    by_draw: Tensor

    def margins(self) -> AnswerLogProbs:
        """What the chosen answers have more than the rejected ones."""
        return AnswerLogProbs(self.mean[0::2] - self.mean[1::2], self.by_draw[0::2] - self.by_draw[1::2])


class PreferenceLoss:
    """The loss that a recipe's [prefer] asks for, as a function of a model and a batch of pairs. "away" in its parts is
    the divergence that `keep` is the weight of. UnsupportedError for `keep` and a model without next tokens.
    """

    def __init__(self, options: Prefer, model: Backbone) -> None:
        if options.keep and model.config.context != "causal":
            raise UnsupportedError(
                "prefer.keep needs next tokens of prompts, in causal context, and this model has "
                f"{model.config.context} context: leave prefer.keep at 0"
            )
        self.options, self.reference = options, Reference(model)

    def __call__(self, model: Backbone, batch: Batch, attn_impl: str = "sdpa") -> LossReport:
        assert isinstance(batch, PairBatch)
        keep = self.options.keep
        with self.reference.in_place(model):
            hidden = run_batch(model, batch.tokens, batch.layout, attn_impl=attn_impl)
            start = log_probs_of(model, batch, hidden)
            taught = prompt_laws(model, batch, hidden) if keep else None
        hidden = run_batch(model, batch.tokens, batch.layout, attn_impl=attn_impl)
        loss, parts = preference(log_probs_of(model, batch, hidden), start, batch.sizes, self.options)
        if taught is not None:
            away = kl(taught, prompt_laws(model, batch, hidden)).sum() / max(1, len(taught))
            loss, parts = loss + keep * away, parts | {"away": float(away.detach())}
        return LossReport(loss, parts=parts)


def prompt_rows(batch: PairBatch) -> Tensor:
    """Rows, bool (B, R), that predict a token of a prompt, in the texts of chosen answers: those before all rows with a
    target.
    """
    before = (batch.target != IGNORE).int().cumsum(1) == 0
    return before & (batch.layout.rows.span == CLEAN) & (batch.text % 2 == 0)


def prompt_laws(model: Backbone, batch: PairBatch, hidden: Tensor) -> Tensor:
    """Log-probabilities (A, V) of the tokens that `prompt_rows` predict, from hidden states (B, R, D)."""
    return model.logits(hidden[prompt_rows(batch)]).log_softmax(-1)


def log_probs_of(model: Backbone, batch: PairBatch, hidden: Tensor) -> AnswerLogProbs:
    """The log-probabilities of a batch's answers, from hidden states (B, R, D)."""
    learned = batch.target != IGNORE
    found = -F.cross_entropy(model.logits(hidden[learned]).float(), batch.target[learned], reduction="none")
    weighted, text, draw = batch.weight[learned] * found, batch.text[learned], batch.draw[learned]
    num, times = len(batch.sizes), batch.times
    mean = weighted.new_zeros(num).index_add(0, text, weighted)
    drawn = draw >= 0
    by_draw = (
        weighted.new_zeros(num * times).index_add(0, (text * times + draw)[drawn], weighted[drawn]).view(num, times)
    )
    common = weighted.new_zeros(num).index_add(0, text[~drawn], weighted[~drawn])
    return AnswerLogProbs(mean, common[:, None] + times * by_draw)


def preference(
    found: AnswerLogProbs, start: AnswerLogProbs, sizes: Tensor, options: Prefer
) -> tuple[Tensor, dict[str, float]]:
    """The mean loss of pairs, and what is logged of them; `sizes`, (2P,), are the tokens of answers.

    margin    beta times the margin: the difference of the rewards that DPO has implicitly
    accuracy  the share of pairs whose margin is above 0; a margin of 0, as at the start, is half right
    chosen, rejected   those rewards
    drift     log p of the start less log p, in nats a token: of answers that the start has written, an estimate of the
              KL divergence from it, up to how the pairs were selected
    variance  of the estimate of beta times the margin by random masks, from how draws differ; 0 where it is exact, and
              not a number for a single draw
    """
    now, before = found.margins(), start.margins()
    margin = options.beta * (now.mean - before.mean)
    each = -(1 - options.smoothing) * F.logsigmoid(margin) - options.smoothing * F.logsigmoid(-margin)
    preferred = each.mean()
    loss = preferred - options.sft * (found.mean[0::2] / sizes[0::2]).mean() if options.sft else preferred
    with torch.no_grad():
        reward = options.beta * (found.mean - start.mean)
        parts = {
            "preference": preferred,
            "margin": margin.mean(),
            "accuracy": ((margin > 0).float() + 0.5 * (margin == 0).float()).mean(),
            "chosen": reward[0::2].mean(),
            "rejected": reward[1::2].mean(),
            "drift": (start.mean - found.mean).sum() / sizes.sum(),
            "variance": _variance(options.beta * (now.by_draw - before.by_draw)),
        }
    return loss, {name: float(value.detach()) for name, value in parts.items()}


def _variance(by_draw: Tensor) -> Tensor:
    """The mean over pairs of the variance of a mean over draws (P, N)."""
    draws = by_draw.shape[1]
    if draws < 2:
        return by_draw.new_tensor(float("nan") if draws else 0.0)
    return (by_draw.var(1) / draws).mean()


class Preferring(FineTuning):
    """Prompts with two answers each, of which one is preferred."""

    loss: PreferenceLoss

    @property
    def preferences(self) -> Prefer:
        assert self.recipe.prefer is not None
        return self.recipe.prefer

    def reading(self) -> dict[str, Any]:
        options = self.preferences
        return {"held_out": options.held_out, "reads": PairReader(options.ends), "pairs": True}

    def answer_loss(self, config: ModelConfig, family: str | None) -> AnswerLoss:
        return pair_loss(config)

    def prepared(self, model: Backbone, tokenizer: Tokenizer, family: str | None) -> Backbone:
        self.answers = self.answer_loss(model.config, family)
        return model

    def make_loss(self) -> PreferenceLoss:
        return PreferenceLoss(self.preferences, self.model)

    def keep(self, run: Path, resumed: bool) -> None:
        self.loss.reference.keep(run, resumed)

    @property
    def held_loss(self) -> BatchLoss:
        return self.loss

    def check_data(self, shard: Shard) -> None:
        if not is_pairs(shard.folder):
            raise InputError(
                f"{shard.folder} has no pairs of answers, which recipe {self.recipe.name!r} trains on: give --data "
                "files of prompts, each with a chosen and a rejected answer (docs/prefer.md)"
            )

    def maker(self, shard: Shard, seed: int) -> PairBatches:
        return PairBatches(shard, self.answers, self.model.config, seed, options=self.preferences)
