"""The loss of pairs against closed forms, enumeration and scoring."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from answers import STAGE, masked_loss
from daguerre.errors import InputError, UnsupportedError
from daguerre.model import Model
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.batched import BatchLayout, run_batch
from daguerre.models.denoiser import BackboneDenoiser
from daguerre.scoring.likelihood import score_tokens
from daguerre.train.prefer.batches import PairBatch
from daguerre.train.prefer.loss import AnswerLogProbs, PreferenceLoss, log_probs_of, preference, prompt_rows
from daguerre.train.prefer.masks import COMMON, noised_views
from daguerre.train.prefer.options import Prefer, pair_loss
from daguerre.train.sft.texts import AnswerSpan, Text
from preferences import pair_batches, some_preferences

CONTEXTS: dict[str, dict[str, Any]] = {
    "full": {"context": "full", "shift": False},
    "full_shifted": {"context": "full"},
    "block": {"context": "block", "shift": False, "block_size": 4},
}
SHORT = [
    {"prompt": "name = ", "chosen": "count [ ]", "rejected": "( value"},
    {"prompt": "index -> ", "chosen": "if not in", "rejected": "for"},
    {"prompt": "total", "chosen": " : return", "rejected": " + - +"},
]


def log_probs(model: Backbone, batch: PairBatch) -> AnswerLogProbs:
    return log_probs_of(model, batch, run_batch(model, batch.tokens, batch.layout))


def probs(*values: float) -> AnswerLogProbs:
    return AnswerLogProbs(torch.tensor(values), torch.tensor(values)[:, None])


def test_the_loss_is_that_of_the_closed_form() -> None:
    """Two pairs, by hand: margins (-1 + 3) - (-2 + 2.5) = 1.5 and (-4 + 3) - (-5 + 5) = -1."""
    found, start = probs(-1.0, -3.0, -4.0, -3.0), probs(-2.0, -2.5, -5.0, -5.0)
    sizes = torch.tensor([2, 3, 4, 5])

    def log_sigmoid(x: float) -> float:
        return -math.log1p(math.exp(-x))

    loss, parts = preference(found, start, sizes, Prefer(beta=0.2))
    wanted = -(log_sigmoid(0.2 * 1.5) + log_sigmoid(-0.2 * 1.0)) / 2
    assert loss.item() == pytest.approx(wanted)
    assert parts["margin"] == pytest.approx(0.2 * 0.25) and parts["accuracy"] == 0.5
    assert parts["chosen"] == pytest.approx(0.2 * 1.0) and parts["rejected"] == pytest.approx(0.2 * 0.75)
    assert parts["drift"] == pytest.approx((-14.5 + 11) / 14)
    smooth, _ = preference(found, start, sizes, Prefer(beta=0.2, smoothing=0.1, sft=0.5))
    other = -(log_sigmoid(-0.2 * 1.5) + log_sigmoid(0.2 * 1.0)) / 2
    assert smooth.item() == pytest.approx(0.9 * wanted + 0.1 * other + 0.5 * (1 / 2 + 4 / 4) / 2)


def test_log_probabilities_are_exact_in_causal_context(make_model: Callable[..., Model], tmp_path: Path) -> None:
    model = make_model()
    made = pair_batches(some_preferences(9), tmp_path, model)
    batch = made.draw(0, STAGE)
    assert batch.times == 0
    with torch.no_grad():
        found = log_probs(model.backbone, batch)
    backend = BackboneDenoiser(model.backbone, backend="torch").backend
    for number in range(STAGE.sequences):
        pair = made._pair(number, STAGE.length)
        for side in (0, 1):
            text = made.text(2 * pair + side)
            given = int(np.flatnonzero(text.answer)[0])
            wanted = score_tokens(backend, text.tokens.tolist(), given=given, kind="ar").value
            assert -found.mean[2 * number + side].item() == pytest.approx(wanted, rel=1e-4)
            assert batch.sizes[2 * number + side] == text.answer.sum()


def enumerated(model: Model, text: Text) -> float:
    """The bound of an answer: the mean over sizes and masks of size / masked times the log-probability of what is
    masked, block after block."""
    size = model.config.block_size if model.config.context == "block" else len(text.tokens)
    assert size is not None
    total = 0.0
    for start in range(0, len(text.tokens), size):
        places = [place for place in range(start, min(start + size, len(text.tokens))) if text.answer[place]]
        for k in range(1, len(places) + 1):
            masks = list(combinations(places, k))
            for masked in masks:
                loss = sum(masked_loss(model, text, masked).values())
                total -= loss * len(places) / k / len(places) / len(masks)
    return total


@pytest.mark.parametrize("antithetic", [False, True])
@pytest.mark.parametrize("name", CONTEXTS)
def test_the_mean_of_estimates_is_the_bound_by_enumeration(
    make_model: Callable[..., Model], tmp_path: Path, name: str, antithetic: bool
) -> None:
    model = make_model(**CONTEXTS[name])
    made = pair_batches(SHORT, tmp_path, model, times=40, antithetic=antithetic, ends=False)
    estimates = []
    with torch.no_grad():
        for index in range(12):
            batch = made.draw(made.shard.num_documents // 2 * index, SimpleNamespace(length=64, sequences=1))  # type: ignore[arg-type]
            estimates.append(log_probs(model.backbone, batch).mean.numpy())
    first = made._pair(0, 64)
    same = [i for i in range(12) if made._pair(made.shard.num_documents // 2 * i, 64) == first]
    values = np.array([estimates[i] for i in same])
    assert len(values) >= 3
    for side in (0, 1):
        wanted = enumerated(model, made.text(2 * first + side))
        error = values[:, side].std(ddof=1) / np.sqrt(len(values)) + 1e-3 * abs(wanted)
        assert abs(values[:, side].mean() - wanted) < 5 * error, (wanted, values[:, side])


def test_the_weights_of_masks_make_every_size_as_likely() -> None:
    """A token's weights have the sum 1 on average, and in antithetic views without chance where tokens are alike."""
    span = AnswerSpan(0, 6, np.array([False, True, True, True, True, True]))
    rng = np.random.default_rng(0)
    for antithetic in (False, True):
        total = np.zeros(6)
        for _ in range(2000):
            views = noised_views([span], 2, antithetic, rng)
            assert len(views) == (5 if antithetic else 2)
            for (one,) in views:
                assert 1 <= one.masked.sum() <= 5 and not one.masked[0]
                total += one.masked * one.weight / 2000
        assert np.abs(total[1:] - 1).max() < 0.06
    whole, first, rest, *_ = (view[0] for view in noised_views([span], 2, True, rng))
    assert whole.draw == COMMON and (first.draw, rest.draw) == (0, 0)
    assert np.array_equal(first.masked ^ rest.masked, span.free)


