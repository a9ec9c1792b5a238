"""The optimizer, its learning-rate factor, and the average of the weights."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from conftest import tiny_config
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.batched import BatchLayout, run_batch
from daguerre.models.core.config import ConceptShape
from daguerre.models.tokenizer import Tokenizer
from daguerre.train import optim
from daguerre.train.optim import Average, Muon, Optimizer, lr_factor, orthogonalized, repeat_factor
from daguerre.train.recipe import Optimization


@pytest.fixture
def model(tokenizer: Tokenizer) -> Backbone:
    return Backbone(tiny_config(tokenizer)).initialize(0, zero_outputs=False)


def learn(model: Backbone, optimizer: Optimizer, num: int, progress: float = 0.3) -> list[float]:
    tokens = torch.randint(16, 60, (2, 17), generator=torch.Generator().manual_seed(0))
    losses = []
    for _ in range(num):
        logits = model.logits(run_batch(model, tokens[:, :-1], BatchLayout.causal(16, batch=2)))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step(progress)
        losses.append(loss.item())
    return losses


def test_rates_fall_with_the_square_of_passes_after_the_limit() -> None:
    assert [repeat_factor(passes, 1.0) for passes in (0.0, 1.0, 2.0, 4.0)] == [1.0, 1.0, 0.25, 0.0625]
    assert [repeat_factor(passes, 0.0) for passes in (0.0, 100.0)] == [1.0, 1.0]


def test_the_factor_rises_stays_and_falls_to_zero() -> None:
    points = {0.0: 0.0, 0.05: 0.5, 0.1: 1.0, 0.3: 1.0, 0.5: 1.0, 0.75: 0.5, 0.999: 0.002, 1.0: 0.0, 1.1: 0.0}
    for progress, factor in points.items():
        assert lr_factor(progress, warmup=0.1, decay=0.5) == pytest.approx(factor)


def test_a_factor_without_warmup_or_decay_is_one() -> None:
    assert [lr_factor(progress, 0.0, 0.0) for progress in (0.0, 0.5, 1.0)] == [1.0, 1.0, 1.0]


def test_warmup_and_decay_that_overlap_give_the_lower_of_both() -> None:
    assert lr_factor(0.3, warmup=0.6, decay=0.9) == pytest.approx(0.5)
    assert lr_factor(0.7, warmup=0.6, decay=0.9) == pytest.approx(1 / 3)


def test_concept_heads_have_a_rate_of_their_own(make_model: Any) -> None:
    shape = ConceptShape(known=4, discovered=6, rank=3, kept_known=2, kept_discovered=3)
    model = make_model(concepts=shape).backbone.requires_grad_(True)
    optimizer = Optimizer(model, Optimization(adamw_lr=0.1, concepts_lr=0.5, warmup=0.0, decay=0.0))
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    optimizer.step(0.5)
    moved = {name: float((weight.detach() - before[name]).abs().max()) for name, weight in model.named_parameters()}
    assert moved["embedding.weight"] == pytest.approx(0.1, rel=1e-3)
    assert {name for name, size in moved.items() if size > 0.4} == {n for n in moved if n.startswith("concepts.")}


def test_hidden_matrices_go_to_muon_and_everything_else_to_adamw(model: Backbone) -> None:
    muon, adamw = Optimizer(model, Optimization()).parts
    ids = [{id(p) for group in part.param_groups for p in group["params"]} for part, _ in (muon, adamw)]
    hidden = {id(p) for n, p in model.named_parameters() if n.startswith("layers.") and p.ndim == 2}
    assert len(hidden) == 8
    assert ids[0] == hidden
    assert ids[1] == {id(p) for p in model.parameters()} - hidden


def test_a_step_uses_the_rates_of_the_options_times_the_factor(model: Backbone) -> None:
    options = Optimization(muon_lr=0.3, adamw_lr=0.1, warmup=0.5, decay=0.5)
    optimizer = Optimizer(model, options)
    assert optimizer.step(0.25) == pytest.approx(0.5)
    assert [part.param_groups[0]["lr"] for part, _ in optimizer.parts] == pytest.approx([0.15, 0.05])


def random_matrices() -> list[torch.nn.Parameter]:
    """Wide, square and tall, with gradients of unlike sizes."""
    generator, out = torch.Generator().manual_seed(0), []
    for rows, columns in ((8, 20), (12, 12), (24, 6)):
        matrix = torch.nn.Parameter(torch.randn(rows, columns, generator=generator))
        matrix.grad = rows * torch.randn(rows, columns, generator=generator)
        out.append(matrix)
    return out


def test_muon_is_pytorch_s_in_bfloat16_and_goes_on_from_its_state() -> None:
    ours, theirs, restored = random_matrices(), random_matrices(), random_matrices()
    options = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.2}
    muon, pytorch = Muon(ours, **options, dtype=torch.bfloat16), torch.optim.Muon(theirs, **options)
    for _ in range(3):
        muon.step()
        pytorch.step()
    other = Muon(restored, **options, dtype=torch.bfloat16)
    other.load_state_dict(copy.deepcopy(pytorch.state_dict()))
    for a, b in zip(restored, theirs, strict=True):
        a.data.copy_(b)
    for optimizer in (muon, pytorch, other):
        optimizer.step()
    for a, b, c in zip(ours, theirs, restored, strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-6)
        assert torch.allclose(a, c, rtol=1e-5, atol=1e-6)
        assert not torch.allclose(a, b + 0.01 * b.grad.sign())  # type: ignore[union-attr]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_orthogonalized_matrix_keeps_its_singular_vectors_and_has_values_of_about_one(dtype: torch.dtype) -> None:
    for matrix in random_matrices():
        left, values, right = torch.linalg.svd(matrix.detach(), full_matrices=False)
        found = left.T @ orthogonalized(matrix.detach(), dtype).float() @ right.T
        assert values.max() > 1.5 * values.min()
        assert (found - torch.diag(found.diagonal())).abs().max() < (1e-4 if dtype is torch.float32 else 0.1)
        assert 0.5 < found.diagonal().min() <= found.diagonal().max() < 1.5


@pytest.mark.parametrize("native", [torch.float32, torch.bfloat16])
def test_muon_multiplies_what_the_processor_multiplies(
    model: Backbone, monkeypatch: pytest.MonkeyPatch, native: torch.dtype
) -> None:
    monkeypatch.setattr(optim, "native_dtype", lambda device: native)
    seen = set[torch.dtype]()
    original = optim.orthogonalized

    def watched(matrix: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        out = original(matrix, dtype)
        seen.add(out.dtype)
        return out

    monkeypatch.setattr(optim, "orthogonalized", watched)
    losses = learn(model, Optimizer(model, Optimization()), 10)
    assert seen == {native}
    assert losses[-1] < 0.9 * losses[0]


def test_training_learns_and_clears_its_gradients(model: Backbone) -> None:
    losses = learn(model, Optimizer(model, Optimization()), 25)
    assert losses[-1] < 0.5 * losses[0]
    assert all(p.grad is None for p in model.parameters())


def test_a_factor_of_zero_changes_nothing(model: Backbone) -> None:
    before = copy.deepcopy(model.state_dict())
    learn(model, Optimizer(model, Optimization()), 1, progress=1.0)
    assert all(torch.equal(before[n], p) for n, p in model.state_dict().items())


def test_a_restored_optimizer_goes_on_bit_for_bit(model: Backbone, tokenizer: Tokenizer) -> None:
    optimizer = Optimizer(model, Optimization())
    learn(model, optimizer, 3)
    other = Backbone(tiny_config(tokenizer))
    other.load_state_dict(model.state_dict())
    restored = Optimizer(other, Optimization())
    restored.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert learn(model, optimizer, 3) == learn(other, restored, 3)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_the_average_is_a_mean_at_first_and_then_exponential() -> None:
    line = torch.nn.Linear(1, 1, bias=False)
    average, expected = Average(line, decay=0.5), line.weight.item()
    for step in range(1, 40):
        with torch.no_grad():
            line.weight.fill_(float(step))
        average.update(line)
        decay = min(0.5, step / (step + 10))
        expected = decay * expected + (1 - decay) * step
        assert average.values["weight"].item() == pytest.approx(expected, rel=1e-5)
    assert average.count == 39
    assert expected == pytest.approx(38.0)


def test_the_average_keeps_a_copy() -> None:
    line = torch.nn.Linear(2, 2)
    average = Average(line, decay=0.9)
    with torch.no_grad():
        line.weight.zero_()
    assert average.values["weight"].abs().sum() > 0
    assert not average.values["weight"].requires_grad


def test_without_muon_adamw_moves_all_weights(tokenizer: Tokenizer) -> None:
    model = Backbone(tiny_config(tokenizer))
    parts = Optimizer(model, Optimization(muon=False, adamw_lr=0.01)).parts
    assert [type(part) for part, _ in parts] == [torch.optim.AdamW]
    moved = {id(weight) for group in parts[0][0].param_groups for weight in group["params"]}
    assert moved == {id(weight) for weight in model.parameters()}
