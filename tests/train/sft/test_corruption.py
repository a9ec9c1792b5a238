"""Wrong tokens among the visible ones: how many, which, what is learned of them, and what their loss weighs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import daguerre
from answers import RECIPE, SHAPE, STAGE, batches_of, corpus_of, some_pairs, write_rows
from daguerre.errors import DaguerreError, InputError
from daguerre.model import Model
from daguerre.models.core.batched import run_batch
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.batch import Batch, batch_loss
from daguerre.train.noising import IGNORE, REVISED
from daguerre.train.run import DATA, CopiedAnswers
from daguerre.train.self_generated import with_self_generated_tokens
from daguerre.train.sft.corruption import edits, others, plant_edits, plant_hybrid, plant_random
from daguerre.train.sft.method import rainbow_ids
from daguerre.train.sft.presets import Sft, answer_loss
from daguerre.train.shards import Shard
from daguerre.train.stage import CORRUPTIONS
from daguerre.train.trainer import Trainer

MakeModel = Callable[..., Model]
FACTS: dict[str, dict[str, Any]] = {
    "causal": {},
    "nemotron": {"masks_in_place": True, "block_size": 8},
    "full": {"context": "full"},
    "full_unshifted": {"context": "full", "shift": False},
    "block": {"context": "block", "shift": False, "block_size": 8},
    "fast_dllm": {"context": "block", "anchor": "clean", "block_size": 8},
}
KINDS = [kind for kind in CORRUPTIONS if kind != "none"]


@pytest.fixture(scope="module")
def shapes(make_model: MakeModel) -> dict[str, Model]:
    return {name: make_model(**facts) for name, facts in FACTS.items()}


@pytest.fixture(scope="module")
def shard(shapes: dict[str, Model], tmp_path_factory: pytest.TempPathFactory) -> Shard:
    """A corpus of pairs, which all models read."""
    return corpus_of(some_pairs(30), tmp_path_factory.mktemp("pairs"), shapes["causal"])


def batch_of(model: Model, shard: Shard, kind: str, index: int = 0, **options: Any) -> Batch:
    how = {"packing": False, "padding": "unsupervised", "complementary": False, "errors": 0.4} | options
    maker = batches_of(shard, model, **how)
    return maker.draw(index, replace(STAGE, sequences=8, corruption=kind))


def test_what_is_wrong_is_read_and_what_is_right_is_learned(
    shapes: dict[str, Model], shard: Shard, subtests: pytest.Subtests
) -> None:
    """Beside a batch without corruption every prompt is the same, and the row of each wrong token learns the right
    one."""
    for name, kind in product(FACTS, KINDS):
        with subtests.test(name, kind=kind):
            check_what_is_wrong(shapes[name], shard, kind)


def check_what_is_wrong(model: Model, shard: Shard, kind: str) -> None:
    batch = batch_of(model, shard, kind, errors=0.4)
    rows, offset = batch.layout.rows, model.config.noisy_offset
    maker = batches_of(shard, model, packing=False, complementary=False)
    copies, wrong, revised = (2 if kind == "edit" else 1), 0, 0
    for row in range(len(batch.tokens)):
        text = maker.text(int(maker._pack(row // copies, 64)[0]))
        num = len(text.tokens)
        for index in np.flatnonzero((rows.span[row] >= 0).numpy()).tolist():
            place, token = int(rows.position[row, index]), int(batch.tokens[row, index])
            if place < num and token != text.tokens[place]:
                assert text.answer[place]
                planted = token != model.config.mask_id
                wrong += planted
                if planted:
                    assert token in model.config.ordinary_ids or (kind == "edit" and token in text.tokens)
                    learns = (rows.span[row] >= 0) & (rows.position[row] == place - offset)
                    assert text.tokens[place] in batch.target[row][learns & (rows.span[row] == rows.span[row, index])]
            target = int(batch.target[row, index])
            assert target == IGNORE or target == text.tokens[place + offset]
            revised += int(batch.level[row, index]) == REVISED
    guessed = int(batch.guess.sum())
    assert guessed == (revised if kind == "self" else 0)
    assert wrong == (0 if kind == "self" else revised) or kind == "edit"
    assert revised > 1


def test_the_loss_of_corrections_is_their_mean_beside_that_of_masks(
    shapes: dict[str, Model], shard: Shard, subtests: pytest.Subtests
) -> None:
    for preset, kind in product(("llada", "dream", "llada2", "nemotron", "sdar"), KINDS):
        with subtests.test(preset, kind=kind):
            check_the_loss(shapes["nemotron" if preset == "nemotron" else "full_unshifted"], shard, preset, kind)


def check_the_loss(model: Model, shard: Shard, preset: str, kind: str) -> None:
    batch = batch_of(model, shard, kind, preset=preset, complementary=preset == "llada2")
    revised = batch.level == REVISED
    assert float(batch.weight[revised].sum()) == pytest.approx(batch.norm, rel=1e-5)
    assert len(batch.weight[revised].unique()) == 1
    if kind in ("edit", "random"):
        plain = batch_of(model, shard, "none", preset=preset, complementary=preset == "llada2")
        masked = (batch.level >= 0) & (batch.target != IGNORE)
        before = (plain.level >= 0) & (plain.target != IGNORE)
        if preset != "nemotron":  # whose blocks are drawn apart
            assert float(batch.weight[masked].sum()) / batch.norm == pytest.approx(
                float(plain.weight[before].sum()) / plain.norm, rel=1e-5
            )


def test_guesses_are_the_model_s_most_likely_wrong_tokens(
    shapes: dict[str, Model], shard: Shard, subtests: pytest.Subtests
) -> None:
    for name in ("causal", "nemotron", "full", "full_unshifted", "block"):
        with subtests.test(name):
            check_guesses(shapes[name], shard)


def check_guesses(model: Model, shard: Shard) -> None:
    batch = batch_of(model, shard, "self", index=2)
    filled = with_self_generated_tokens(model.backbone, batch)
    guessed = batch.guess.bool()
    assert guessed.any()
    assert torch.equal(filled.tokens[~guessed], batch.tokens[~guessed])
    masked = torch.where(guessed, model.config.mask_id, batch.tokens)
    with torch.no_grad():
        logits = model.backbone.logits(run_batch(model.backbone, masked, batch.layout))
    for row, index in guessed.nonzero().tolist():
        before = index - model.config.noisy_offset
        right = int(batch.target[row, before])
        assert right == int(batch.tokens[row, index])
        allowed = logits[row, before].clone()
        allowed[[right, *model.config.ends]] = float("-inf")
        assert int(filled.tokens[row, index]) == int(allowed.argmax())
    assert np.isfinite(float(batch_loss(model.backbone, filled).loss))


# ---- what is drawn ------------------------------------------------------------------------------------------------


def distance(one: list[int], two: list[int]) -> int:
    """Levenshtein's."""
    last = list(range(len(two) + 1))
    for i, a in enumerate(one, 1):
        new = [i]
        for j, b in enumerate(two, 1):
            new.append(min(last[j] + 1, new[-1] + 1, last[j - 1] + (a != b)))
        last = new
    return last[-1]


