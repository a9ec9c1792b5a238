"""Self-generated tokens in a batch: greedy text behind every anchor row, and wrong guesses among visible tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from daguerre.errors import InputError
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.batched import BatchLayout, run_batch
from daguerre.models.core.config import ModelConfig
from daguerre.train.batch import Batch, batch_loss, collate, entropy
from daguerre.train.examples import make_example
from daguerre.train.noising import IGNORE, REVISED, Source
from daguerre.train.objectives import Objective
from daguerre.train.self_generated import with_self_generated_tokens

PAD, BOS, EOS, MASK, NULL, VOCAB, RESERVED = 0, 1, 2, 3, 4, 48, 16


@pytest.fixture(scope="module")
def model() -> Backbone:
    config = ModelConfig(
        vocab_size=VOCAB,
        width=32,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        mlp_width=48,
        max_positions=256,
        mask_id=MASK,
        eos_id=EOS,
        bos_id=BOS,
        pad_id=PAD,
        null_id=NULL,
    )
    return Backbone(config).initialize(0, zero_outputs=False, scale=3.0)


def make_batch(objective: Objective, lengths: tuple[int, ...] = (40, 25, 33), budget: int = 60) -> Batch:
    examples = []
    for seed, length in enumerate(lengths):
        rng = np.random.default_rng(seed)
        tokens = rng.integers(RESERVED, VOCAB, length)
        tokens[0] = BOS
        source = Source(tokens, MASK, NULL, (RESERVED, VOCAB), gaps=((4, 9), (14, 20)))
        examples.append(make_example(source, objective, 0.3, rng, budget))
    return collate(examples, objective, PAD)


def greedy(model: Backbone, prompt: torch.Tensor, num: int) -> list[int]:
    """One token at a time, everything computed again."""
    out: list[int] = []
    for _ in range(num):
        tokens = torch.cat([prompt, torch.tensor(out, dtype=torch.int64)])[None]
        with torch.no_grad():
            hidden = run_batch(model, tokens, BatchLayout.causal(tokens.shape[1]))
            out.append(int(model.logits(hidden[0, -1]).argmax()))
    return out


@pytest.mark.parametrize(("layout", "attn_impl"), [("drafts", "sdpa"), ("blocks", "matmul")])
def test_spans_continue_with_the_greedy_text_of_each_anchor(model: Backbone, layout: str, attn_impl: str) -> None:
    batch = make_batch(Objective(layout=layout, times="uniform", teacher="self"))
    changed = with_self_generated_tokens(model, batch, attn_impl)
    rows, num_clean = batch.layout.rows, batch.layout.num_clean
    assert torch.equal(changed.tokens[:, :num_clean], batch.tokens[:, :num_clean])
    assert torch.equal(changed.target[:, :num_clean], batch.target[:, :num_clean])
    seen_visible = 0
    for b in range(len(batch.tokens)):
        for span in range(int(rows.span[b].max()) + 1):
            index = torch.nonzero(rows.span[b] == span)[:, 0]
            anchor = int(rows.position[b, index[0]])
            text = greedy(model, batch.tokens[b, : anchor + 1], len(index))
            has_target = batch.target[b, index] != IGNORE
            assert (changed.target[b, index] == torch.where(has_target, torch.tensor(text), IGNORE)).all()
            read = torch.tensor([int(batch.tokens[b, anchor]), *text[:-1]])
            masked = batch.tokens[b, index] == MASK
            assert (changed.tokens[b, index] == torch.where(masked, MASK, read)).all()
            seen_visible += int((~masked[1:]).sum())
    assert seen_visible > 10


def test_the_data_s_text_is_left_alone(model: Backbone) -> None:
    batch = make_batch(Objective(layout="drafts", times="full"))
    assert with_self_generated_tokens(model, batch) is batch


@pytest.mark.parametrize("layout", ["infill", "blocks", "canvas"])
def test_errors_are_planted_among_visible_tokens_and_all_of_those_are_targets(model: Backbone, layout: str) -> None:
    lengths = (60,) * 12
    clean = make_batch(Objective(layout=layout, times="light"), lengths)
    batch = make_batch(Objective(layout=layout, times="light", errors=0.3), lengths)
    visible = batch.level == REVISED
    assert visible.any()
    assert (batch.target[batch.layout.rows.span >= 0] != IGNORE).all()
    assert (batch.weight[visible] > 0).all()
    wrong_rows = torch.roll(visible, 1, dims=1) & (batch.tokens != torch.roll(batch.target, 1, dims=1))
    wrong_rows &= (batch.tokens != MASK) & (batch.layout.rows.span >= 0)
    wrong_rows &= torch.roll(batch.layout.rows.span, 1, dims=1) == batch.layout.rows.span
    wrong_rows &= torch.roll(batch.layout.rows.position, 1, dims=1) == batch.layout.rows.position - 1
    num = int(wrong_rows.sum() + batch.guess.sum())
    assert 0.15 < num / int((visible & (batch.target >= RESERVED)).sum()) < 0.4  # ends are never replaced
    assert 0.3 < float(batch.guess.sum()) / num < 0.7
    assert (batch.tokens[wrong_rows] >= RESERVED).all()
    assert (clean.guess == 0).all()


def test_a_guess_is_the_most_likely_wrong_token_where_the_guesses_are_masked(model: Backbone) -> None:
    batch = make_batch(Objective(layout="infill", times="light", errors=0.6), (60,) * 20)
    guessed = with_self_generated_tokens(model, batch)
    places = batch.guess.bool()
    assert places.sum() > 5
    assert torch.equal(guessed.tokens[~places], batch.tokens[~places])
    with torch.no_grad():
        logits = model.logits(run_batch(model, torch.where(places, MASK, batch.tokens), batch.layout))
    for b, r in torch.nonzero(places).tolist():
        truth = int(batch.target[b, r - 1])
        assert int(batch.tokens[b, r]) == truth  # what stood there before the guess
        order = [t for t in logits[b, r - 1].argsort(descending=True).tolist() if t not in (truth, EOS, NULL)]
        assert int(guessed.tokens[b, r]) == order[0]


def test_certainty_adds_the_entropy_of_masked_rows_already_right(model: Backbone) -> None:
    batch = make_batch(Objective(layout="drafts", times="full", certainty=0.5))
    with torch.no_grad():
        logits = model.logits(run_batch(model, batch.tokens, batch.layout))
        batch.target[batch.level >= 0] = torch.where(
            torch.arange(int((batch.level >= 0).sum())) % 2 == 0, logits.argmax(-1)[batch.level >= 0], 20
        )
        plain = batch_loss(model, replace(batch, certainty=0.0)).loss
        sharp = batch_loss(model, batch).loss
    right = (batch.level >= 0) & (logits.argmax(-1) == batch.target)
    probs = logits[right].double().softmax(-1)
    expected = -(probs * probs.clamp(min=1e-300).log()).sum(-1)
    assert right.any()
    assert float(sharp - plain) == pytest.approx(
        0.5 * float((expected * batch.weight[right]).sum()) / batch.norm, rel=1e-4
    )


def test_entropy_of_a_uniform_choice_among_what_may_be_drawn() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0, float("-inf")], [50.0, 0.0, 0.0, 0.0, float("-inf")]])
    assert entropy(logits).tolist() == pytest.approx([np.log(4), 0.0], abs=1e-6)


def test_what_cannot_be_trained_is_refused() -> None:
    for parts in (
        {"layout": "infill", "teacher": "self"},
        {"layout": "drafts", "teacher": "nobody"},
        {"layout": "blocks", "teacher": "self", "errors": 0.1},
        {"layout": "blocks", "errors": 1.0},
        {"layout": "blocks", "certainty": -1.0},
    ):
        with pytest.raises(InputError):
            Objective(**parts)  # type: ignore[arg-type]
