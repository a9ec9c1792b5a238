"""What training a model takes, from its small files alone: `daguerre inspect MODEL --train RECIPE`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from daguerre.errors import DaguerreError
from daguerre.models.core.build import make_shapes
from daguerre.models.core.config import ModelConfig
from daguerre.models.loading import open_source
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.chosen import choose_weights
from daguerre.train.memory import in_megabytes, made_rows, memory_of
from daguerre.train.precision import choose_precision
from daguerre.train.recipe import Recipe
from daguerre.train.start import named_tokenizer

FORMULAS = {
    "weights": "4 bytes x weights; 2 x matrices that an adapter is for, in bfloat16",
    "gradients": "4 bytes x trained weights",
    "optimizer": "4 bytes x hidden matrices that are trained (Muon), 8 x other trained weights (AdamW)",
    "average": "4 bytes x trained weights",
    "activations": "what a forward of the largest micro-batch keeps (daguerre.train.memory)",
}


def training_facts(folder: Path, recipe: Recipe, family: str | None = None, devices: int = 1) -> dict[str, Any]:
    """The memory of a recipe's step on a model, whose weights are not read, or on that of the recipe's own shape; that
    of each of so many devices.
    """
    config, tokenizer = _shape(folder, recipe, family)
    model = make_shapes(config).requires_grad_(True)
    dtype, _ = choose_precision(recipe.precision, torch.device("cpu"))
    choose_weights(model, recipe, str(folder), dtype)
    rows = made_rows(recipe, config, tokenizer)
    memory = memory_of(model, recipe, rows, dtype, devices)
    trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    return {
        "recipe": recipe.name,
        "trained": trained,
        "of": sum(weight.numel() for weight in model.parameters()),
        "precision": str(dtype).removeprefix("torch."),
        "rows": rows.rows,
        "devices": devices,
        "bytes": memory.parts() | {"total": memory.total},
    }


def _shape(folder: Path, recipe: Recipe, family: str | None) -> tuple[ModelConfig, Tokenizer | None]:
    if recipe.model is not None:
        try:
            tokenizer: Tokenizer | None = named_tokenizer(recipe.tokenizer)
        except DaguerreError:  # "own", which is made from the files
            tokenizer = named_tokenizer("2k")
        assert tokenizer is not None
        return recipe.model_config(tokenizer), tokenizer
    source = open_source(folder, family=family)
    return source.config(), source.tokenizer()


def training_lines(facts: dict[str, Any]) -> str:
    """The facts as text, with the arithmetic."""
    share = f", of which each of {facts['devices']} devices holds a part" if facts["devices"] > 1 else ""
    head = f"{facts['trained']:,} of {facts['of']:,} weights; micro-batches of up to {facts['rows']:,} rows"
    lines = [f"{'recipe':14}{facts['recipe']}: trains {head}, in {facts['precision']}{share}"]
    parts = ((name, num) for name, num in facts["bytes"].items() if name in FORMULAS)
    lines += [f"{name:14}{in_megabytes(num):>10}  {FORMULAS[name]}" for name, num in parts]
    return "\n".join([*lines, f"{'in all':14}{in_megabytes(facts['bytes']['total']):>10}  at the peak of a step"])
