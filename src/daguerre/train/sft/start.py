"""Whether a run's data and model are what its recipe asks for."""

from __future__ import annotations

from pathlib import Path

from daguerre.errors import InputError
from daguerre.models.loading import is_published_folder
from daguerre.models.published import describe
from daguerre.train.recipe import Recipe
from daguerre.train.shards import Shard

ORIGIN = "origin"
"""The folder in a run that has the small files of the published model that it began with."""


def family_of(start_from: str | None, run: Path) -> str | None:
    """The family of the published model that a run began with; None for a model of Daguerre's own layout."""
    folder = run / ORIGIN if start_from is None else Path(start_from)
    if not folder.exists() or not is_published_folder(folder):
        return None
    return describe(folder).family.name


def check_answers(shard: Shard, recipe: Recipe) -> None:
    """InputError where a recipe wants prompts and answers and the data is plain text, or the other way round."""
    if recipe.sft is not None and shard.answers is None:
        raise InputError(
            f"{shard.folder} is plain text, and recipe {recipe.name!r} trains answers: give --data files of prompts "
            "and answers (docs/training.md)"
        )
    if recipe.sft is None and shard.answers is not None:
        raise InputError(f"{shard.folder} holds prompts and answers: train on it with the recipe sft")
