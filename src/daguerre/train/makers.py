"""What a recipe trains on: the micro-batches of a run, of plain text under a mixture of objectives, of prompts and
answers, of pairs of answers, or of answers that the model draws; their loss; and what the run is measured on.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from rich.console import Console

from daguerre.models.core.backbone import Backbone
from daguerre.models.core.config import ModelConfig
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.batch import BatchLoss
from daguerre.train.concept_labels import corpus_labels
from daguerre.train.concept_loss import ConceptLoss
from daguerre.train.corpus_facts import data_line
from daguerre.train.data import Cutter, LabeledWindows, MicroBatches, Windows
from daguerre.train.distill.loss import Distillation
from daguerre.train.drafting import drafting_loss
from daguerre.train.evaluation import VAL_SEED, Evaluation
from daguerre.train.optim import Average
from daguerre.train.prefer.batches import PairBatches
from daguerre.train.prefer.loss import PreferenceLoss
from daguerre.train.recipe import Recipe
from daguerre.train.reinforce.batches import PolicyBatches
from daguerre.train.reinforce.loss import PolicyLoss, RewardEvaluation
from daguerre.train.reinforce.prompts import prompts_line, prompts_of
from daguerre.train.reinforce.rollouts import Mixed, Roller
from daguerre.train.sft.batches import AnswerBatches
from daguerre.train.sft.corpus import answers_line
from daguerre.train.sft.evaluation import AnswerEvaluation
from daguerre.train.sft.keeping import KeepingLoss
from daguerre.train.sft.presets import AnswerLoss
from daguerre.train.sft.start import check_answers, rainbow_ids
from daguerre.train.shards import Shard

BatchMaker = MicroBatches | AnswerBatches | PolicyBatches


def make_evaluation(
    batches: BatchMaker,
    val: Shard,
    make: Callable[[Shard, int], BatchMaker],
    recipe: Recipe,
    config: ModelConfig,
    tokenizer: Tokenizer,
    device: torch.device,
) -> Evaluation | AnswerEvaluation | RewardEvaluation:
    """What a run whose micro-batches are these is measured on, of a split, of which `make` makes others."""
    if isinstance(batches, PolicyBatches):
        return RewardEvaluation(batches.roller, prompts_of(val), recipe.stages[0].length)
    maker = make(val, VAL_SEED)
    assert not isinstance(maker, PolicyBatches)
    if isinstance(maker, AnswerBatches):
        return AnswerEvaluation(maker, tokenizer, recipe.stages[-1], device)
    return Evaluation(maker, config, recipe.stages[0].length, device)


def line_of(recipe: Recipe, train: Shard, val: Shard) -> str:
    """What is trained on, and what is held out of it."""
    if recipe.reinforce is not None:
        return prompts_line(train, val)
    return (data_line if recipe.sft is None and recipe.prefer is None else answers_line)(train, val)


def make_loss(recipe: Recipe, model: Backbone, average: Average, usual: BatchLoss) -> BatchLoss:
    """The loss of a recipe, for a model as it is at the start, with the weights chosen that are trained, and their
    average.
    """
    if recipe.reinforce is not None:
        return PolicyLoss(recipe.reinforce)
    if recipe.distill is not None:
        return Distillation.of(recipe.distill, model, average)
    if recipe.prefer is not None:
        return PreferenceLoss(recipe.prefer, model)
    if recipe.sft is not None and recipe.sft.keep:
        return KeepingLoss(recipe.sft.keep, model)
    if recipe.concepts is not None:
        return ConceptLoss(recipe.concepts)
    return drafting_loss if recipe.draft_head else usual


def make_maker(
    recipe: Recipe,
    shard: Shard,
    seed: int,
    model: Backbone,
    tokenizer: Tokenizer,
    answers: AnswerLoss | None,
    mixed: Mixed,
    *,
    quiet: bool,
) -> BatchMaker:
    """What makes micro-batches of a split, for a model. InputError where the split is not of the kind that the recipe
    trains on. `answers` is the loss of a recipe of answers, `mixed` the precision in which the model draws its own.
    """
    config = model.config
    if recipe.reinforce is not None:
        roller = Roller(model, tokenizer, recipe.reinforce, mixed)
        return PolicyBatches(roller, prompts_of(shard), seed, recipe.attn_impl, start=recipe.reinforce.kl > 0)
    check_answers(shard, recipe)
    if recipe.prefer is not None and answers is not None:
        return PairBatches(shard, answers, config, seed, options=recipe.prefer)
    if answers is not None:
        return AnswerBatches(shard, answers, config, seed, rainbow_ids(recipe, answers, tokenizer))
    windows, labeled = Windows(shard, tokenizer.bos_id), None
    if recipe.concepts is not None:
        with Console(stderr=True, quiet=quiet).status("labeling") as status:

            def show(done: int, asked: int) -> None:
                status.update(f"labeling concepts: {done / 1e6:.1f}M of {asked / 1e6:.1f}M tokens")

            labels = corpus_labels(shard, tokenizer, recipe.concepts.labeled, show)
        labeled = LabeledWindows(windows, labels, tokenizer)
    return MicroBatches(windows, Cutter(tokenizer), recipe.make_mixture(config), seed, labeled)
