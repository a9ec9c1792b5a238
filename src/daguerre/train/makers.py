"""What makes the micro-batches of a run: of plain text under a mixture of objectives, or of prompts and answers."""

from __future__ import annotations

from rich.console import Console

from daguerre.models.core.config import ModelConfig
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.concept_labels import corpus_labels
from daguerre.train.data import Cutter, LabeledWindows, MicroBatches, Windows
from daguerre.train.recipe import Recipe
from daguerre.train.sft.batches import AnswerBatches
from daguerre.train.sft.presets import AnswerLoss
from daguerre.train.sft.start import check_answers, rainbow_ids
from daguerre.train.shards import Shard


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
