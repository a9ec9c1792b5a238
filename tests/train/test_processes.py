"""Training on noise that replaces tokens by others, and with the noise level as an input."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import daguerre
from conftest import MakeModel
from daguerre.errors import DaguerreError, InputError, UnsupportedError
from daguerre.model import Model
from daguerre.models.backends.torch_backend import TorchBackend
from daguerre.models.core.batched import BatchLayout, Rows, run_batch
from daguerre.noise.process import process_of
from daguerre.scoring.likelihood import score_tokens
from daguerre.train.batch import batch_loss, collate
from daguerre.train.examples import make_example
from daguerre.train.noising import IGNORE, NUM_LEVELS, Source
from daguerre.train.objectives import Objective
from daguerre.train.recipe import Recipe, Share, TrainedShape
from daguerre.train.stage import Stage
from daguerre.train.trainer import Trainer

NAMES = ("uniform", "hybrid")
LENGTH = 60
each_process = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(scope="module")
def models(make_model: MakeModel) -> dict[str, Model]:
    facts: dict[str, Any] = {"context": "full", "shift": False, "time_input": True, "num_layers": 1}
    return {name: make_model(process=name, **facts) for name in NAMES}


def objective_of(model: Model, **parts: Any) -> Objective:
    return Objective(layout="full", shift=False, process=process_of(model.config), **parts)


def source_of(model: Model, seed: int = 0, starts: tuple[int, ...] = ()) -> Source:
    tokens = np.random.default_rng(seed).integers(16, model.config.vocab_size, LENGTH)
    tokens[0], tokens[-1] = model.config.bos_id, model.config.eos_id
    return Source(tokens, model.config.mask_id, starts=starts)


@each_process
def test_every_token_but_what_is_given_may_be_replaced_and_is_to_be_found(models: dict[str, Model], name: str) -> None:
    model = models[name]
    changed, levels = [], []
    for seed in range(40):
        source, u = source_of(model, seed, (20,)), (seed + 0.5) / 40
        objective = replace(objective_of(model), layout="full_suffix")
        example = make_example(source, objective, u, np.random.default_rng(seed), LENGTH)
        assert example.num_clean == 0
        assert np.array_equal(example.tokens[:20], source.tokens[:20])
        assert (example.target[:20] == IGNORE).all()
        assert np.array_equal(example.target[20:], source.tokens[20:])
        assert example.weight.tolist() == [0.0] * 20 + [1.0] * 40
        assert example.time == pytest.approx(np.full(LENGTH, u))
        levels.append(int(example.level[20]))
        noise = example.tokens[20:][example.tokens[20:] != source.tokens[20:]]
        assert ((noise >= 16) | ((noise == model.config.mask_id) & (name == "hybrid"))).all()
        changed.append(len(noise) / 40)
    assert set(levels) == set(range(NUM_LEVELS))
    assert np.mean(changed[:10]) < 0.25 < 0.75 < np.mean(changed[-10:])


def test_a_weight_that_a_process_does_not_have_is_an_error(models: dict[str, Model]) -> None:
    with pytest.raises(InputError, match="no weight 'clipped'"):
        objective_of(models["uniform"], weight="clipped")


@pytest.mark.parametrize(("name", "weight"), [("uniform", "one"), ("uniform", "elbo"), ("hybrid", "clipped")])
def test_the_loss_is_that_of_the_process_over_the_norm(models: dict[str, Model], name: str, weight: str) -> None:
    model = models[name]
    objective, process = objective_of(model, weight=weight), process_of(model.config)
    sources = [source_of(model, seed) for seed in range(2)]
    examples = [
        make_example(source, objective, 0.2 + 0.5 * i, np.random.default_rng(i), LENGTH)
        for i, source in enumerate(sources)
    ]
    batch = collate(examples, objective, 0)
    with torch.no_grad():
        hidden = run_batch(model.backbone, batch.tokens, batch.layout, time_BR=batch.time)
        logits = model.backbone.logits(hidden)
        method = getattr(process, {"one": "cross_entropy", "elbo": "nelbo", "clipped": "dynamic_loss"}[weight])
        x0 = torch.from_numpy(np.stack([source.tokens for source in sources]))
        want = method(logits, x0, batch.tokens, torch.tensor([0.2, 0.7]))[:, 1:].sum() / (2 * LENGTH)
        found = batch_loss(model.backbone, batch)
    assert float(found.loss) == pytest.approx(float(want), rel=1e-4)
    assert found.level_count.sum() == 2 * (LENGTH - 1)
    assert found.level_sum.sum() == pytest.approx(float(want) * 2 * LENGTH, rel=1e-4)


@each_process
def test_parts_that_a_process_does_not_have_are_errors(models: dict[str, Model], name: str) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"layout": "canvas"}, "full context"),
        ({"shift": True}, "without a shift"),
        ({"times": "full"}, "times .uniform."),
        ({"schedule": "cosine"}, "own schedule"),
    ]
    for parts, message in wrong:
        with pytest.raises(InputError, match=message):
            replace(objective_of(models[name]), **parts)


@each_process
def test_the_bound_is_the_mean_of_the_integrand_over_time_and_noise(make_model: MakeModel, name: str) -> None:
    """Against other draws, all times independent."""
    model = make_model(context="full", shift=False, time_input=True, num_layers=1, process=name)
    model.backbone.initialize(0, zero_outputs=False)
    process, tokens = process_of(model.config), torch.from_numpy(source_of(model).tokens[:12])
    backend = TorchBackend(model.backbone)
    score = score_tokens(backend, tokens.tolist(), kind="elbo", samples=400)
    generator, num = torch.Generator().manual_seed(1), 400
    times = torch.rand(num, generator=generator, dtype=torch.float64)
    x0 = tokens.expand(num, -1)
    xt = torch.cat([x0[:, :1], process.corrupt(x0, times, generator)[:, 1:]], dim=1)
    rows = Rows.make(torch.arange(12).expand(num, -1), span=0)
    with torch.no_grad():
        hidden = run_batch(
            model.backbone, xt, BatchLayout(rows, 0, "full"), time_BR=times.float()[:, None].expand(-1, 12)
        )
        draws = process.nelbo(model.backbone.logits(hidden), x0, xt, times)[:, 1:].sum(1)
    stderr = math.hypot(float(draws.std()) / num**0.5, score.stderr)
    assert abs(score.value - float(draws.mean())) < 4 * stderr < 0.5 * score.value
    assert score.by_token.sum() == pytest.approx(score.value)
    few = [score_tokens(backend, tokens.tolist(), kind="elbo", samples=8) for _ in range(2)]
    assert few[0] == few[1]


def test_a_time_input_begins_neutral_and_then_matters(make_model: MakeModel) -> None:
    timed = make_model(context="full", shift=False, time_input=True).backbone
    tokens, layout = torch.arange(20, 40)[None], BatchLayout(Rows.make(torch.arange(20)[None], span=0), 0, "full")
    times = [torch.full((1, 20), t) for t in (0.1, 0.9)]
    with torch.no_grad():
        a, b = (run_batch(timed, tokens, layout, time_BR=t) for t in times)
        assert (a - b).abs().max() > 1e-2
        timed.initialize(0, scale=0.25)
        plain = make_model(context="full", shift=False).backbone
        plain.load_state_dict({n: v for n, v in timed.state_dict().items() if not n.startswith("time_input")})
        a, b = (run_batch(timed, tokens, layout, time_BR=t) for t in times)
        assert torch.equal(a, b)
        assert torch.equal(a, run_batch(plain, tokens, layout))


def test_a_time_input_never_drowns_the_tokens(make_model: MakeModel) -> None:
    """Its weights may grow by noise in the gradient: what it adds to every row stays as long as an embedding."""
    backbone = make_model(context="full", shift=False, time_input=True).backbone
    assert backbone.time_input is not None
    times = torch.linspace(0, 1, 20)[None]
    small = backbone.time_input(times)
    for weight in backbone.time_input.parameters():
        weight.mul_(1e3)
    large = backbone.time_input(times).square().mean(-1).sqrt()
    assert (large <= 1.001 * backbone.config.width**-0.5).all()
    assert (large > 0.9 * backbone.config.width**-0.5).all()
    assert (small.square().mean(-1).sqrt() < large).all()


# ---- whole runs ---------------------------------------------------------------------------------------------------

SHAPE = TrainedShape(
    width=32,
    num_layers=1,
    num_heads=4,
    num_kv_heads=2,
    mlp_width=48,
    max_positions=64,
    context="full",
    shift=False,
    time_input=True,
)
RECIPE = Recipe(
    name="tiny",
    tokenizer="2k",
    model=SHAPE,
    mixture={
        "full": Share(share=0.5, layout="full", weight="elbo"),
        "prompted": Share(share=0.5, layout="full_suffix"),
    },
    stages=(Stage(until=1.0, length=32, sequences=2, micro_batches=1),),
    steps=4,
    precision="float32",
    eval_steps=0,
)


@pytest.mark.parametrize("name", ["absorbing", *NAMES])
def test_a_run_with_time_trains_all_of_the_model_and_is_scored(corpus: Path, tmp_path: Path, name: str) -> None:
    made = Trainer(replace(RECIPE, model=replace(SHAPE, process=name)), tmp_path / "run", corpus, quiet=True)
    begun = {n: p.detach().clone() for n, p in made.model.named_parameters()}
    model = daguerre.load(made.run())
    assert model.config.process == name
    assert not any(torch.equal(begun[n], p) for n, p in made.model.named_parameters())
    score = model.nll("import os\n", "elbo", samples=8)
    assert 0 < score.value < 20 * score.num_tokens
    assert "masked_0" in (tmp_path / "run" / "held.csv").read_text()


def test_a_shape_or_config_that_no_process_has_is_an_error(make_model: MakeModel) -> None:
    shapes: list[tuple[dict[str, Any], str]] = [
        ({"process": "unifrom"}, "did you mean 'uniform'"),
        ({"process": "uniform", "shift": True}, "shift = false"),
        ({"process": "hybrid", "time_input": False}, "time_input = true"),
        ({"context": "causal"}, "time_input needs"),
    ]
    for facts, message in shapes:
        with pytest.raises(InputError, match=message):
            replace(SHAPE, **facts)
    configs: list[dict[str, Any]] = [{"process": "uniform"}, {"process": "x"}, {"time_input": True}]
    for facts in [*configs, {"process": "hybrid", "context": "full"}]:
        with pytest.raises(DaguerreError):
            make_model(**facts)


@each_process
def test_a_model_that_replaces_tokens_does_not_fill_masks(models: dict[str, Model], name: str) -> None:
    with pytest.raises(UnsupportedError, match=f"{name} process"):
        models[name].generate("x", 4, mode="block")
