"""The core of every family: each forward's answer beside that of the CPU, and in bfloat16 near it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from conftest import GEMMA, random_backbone
from daguerre.models.backends.torch_backend import TorchBackend
from daguerre.models.core.config import ModelConfig
from daguerre.models.families import FAMILIES
from daguerre.models.forward import Answer, Ask, Draws, Forward, Hidden, Logits, Refinement
from forwards import NUM_KINDS, Expected, causal_layout, difference, make, rules_of, tokens_of
from train.test_families_of_recipes import config_of

pytestmark = pytest.mark.gpu
CACHED = 256
"""Positions that the forwards of `make` need."""


def config_with_room(name: str) -> ModelConfig:
    config = config_of(name)
    return replace(config, max_positions=max(CACHED, config.max_positions))


def error(got: np.ndarray | None, want: np.ndarray | None) -> float:
    """The median over rows of a row's root mean square error: rounding may choose other experts for a few rows."""
    assert got is not None and want is not None
    known = np.isfinite(want).all(axis=0)
    squares = ((got[:, known] - want[:, known]) ** 2).mean(axis=1) / (want[:, known] ** 2).mean()
    return float(np.median(squares) ** 0.5)


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "gemma"])
def test_every_forward_of_a_family_equals_that_of_the_cpu(name: str, device: str) -> None:
    config = config_with_room(name)
    reference = TorchBackend(random_backbone(config))
    backend = TorchBackend(random_backbone(config).to(device))
    numbers = range(0, NUM_KINDS, 1 + 4 * (config.context == "full"))
    expected = {number: Expected(reference, number) for number in numbers}
    answers = backend.forward([make(backend, number) for number in numbers])
    for want, answer in zip(expected.values(), answers, strict=True):
        want.check(answer, 1e-4)
    half = TorchBackend(random_backbone(config).to(device, torch.bfloat16))
    for number in list(numbers)[:6]:
        want = expected[number]
        (answer,) = half.forward([replace(make(half, number), ask=Logits(), wanted=want.forward.wanted)])
        assert 0 < error(answer.logits, want.logits) < 0.2


def canvas_forward(backend: TorchBackend, length: int, ask: Ask, before: Any = None, size: int = 6) -> Forward:
    """About a canvas behind a text, with what was made of it before."""
    layout = causal_layout(0, length + size)
    layout.num_clean, layout.end[length:] = length, length + size
    wanted = np.arange(length, length + size, dtype=np.int32)
    return Forward(tokens_of(backend, length, length + size), layout, None, wanted, ask, conditioning=before)


@pytest.fixture(scope="module")
def gemma(make_model: Any, device: str) -> list[TorchBackend]:
    """On the CPU, on the device, and there in bfloat16."""
    facts = {**GEMMA, "max_positions": CACHED}
    return [
        TorchBackend(make_model(**facts).backbone.to(*place))
        for place in (("cpu", torch.float32), (device, torch.float32), (device, torch.bfloat16))
    ]


def refined(backend: TorchBackend, length: int) -> list[Answer]:
    """A canvas refined twice, the second time by what the first has made of it; and what else may be asked."""
    rules = replace(rules_of(length, backend.config.ordinary_ids), temperature=0.8)
    ask = Refinement(rules, length + np.arange(6))
    (first,) = backend.forward([canvas_forward(backend, length, ask)])
    more = [ask, Logits(), Hidden(), Draws(rules, ask.positions, entropy=True)]
    return [first, *backend.forward([canvas_forward(backend, length, one, first.conditioning) for one in more])]


@pytest.mark.parametrize("length", [3, 7, 40, 130])
def test_refinements_of_a_canvas_equal_those_of_the_cpu(gemma: list[TorchBackend], length: int) -> None:
    wanted, answers, half = (refined(backend, length) for backend in gemma)
    for want, answer in zip(wanted, answers, strict=True):
        for name in ("tokens", "best_tokens"):
            assert np.array_equal(getattr(answer, name), getattr(want, name))
        for name in ("logits", "hidden", "probabilities", "entropies", "best_probabilities"):
            if getattr(want, name) is not None:
                assert difference(getattr(answer, name), getattr(want, name)) < 1e-4
    for want, answer in zip(wanted[:2], answers[:2], strict=True):
        assert (
            answer.conditioning is not None and answer.conditioning.device.type == gemma[1].backbone.never.device.type
        )
        assert difference(answer.conditioning.cpu().numpy(), want.conditioning.numpy()) < 1e-4
    assert 0 < error(half[2].logits, wanted[2].logits) < 0.5


def test_a_growing_text_has_in_the_cache_what_it_has_without(gemma: list[TorchBackend]) -> None:
    for backend in gemma[1:]:
        cache, found = backend.cache(CACHED), list[np.ndarray]()
        tokens = tokens_of(backend, 5, 60)
        for start, end in ((0, 20), (20, 21), (21, 60)):
            wanted = np.arange(end - start, dtype=np.int32)
            layout = causal_layout(start, end - start)
            (answer,) = backend.forward([Forward(tokens[start:end], layout, cache, wanted, Logits())])
            assert answer.logits is not None
            found.append(answer.logits)
        (whole,) = backend.forward(
            [Forward(tokens, causal_layout(0, 60), None, np.arange(60, dtype=np.int32), Logits())]
        )
        limit = 1e-4 if backend is gemma[1] else 0.1
        assert error(np.concatenate(found), whole.logits) < limit
