"""A teacher's loss, streamed and whole; what it reads of a batch; and runs that are taught."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from answers import STAGE, batches_of, corpus_of, some_pairs
from daguerre.model import Model
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.batched import BatchLayout, run_batch
from daguerre.train.batch import Batch
from daguerre.train.noising import IGNORE
from daguerre.train.teach.loss import TaughtLoss, TaughtTokens, taught_terms, terms_of
from daguerre.train.teach.options import Teaching
from daguerre.train.teach.teacher import FrozenTeacher, TaughtRows

CONTEXTS: dict[str, dict[str, Any]] = {
    "causal": {},
    "gaps": {},
    "block": {"context": "block", "shift": False, "block_size": 4},
}
SFT: dict[str, dict[str, Any]] = {
    "causal": {"late": 2.0},
    "gaps": {"gaps": 0.5},
    "block": {"padding": "unsupervised", "packing": True},
}


@pytest.fixture
def student(make_model: Callable[..., Model], request: pytest.FixtureRequest) -> Model:
    return make_model(num_layers=1, **CONTEXTS[request.param])


@pytest.fixture
def teacher(make_model: Callable[..., Model]) -> FrozenTeacher:
    model = copy.deepcopy(make_model(num_layers=1).backbone).requires_grad_(False)
    torch.manual_seed(3)
    for weight in model.parameters():
        weight.add_(0.05 * torch.randn_like(weight))
    return FrozenTeacher(model, Path())


def batch_of(model: Model, folder: Path, name: str, index: int = 0) -> Batch:
    return batches_of(corpus_of(some_pairs(30), folder, model), model, **SFT[name]).draw(index, STAGE)


def texts_of(model: Model, folder: Path, name: str, index: int) -> list[list[np.ndarray]]:
    """The texts of each sequence of that batch."""
    maker = batches_of(corpus_of(some_pairs(30), folder, model), model, **SFT[name])
    packs = [maker._pack(index * STAGE.sequences + row, STAGE.length) for row in range(STAGE.sequences)]
    return [[maker.text(document).tokens for document in pack.tolist()] for pack in packs]


def laws(model: Backbone, tokens: np.ndarray) -> torch.Tensor:
    """The distribution after each token of a text that is read alone, float64 logarithms."""
    ids = torch.from_numpy(tokens)[None]
    with torch.no_grad():
        return model.logits(run_batch(model, ids, BatchLayout.causal(len(tokens))))[0].double().log_softmax(-1)


def expected(model: Backbone, taught: FrozenTeacher, batch: Batch, texts: list[list[np.ndarray]], how: Teaching) -> Any:
    """The loss by its definition, a row at a time, in float64, and how many rows have a teacher."""
    total, num = 0.0, 0
    own = model.logits(run_batch(model, batch.tokens, batch.layout)).double().log_softmax(-1)
    rows = batch.layout.rows
    for b, r in zip(*np.nonzero((batch.target != IGNORE).numpy()), strict=True):
        target, weight = int(batch.target[b, r]), float(batch.weight[b, r]) / batch.norm
        text = texts[b][int(rows.document[b, r])]
        sees_later = rows.span[b, r] >= 0 and rows.horizon[b, r] > len(text) + 64
        if sees_later:
            total = total - weight * (how.kl + how.data) * own[b, r, target]
            continue
        place = int(rows.position[b, r]) + model.config.noisy_offset
        assert text[place] == target
        law = laws(taught.model, text)[place - 1]
        able = torch.isfinite(law)
        away = (law[able].exp() * (law[able] - own[b, r][able])).sum()
        total, num = total + weight * (how.kl * away - how.data * own[b, r, target]), num + 1
    return total, num


@pytest.mark.parametrize(("student", "name"), [(n, n) for n in CONTEXTS], indirect=["student"])
def test_the_loss_and_its_gradients_are_those_of_the_definition(
    student: Model, teacher: FrozenTeacher, tmp_path: Path, name: str
) -> None:
    model, how = student.backbone.requires_grad_(True), Teaching(kl=0.7, data=0.4, rows=5)
    texts = texts_of(student, tmp_path, name, 1)
    batch = batch_of(student, tmp_path, name, 1)
    report = TaughtLoss(how, teacher)(model, batch)
    report.loss.backward()
    found = {n: weight.grad.clone() for n, weight in model.named_parameters() if weight.grad is not None}
    model.zero_grad()
    total, num = expected(model, teacher, batch, texts, how)
    total.backward()
    assert num > 10 and num == int(TaughtRows.of(batch).taught.sum())
    assert float(report.loss.detach()) == pytest.approx(float(total.detach()), rel=1e-4)
    for n, weight in model.named_parameters():
        if weight.grad is not None:
            assert torch.allclose(found[n], weight.grad, rtol=1e-3, atol=1e-6), n
    assert (name == "gaps") == bool((~TaughtRows.of(batch).taught).any())


class Largest(TorchDispatchMode):
    """Watches how many numbers the largest tensor has that an operation makes."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        made = out if isinstance(out, tuple | list) else [out]
        self.numbers = max([self.numbers, *(each.numel() for each in made if isinstance(each, torch.Tensor))])
        return out


@pytest.mark.parametrize("student", ["causal"], indirect=True)
def test_memory_does_not_grow_with_rows_times_vocabulary(student: Model, teacher: FrozenTeacher) -> None:
    model, largest = student.backbone.requires_grad_(True), dict[int, int]()
    config, generator = model.config, torch.Generator().manual_seed(0)
    for num in (16, 48):
        states, hidden = (torch.randn(num, config.width, generator=generator) for _ in range(2))
        hidden.requires_grad_()
        target = torch.randint(16, config.vocab_size, (num,), generator=generator)
        weight = torch.rand(num, generator=generator)
        told = TaughtTokens(states, torch.arange(num) % 5 != 0, target, weight, 0.3 * weight)
        with Largest() as watched:
            loss, terms = taught_terms(model, teacher.model, hidden, told, rows=8)
            (3.0 * loss).backward()
        largest[num] = watched.numbers
        found = hidden.grad, model.projection.grad
        hidden.grad = model.projection.grad = None
        whole = terms_of(model, teacher.model, hidden, told)
        (3.0 * (told.of_kl * whole[0] + told.of_data * whole[1]).sum()).backward()
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(terms, whole, strict=True))
        for a, b in zip(found, (hidden.grad, model.projection.grad), strict=True):
            assert a is not None and b is not None and torch.allclose(a, b, atol=1e-5)
        model.projection.grad = None
    assert largest[16] == largest[48] == config.vocab_size * max(8, config.width)
