"""Captured steps on a CPU: a capture that repeats the call in place gives the answers of the torch backend."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

from daguerre.decoding.generate import generate
from daguerre.errors import UnsupportedError
from daguerre.model import Model
from daguerre.models.backends.graph_backend import ROWS, GraphBackend, GraphCache
from daguerre.models.core.config import Experts
from daguerre.models.denoiser import BackboneDenoiser
from daguerre.models.forward import Logits
from daguerre.models.session import compute
from graphs import Repeats, replayed


@pytest.fixture
def repeats() -> Repeats:
    return Repeats()


@pytest.fixture
def denoiser(causal: Model, repeats: Repeats) -> BackboneDenoiser:
    return replayed(causal.backbone, repeats)


MODES = [
    {"mode": "ar"},
    {"mode": "ar", "temperature": 1.0, "seed": 4},
    {"mode": "speculative", "block_size": 3, "temperature": 0.7},
    {"mode": "block", "block_size": 8, "threshold": 0.5},
    {"mode": "block", "block_size": 24, "policy": "confidence", "steps": 4},
]


@pytest.mark.parametrize("options", MODES)
def test_every_mode_writes_what_it_writes_without(
    causal: Model, denoiser: BackboneDenoiser, repeats: Repeats, options: dict[str, object]
) -> None:
    plain = BackboneDenoiser(causal.backbone, "torch")
    prompt = "def area(width, height):\n"
    want = generate(plain, causal.tokenizer, prompt, 24, **options)
    got = generate(denoiser, causal.tokenizer, prompt, 24, **options)
    assert [token.id for token in got.tokens] == [token.id for token in want.tokens]
    probabilities = [[token.logprob for token in one.tokens] for one in (want, got)]
    assert probabilities[1] == pytest.approx(probabilities[0], abs=1e-4)
    assert repeats.played >= got.usage.forwards - 1
    assert repeats.captured <= len(ROWS)


def test_models_of_other_contexts_are_replayed_too(models: dict[str, Model], repeats: Repeats) -> None:
    for name, options in (("block", {}), ("reordered", {"sliding": True, "block_size": 6, "threshold": 0.6})):
        model, played = models[name], repeats.played
        want = generate(BackboneDenoiser(model.backbone, "torch"), model.tokenizer, "x = ", 12, **options)
        assert generate(replayed(model.backbone, repeats), model.tokenizer, "x = ", 12, **options).text == want.text
        assert repeats.played > played


def test_memory_is_lent_to_one_request_at_a_time(causal: Model, denoiser: BackboneDenoiser, repeats: Repeats) -> None:
    backend = denoiser.backend
    one, other = backend.cache(100), backend.cache(100)
    assert isinstance(one, GraphCache)
    assert isinstance(other, GraphCache)
    assert one.memory is not other.memory
    memory = one.memory
    memory.keys.fill_(float("nan"))
    del one
    gc.collect()
    again = backend.cache(100)
    assert isinstance(again, GraphCache)
    assert again.memory is memory
    assert not again.keys.isnan().any()


def test_what_has_no_step_runs_as_it_is(causal: Model, denoiser: BackboneDenoiser, repeats: Repeats) -> None:
    long = generate(denoiser, causal.tokenizer, "x = 1\n" * 40, 1, mode="ar")
    assert long.usage.prefill_tokens > ROWS[-1]
    assert not repeats.played
    generate(denoiser, causal.tokenizer, "x = ", 8, mode="ar", cache="approximate_int8")
    generate(denoiser, causal.tokenizer, "x = ", 8, mode="ar", cache="none")
    generate(denoiser, causal.tokenizer, "x = ", 8, mode="ar", n=3)
    assert not repeats.played


def test_who_cannot_have_graphs_is_told(causal: Model, models: dict[str, Model], make_model: Any) -> None:
    with pytest.raises(UnsupportedError, match="need a CUDA device"):
        Model(causal.backbone, causal.tokenizer, graphs=True).generate("x", 2)
    with pytest.raises(UnsupportedError, match='are of backend "torch"'):
        Model(causal.backbone, causal.tokenizer, "native", graphs=True)
    with pytest.raises(UnsupportedError, match="full context"):
        GraphBackend(models["full"].backbone, capture=Repeats())
    experts = make_model(experts=Experts(num=4, per_token=2, width=16))
    with pytest.raises(UnsupportedError, match="a model with experts: leave out graphs"):
        GraphBackend(experts.backbone, capture=Repeats())


def test_the_logits_of_a_session_are_those_of_the_modules(causal: Model, denoiser: BackboneDenoiser) -> None:
    from daguerre.decoding.planning import make_plan
    from daguerre.decoding.request import Decode

    prompt = causal.tokenizer.encode("def f(a):\n")
    plan = make_plan(causal.config, causal.tokenizer, Decode(mode="block", block_size=8), prompt, None, 16, heal=False)
    canvas = plan.canvas.at(plan.spans(plan.canvas)[0])
    found = []
    for one in (BackboneDenoiser(causal.backbone, "torch"), denoiser):
        session = one.session(canvas)
        answer = compute(session.ask(canvas, canvas.active_positions(), Logits()), one.backend)
        assert answer.logits is not None
        found.append(torch.from_numpy(answer.logits))
    torch.testing.assert_close(*found, atol=1e-4, rtol=1e-4)
