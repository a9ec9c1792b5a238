"""`daguerre train`: resolve recipe, data, starting point and device, then run the trainer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from daguerre.errors import DataError, InputError
from daguerre.models.loading import load_model, model_folder
from daguerre.train.recipe import Recipe, load_recipe, recipe_from_dict
from daguerre.train.shards import read_meta, shards_from_folder
from daguerre.train.trainer import Trainer, named_tokenizer

ADAPT = "adapt"


def run_training(
    recipe_name: str | None,
    *,
    overrides: Sequence[str] = (),
    resume: bool = False,
    start_from: str | None = None,
    data: Path | None = None,
    max_minutes: float | None = None,
    out: Path | None = None,
    device: str = "auto",
    quiet: bool = False,
) -> Path:
    """Train and return the folder of the exported model.

    `data` is a corpus (a folder that `daguerre data` wrote) or a folder of Python source, which is tokenized into the
    run. Without a recipe, a run that starts from a model adapts it, and a resumed run goes on with its own. Budgets in
    minutes count the whole run, over all its resumes. InputError and DataError say what is missing.
    """
    recipe = _recipe(recipe_name, overrides, resume, start_from, out)
    if max_minutes is not None:
        if max_minutes <= 0:
            raise InputError(f"--max-minutes must be positive, not {max_minutes}")
        recipe = replace(recipe, minutes=max_minutes)
    folder = out or Path("runs") / recipe.name
    source = str(model_folder(start_from)) if start_from is not None else None
    corpus = _corpus(data, folder, recipe, source, resume)
    chosen = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    trainer = Trainer(recipe, folder, corpus, start_from=source, resume=resume, device=chosen, quiet=quiet)
    return trainer.run()


def _recipe(
    name: str | None, overrides: Sequence[str], resume: bool, start_from: str | None, out: Path | None
) -> Recipe:
    if name is not None:
        return load_recipe(name, overrides)
    if resume:
        saved = (out or Path("runs") / ADAPT) / "recipe.json"
        if not saved.is_file():
            raise InputError(f"no run to resume at {saved.parent}: give its folder with --out, or its recipe")
        if overrides:
            raise InputError("--set needs the recipe by name when a run is resumed")
        return recipe_from_dict(json.loads(saved.read_text()))
    if start_from is None:
        raise InputError("name a recipe (small, full, or a .toml file), or start from a model with --from")
    return load_recipe(ADAPT, overrides)


def _corpus(data: Path | None, run: Path, recipe: Recipe, source: str | None, resume: bool) -> Path:
    """The corpus folder: `data` itself, or the run's own copy made from a folder of source."""
    own = run / "data"
    if data is None:
        if (own / "meta.json").is_file():
            return own
        raise InputError(
            "say what to train on: --data CORPUS (made by `daguerre data python`) or --data FOLDER of source"
        )
    if not data.exists():
        raise DataError(f"no such folder: {data}")
    if (data / "meta.json").is_file():
        read_meta(data)
        return data
    if not (resume and (own / "meta.json").is_file()):
        tokenizer = load_model(source)[1] if source is not None else named_tokenizer(recipe.tokenizer)
        shards_from_folder(data, own, tokenizer)
    return own
