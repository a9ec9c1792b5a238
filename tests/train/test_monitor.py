"""Held-out figures: exact bits per byte, loss by level, and drafts against greedy text."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from conftest import tiny_config
from daguerre.canvas import Canvas
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.batched import BatchCache, BatchLayout, Rows, run_batch
from daguerre.models.forward import Answer, Ask
from daguerre.models.session import Asking
from daguerre.models.tokenizer import Tokenizer
from daguerre.train import monitor
from daguerre.train.batch import batch_loss, collate
from daguerre.train.examples import make_example
from daguerre.train.monitor import draft_match, greedy_text, held_out, mean_by_level, one_shot_draft
from daguerre.train.noising import NUM_LEVELS, Source
from daguerre.train.objectives import Objective

NUM, PROMPTS, LENGTH = 6, 5, 12


@pytest.fixture(scope="module")
def backbone(tokenizer: Tokenizer) -> Backbone:
    return Backbone(tiny_config(tokenizer)).initialize(0, zero_outputs=False, scale=4.0).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def prompts(backbone: Backbone) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(16, backbone.config.vocab_size, (PROMPTS, LENGTH), generator=generator)


def new_cache(backbone: Backbone) -> BatchCache:
    return BatchCache(backbone.config, LENGTH + NUM, PROMPTS, torch.float32, torch.device("cpu"))


def test_greedy_text_is_that_of_whole_forwards(backbone: Backbone, prompts: Tensor) -> None:
    cache = new_cache(backbone)
    ours, text = greedy_text(backbone, prompts, NUM, cache), prompts
    for _ in range(NUM):
        hidden = run_batch(backbone, text, BatchLayout.causal(text.shape[1], batch=PROMPTS))
        text = torch.cat([text, backbone.logits(hidden[:, -1:]).argmax(-1)], dim=1)
    assert torch.equal(ours, text[:, LENGTH:])
    assert cache.length == LENGTH - 1


def test_a_draft_is_one_training_span_behind_the_prompt(backbone: Backbone, prompts: Tensor) -> None:
    """The same rows as a fully masked span of the training layout, clean and noisy in one forward."""
    cache = new_cache(backbone)
    greedy_text(backbone, prompts, NUM, cache)
    ours = one_shot_draft(backbone, prompts[:, -1:], LENGTH, NUM, cache)
    clean = Rows.make(torch.arange(LENGTH - 1).expand(PROMPTS, -1))
    noisy = Rows.make(torch.arange(LENGTH - 1, LENGTH - 1 + NUM).expand(PROMPTS, -1), span=0, horizon=LENGTH - 1)
    masks = torch.full((PROMPTS, NUM - 1), backbone.config.mask_id)
    layout = BatchLayout(Rows.cat([clean, noisy]), num_clean=LENGTH - 1)
    hidden = run_batch(backbone, torch.cat([prompts, masks], dim=1), layout)
    assert torch.equal(ours, backbone.logits(hidden[:, LENGTH - 1 :]).argmax(-1))


def test_matches_are_counted_by_position_and_cycles_accept_the_longest_matching_start(
    backbone: Backbone, prompts: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    greedy = torch.tensor([[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4]])
    draft = torch.tensor([[1, 2, 9, 4], [9, 2, 3, 4], [1, 2, 3, 4]])
    monkeypatch.setattr(monitor, "greedy_text", lambda *rest: greedy)
    monkeypatch.setattr(monitor, "one_shot_draft", lambda *rest: draft)
    match, accepted = draft_match(backbone, prompts[:3], num=4)
    assert match == pytest.approx([2 / 3, 1, 2 / 3, 1])
    assert accepted == pytest.approx((3 + 1 + 4) / 3)


def test_bits_per_byte_are_exact_and_leave_infilling_out(
    backbone: Backbone, prompts: Tensor, tokenizer: Tokenizer, make_source: Callable[[int, str, int], Source]
) -> None:
    num_bytes = torch.tensor([len(tokenizer.token_bytes(i)) for i in range(tokenizer.vocab_size)])
    batches, nats, text = [], 0.0, 0
    level_sum, level_count = np.zeros(NUM_LEVELS), np.zeros(NUM_LEVELS)
    for layout in ("blocks", "infill", "drafts"):
        objective = Objective(layout=layout)
        sources = [make_source(seed, layout, 40) for seed in range(2)]
        examples = [make_example(source, objective, 0.4, np.random.default_rng(0), 40) for source in sources]
        batches.append(collate(examples, objective, tokenizer.pad_id))
        report = batch_loss(backbone, batches[-1])
        level_sum += report.level_sum
        level_count += report.level_count
        if layout == "infill":
            continue
        for source in sources:
            tokens = torch.from_numpy(source.tokens)[None]
            hidden = run_batch(backbone, tokens, BatchLayout.causal(tokens.shape[1]))
            logp = backbone.logits(hidden).log_softmax(-1)
            nats -= float(logp[0, :-1].gather(-1, tokens[0, 1:, None]).sum())
            text += len(tokenizer.decode_bytes(source.tokens.tolist()))
    held = held_out(backbone, batches, prompts, num_bytes, "sdpa")
    assert held.clean_bpb == pytest.approx(nats / math.log(2) / text, rel=1e-5)
    with np.errstate(invalid="ignore"):
        bits = level_sum / level_count / math.log(2)
    assert held.masked_by_level == pytest.approx(bits, rel=1e-5, nan_ok=True)
    assert len(held.draft_match) == 16
    assert 1 <= held.accepted <= 16


def test_a_level_without_masks_has_no_loss_rather_than_none_at_all() -> None:
    means = mean_by_level(np.array([6.0, 0.0]), np.array([3, 0]))
    assert means[0] == 2.0
    assert math.isnan(means[1])


def test_without_a_text_read_as_a_whole_there_are_no_bits_per_byte(
    backbone: Backbone, prompts: Tensor, tokenizer: Tokenizer
) -> None:
    held = held_out(backbone, [], prompts, torch.ones(tokenizer.vocab_size), "sdpa")
    assert math.isnan(held.clean_bpb)


def test_the_end_of_a_gap_is_measured_behind_its_text_and_before_its_last_token(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A denoiser that knows where the gap ends: its text has 8 tokens, in the middle, and 8 positions are surplus."""
    text = np.arange(100, 140)
    null = backbone.config.null_id
    assert null is not None

    class Knowing:
        def __init__(self, model: Backbone, backend: str) -> None:
            assert (model, backend) == (backbone, "torch")
            self.backend = None

        def session(self, canvas: Canvas, cache: str) -> Knowing:
            return self

        def ask(self, canvas: Canvas, positions: np.ndarray, ask: Ask) -> Asking[Answer]:
            yield from ()
            assert canvas.gaps == ((20, 36),)
            (place,) = positions.tolist()
            assert np.array_equal(canvas.tokens[:place], text[:place])
            assert np.array_equal(canvas.tokens[36:], text[28:])
            assert canvas.open.tolist() == [place <= position < 36 for position in range(len(canvas))]
            logits = np.zeros((1, 3 * null), dtype=np.float32)
            logits[0, null] = {28: math.log(3 * null - 1), 27: 0.0}[place]
            return Answer(logits=logits)

    monkeypatch.setattr(monitor, "BackboneDenoiser", Knowing)
    ended, early = monitor.gap_ends(backbone, torch.from_numpy(np.stack([text, text])))
    assert ended == pytest.approx(0.5)
    assert early == pytest.approx(1 / (3 * null))


def test_the_ends_of_gaps_are_measured_for_models_that_end_them_and_on_long_prompts(
    backbone: Backbone, tokenizer: Tokenizer
) -> None:
    prompts = torch.randint(16, 2048, (2, 40), generator=torch.Generator().manual_seed(1))
    assert all(0 < share < 1 for share in monitor.gap_ends(backbone, prompts))
    assert all(math.isnan(share) for share in monitor.gap_ends(backbone, prompts[:, :16]))
    other = Backbone(tiny_config(tokenizer, null_id=None)).eval()
    assert all(math.isnan(share) for share in monitor.gap_ends(other, prompts))
