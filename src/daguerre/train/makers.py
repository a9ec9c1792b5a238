"""What makes the micro-batches of a run: of plain text under a mixture of objectives, or of prompts and answers; and
its loss.
"""

from __future__ import annotations

from rich.console import Console

from daguerre.models.core.backbone import Backbone
from daguerre.models.core.config import ModelConfig
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.batch import BatchLoss
from daguerre.train.concept_labels import corpus_labels
from daguerre.train.concept_loss import ConceptLoss
from daguerre.train.data import Cutter, LabeledWindows, MicroBatches, Windows
from daguerre.train.distill.loss import Distillation
from daguerre.train.drafting import drafting_loss
from daguerre.train.optim import Average
from daguerre.train.prefer.batches import PairBatches
from daguerre.train.prefer.loss import PreferenceLoss
from daguerre.train.recipe import Recipe
from daguerre.train.sft.batches import AnswerBatches
from daguerre.train.sft.presets import AnswerLoss
from daguerre.train.sft.start import check_answers, rainbow_ids
from daguerre.train.shards import Shard


def make_loss(recipe: Recipe, model: Backbone, average: Average, usual: BatchLoss) -> BatchLoss:
    """The loss of a recipe, for a model as it is at the start, with the weights chosen that are trained, and their
    average.
    """
    if recipe.distill is not None:
        return Distillation.of(recipe.distill, model, average)
    if recipe.prefer is not None:
        return PreferenceLoss(recipe.prefer, model)
    if recipe.concepts is not None:
        return ConceptLoss(recipe.concepts)
    return drafting_loss if recipe.draft_head else usual


def make_maker(
    recipe: Recipe,
    shard: Shard,
    seed: int,
    config: ModelConfig,
    tokenizer: Tokenizer,
    answers: AnswerLoss | None,
    *,
    quiet: bool,
) -> MicroBatches | AnswerBatches:
    """What makes micro-batches of a split, for a model with this config. InputError where the split is not of the kind
    that the recipe trains on. `answers` is the loss of a recipe of answers.
    """
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
