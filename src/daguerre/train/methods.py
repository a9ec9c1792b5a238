"""Which method a recipe trains by."""

from __future__ import annotations

from daguerre.train.distill.loss import Distilling
from daguerre.train.method import Method
from daguerre.train.prefer.loss import Preferring
from daguerre.train.pretraining import ConceptHeads, Drafting, Pretraining
from daguerre.train.recipe import Recipe
from daguerre.train.reinforce.loss import Reinforcing
from daguerre.train.sft.method import Answers

METHODS: dict[str, type[Method]] = {
    "reinforce": Reinforcing,
    "distill": Distilling,
    "prefer": Preferring,
    "sft": Answers,
    "concepts": ConceptHeads,
    "draft_head": Drafting,
}
"""The methods, by the key of a recipe that asks for them: the first one that it has. Without any, it is a mixture."""


def method_of(recipe: Recipe, *, quiet: bool = False) -> Method:
    """The method of a recipe."""
    found = next((kind for key, kind in METHODS.items() if getattr(recipe, key)), Pretraining)
    return found(recipe, quiet=quiet)