def test_a_single_token_is_masked_whatever_is_drawn() -> None:
    span = AnswerSpan(0, 2, np.array([False, True]))
    rng = np.random.default_rng(0)
    for antithetic in (False, True):
        views = noised_views([span], 3, antithetic, rng)
        assert sum(one.weight for view in views for one in view) == pytest.approx(1.0)


@pytest.mark.parametrize("name", CONTEXTS)
def test_margins_are_0_at_the_start_and_shared_masks_vary_less(
    make_model: Callable[..., Model], tmp_path: Path, name: str
) -> None:
    """With the same masks for both, the model as it was has a margin of exactly 0, and one that has changed a little
    one that masks move far less than with masks of their own."""
    model = make_model(**CONTEXTS[name])
    made = pair_batches(some_preferences(4), tmp_path, model, times=1, antithetic=False)
    loss = PreferenceLoss(made.options, model.backbone)
    batch = made.draw(0, STAGE)
    report = loss(model.backbone, batch)
    assert report.loss.item() == pytest.approx(math.log(2), abs=1e-6) and report.parts["accuracy"] == 0.5
    changed = copy.deepcopy(model.backbone)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in changed.parameters():
            weight += 0.02 * weight.abs().mean() * torch.randn(weight.shape, generator=generator)
        stage: Any = SimpleNamespace(length=64, sequences=1)
        num = made.shard.num_documents // 2
        batches = [made.draw(index, stage) for index in range(40 * num) if made._pair(index, 64) == 0]
        now = [log_probs(changed, each).margins().mean.item() for each in batches]
        before = [log_probs(model.backbone, each).margins().mean.item() for each in batches]
    assert len(batches) >= 30
    shared = np.subtract(now, before).var()
    apart = np.subtract(now, np.roll(before, 1)).var()
    assert shared < 0.1 * apart


def test_antithetic_masks_vary_less(make_model: Callable[..., Model], tmp_path: Path) -> None:
    """At as many forwards: two pairs and everything, or five masks."""
    model = make_model(**CONTEXTS["full"])
    spread = {}
    for antithetic, times in ((True, 2), (False, 5)):
        made = pair_batches(SHORT, tmp_path / str(times), model, times=times, antithetic=antithetic)
        stage: Any = SimpleNamespace(length=64, sequences=1)
        with torch.no_grad():
            found = [
                log_probs(model.backbone, made.draw(index, stage)).mean.numpy()
                for index in range(200)
                if made._pair(index, 64) == 0
            ]
        spread[antithetic] = np.array(found).var(axis=0).mean()
    assert spread[True] < 0.8 * spread[False]


