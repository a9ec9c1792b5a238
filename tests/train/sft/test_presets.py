"""Each family's loss is its formula, computed from the logits that decoding gives for one text at a time."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from answers import STAGE, batches_of, corpus_of, masked_loss, placed, some_pairs
from daguerre.errors import InputError, UnsupportedError
from daguerre.model import Model
from daguerre.models.core.batched import BatchLayout, Rows, run_batch
from daguerre.models.core.config import ModelConfig
from daguerre.train.batch import Batch, batch_loss
from daguerre.train.sft.batches import AnswerBatches, with_common_norm
from daguerre.train.sft.presets import OF_FAMILY, PRESETS, Sft, answer_loss, preset_for
from daguerre.train.sft.texts import Text, cart_weights, examples_of, spans_of

MakeModel = Callable[..., Model]
FACTS: dict[str, dict[str, Any]] = {
    "llada": {"context": "full", "shift": False},
    "dream": {"context": "full"},
    "block": {"context": "block", "shift": False, "block_size": 8},
    "fast_dllm": {"context": "block", "anchor": "clean", "block_size": 8},
    "nemotron": {"masks_in_place": True, "block_size": 8},
    "causal": {},
}


@pytest.fixture(scope="module")
def shapes(make_model: MakeModel) -> dict[str, Model]:
    return {name: make_model(**facts) for name, facts in FACTS.items()}


def maker_of(model: Model, folder: Path, **options: Any) -> AnswerBatches:
    return batches_of(corpus_of(some_pairs(), folder, model), model, **options)


def texts_of(maker: AnswerBatches, index: int) -> list[Text]:
    """The texts of a micro-batch that are not packed, with what follows them."""
    size = maker.config.block_size
    numbers = [int(maker._pack(index * STAGE.sequences + i, STAGE.length)[0]) for i in range(STAGE.sequences)]
    return [together[0] for together in maker._padded([[maker.text(number)] for number in numbers], size)]


def each_text(model: Model, maker: AnswerBatches, batch: Batch, index: int) -> list[tuple[Text, dict[int, float]]]:
    """Each text of a batch, with the cross-entropy at its masked positions."""
    texts = texts_of(maker, index) * (2 if maker.loss.complementary else 1)
    if maker.loss.complementary:
        texts = [text for text in texts_of(maker, index) for _ in range(2)]
    out = []
    for row, text in enumerate(texts):
        positions, _ = placed(batch, row, model)
        assert text.answer[positions].all()
        out.append((text, masked_loss(model, text, positions.tolist())))
    return out


def total(model: Model, batch: Batch) -> float:
    return float(batch_loss(model.backbone, batch).loss)


def test_llada_divides_by_the_share_and_by_each_answer_s_length(shapes: dict[str, Model], tmp_path: Path) -> None:
    model = shapes["llada"]
    maker = maker_of(model, tmp_path, preset="llada")
    for index in range(4):
        batch = maker.draw(index, STAGE)
        sums = []
        for text, losses in each_text(model, maker, batch, index):
            length = text.answer.sum()
            sums.append(sum(losses.values()) / (len(losses) / length) / length)
        assert total(model, batch) == pytest.approx(np.mean(sums), rel=1e-4)


@pytest.mark.parametrize("preset", ["dream", "dream_cart"])
def test_dream_divides_by_the_number_of_masked_tokens(shapes: dict[str, Model], tmp_path: Path, preset: str) -> None:
    model = shapes["dream"]
    maker = maker_of(model, tmp_path, preset=preset, cart=0.3)
    for index in range(4):
        batch = maker.draw(index, STAGE)
        found, num = 0.0, 0
        for text, losses in each_text(model, maker, batch, index):
            visible = [i for i in range(len(text.tokens)) if i not in losses]
            for i, ce in losses.items():
                near = 0.5 * sum(0.3 * 0.7 ** (abs(i - j) - 1) for j in visible)
                found += ce * (near if preset == "dream_cart" else text.answer.sum() / len(losses))
            num += len(losses)
        assert total(model, batch) == pytest.approx(found / num, rel=1e-4)


def test_nemotron_is_the_mean_over_the_masked_tokens_of_all_micro_batches_of_a_step(
    shapes: dict[str, Model], tmp_path: Path
) -> None:
    model = shapes["nemotron"]
    maker = maker_of(model, tmp_path, preset="auto", clean=0.0, packing=False)
    assert maker.loss.name == "nemotron"
    batches = [maker.draw(index, STAGE) for index in range(3)]
    assert len({batch.norm for batch in batches}) > 1
    losses: list[float] = []
    for index, batch in enumerate(batches):
        for row, text in enumerate(texts_of(maker, index)):
            for span in spans_of(text, model.config, 8):
                inside = [i for i in placed(batch, row, model)[0].tolist() if span.start <= i < span.end]
                assert span.start not in inside
                losses += in_block(model, text, span.start, span.end, inside)
    step = sum(total(model, batch) for batch in with_common_norm(batches)) / len(batches)
    assert step == pytest.approx(np.mean(losses), rel=1e-4)
    assert step != pytest.approx(np.mean([total(model, batch) for batch in batches]), rel=1e-3)


def in_block(model: Model, text: Text, start: int, end: int, masked: list[int]) -> list[float]:
    """Cross-entropy at masked positions of a block behind its first token, which is visible."""
    cut = Text(text.tokens[:end], text.answer[:end])
    return [masked_loss_behind(model, cut, start, masked)[place] for place in masked]


def masked_loss_behind(model: Model, text: Text, start: int, masked: list[int], shift: int = 0) -> dict[int, float]:
    num = len(text.tokens)
    noisy = text.tokens.copy()
    noisy[masked] = model.config.mask_id
    tokens = torch.from_numpy(np.concatenate([text.tokens[:start], noisy[start:]]))[None]
    span = torch.tensor([[-1] * start + [0] * (num - start)])
    rows, config = Rows.make(torch.arange(num)[None], span=span), model.config
    layout = BatchLayout(rows, num_clean=start, context=config.context, block_size=config.block_size)
    with torch.no_grad():
        logits = model.backbone.logits(run_batch(model.backbone, tokens, layout))[0]
    losses = F.cross_entropy(logits[np.array(masked) - shift], torch.from_numpy(text.tokens[masked]), reduction="none")
    return dict(zip(masked, losses.tolist(), strict=True))


def test_llada2_is_an_unweighted_mean_over_a_mask_and_its_complement(shapes: dict[str, Model], tmp_path: Path) -> None:
    model = shapes["block"]
    maker = maker_of(model, tmp_path, preset="llada2", packing=False)
    shares = []
    for index in range(4):
        batch = maker.draw(index, STAGE)
        each = each_text(model, maker, batch, index)
        assert len(each) == 2 * STAGE.sequences
        losses = [ce for _, found in each for ce in found.values()]
        assert total(model, batch) == pytest.approx(np.mean(losses), rel=1e-4)
        for (text, one), (_, two) in pairs(each):
            assert not one.keys() & two.keys()
            assert sorted([*one, *two]) == np.flatnonzero(text.answer).tolist()
            if text.answer.sum() >= 8:
                shares.append(len(one) / text.answer.sum())
    assert min(shares) > 0.25 and max(shares) < 0.95  # whole blocks of [.3, .8], rounded up


def test_fast_dllm_is_an_unweighted_mean_over_masks_of_blocks_and_their_complements(
    shapes: dict[str, Model], tmp_path: Path
) -> None:
    """The first token of a block, which the last clean row predicts, is never masked."""
    model = shapes["fast_dllm"]
    maker = maker_of(model, tmp_path, preset="fast_dllm", packing=False, clean=0.0)
    for index in range(4):
        batch, losses = maker.draw(index, STAGE), list[float]()
        texts = [text for text in texts_of(maker, index) for _ in range(2)]
        masks = [set(placed(batch, row, model)[0].tolist()) for row in range(len(texts))]
        for text, masked in zip(texts, masks, strict=True):
            for start in range(0, len(text.tokens), 8):
                inside = sorted(i for i in masked if start <= i < start + 8)
                assert start not in inside
                cut = Text(text.tokens[: start + 8], text.answer[: start + 8])
                losses += masked_loss_behind(model, cut, start, inside, 1).values() if inside else []
        assert total(model, batch) == pytest.approx(np.mean(losses), rel=1e-4)
        for text, one, two in zip(texts[::2], masks[::2], masks[1::2], strict=True):
            free = {i for i in np.flatnonzero(text.answer).tolist() if i % 8}
            assert not one & two and one | two == free


def pairs(items: list[Any]) -> list[tuple[Any, Any]]:
    return list(zip(items[::2], items[1::2], strict=True))


def test_sdar_weighs_each_block_by_its_share_and_divides_by_the_answers(
    shapes: dict[str, Model], tmp_path: Path
) -> None:
    model = shapes["block"]
    maker = maker_of(model, tmp_path, preset="sdar", packing=False)
    for index in range(4):
        batch = maker.draw(index, STAGE)
        found, num = 0.0, 0
        for text, losses in each_text(model, maker, batch, index):
            num += text.answer.sum()
            for start in range(0, len(text.tokens), 8):
                inside = [ce for i, ce in losses.items() if start <= i < start + 8]
                free = text.answer[start : start + 8].sum()
                assert bool(inside) == bool(free)
                found += sum(inside) * free / max(1, len(inside))
        assert total(model, batch) == pytest.approx(found / num, rel=1e-4)


def test_next_token_loss_of_answers_is_their_mean_whatever_the_normalizer(
    shapes: dict[str, Model], tmp_path: Path
) -> None:
    model = shapes["causal"]
    values = {}
    for preset in ("ar", "daguerre", "llada", "dream", "nemotron"):
        with_clean, without = (
            maker_of(model, tmp_path / preset, preset=preset, packing=False, clean=clean) for clean in (2.0, 0.0)
        )
        batch = with_clean.draw(0, STAGE)
        texts = texts_of(with_clean, 0)
        for row, text in enumerate(texts):
            assert placed(batch, row, model)[1].tolist() == np.flatnonzero(text.answer).tolist()
        rest = 0.0 if preset == "ar" else total(model, without.draw(0, STAGE))
        values[preset] = total(model, batch) - rest
    read = [model.backbone.logits(run_batch(model.backbone, *as_read(text)))[0] for text in texts]
    nats = [
        F.cross_entropy(r[:-1], torch.from_numpy(t.tokens[1:]), reduction="none")
        for r, t in zip(read, texts, strict=True)
    ]
    answers = torch.cat([each[torch.from_numpy(text.answer[1:])] for each, text in zip(nats, texts, strict=True)])
    assert values["ar"] == pytest.approx(2.0 * float(answers.mean()), rel=1e-4)
    assert list(values.values()) == pytest.approx([values["ar"]] * len(values), rel=1e-4)


def as_read(text: Text) -> tuple[torch.Tensor, BatchLayout]:
    return torch.from_numpy(text.tokens)[None], BatchLayout.causal(len(text.tokens))


def test_the_share_is_exact_and_over_all_levels_and_masks_llada_s_loss_is_the_bound_of_the_answer() -> None:
    """Over levels and orders the loss is sum_k E[CE of k masked] / k over the answer's length, of a table model."""
    config = ModelConfig(
        vocab_size=64, width=8, num_layers=1, num_heads=1, num_kv_heads=1, mlp_width=8, max_positions=64,
        context="full", shift=False, mask_id=3, eos_id=2, bos_id=1, pad_id=0,
    )  # fmt: skip
    text = Text(np.array([1, 20, 21, 22, 23, 2]), np.array([0, 0, 1, 1, 1, 1], dtype=bool))
    loss, num = answer_loss(Sft(preset="llada"), config, None), 4
    rng = np.random.default_rng(0)
    subsets = [m for k in range(1, num + 1) for m in itertools.combinations(range(2, 6), k)]
    table = {m: dict(zip(m, rng.exponential(size=len(m)), strict=True)) for m in subsets}
    expected = sum(np.mean([sum(table[m].values()) for m in subsets if len(m) == k]) / k for k in range(1, num + 1))

    class Order:
        def __init__(self, order: tuple[int, ...]) -> None:
            self.order = order

        def permutation(self, places: np.ndarray) -> np.ndarray:
            return places[list(self.order)]

        def choice(self, sizes: Any) -> int:
            return 8

    found = []
    for level, order in itertools.product(range(num), itertools.permutations(range(num))):
        (example,) = examples_of(text, loss, config, (level + 0.5) / num, Order(order))  # type: ignore[arg-type]
        places = example.position[example.target >= 0].tolist()
        assert len(places) == level + 1
        found.append(sum(example.weight[i] * table[tuple(places)][i] for i in places))
    assert np.mean(found) == pytest.approx(expected, rel=1e-6)