def test_edits_are_as_many_as_asked_and_of_three_kinds(shapes: dict[str, Model]) -> None:
    config, rng = shapes["causal"].config, np.random.default_rng(0)
    tokens = rng.choice(config.ordinary_ids, 40)
    lengths, found = set(), []
    for seed in range(60):
        out = edits(tokens, 4, config, np.random.default_rng(seed))
        lengths.add(len(out) - 40)
        found.append(distance(tokens.tolist(), out.tolist()))
    assert max(found) == 4 and np.mean(found) > 3.5
    assert {-2, -1, 0, 1, 2} <= lengths
    assert edits(tokens, 0, config, rng).tolist() == tokens.tolist()
    assert len(edits(tokens[:0], 3, config, rng)) >= 1


def test_edits_leave_prompts_and_lengths_and_are_a_share_of_the_answer(shapes: dict[str, Model]) -> None:
    config, rng = shapes["causal"].config, np.random.default_rng(0)
    tokens = rng.choice(config.ordinary_ids, 50)
    free = np.arange(50) >= 10
    num = []
    for seed in range(80):
        planted = plant_edits(tokens, free, 0.25, config, np.random.default_rng(seed))
        assert planted.read[:10].tolist() == tokens[:10].tolist()
        assert len(planted.read) == 50 and planted.learned.tolist() == free.tolist()
        num.append(distance(planted.read.tolist(), tokens.tolist()))
    assert max(num) <= 2 * 10 and min(num) == 0  # what is cut off or filled up differs, too


def test_other_tokens_are_ordinary_never_the_same_and_drawn_uniformly(shapes: dict[str, Model]) -> None:
    config, rng = replace(shapes["causal"].config, vocab_size=24), np.random.default_rng(0)
    counts = np.zeros(24)
    for token in (16, 20, 23):
        drawn = others(np.full(8000, token), config, rng)
        assert token not in drawn
        counts = np.bincount(drawn, minlength=24)
        assert counts[:16].sum() == 0
        chosen = np.delete(counts[16:], token - 16)
        assert ((chosen - 8000 / 7) ** 2 / (8000 / 7)).sum() < 24  # chi squared, 6 degrees: p = .0005
    assert set(others(np.full(4000, 2), config, rng).tolist()) == set(range(16, 24))  # an end may become any of them