def test_the_logged_variance_is_that_of_the_margin(make_model: Callable[..., Model], tmp_path: Path) -> None:
    """Draws of strata are not alone, so the estimate from how they differ is on the safe side."""
    by_draw = torch.tensor([[1.0, 3.0], [2.0, 2.0], [0.0, 0.0], [0.0, 0.0]])
    found = AnswerLogProbs(by_draw.mean(1), by_draw)
    start = AnswerLogProbs(torch.zeros(4), torch.zeros(4, 2))
    _, parts = preference(found, start, torch.ones(4, dtype=torch.int64), Prefer(beta=0.5))
    margins = np.array([1.0 - 2.0, 3.0 - 2.0]) * 0.5
    assert parts["variance"] == pytest.approx((margins.var(ddof=1) / 2 + 0.0) / 2)


def test_the_reference_is_put_in_place_and_taken_out_again(make_model: Callable[..., Model]) -> None:
    model = make_model().backbone.requires_grad_(True)
    loss = PreferenceLoss(Prefer(), model)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    with torch.no_grad():
        for weight in model.parameters():
            weight += 1.0
    with loss.reference.in_place(model):
        assert all(torch.equal(weight, before[name]) for name, weight in model.named_parameters())
    assert all(torch.equal(weight, before[name] + 1.0) for name, weight in model.named_parameters())


def test_models_that_have_no_such_log_probabilities_are_refused(make_model: Callable[..., Model]) -> None:
    for shape, why in (
        ({"context": "reordered", "shift": False}, "reordered context"),
        ({"shift": False}, "predict their own"),
        ({"context": "full", "shift": False, "time_input": True, "process": "uniform"}, "no noise level"),
    ):
        with pytest.raises((UnsupportedError, InputError), match=why):
            pair_loss(make_model(**shape).config)


def test_options_out_of_range_are_refused() -> None:
    for options, why in (
        ({"beta": 0.0}, "beta must be above 0"),
        ({"smoothing": 0.5}, "must be at least 0 and below 0.5"),
        ({"times": 0}, "times must be at least 1"),
        ({"sft": -1.0}, "sft must be at least 0"),
        ({"held_out": 0.0}, "held_out must be above 0 and below 1"),
    ):
        with pytest.raises(InputError, match=why):
            Prefer(**options)


def test_keep_adds_the_divergence_of_next_tokens_of_prompts(make_model: Callable[..., Model], tmp_path: Path) -> None:
    model = make_model()
    model.backbone.requires_grad_(True)
    made = pair_batches(some_preferences(9), tmp_path, model)
    batch = made.draw(0, STAGE)
    prompts = prompt_rows(batch)
    losses = {keep: PreferenceLoss(Prefer(keep=keep), model.backbone) for keep in (0.0, 3.0)}
    assert losses[3.0](model.backbone, batch).parts["away"] == 0
    changed = copy.deepcopy(model.backbone)
    with torch.no_grad():
        for weight in changed.parameters():
            weight.add_(0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)))

    def law(backbone: Backbone, tokens: np.ndarray) -> torch.Tensor:
        with torch.no_grad():
            hidden = run_batch(backbone, torch.from_numpy(tokens)[None], BatchLayout.causal(len(tokens)))
            return backbone.logits(hidden[0]).double().log_softmax(-1)

    away, count = 0.0, 0
    for number in range(STAGE.sequences):
        text = made.text(2 * made._pair(number, STAGE.length))
        given = int(np.flatnonzero(text.answer)[0])
        laws = [law(one, text.tokens[:given]) for one in (model.backbone, changed)]
        able = torch.isfinite(laws[0])
        away += float((laws[0].exp() * (laws[0] - laws[1]))[able].view(given, -1)[: given - 1].sum())
        count += given - 1
        assert prompts[2 * number].tolist() == [place < given - 1 for place in range(prompts.shape[1])]
        assert not prompts[2 * number + 1].any()
    plain, kept = (loss(changed, batch) for loss in losses.values())
    assert kept.parts["away"] == pytest.approx(away / count, rel=1e-4) and away > 0
    assert kept.loss.item() == pytest.approx(plain.loss.item() + 3 * away / count, rel=1e-4)


def test_keep_needs_next_tokens(make_model: Callable[..., Model]) -> None:
    model = make_model(context="block", shift=False, block_size=4)
    with pytest.raises(UnsupportedError, match=r"prefer\.keep needs next tokens"):
        PreferenceLoss(Prefer(keep=1.0), model.backbone)