def test_cart_weights_are_half_of_what_is_visible_on_either_side() -> None:
    masked = np.array([0, 1, 1, 0, 1], dtype=bool)
    p = 0.25
    expected = [0.5 * sum(p * (1 - p) ** (abs(i - j) - 1) for j in (0, 3) if j != i) for i in range(5)]
    assert cart_weights(masked, p).tolist() == pytest.approx(expected)


# ---- which preset -------------------------------------------------------------------------------------------------


def test_auto_takes_the_preset_of_the_family_else_of_the_context(shapes: dict[str, Model]) -> None:
    assert {preset_for(shapes["causal"].config, family) for family in OF_FAMILY} == set(OF_FAMILY.values())
    found = {name: preset_for(model.config, None) for name, model in shapes.items()}
    expected = {"llada": "llada", "dream": "dream", "block": "sdar", "fast_dllm": "fast_dllm", "nemotron": "nemotron"}
    assert found == expected | {"causal": "daguerre"}
    assert preset_for(replace(shapes["causal"].config, mask_id=None), "qwen3") == "ar"
    assert set(found.values()) | {"ar", "dream_cart", "llada2"} == set(PRESETS)


def test_a_loss_that_does_not_fit_the_model_is_refused(models: dict[str, Model], shapes: dict[str, Model]) -> None:
    wrong: list[tuple[Model, dict[str, Any], type[Exception], str]] = [
        (models["reordered"], {}, UnsupportedError, "reordered context"),
        (models["block_shifted"], {}, UnsupportedError, "noisy anchor"),
        (shapes["llada"], {"preset": "ar"}, InputError, "causal context and a shift"),
        (shapes["llada"], {"packing": True}, InputError, "packed texts have no padding"),
        (shapes["causal"], {"preset": "ar", "complementary": True}, InputError, "needs masks"),
    ]
    for model, options, kind, message in wrong:
        with pytest.raises(kind, match=message):
            answer_loss(Sft(**options), model.config, None)
    with pytest.raises(InputError, match="no mask token"):
        answer_loss(Sft(preset="llada"), replace(shapes["causal"].config, mask_id=None), None)
    for options, message in (
        ({"preset": "lada"}, "did you mean 'llada'"),
        ({"weight": "carts"}, "did you mean 'cart'"),
        ({"held_out": 0.0}, "held_out"),
    ):
        with pytest.raises(InputError, match=message):
            Sft(**options)
