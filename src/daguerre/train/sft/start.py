"""What a run on answers changes in its model before it begins, and whether its data is what its recipe asks for."""

from __future__ import annotations

from dataclasses import replace

import torch

from daguerre.errors import InputError, UnsupportedError
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.config import ModelConfig
from daguerre.models.published_tokenizer import PublishedTokenizer
from daguerre.models.tokenizer import NAMED_SPECIALS, NUM_SPECIALS, Tokenizer
from daguerre.train.distill.start import answers_to_learn
from daguerre.train.prefer.options import pair_loss
from daguerre.train.recipe import Recipe
from daguerre.train.sft.corpus import is_pairs
from daguerre.train.sft.presets import AnswerLoss
from daguerre.train.shards import Shard


def check_answers(shard: Shard, recipe: Recipe) -> None:
    """InputError where a recipe wants prompts and answers and the data is plain text, or the other way round; likewise
    pairs of answers.
    """
    pairs = is_pairs(shard.folder)
    if recipe.prefer is not None and not pairs:
        raise InputError(
            f"{shard.folder} has no pairs of answers, which recipe {recipe.name!r} trains on: give --data files of "
            "prompts, each with a chosen and a rejected answer (docs/training.md)"
        )
    if recipe.prefer is None and pairs:
        raise InputError(f"{shard.folder} holds pairs of answers: train on it with the recipe prefer")
    if pairs:
        return
    if recipe.sft is not None and shard.answers is None:
        raise InputError(
            f"{shard.folder} is plain text, and recipe {recipe.name!r} trains answers: give --data files of prompts "
            "and answers (docs/training.md)"
        )
    if recipe.sft is None and shard.answers is not None:
        raise InputError(f"{shard.folder} holds prompts, or prompts and answers: train on it with the recipe for them")


def loss_of_answers(recipe: Recipe, config: ModelConfig, family: str | None) -> AnswerLoss | None:
    """How a recipe of answers, or of pairs of them, lays them out for a model of this family; None for plain text."""
    if recipe.prefer is not None:
        return pair_loss(config)
    return answers_to_learn(recipe.sft, recipe.distill, config, family)


def prepared(model: Backbone, recipe: Recipe, loss: AnswerLoss | None, tokenizer: Tokenizer) -> Backbone:
    """The model with the blocks that the last stage trains, and with the tokens of rainbow padding as ends of text."""
    if loss is None or recipe.sft is None:
        return model
    config, last = model.config, recipe.stages[-1]
    _check_corruption(recipe, loss, config)
    if last.block_size and config.block_size:
        config = replace(config, block_size=last.block_size)
    config = replace(config, end_ids=tuple(dict.fromkeys((*config.end_ids, *rainbow_ids(recipe, loss, tokenizer)))))
    model.config = config
    model.never = torch.tensor(config.unpredictable_ids, dtype=torch.int64)
    return model


def _check_corruption(recipe: Recipe, loss: AnswerLoss, config: ModelConfig) -> None:
    if any(stage.corruption != "none" for stage in recipe.stages) and (not loss.noisy or config.process != "absorbing"):
        raise UnsupportedError(
            "corruption is planted among masks: this loss has none, so leave out stages.N.corruption"
        )


def rainbow_ids(recipe: Recipe, loss: AnswerLoss | None, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The tokens that follow an end of text in turn: spare ones of Daguerre's vocabularies, and of others ids that no
    token has. InputError where there are too few.
    """
    if loss is None or recipe.sft is None or loss.padding != "rainbow":
        return ()
    spare = range(len(NAMED_SPECIALS), NUM_SPECIALS)
    if isinstance(tokenizer, PublishedTokenizer):
        spare = range(tokenizer.num_tokens, tokenizer.vocab_size)
    if len(spare) < recipe.sft.rainbow:
        raise InputError(
            f"the vocabulary has {len(spare)} ids that no token has, and sft.rainbow asks for {recipe.sft.rainbow}: "
            "set it lower, or take another sft.padding"
        )
    return tuple(spare[: recipe.sft.rainbow])
