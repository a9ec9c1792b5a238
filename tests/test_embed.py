"""Embeddings beside the hidden states of the plain modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from conftest import CONTEXTS
from daguerre.engine.engine import Engine
from daguerre.errors import ContextError, InputError
from daguerre.model import Model
from daguerre.scoring import embedding

TEXTS = ["def f(x):\n    return x\n", "é", "import os\nimport sys\n# one two three four five six"]


def seen(model: Model, num: int) -> Tensor:
    """Which of a text's rows each of them sees, bool (R, R), from the words of DESIGN."""
    rows, config = torch.arange(num), model.config
    if config.context == "full":
        return torch.ones(num, num, dtype=torch.bool)
    if config.context == "block":
        assert config.block_size is not None
        return rows[None] // config.block_size <= rows[:, None] // config.block_size
    return rows[None] <= rows[:, None]


def expected(model: Model, text: str) -> np.ndarray:
    """The mean of the hidden states that the backbone's modules compute, of length 1."""
    first = model.config.first
    ids = torch.tensor([*first, *model.tokenizer.encode(text)])
    mask = seen(model, len(ids))

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=q.shape[0] != k.shape[0])
        return out.transpose(0, 1)

    with torch.no_grad():
        hidden = model.backbone(ids, torch.arange(len(ids)), attend)
    mean = hidden[len(first) :].double().mean(dim=0)
    out: np.ndarray = (mean / mean.norm()).numpy()
    return out


def test_an_embedding_is_the_mean_of_the_hidden_states(subtests: pytest.Subtests, models: dict[str, Model]) -> None:
    for name in CONTEXTS:
        wanted = [expected(models[name], text) for text in TEXTS]
        for backend in ("native", "torch"):
            with subtests.test(name, backend=backend):
                model = Model(models[name].backbone, models[name].tokenizer, backend)  # type: ignore[arg-type]
                found = model.embed(TEXTS)
                assert found.dtype == np.float32 and found.shape == (3, model.config.width)
                assert np.allclose(found, wanted, atol=2e-5)
                assert np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
                assert abs(found[0] @ found[2]) < 0.999


def test_contexts_differ_in_what_a_row_sees(models: dict[str, Model]) -> None:
    assert not np.allclose(expected(models["full"], TEXTS[0]), expected(models["causal"], TEXTS[0]), atol=1e-3)


def test_a_text_has_the_same_embedding_in_any_batch_and_beside_requests(
    causal: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = np.concatenate([causal.embed([text]) for text in TEXTS])
    assert np.array_equal(causal.embed(TEXTS), alone)
    monkeypatch.setattr(embedding, "ROWS_AT_ONCE", 8)
    assert np.array_equal(causal.embed([causal.tokenizer.encode(text) for text in TEXTS]), alone)
    with Engine(causal) as engine:
        job = engine.generate("x = ", 32)
        assert np.array_equal(engine.model.embed(TEXTS), alone)
        assert job.result(120).text == causal.generate("x = ", 32).text


def test_what_has_no_embedding(causal: Model) -> None:
    refused: list[tuple[Any, type[InputError], str]] = [
        ([""], InputError, "needs a token"),
        (["x " * 400], ContextError, "embed it in parts"),
        ([[99_999]], InputError, "outside the vocabulary"),
        ([3], InputError, "a string or a sequence of token ids"),
        ("text", InputError, "texts must be a list of texts"),
    ]
    for texts, error, says in refused:
        with pytest.raises(error, match=says):
            causal.embed(texts)


def test_no_texts_have_no_embeddings(make_model: Callable[..., Model]) -> None:
    assert make_model().embed([]).shape == (0, 32)
