"""Which method a recipe trains by."""

from __future__ import annotations

from daguerre.train.distill.loss import Distilling
from daguerre.train.method import Method
from daguerre.train.prefer.loss import Preferring
from daguerre.train.pretraining import ConceptLearning, Drafting, Pretraining
from daguerre.train.recipe import Recipe
from daguerre.train.reinforce.loss import Reinforcing
from daguerre.train.sft.method import FineTuning
from daguerre.train.teach.method import RollingOut

METHODS: dict[str, type[Method]] = {
    "reinforce": Reinforcing,
    "rollouts": RollingOut,
    "distill": Distilling,
    "prefer": Preferring,
    "sft": FineTuning,
    "concepts": ConceptLearning,
    "draft_head": Drafting,
    "mixture": Pretraining,
}
"""The methods, by `Recipe.method`."""


def method_of(recipe: Recipe, *, quiet: bool = False) -> Method:
    """The method of a recipe."""
    return METHODS[recipe.method](recipe, quiet=quiet)
