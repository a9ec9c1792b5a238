"""The model that a run begins with, and whether its recipe can train it."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch

from daguerre.errors import InputError, UnsupportedError
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.config import ModelConfig
from daguerre.models.loading import load_model, open_source
from daguerre.models.published_tokenizer import PublishedTokenizer
from daguerre.models.scaling import read_scaling
from daguerre.models.tokenizer import DEFAULTS, Tokenizer
from daguerre.train.convert import converted
from daguerre.train.objectives import CONTEXT_OF
from daguerre.train.recipe import OWN, Recipe
from daguerre.train.shape import TrainedShape


def named_tokenizer(name: str) -> Tokenizer:
    """A tokenizer of the package ("2k", "8k") or the path of a tokenizer.json."""
    return Tokenizer.default(name) if name in DEFAULTS else Tokenizer.load(name)


def first_model(
    recipe: Recipe,
    start_from: str | None,
    saved: dict[str, Any] | None,
    saved_tokenizer: Tokenizer | None,
    own: Tokenizer | None = None,
) -> tuple[Backbone, Tokenizer]:
    """A fresh model of the recipe's shape, or that of the folder `start_from`; checked, float32, on the CPU.

    `saved` is the config of a resumed run's model, whose weights are still to be loaded, and `saved_tokenizer` that of
    its data. `own` is the vocabulary of the text that is trained on, for a recipe that asks for it.
    """
    if start_from is not None:
        model, tokenizer = load_model(start_from, dtype=torch.float32, device="cpu")
        source = Path(start_from) if open_source(Path(start_from)).is_published else None
        model = _converted(recipe, model, tokenizer, source).requires_grad_(True).train()
        if isinstance(tokenizer, PublishedTokenizer) and tokenizer.vocab_size < model.config.vocab_size:
            tokenizer = tokenizer.sized(model.config.vocab_size)
        if recipe.rope_scaling:
            model.config = read_scaling(recipe.rope_scaling)(model.config)
    elif recipe.model is None and saved is not None and saved_tokenizer is not None:
        model, tokenizer = Backbone(ModelConfig.from_dict(saved)), saved_tokenizer
    else:
        tokenizer = own or named_tokenizer(recipe.tokenizer)
        config = recipe.model_config(tokenizer)
        if saved is not None:  # a run from a model may have what no recipe gives it
            before = ModelConfig.from_dict(saved)
            kept = {name: getattr(before, name) for name in ("draft_head", "draft_rank", "null_id", "concepts")}
            config = replace(config, **kept)
        model = fresh_model(config, recipe.seed)
    check_trainable(model.config, recipe)
    return model, tokenizer


def fresh_model(config: ModelConfig, seed: int) -> Backbone:
    """A model to train from scratch. Residual branches add nothing at first.

    With norms after the branches they are random instead: a norm would blow up the first step away from zero.
    """
    return Backbone(config).initialize(seed, zero_outputs=config.norm_placement == "pre", scale=0.25)


def check_trainable(config: ModelConfig, recipe: Recipe) -> None:
    """InputError or UnsupportedError for a model that no method can train by this recipe."""
    longest = max(stage.length for stage in recipe.stages)
    if longest > config.max_positions:
        raise InputError(f"a stage has windows of {longest} tokens, the model's context is {config.max_positions}")
    if config.context not in CONTEXT_OF.values():
        raise UnsupportedError(f"no layout of training has {config.context} context: start from another model")


def _converted(recipe: Recipe, model: Backbone, tokenizer: Tokenizer, source: Path | None) -> Backbone:
    """The model to start from, after the recipe's [convert], or its [model], where a causal one turns full if that
    says so. `source` is its folder in a publisher's layout.

    Shift and weights are kept (DiffuGPT, Gong et al. 2024). InputError when [model] differs in anything else.
    """
    if recipe.model is None:
        if recipe.convert is not None:
            return converted(model, tokenizer, recipe.convert, source)
        if recipe.anneal:
            raise InputError('recipe: anneal converts a causal model: it needs a [model] with context = "full"')
        return model
    converts = (model.config.context, recipe.model.context, model.config.shift) == ("causal", "full", True)
    _check_same_shape(recipe, replace(model.config, context="full") if converts else model.config, tokenizer)
    if not converts:
        return model
    full = Backbone(recipe.model_config(tokenizer))
    full.load_state_dict(model.state_dict())
    return full


def _check_same_shape(recipe: Recipe, config: ModelConfig, tokenizer: Tokenizer) -> None:
    """InputError when a recipe's [model] is not the model that the run starts from."""
    described = recipe.model_config(tokenizer)
    for name in (field.name for field in fields(TrainedShape)):
        if getattr(described, name) != getattr(config, name):
            raise InputError(
                f"the recipe has model.{name} = {getattr(described, name)}, the model to start from "
                f"{getattr(config, name)}: take a recipe without [model], such as adapt, or leave out --from"
            )
    if recipe.tokenizer != OWN and named_tokenizer(recipe.tokenizer) != tokenizer:
        raise InputError(
            f"the recipe has tokenizer = {recipe.tokenizer!r}, the model to start from another: take a recipe without "
            "[model], such as adapt, or leave out --from"
        )
