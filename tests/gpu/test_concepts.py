"""Concept heads on a device: steering, explanations, attributions, embeddings and searches are those of the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import daguerre
from concept_models import CATALOG, with_heads
from conftest import GEMMA
from daguerre.decoding.steering import add
from daguerre.model import Model
from daguerre.scoring.concept_search import ConceptReader
from forwards import difference
from test_explain import CONTEXTS, HOW, PROGRAM, PROMPT, SUFFIX

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def both(make_model: Any, device: str) -> Callable[..., tuple[Model, Model]]:
    """both(**facts): a model with heads on the CPU, and the same on the device."""

    def make(dtype: torch.dtype = torch.float32, **facts: Any) -> tuple[Model, Model]:
        here, there = with_heads(make_model, **facts), with_heads(make_model, **facts)
        return here, Model(there.backbone.to(device, dtype), there.tokenizer, "torch", concepts=CATALOG)

    return make


@pytest.mark.parametrize("context", CONTEXTS)
def test_texts_are_steered_and_explained_as_on_the_cpu(both: Any, context: str, subtests: pytest.Subtests) -> None:
    here, there = both(**CONTEXTS[context])
    for name, how in HOW.items():
        with subtests.test(name):
            want, got = (model.generate(PROMPT, 10, explain=True, heal=False, **how) for model in (here, there))
            assert got.text == want.text
            assert got.concepts.error() < 2e-4
            for one, other in zip(got.concepts.tokens, want.concepts.tokens, strict=True):
                assert one.logit == pytest.approx(other.logit, abs=2e-4)
    if context != "drafting":
        result = here.generate(PROMPT, 6, explain=True, heal=False, steer=PROGRAM)
        want, got = (model.attribute(result, 3, 16) for model in (here, there))
        assert difference(got.scores, want.scores) < 1e-3


def test_a_gap_is_steered_as_on_the_cpu(both: Any) -> None:
    here, there = both()
    for how in ({}, {"mode": "block", "temperature": 1.0, "seed": 4}):
        want, got = (model.infill(PROMPT, SUFFIX, 6, explain=True, steer=PROGRAM[:2], **how) for model in (here, there))
        assert got.text == want.text and got.concepts.error() < 2e-4


def test_canvases_that_are_drawn_again_are_steered_as_on_the_cpu(both: Any) -> None:
    how: dict[str, Any] = {"mode": "renoise", "seed": 1, "steps": 4, "heal": False, "steer": add(0, 12.0)}
    want, got = (model.generate(PROMPT, 8, **how).text for model in both(**GEMMA))
    assert got == want


def test_in_bfloat16_the_parts_of_a_logit_add_up_too(both: Any) -> None:
    _, there = both(torch.bfloat16)
    result = there.generate(PROMPT, 10, explain=True, heal=False, steer=PROGRAM)
    assert result.concepts.error() < 0.05
    assert len(result.tokens) == 10


def test_what_is_read_of_texts_is_what_the_cpu_reads(both: Any) -> None:
    here, there = both()
    texts = [PROMPT, "x = 1\n", "for name in names:\n    print(name)\n"]
    for kind in (None, "known", "discovered", "composed"):
        want, got = (
            np.array(model.embed(texts, **({} if kind is None else {"kind": kind}))) for model in (here, there)
        )
        np.testing.assert_allclose(got, want, atol=1e-4)
    tokens = [here.tokenizer.encode(text) for text in texts]
    for by in ("mean", "peak"):
        want, got = (
            ConceptReader(model.denoiser, model.backbone.concepts, (2, 0, 11), by).read(tokens)
            for model in (here, there)
        )
        for one, other in zip(got, want, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-3)


def test_the_packaged_models_run(device: str) -> None:
    model = daguerre.load("concepts", backend="torch", device=device)
    result = model.generate("import os\n\n\ndef size(path):\n    return ", 12, explain=True)
    assert result.concepts is not None and result.concepts.error() < 0.2
