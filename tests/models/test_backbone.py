"""The backbone as a whole: its formulas by each implementation of attention, and its invariances."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from conftest import tiny_config
from daguerre.models.core.attention import ATTN_IMPLS
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.batched import NO_HORIZON, BatchLayout, Rows, run_batch
from daguerre.models.core.rotary import rotary_tables, rotate
from daguerre.models.tokenizer import Tokenizer
from oracles.written_out import written_out

NUM = 20
PARAMETERS = {
    "embedding.weight",
    "final_norm.weight",
    *(
        f"layers.{i}.{name}.weight"
        for i in range(2)
        for name in (
            "attention_norm",
            "attention.qkv",
            "attention.out",
            "attention.q_norm",
            "attention.k_norm",
            "mlp_norm",
            "mlp.gate_up",
            "mlp.down",
        )
    ),
}


@pytest.fixture(scope="module")
def backbone(tokenizer: Tokenizer) -> Backbone:
    backbone = Backbone(tiny_config(tokenizer)).initialize(0, zero_outputs=False).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(5)
    for name, weight in backbone.named_parameters():
        if name.endswith("norm.weight"):
            weight.copy_(torch.rand(weight.shape, generator=generator) + 0.5)
    return backbone


@pytest.fixture(scope="module")
def tokens(backbone: Backbone) -> Tensor:
    return torch.randint(16, backbone.config.vocab_size, (3, NUM), generator=torch.Generator().manual_seed(0))


def causal_logits(backbone: Backbone, tokens: Tensor, start: int = 0, attn_impl: str = "sdpa") -> Tensor:
    layout = BatchLayout.causal(tokens.shape[1], start=start, batch=len(tokens))
    return backbone.logits(run_batch(backbone, tokens, layout, attn_impl=attn_impl))


@pytest.mark.parametrize("attn_impl", ATTN_IMPLS)
def test_logits_are_those_of_the_formulas(backbone: Backbone, tokens: Tensor, attn_impl: str) -> None:
    """By both implementations of attention that training has; `test_shapes` has all shapes."""
    ours = causal_logits(backbone, tokens[:1], attn_impl=attn_impl)[0]
    expected = written_out(backbone, tokens[0])
    finite = ours.isfinite()
    assert torch.allclose(ours[finite], expected[finite], atol=1e-4)


def test_exactly_the_reserved_tokens_have_no_probability(backbone: Backbone, tokens: Tensor) -> None:
    config = backbone.config
    never = causal_logits(backbone, tokens).isinf().all((0, 1)).nonzero().flatten().tolist()
    assert never == [i for i in range(16) if i not in (config.eos_id, config.null_id)]


def test_the_random_logits_of_these_tests_have_unit_variance(backbone: Backbone, tokens: Tensor) -> None:
    logits = causal_logits(backbone, tokens)
    assert 0.7 < logits[logits.isfinite()].std() < 1.4


def test_a_row_does_not_depend_on_the_rows_after_it(backbone: Backbone, tokens: Tensor) -> None:
    other = tokens.clone()
    other[:, 12:] = tokens[:, 12:].flip(1)
    a, b = causal_logits(backbone, tokens), causal_logits(backbone, other)
    assert torch.allclose(a[:, :12], b[:, :12], atol=1e-5)
    assert not torch.allclose(a[:, 12:], b[:, 12:])


def test_only_differences_of_positions_matter(backbone: Backbone, tokens: Tensor) -> None:
    assert torch.allclose(causal_logits(backbone, tokens), causal_logits(backbone, tokens, start=37), atol=1e-4)


def test_order_matters(backbone: Backbone, tokens: Tensor) -> None:
    """Without the rotation the last row would be the same for any order of the rows before it."""
    mixed = tokens.clone()
    mixed[:, :-1] = tokens[:, :-1].flip(1)
    assert (
        causal_logits(backbone, tokens)[:, -1] - causal_logits(backbone, mixed)[:, -1]
    ).nan_to_num().abs().max() > 0.1


def test_a_request_of_a_batch_is_as_alone(backbone: Backbone, tokens: Tensor) -> None:
    together = causal_logits(backbone, tokens)
    for b in range(3):
        assert torch.allclose(together[b], causal_logits(backbone, tokens[b : b + 1])[0], atol=1e-5)


@pytest.mark.parametrize("start", [1, 7, NUM])
def test_a_shifted_span_of_one_gives_the_next_token_logits(backbone: Backbone, tokens: Tensor, start: int) -> None:
    """The noisy row is the anchor at start-1: it sees the clean rows before it and itself, as a causal row does."""
    clean, anchor = Rows.make(torch.arange(NUM).expand(3, -1)), torch.full((3, 1), start - 1)
    noisy = Rows.make(anchor, span=0, horizon=start - 1)
    layout = BatchLayout(Rows.cat([clean, noisy]), num_clean=NUM, plain=True)
    rows = torch.cat([tokens, tokens[:, start - 1 : start]], dim=1)
    logits = backbone.logits(run_batch(backbone, rows, layout)[:, -1])
    assert torch.allclose(logits, causal_logits(backbone, tokens)[:, start - 1], atol=1e-5)


def test_one_full_span_sees_both_ways(backbone: Backbone, tokens: Tensor) -> None:
    layout = BatchLayout(Rows.make(torch.arange(NUM).expand(3, -1), span=0, horizon=NO_HORIZON), num_clean=0)
    other = tokens.clone()
    other[:, -1] = tokens[:, 0]
    changed = (run_batch(backbone, tokens, layout) - run_batch(backbone, other, layout)).abs().amax((0, 2))
    assert (changed > 1e-4).all()


def test_rotation_keeps_lengths_and_turns_by_the_position(backbone: Backbone) -> None:
    x = torch.randn(4, 1, 8, generator=torch.Generator().manual_seed(0))
    turned = rotate(x, *rotary_tables(backbone.config, torch.tensor([0, 1, 5, 900]), torch.float32))
    assert torch.allclose(turned.norm(dim=-1), x.norm(dim=-1), atol=1e-5)
    assert torch.equal(turned[0], x[0])
    assert not torch.allclose(turned[3], x[3])


def test_a_fresh_model_is_its_seed_and_starts_without_branches(tokenizer: Tokenizer, tokens: Tensor) -> None:
    first, again, other = (Backbone(tiny_config(tokenizer)).initialize(seed) for seed in (3, 3, 4))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(first.embedding.weight, other.embedding.weight)
    with torch.no_grad():
        hidden = run_batch(first, tokens, BatchLayout.causal(NUM, batch=3))
        assert torch.allclose(hidden, first.final_norm(first.embedding(tokens)))


def test_parameters_have_the_names_that_checkpoints_have(backbone: Backbone) -> None:
    assert {name for name, _ in backbone.named_parameters()} == PARAMETERS
    assert set(backbone.state_dict()) == PARAMETERS
    assert backbone.num_parameters == sum(p.numel() for p in backbone.parameters())
