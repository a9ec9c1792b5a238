"""Which weights of a model a run trains: all, those that its recipe names, or an adapter beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from daguerre.errors import InputError
from daguerre.models.core.backbone import Backbone
from daguerre.models.loading import PACKAGED, model_folder, open_source
from daguerre.models.readers import is_on_hub, name_of
from daguerre.train.lora import Base, LoraRun, start_lora
from daguerre.train.recipe import Recipe

KINDS: dict[str, tuple[str, ...]] = {
    "head": ("output",),
    "norms": ("*norm",),
}
"""Words for parts of a model, besides the names of its modules."""


def choose_weights(
    model: Backbone, recipe: Recipe, start_from: str | None, dtype: torch.dtype = torch.float32
) -> LoraRun | None:
    """Freeze what a recipe does not train; the adapter that it trains, if it does. The matrices that an adapter is for
    are kept in the type that the run multiplies in. InputError for names that the model does not have, and for an
    adapter without a model to start from.
    """
    if recipe.checkpoint_layers:
        checkpoint_layers(model)
    if recipe.lora is not None:
        if start_from is None:
            raise InputError("recipe: [lora] trains an adapter of a model: name the model with --from")
        adapter = start_lora(model, recipe.lora, base_of(start_from, model), recipe.seed)
        keep_frozen_in(model, dtype)
        return adapter
    if recipe.train:
        chosen = named_weights(model, recipe.train)
        for name, weight in model.named_parameters():
            weight.requires_grad_(name in chosen)
    return None


def keep_frozen_in(model: Backbone, dtype: torch.dtype) -> None:
    """Keep frozen matrices in a type, as products round them to it anyway. Not those of a model that adds to embeddings
    or computes levels in float32, and not routers, which choose in it.
    """
    config = model.config
    if config.positions != "rotary" or config.time_input or config.adaptive_width:
        return
    for name, weight in model.named_parameters():
        if weight.ndim > 1 and not weight.requires_grad and "router" not in name:
            weight.data = weight.data.to(dtype)


def base_of(start_from: str, model: Backbone) -> Base:
    """The model of a folder, as an adapter names it."""
    folder = Path(start_from)
    packaged = [name for name in PACKAGED if model_folder(name) == folder]
    name = packaged[0] if packaged else name_of(folder) if is_on_hub(folder) else str(folder)
    return Base(folder, name, open_source(folder).names(), model.config.context == "causal")


def named_weights(model: Backbone, patterns: Sequence[str]) -> set[str]:
    """The weights that patterns name: a run of the words of a weight's name, with * for any part of a word, such as
    layers.4, mlp, layers.*.attention, final_norm; or a word of KINDS. InputError for a pattern that names none.
    """
    names, chosen = [name for name, _ in model.named_parameters()], set[str]()
    for pattern in patterns:
        kinds = ("embedding",) if pattern == "head" and model.config.tied else KINDS.get(pattern, (pattern,))
        found = {name for name in names for kind in kinds if _is_named(name.split("."), kind.split("."))}
        if not found:
            raise InputError(
                f"recipe: train names {pattern!r}, and the model has no such weights: name parts such as layers.0, "
                "mlp, layers.*.attention, norms, embedding, head"
            )
        chosen |= found
    return chosen


def _is_named(words: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether consecutive words fit a pattern."""
    starts = range(len(words) - len(pattern) + 1)
    return any(all(map(fnmatchcase, words[start : start + len(pattern)], pattern)) for start in starts)


def checkpoint_layers(model: Backbone) -> None:
    """Have layers keep their inputs alone for the backward pass, and compute the rest again there: the same gradients,
    bit for bit, as the same operations run on the same numbers.
    """
    for layer in model.layers:
        layer.forward = partial(_again, layer.forward)


def _again(forward: Callable[..., Tensor], *args: Any) -> Tensor:
    if not torch.is_grad_enabled():
        return forward(*args)
    out: Tensor = checkpoint(forward, *args, use_reentrant=False)
    return out
