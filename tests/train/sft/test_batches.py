"""Micro-batches of answers: every text once an epoch, packed without a trace, padded as the policy says."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from answers import STAGE, batches_of, corpus_of, placed, some_pairs, unpacked
from daguerre.errors import DataError
from daguerre.model import Model
from daguerre.train.batch import batch_loss, collate
from daguerre.train.noising import IGNORE, Example
from daguerre.train.sft.batches import joined, packed
from daguerre.train.sft.texts import examples_of

MakeModel = Callable[..., Model]
FACTS: dict[str, dict[str, Any]] = {
    "causal": {},
    "unshifted": {"shift": False},
    "nemotron": {"masks_in_place": True, "block_size": 8},
    "full": {"context": "full"},
    "full_unshifted": {"context": "full", "shift": False},
    "full_timed": {"context": "full", "shift": False, "time_input": True},
    "uniform": {"context": "full", "shift": False, "time_input": True, "process": "uniform"},
    "block": {"context": "block", "shift": False, "block_size": 8},
    "fast_dllm": {"context": "block", "anchor": "clean", "block_size": 8},
}
PACKED = {"padding": "unsupervised", "packing": True}


@pytest.fixture(scope="module")
def shapes(make_model: MakeModel) -> dict[str, Model]:
    return {name: make_model(**facts) for name, facts in FACTS.items()}


def same(one: Any, other: Any) -> bool:
    names = ("tokens", "target", "weight", "level", "time")
    return one.norm == other.norm and all(torch.equal(getattr(one, name), getattr(other, name)) for name in names)


def test_prompts_are_visible_and_no_target_and_every_token_of_an_answer_is_learned(
    shapes: dict[str, Model], tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for name, model in shapes.items():
        with subtests.test(name):
            check_what_is_learned(model, tmp_path / name)


def check_what_is_learned(model: Model, folder: Path) -> None:
    plain = {"packing": False, "padding": "unsupervised", "complementary": False}
    maker = batches_of(corpus_of(some_pairs(6), folder, model), model, **plain)
    config, learned = model.config, dict[int, set[int]]()
    for index in range(40):
        batch = maker.draw(index, STAGE)
        for row in range(STAGE.sequences):
            document = int(maker._pack(index * STAGE.sequences + row, 64)[0])
            text = maker.text(document)
            noisy, clean = placed(batch, row, model)
            assert text.answer[noisy[noisy < len(text.tokens)]].all() and text.answer[clean].all()
            learned.setdefault(document, set()).update(noisy.tolist(), clean.tolist())
            rows = batch.layout.rows
            inside = (rows.span[row] >= 0) & (rows.position[row] < len(text.tokens))
            given = torch.from_numpy(~text.answer)[rows.position[row].clamp(max=len(text.tokens) - 1)]
            seen = batch.tokens[row][inside & given]
            assert torch.equal(seen, torch.from_numpy(text.tokens)[rows.position[row][inside & given]])
            assert config.mask_id not in seen.tolist()
    assert len(learned) >= 4
    for document, places in learned.items():
        assert sorted(places) == np.flatnonzero(maker.text(document).answer).tolist()


def test_a_micro_batch_is_a_function_of_seed_and_number(shapes: dict[str, Model], tmp_path: Path) -> None:
    model = shapes["causal"]
    shard = corpus_of(some_pairs(), tmp_path, model)
    one, other = (batches_of(shard, model) for _ in range(2))
    later = one.draw(5, STAGE)
    for maker in (other, pickle.loads(pickle.dumps(one))):  # as other processes have it
        for index in (3, 0, 5):
            assert same(one.draw(index, STAGE), maker.draw(index, STAGE))
    assert same(later, one.draw(5, STAGE))
    assert not same(one.draw(0, STAGE), batches_of(shard, model, seed=1).draw(0, STAGE))


def test_an_epoch_has_every_text_once_and_the_next_one_has_another_order(
    shapes: dict[str, Model], tmp_path: Path
) -> None:
    model = shapes["causal"]
    for packing in (False, True):
        shard = corpus_of(some_pairs(40), tmp_path / str(packing), model)
        maker = batches_of(shard, model, packing=packing)
        num = len(maker._packs(64))
        epochs = [[maker._pack(e * num + i, 64).tolist() for i in range(num)] for e in range(2)]
        for epoch in epochs:
            assert sorted(chain(*epoch)) == list(range(shard.num_documents))
        assert epochs[0] != epochs[1]
        assert packing == (num < shard.num_documents)


def test_packs_are_no_longer_than_the_stage_and_nearly_full() -> None:
    rng = np.random.default_rng(0)
    sizes = rng.integers(5, 60, 400)
    groups = list(packed(rng.permutation(400), sizes, 64))
    filled = [int(sizes[group].sum()) for group in groups]
    assert max(filled) <= 64
    assert sum(filled) > 0.9 * 64 * len(groups)
    assert sorted(np.concatenate(groups).tolist()) == list(range(400))


def test_a_packed_text_has_the_loss_and_the_gradients_that_it_has_alone(
    shapes: dict[str, Model], tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for name, model in shapes.items():
        with subtests.test(name):
            check_a_packed_text(model, tmp_path / name)


def check_a_packed_text(model: Model, folder: Path) -> None:
    maker = batches_of(corpus_of(some_pairs(6), folder, model), model, **PACKED, clean=0.7)
    size = model.config.block_size
    texts = [maker._padded([[maker.text(i)]], size)[0][0] for i in range(4)]

    def made() -> list[Example]:
        return [
            examples_of(text, maker.loss, model.config, 0.4, np.random.default_rng(i), 8)[0]
            for i, text in enumerate(texts)
        ]

    backbone = model.backbone.requires_grad_(True)
    try:
        found = []
        for groups in ([[each] for each in made()], [made()]):
            backbone.zero_grad()
            rows = collate([joined(group) for group in groups], maker.loss.objective, model.config.pad_id)
            report = batch_loss(backbone, replace(rows, norm=1.0))
            report.loss.backward()
            gradients = {n: p.grad.clone() for n, p in backbone.named_parameters() if p.grad is not None}
            found.append((float(report.loss.detach()), rows.num_tokens, gradients))
    finally:
        backbone.requires_grad_(False)
    (alone, num, one), (together, same_num, other) = found
    assert num == same_num == sum(len(text.tokens) for text in texts)
    assert together == pytest.approx(alone, rel=1e-5)
    assert one.keys() == other.keys() and len(one) > 10
    for key, gradient in one.items():
        assert torch.allclose(gradient, other[key], rtol=1e-3, atol=1e-4 * float(gradient.abs().max()) + 1e-9), key


def test_a_text_that_sees_its_neighbor_would_have_another_loss(shapes: dict[str, Model], tmp_path: Path) -> None:
    """The test above can fail: without the labels of documents it does."""
    model = shapes["causal"]
    maker = batches_of(corpus_of(some_pairs(6), tmp_path, model), model, **PACKED)
    made = [examples_of(maker.text(i), maker.loss, model.config, 0.4, np.random.default_rng(i), 8)[0] for i in range(3)]
    rows = collate([joined(made)], maker.loss.objective, model.config.pad_id)
    blind = replace(rows.layout.rows, document=torch.zeros_like(rows.layout.rows.document))
    leaking = replace(rows, layout=replace(rows.layout, rows=blind))
    apart, leaked = (float(batch_loss(model.backbone, each).loss) for each in (rows, leaking))
    assert abs(apart - leaked) > 1e-3 * apart


# ---- padding ------------------------------------------------------------------------------------------------------


def test_an_answer_is_padded_to_the_longest_text_with_what_the_policy_says(
    shapes: dict[str, Model], tmp_path: Path
) -> None:
    model = shapes["full_unshifted"]
    shard = corpus_of(some_pairs(), tmp_path, model)
    longest = 0
    for policy, rainbow in (("unsupervised", ()), ("supervised", ()), ("rainbow", (5, 6, 7))):
        maker = replace(batches_of(shard, model, packing=False, padding=policy), rainbow=rainbow)
        batch = maker.draw(0, STAGE)
        texts = [maker.text(int(maker._pack(i, 64)[0])) for i in range(3)]
        longest = max(len(text.tokens) for text in texts)
        assert batch.tokens.shape == (3, longest)
        for row, text in enumerate(texts):
            num = len(text.tokens)
            behind = slice(num, None)
            seen = (batch.layout.rows.span[row] >= 0).tolist()
            assert seen == [True] * num + [policy != "unsupervised"] * (longest - num)
            filled = maker._padded([[text], [max(texts, key=lambda t: len(t.tokens))]], None)[0][0]
            assert filled.answer[behind].all()
            kinds = {"unsupervised": [], "supervised": [2] * 64, "rainbow": [5, 6, 7] * 22}[policy]
            assert filled.tokens[behind].tolist() == kinds[: len(filled.tokens) - num]
            target = batch.target[row][behind]
            assert bool((target != IGNORE).any()) <= (policy != "unsupervised")
    assert longest > 10


def test_the_last_block_is_whole_and_masks_that_follow_an_answer_are_no_targets(
    shapes: dict[str, Model], tmp_path: Path
) -> None:
    model = shapes["block"]
    shard = corpus_of(some_pairs(), tmp_path, model)
    for policy, trained in (("unsupervised", False), ("supervised", True)):
        maker = batches_of(shard, model, preset="llada2", packing=False, padding=policy)
        batch = maker.draw(1, STAGE)
        for row in range(6):
            text = maker.text(int(maker._pack(3 + row // 2, 64)[0]))
            last = batch.layout.rows.position[row][batch.layout.rows.span[row] >= 0].max()
            assert (int(last) + 1) % 8 == 0
            behind = (batch.layout.rows.position[row] >= len(text.tokens)) & (batch.layout.rows.span[row] >= 0)
            tokens = set(batch.tokens[row][behind].tolist())
            assert tokens <= ({2, 3} if trained else {3})
            assert bool((batch.target[row][behind] != IGNORE).any()) <= trained


def test_stages_may_have_blocks_of_their_own_size_and_texts_must_fit(shapes: dict[str, Model], tmp_path: Path) -> None:
    for name in ("block", "nemotron", "causal"):
        model = shapes[name]
        shard = corpus_of(some_pairs(12), tmp_path / name, model)
        maker = unpacked(batches_of(shard, model))
        for size in (2, 4, 16):
            batch = maker.draw(0, replace(STAGE, block_size=size))
            if name == "block":
                assert batch.layout.block_size == size
            rows = batch.layout.rows
            for row in range(3):
                spans = rows.span[row][rows.span[row] >= 0]
                assert int(spans.bincount().max()) <= size
    with pytest.raises(DataError, match="fits a stage of 4 tokens"):
        maker._packs(4)
    assert len(maker._packs(12)) < len(maker._packs(64))
