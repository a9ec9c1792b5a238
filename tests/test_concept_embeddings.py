"""Embeddings of the parts of hidden states, beside sums that are written out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from conftest import CONTEXTS, MakeModel
from daguerre.errors import InputError, UnsupportedError
from daguerre.model import Model
from daguerre.models.core.config import ConceptShape
from daguerre.models.forward import Hidden
from daguerre.scoring import embedding

TEXTS = ["def f(x):\n    return x\n", "é", "import os\nimport sys\n# one two three four five six"]
SHAPE = ConceptShape(known=9, discovered=14, rank=4, kept_known=3, kept_discovered=5, spare_known=2)
KINDS = ("known", "discovered", "composed", "concepts")


def with_heads(make_model: MakeModel, **facts: Any) -> Model:
    model = make_model(concepts=SHAPE, **facts)
    random = torch.Generator().manual_seed(7)
    assert model.backbone.concepts is not None
    with torch.no_grad():
        for weight in model.backbone.concepts.parameters():
            weight.copy_(torch.randn(weight.shape, generator=random) / 2)
    return model


def hidden_states(model: Model, text: str) -> np.ndarray:
    """The rows that an embedding is the mean of, (A, D)."""
    forward = embedding.clean_forward(model.config, model.tokenizer.encode(text))
    assert isinstance(forward.ask, Hidden)
    (answer,) = model.denoiser.backend.forward([forward])
    assert answer.hidden is not None
    return answer.hidden


def sums(model: Model, hidden: np.ndarray) -> dict[str, np.ndarray]:
    """Every kind for one text, row by row and concept by concept, in float64."""
    heads = model.backbone.concepts
    assert heads is not None
    w = {name: one.detach().double().numpy() for name, one in heads.named_parameters()}
    out = {"known": np.zeros(model.config.width), "discovered": np.zeros(model.config.width), "concepts": np.zeros(23)}
    for h in hidden.astype(np.float64):
        logits = w["known_predictor.weight"] @ h + w["known_predictor.bias"]
        found = w["discovered_up.weight"] @ (w["discovered_down.weight"] @ h) + w["discovered_up.bias"]
        known = {c: 1 / (1 + np.exp(-logits[c])) for c in np.argsort(-logits[:9])[:3]}
        discovered = {c: 1 / (1 + np.exp(-found[c])) for c in np.argsort(-found)[:5]}
        for c, weight in known.items():
            out["known"] += weight * w["known_embedding.weight"][c]
            out["concepts"][c] += weight
        for c, weight in discovered.items():
            out["discovered"] += weight * (w["discovered_basis.weight"] @ w["discovered_coefficients.weight"][c])
            out["concepts"][9 + c] += weight
    return out | {"composed": out["known"] + out["discovered"]}


def test_each_kind_is_the_mean_of_its_part_of_the_hidden_states(
    subtests: pytest.Subtests, make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding, "WEIGHED_AT_ONCE", 4)
    for name in ("causal", "full", "block_shifted", "reordered"):
        made = with_heads(make_model, **CONTEXTS[name])
        for backend in ("native", "torch"):
            with subtests.test(name, backend=backend):
                check_kinds(Model(made.backbone, made.tokenizer, backend))  # type: ignore[arg-type]


def check_kinds(model: Model) -> None:
    expected = [sums(model, hidden_states(model, text)) for text in TEXTS]
    for kind in KINDS:
        found = model.embed(TEXTS, kind)  # type: ignore[arg-type]
        assert found.dtype == np.float32
        assert found.shape == (3, 23 if kind == "concepts" else model.config.width)
        wanted = [each[kind] / np.linalg.norm(each[kind]) for each in expected]
        assert np.abs(found - wanted).max() < 2e-5
        assert np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    assert np.array_equal(model.embed(TEXTS), model.embed(TEXTS, kind="hidden"))


def test_the_parts_and_the_residual_are_the_whole(make_model: MakeModel) -> None:
    """Lengths are undone: hidden = composed + mean residual."""
    model = with_heads(make_model)
    assert model.backbone.concepts is not None
    hidden = hidden_states(model, TEXTS[0])
    parts = model.backbone.concepts.decompose(torch.from_numpy(hidden))
    composed = hidden.mean(axis=0) - parts.residual.mean(dim=0).numpy()
    found = model.embed(TEXTS[:1], kind="composed")[0]
    assert np.abs(found - composed / np.linalg.norm(composed)).max() < 2e-5
    assert abs(found @ model.embed(TEXTS[:1])[0]) < 0.999


def test_a_mean_of_zero_has_no_direction(make_model: MakeModel) -> None:
    model = with_heads(make_model)
    assert model.backbone.concepts is not None
    with torch.no_grad():
        model.backbone.concepts.known_embedding.weight.zero_()
    assert not model.embed(TEXTS, kind="known").any()


def test_a_kind_that_there_is_not_is_refused(make_model: MakeModel, causal: Model) -> None:
    with pytest.raises(InputError, match="did you mean 'known'"):
        with_heads(make_model).embed(TEXTS, kind="knwon")  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="no concept heads"):
        causal.embed(TEXTS, kind="concepts")