def test_random_and_hybrid_noise_have_their_shares(shapes: dict[str, Model]) -> None:
    config, rng = shapes["causal"].config, np.random.default_rng(0)
    tokens = rng.choice(config.ordinary_ids, 4000)
    visible = np.arange(4000) % 2 == 0
    planted = plant_random(tokens, visible, 0.2, config, rng, False)
    assert not planted.learned[~visible].any()
    assert planted.learned[visible].mean() == pytest.approx(0.2, abs=0.03)
    assert np.array_equal(planted.read != tokens, planted.learned)
    masked, planted = plant_hybrid(tokens, visible, 0.5, 0.2, config, rng)
    assert not (masked & planted.learned).any() and not (masked | planted.learned)[~visible].any()
    assert planted.learned[visible].mean() == pytest.approx(0.2, abs=0.03)  # at t = 1/2 that share is random
    assert masked[visible].mean() == pytest.approx(0.4, abs=0.04)
    masked, _ = plant_hybrid(tokens[:3], np.array([False, True, True]), 1e-9, 0.2, config, rng)
    assert masked.sum() == 1


@pytest.mark.parametrize("t", [0.1, 0.5, 0.8])
def test_hybrid_noise_has_the_shares_of_scdd(shapes: dict[str, Model], t: float) -> None:
    """arXiv 2603.02230: a token is kept from the mask with probability gamma, and is then itself with probability rho
    or any token; as released, rho = (1-t) / (1-t+c) and gamma = (1-t+c) / (1+c), with c of the largest share, .2.
    """
    config, rng = shapes["causal"].config, np.random.default_rng(0)
    tokens, num = rng.choice(config.ordinary_ids, 20_000), len(config.ordinary_ids)
    c = 0.2 / 0.8 * 2 * (t * (1 - t)) ** 0.5
    gamma, rho = (1 - t + c) / (1 + c), (1 - t) / (1 - t + c)
    masked, planted = plant_hybrid(tokens, np.ones(20_000, dtype=bool), t, 0.2, config, rng)
    assert masked.mean() == pytest.approx(1 - gamma, abs=0.015)
    assert planted.learned.mean() == pytest.approx(gamma * (1 - rho) * (1 - 1 / num), abs=0.015)


# ---- runs ---------------------------------------------------------------------------------------------------------


def run(recipe: Any, folder: Path) -> Model:
    file = write_rows(folder / "rows.jsonl", some_pairs(30))
    return daguerre.load(
        Trainer(recipe, folder / "run", CopiedAnswers([file], folder / "run" / DATA, 64, 0.1), quiet=True).run()
    )


def test_a_run_corrupts_in_its_last_fifth_and_grows_its_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stages = tuple(
        replace(STAGE, until=until, block_size=size, corruption=kind, micro_batches=1)
        for until, size, kind in ((0.4, 4, "none"), (0.8, 8, "none"), (1.0, 16, "edit"))
    )
    shape = replace(SHAPE, context="block", shift=False, block_size=8)
    seen = list[tuple[int | None, bool]]()
    gradients = Trainer._gradients

    def watched(made: Trainer, batch: Batch, *rest: Any) -> Any:
        seen.append((batch.layout.block_size, bool((batch.level == REVISED).any())))
        return gradients(made, batch, *rest)

    monkeypatch.setattr(Trainer, "_gradients", watched)
    model = run(replace(RECIPE, model=shape, stages=stages, steps=5, eval_steps=0), tmp_path)
    assert seen == [(4, False)] * 2 + [(8, False)] * 2 + [(16, True)]
    assert model.config.block_size == 16


def test_rainbow_tokens_are_learned_and_end_a_text(tmp_path: Path) -> None:
    shape = replace(SHAPE, context="full", shift=False)
    options = Sft(padding="rainbow", rainbow=3)
    model = run(replace(RECIPE, model=shape, sft=options, steps=2, eval_steps=0), tmp_path)
    assert model.config.end_ids == (5, 6, 7)
    assert not {5, 6, 7} & set(model.config.unpredictable_ids)


def test_too_few_spare_tokens_and_corruption_without_masks_are_refused(
    shapes: dict[str, Model], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    config = shapes["full_unshifted"].config
    options = Sft(padding="rainbow", rainbow=12)
    with pytest.raises(InputError, match=r"11 ids that no token has, and sft.rainbow asks for 12"):
        rainbow_ids(options, answer_loss(Sft(padding="rainbow"), config, None), tokenizer)
    stages = (replace(STAGE, corruption="random"),)
    with pytest.raises(DaguerreError, match="corruption is planted among masks"):
        run(replace(RECIPE, sft=Sft(preset="ar"), stages=stages), tmp_path)
    with pytest.raises(InputError, match="did you mean 'edit'"):
        replace(STAGE, corruption="edits")
