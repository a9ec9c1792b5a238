"""Models of every shape that a recipe can name learn: the loss falls, gradients are finite and reach all weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import daguerre
from daguerre.models.core.config import RopeScaling
from daguerre.models.core.limits import NAMES
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.batch import batch_loss
from daguerre.train.data import Cutter, MicroBatches, TextWindows
from daguerre.train.optim import Optimizer
from daguerre.train.recipe import Optimization, Recipe, Share, TrainedShape
from daguerre.train.stage import Stage
from daguerre.train.start import fresh_model
from daguerre.train.trainer import Trainer

SHAPE = TrainedShape(width=32, num_layers=2, num_heads=4, num_kv_heads=2, mlp_width=48, max_positions=64)
CAUSAL = {"drafts": Share(share=0.5, layout="drafts", times="full"), "infill": Share(share=0.5, layout="infill")}
FULL = {"full": Share(share=1.0, layout="full")}
BLOCK = {"bd3": Share(share=1.0, layout="bd3")}
SHAPES: dict[str, tuple[dict[str, Any], dict[str, Share]]] = {
    "llama": ({"qk_norm": False, "tied": False, "rope_scaling": RopeScaling(kind="linear", factor=2.0)}, CAUSAL),
    "qwen": ({"qkv_bias": True, "head_width": 12, "activation": "gelu_tanh"}, CAUSAL),
    "gpt2": (
        {"qk_norm": False, "norm": "layer", "gated_mlp": False, "activation": "gelu", "positions": "learned"}
        | {"qkv_bias": True, "out_bias": True, "mlp_bias": True},
        CAUSAL,
    ),
    "olmo2": (
        {"norm_placement": "post", "qk_norm_scope": "all", "rope_share": 0.5, "tied": False, "norm_eps": 1e-5},
        CAUSAL,
    ),
    "gemma3": ({"norm_placement": "both", "activation": "gelu_tanh", "head_width": 12}, CAUSAL),
    "post_layer": ({"norm_placement": "post", "norm": "layer", "qk_norm": False, "mlp_bias": True}, CAUSAL),
    "yarn": (
        {"rope_scaling": RopeScaling(kind="yarn", factor=4.0, original_positions=16), "gated_mlp": False},
        CAUSAL,
    ),
    "llama3": (
        {"rope_scaling": RopeScaling(kind="llama3", factor=8.0, original_positions=32), "rope_theta": 5e5},
        CAUSAL,
    ),
    "full_learned": (
        {
            "context": "full",
            "shift": False,
            "time_input": True,
            "positions": "learned",
            "out_bias": True,
            "tied": False,
        },
        FULL,
    ),
    "block_plain": (
        {"context": "block", "shift": False, "block_size": 8, "gated_mlp": False, "norm": "layer", "head_width": 10},
        BLOCK,
    ),
}


def test_the_shapes_have_every_value_of_every_field() -> None:
    made = [replace(SHAPE, **facts) for facts, _ in SHAPES.values()]
    for name, values in NAMES.items():
        trained = set(values) - {"reordered"}  # which no objective trains
        if name in ("process", "anchor", "draft_rows"):  # `TrainedShape` has none: other commands train them
            continue
        assert {getattr(shape, name) for shape in made} == trained, name
    for name in ("qk_norm", "qkv_bias", "out_bias", "mlp_bias", "tied", "gated_mlp"):
        assert {getattr(shape, name) for shape in made} == {True, False}, name
    assert len({shape.rope_scaling and shape.rope_scaling.kind for shape in made}) == 4


@pytest.mark.parametrize("name", SHAPES)
def test_a_model_of_any_shape_learns(name: str, windows: TextWindows, tokenizer: Tokenizer) -> None:
    facts, mixture = SHAPES[name]
    recipe = recipe_of(facts, mixture)
    config = recipe.model_config(tokenizer)
    model = fresh_model(config, seed=0)
    maker = MicroBatches(windows, Cutter(tokenizer), recipe.make_mixture(config), 0)
    batches, optimizer = [maker.make(index, 4, 48) for index in range(2)], Optimizer(model, Optimization())
    losses = []
    for _ in range(15):
        loss = torch.stack([batch_loss(model, batch, "matmul").loss for batch in batches]).sum()
        loss.backward()
        losses.append(loss.item())
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
        optimizer.step(0.3)
    assert losses[-1] < 0.75 * losses[0]
    begun = fresh_model(config, seed=0)
    moved = {n for n, p in model.named_parameters() if not torch.equal(p, begun.get_parameter(n))}
    assert moved == {n for n, _ in model.named_parameters()}


def test_a_run_of_another_shape_is_exported_loaded_and_resumed(corpus: Path, tmp_path: Path) -> None:
    recipe = recipe_of({**SHAPES["olmo2"][0], "rope_scaling": RopeScaling(kind="linear", factor=2.0)}, CAUSAL)
    Trainer(replace(recipe, steps=2), tmp_path / "run", corpus, quiet=True).run()
    resumed = Trainer(recipe, tmp_path / "run", corpus, resume=True, quiet=True)
    assert resumed.progress.step == 2
    model = daguerre.load(resumed.run(), backend="torch")
    assert model.config == resumed.model.config
    assert model.config.norm_placement == "post"
    assert model.generate("x = ", 4, min_tokens=4).usage.completion_tokens == 4
    adapted = Trainer(
        replace(recipe, model=None),
        tmp_path / "adapted",
        corpus,
        start_from=str(tmp_path / "run" / "model"),
        quiet=True,
    )
    assert adapted.model.config == model.config


def recipe_of(facts: dict[str, Any], mixture: dict[str, Share]) -> Recipe:
    return Recipe(
        name="tiny",
        tokenizer="2k",
        model=replace(SHAPE, **facts),
        mixture=mixture,
        stages=(Stage(until=1.0, length=32, sequences=2, micro_batches=1),),
        steps=3,
        precision="float32",
        eval_steps=0,
    )
