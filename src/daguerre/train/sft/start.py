"""Whether a run's data and model are what its recipe asks for."""

from __future__ import annotations

from daguerre.errors import InputError
from daguerre.train.recipe import Recipe
from daguerre.train.shards import Shard


def check_answers(shard: Shard, recipe: Recipe) -> None:
    """InputError where a recipe wants prompts and answers and the data is plain text, or the other way round."""
    if recipe.sft is not None and shard.answers is None:
        raise InputError(
            f"{shard.folder} is plain text, and recipe {recipe.name!r} trains answers: give --data files of prompts "
            "and answers (docs/training.md)"
        )
    if recipe.sft is None and shard.answers is not None:
        raise InputError(f"{shard.folder} holds prompts and answers: train on it with the recipe sft")
