"""Scores and bounds against enumeration, on models small enough to list every text, order and mask."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from backends import needs_compiler
from daguerre.errors import InputError, UnsupportedError
from daguerre.models.backends.native_backend import NativeBackend
from daguerre.models.backends.torch_backend import TorchBackend
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.batched import CLEAN, BatchLayout, Rows, run_batch
from daguerre.models.core.config import ModelConfig
from daguerre.models.tokenizer import Tokenizer
from daguerre.scoring.likelihood import TokenScores, collapsed_variance, score_tokens
from daguerre.scoring.windows import nll

PAD, BOS, MASK, EOS = range(4)
NUM_RESERVED = 4


def model(num_symbols: int = 5, seed: int = 0, **facts: object) -> Backbone:
    """A random model that predicts <eos> and `num_symbols` - 1 others, its mean top probability about one half."""
    values = {
        "vocab_size": NUM_RESERVED + num_symbols - 1, "width": 32, "num_layers": 2, "num_heads": 2, "num_kv_heads": 1,
        "mlp_width": 48, "max_positions": 64, "mask_id": MASK, "eos_id": EOS, "bos_id": BOS, "pad_id": PAD,
        "reserved_ids": tuple(range(NUM_RESERVED)),
    }  # fmt: skip
    config = ModelConfig(**{**values, **facts})
    return Backbone(config).initialize(seed, zero_outputs=False, scale=1.5).eval().requires_grad_(False)


def score(backbone: Backbone, tokens: Sequence[int], **options: Any) -> TokenScores:
    return score_tokens(TorchBackend(backbone), tokens, **options)


def some_text(length: int, num_symbols: int = 5, seed: int = 0) -> list[int]:
    """<bos> and `length` - 1 predictable tokens."""
    rng = np.random.default_rng(seed)
    return [BOS, *(EOS + rng.integers(num_symbols, size=length - 1)).tolist()]


def probabilities(backbone: Backbone, tokens: Sequence[int], span: tuple[int, int], masked: set[int]) -> np.ndarray:
    """log p of every token of the text at each masked position of the span, (L,): rows laid out by hand, no cache."""
    config, ids, offset = backbone.config, np.array(tokens), int(backbone.config.shift)
    if config.context == "reordered":
        return reordered_probabilities(backbone, ids, span[1], masked)
    num_clean, first, last = 0, 0, len(ids)
    if config.context == "block":
        num_clean = span[0] // config.block_size * config.block_size
        first, last = max(num_clean - offset, 0), num_clean + config.block_size - offset
        if config.anchor == "clean":  # the last row of the block before predicts the first position
            num_clean = first = num_clean - config.block_size * (span[0] == num_clean)
            last = first + config.block_size
        ids = np.pad(ids, (0, config.block_size), constant_values=MASK)
    elif config.context == "causal":
        num_clean = first = span[0] - offset
        offset -= config.masks_in_place and span[1] - span[0] > 1  # the anchor is seen, and predicts nothing
        last = span[1] - offset
    position = np.concatenate([np.arange(num_clean), np.arange(first, last)])
    label = np.array([CLEAN] * num_clean + [0] * (last - first))
    hidden = (label != CLEAN) & np.isin(position, [*masked])
    shown = np.where(hidden, MASK, ids[position])
    rows = Rows.make(torch.from_numpy(position)[None], torch.from_numpy(label)[None], horizon=first)
    layout = BatchLayout(rows, num_clean, context=config.context, block_size=config.block_size)
    out = np.zeros(len(tokens))
    with torch.inference_mode():
        logs = backbone.logits(run_batch(backbone, torch.from_numpy(shown)[None], layout))[0].log_softmax(-1)
    for i in masked:
        (row,) = np.flatnonzero((position == i - offset) & (label != CLEAN))
        out[i] = float(logs[row, ids[i]])
    return out


def reordered_probabilities(backbone: Backbone, ids: np.ndarray, end: int, masked: set[int]) -> np.ndarray:
    """The same in reordered context: the text up to the span's end in another order, each row sees those before it."""
    order = [*(i for i in range(end) if i not in masked), *sorted(masked)]
    shown = [MASK if i in masked else int(ids[i]) for i in order]
    seen = torch.ones(1, end, end, dtype=torch.bool).tril()
    layout = BatchLayout(Rows.make(torch.tensor(order)[None]), end, context="full", seen=seen)
    with torch.inference_mode():
        logs = backbone.logits(run_batch(backbone, torch.tensor(shown)[None], layout))[0].log_softmax(-1)
    out = np.zeros(len(ids))
    for i in masked:
        out[i] = float(logs[order.index(i), ids[i]])
    return out


def known_probabilities(
    backbone: Backbone, tokens: Sequence[int], span: tuple[int, int]
) -> dict[frozenset[int], np.ndarray]:
    """What `probabilities` says of every set of masked positions of a span."""
    places = range(*span)
    return {
        masked: probabilities(backbone, tokens, span, set(masked))
        for size in range(1, len(places) + 1)
        for masked in map(frozenset, itertools.combinations(places, size))
    }


def bound_by_enumeration(backbone: Backbone, tokens: Sequence[int], spans: Sequence[tuple[int, int]]) -> float:
    """The expectation over every order of every span of the sum of -log p."""
    total = 0.0
    for span in spans:
        orders = list(itertools.permutations(range(*span)))
        known = known_probabilities(backbone, tokens, span)
        total -= sum(known[frozenset(o[j:])][o[j]] for o in orders for j in range(len(o))) / len(orders)
    return total


def probability_by_enumeration(backbone: Backbone, tokens: Sequence[int], span: tuple[int, int]) -> float:
    """p(text) of the sampler that reveals the span in uniformly random order."""
    orders = list(itertools.permutations(range(*span)))
    known = known_probabilities(backbone, tokens, span)
    logs = [sum(known[frozenset(o[j:])][o[j]] for j in range(len(o))) for o in orders]
    return float(np.exp(logs).mean())


CASES = [
    pytest.param({}, 2, [(1, 3), (3, 5), (5, 6)], id="causal context, spans of two"),
    pytest.param({}, 3, [(1, 4), (4, 6)], id="causal context, spans of three"),
    pytest.param({}, "full", [(1, 6)], id="causal context, whole canvas"),
    pytest.param({"shift": False}, 3, [(1, 4), (4, 6)], id="causal context without a shift"),
    pytest.param({"context": "block", "shift": False, "block_size": 3}, 3, [(1, 3), (3, 6)], id="block context"),
    pytest.param({"context": "block", "block_size": 2}, 2, [(1, 2), (2, 4), (4, 6)], id="block context with a shift"),
    pytest.param(
        {"context": "block", "block_size": 3, "anchor": "clean"}, 3, [(1, 3), (3, 4), (4, 6)], id="a clean anchor"
    ),
    pytest.param({"masks_in_place": True}, 3, [(1, 2), (2, 4), (4, 5), (5, 6)], id="masks in place"),
    pytest.param({"masks_in_place": True}, 5, [(1, 2), (2, 6)], id="masks in place, blocks of five"),
    pytest.param({"context": "reordered", "shift": False}, 3, [(1, 4), (4, 6)], id="reordered context"),
    pytest.param({"context": "reordered", "shift": False}, "full", [(1, 6)], id="reordered context, whole canvas"),
    pytest.param({"context": "full"}, "full", [(1, 6)], id="full context"),
    pytest.param({"context": "full", "shift": False}, "full", [(1, 6)], id="full context without a shift"),
]


@pytest.mark.parametrize(("facts", "layout", "spans"), CASES)
def test_the_estimate_agrees_with_the_expectation_over_every_order(facts, layout, spans) -> None:
    backbone, tokens = model(**facts), some_text(6)

    exact = bound_by_enumeration(backbone, tokens, spans)
    scores = score(backbone, tokens, kind="elbo", layout=layout, samples=3000, seed=1)

    assert abs(scores.value - exact) < 4 * scores.stderr + 1e-4
    assert scores.stderr < 0.03 * exact
    assert scores.num_tokens == 5


def test_every_mask_of_every_size_averages_to_the_expectation_over_orders() -> None:
    backbone, tokens, places = model(), some_text(5), range(1, 5)
    total = 0.0
    for k in range(1, 5):
        masks = list(itertools.combinations(places, k))
        total -= sum(4 / k * probabilities(backbone, tokens, (1, 5), set(m)).sum() for m in masks) / len(masks) / 4

    assert total == pytest.approx(bound_by_enumeration(backbone, tokens, [(1, 5)]), abs=1e-5)


def test_the_bound_is_above_the_probability_of_sampling_in_random_order() -> None:
    backbone = model(3, seed=1)
    texts = [[BOS, *(EOS + np.array(t))] for t in itertools.product(range(3), repeat=3)]

    exact = np.array([-math.log(probability_by_enumeration(backbone, text, (1, 4))) for text in texts])
    bounds = np.array([bound_by_enumeration(backbone, text, [(1, 4)]) for text in texts])

    assert np.exp(-exact).sum() == pytest.approx(1, abs=1e-5)
    assert (bounds >= exact - 1e-6).all()
    assert (bounds - exact).max() > 1e-3
    assert np.exp(-bounds).sum() <= 1
    assert score(backbone, texts[5], kind="elbo", layout="full", samples=2000).value > exact[5] - 1e-6


def chain_by_hand(backbone: Backbone, tokens: Sequence[int], spans: Sequence[tuple[int, int]], order: Sequence[int]):
    """-log p of each token, (L,), when each span reveals its own in the order of the text's token numbers, from 0."""
    out = np.zeros(len(tokens))
    for span in spans:
        left = [i + 1 for i in order if span[0] <= i + 1 < span[1]]
        while left:
            out[left[0]] = -probabilities(backbone, tokens, span, set(left))[left[0]]
            left.pop(0)
    return out


def test_a_chain_is_the_product_of_what_each_reveal_had_in_sight(subtests: pytest.Subtests) -> None:
    for case in CASES:
        facts, layout, spans = case.values
        backbone, tokens = model(**facts), some_text(6)
        with subtests.test(str(case.id)):
            for order in (None, (3, 0, 4, 2, 1)):
                scores = score(backbone, tokens, kind="chain", layout=layout, order=order)

                by_hand = chain_by_hand(backbone, tokens, spans, order or range(5))[1:]
                np.testing.assert_allclose(scores.by_token, by_hand, atol=1e-5)
                assert scores.value == pytest.approx(scores.by_token.sum())
                assert (scores.stderr, scores.num_tokens) == (0.0, 5)
            left, unnamed = (score(backbone, tokens, kind="chain", layout=layout, order=how) for how in ("left", None))
            assert left == unnamed


@needs_compiler
def test_both_backends_give_the_same_scores() -> None:
    for facts, layout, _ in (case.values for case in CASES):
        backbone, tokens = model(width=64, **facts), some_text(6)
        native = NativeBackend(backbone)
        for options in ({"kind": "elbo", "samples": 6}, {"kind": "chain", "order": "random"}):
            np.testing.assert_allclose(
                score_tokens(native, tokens, layout=layout, **options).by_token,
                score(backbone, tokens, layout=layout, **options).by_token,
                atol=1e-4,
            )


def test_the_probabilities_of_all_texts_along_one_order_sum_to_one() -> None:
    """In causal context as a whole canvas and in spans of two, and in full context."""
    texts = [[BOS, *(EOS + np.array(t))] for t in itertools.product(range(4), repeat=3)]
    cases: list[tuple[dict[str, Any], Any]] = [({}, "full"), ({}, 2), ({"context": "full", "shift": False}, "full")]
    for facts, layout in cases:
        backbone = model(4, **facts)

        nats = [score(backbone, text, kind="chain", layout=layout, order=(2, 0, 1)).value for text in texts]

        assert np.exp(-np.array(nats)).sum() == pytest.approx(1, abs=1e-6), (facts, layout)
        assert np.ptp(nats) > 1, (facts, layout)


OF_EACH_KIND = [CASES[number] for number in (0, 3, 4, 5, 7, 9, 11, 12)]


@pytest.mark.parametrize(("facts", "layout", "spans"), OF_EACH_KIND)
def test_the_bound_is_the_mean_of_the_chains_of_all_orders(facts, layout, spans) -> None:
    """One case of each kind of context; the tests above check each chain and each bound in all cases."""
    backbone, tokens = model(**facts), some_text(6)
    orders = list(itertools.permutations(range(5)))

    chains = [score(backbone, tokens, kind="chain", layout=layout, order=order).value for order in orders]

    assert np.mean(chains) == pytest.approx(bound_by_enumeration(backbone, tokens, spans), abs=1e-5)
    assert np.ptp(chains) > 1e-3


GIVEN: dict[str, tuple[dict[str, Any], Any, list[tuple[int, int]]]] = {
    "spans of two": ({}, 2, [(3, 5), (5, 7)]),
    "whole canvas": ({}, "full", [(3, 7)]),
    "full context": ({"context": "full", "shift": False}, "full", [(3, 7)]),
    "block context": ({"context": "block", "shift": False, "block_size": 4}, 4, [(3, 4), (4, 7)]),
}


def test_a_beginning_that_is_given_is_seen_and_not_scored(subtests: pytest.Subtests) -> None:
    for name, (facts, layout, spans) in GIVEN.items():
        backbone, tokens = model(**facts), some_text(7)

        chain = score(backbone, tokens, given=3, kind="chain", layout=layout, order=(3, 1, 0, 2))
        bound = score(backbone, tokens, given=3, kind="elbo", layout=layout, samples=500)

        with subtests.test(name):
            by_hand = chain_by_hand(backbone, tokens, spans, (5, 3, 2, 4))[3:]
            np.testing.assert_allclose(chain.by_token, by_hand, atol=1e-5)
            assert abs(bound.value - bound_by_enumeration(backbone, tokens, spans)) < 4 * bound.stderr + 1e-4
            assert bound.num_tokens == chain.num_tokens == 4


def test_the_autoregressive_likelihood_of_a_continuation_is_that_part_of_the_whole() -> None:
    for shift in (True, False):
        backbone, tokens = model(shift=shift), some_text(12)

        part = score(backbone, tokens, given=5)

        np.testing.assert_allclose(part.by_token, score(backbone, tokens).by_token[4:], atol=1e-5)
        for given in (0, 12):
            with pytest.raises(InputError, match=f"given={given}"):
                score(backbone, tokens, given=given)


def test_a_random_order_is_drawn_from_the_seed() -> None:
    backbone, tokens = model(), some_text(6)
    orders = itertools.permutations(range(5))
    every = [score(backbone, tokens, kind="chain", layout="full", order=order).value for order in orders]

    drawn = [
        score(backbone, tokens, kind="chain", layout="full", order="random", seed=seed).value
        for seed in (0, 0, *range(1, 9))
    ]

    assert drawn[0] == drawn[1]
    assert len(set(drawn)) > 5
    assert all(np.isclose(value, every, atol=1e-5).any() for value in drawn)


def test_spans_of_one_have_the_autoregressive_likelihood() -> None:
    for shift in (True, False):
        backbone, tokens = model(shift=shift), some_text(40)

        ar = score(backbone, tokens, kind="ar")
        bound = score(backbone, tokens, kind="elbo", layout=1, samples=2)
        chain = score(backbone, tokens, kind="chain", layout=1, order="random")

        np.testing.assert_allclose(bound.by_token, ar.by_token, atol=1e-5)
        np.testing.assert_allclose(chain.by_token, ar.by_token, atol=1e-5)
        assert ar.stderr == 0
        assert bound.stderr < 1e-5


def test_the_autoregressive_likelihood_is_the_sum_over_next_tokens() -> None:
    backbone, tokens = model(), some_text(12)
    with torch.inference_mode():
        logs = backbone.logits(run_batch(backbone, torch.tensor([tokens]), BatchLayout.causal(12)))[0].log_softmax(-1)

    scores = score(backbone, tokens)

    assert scores.value == pytest.approx(-sum(float(logs[i, tokens[i + 1]]) for i in range(11)), abs=1e-4)
    assert scores.value == pytest.approx(scores.by_token.sum())


@pytest.mark.parametrize(("layout", "samples"), [(4, 16), ("full", 32), ("full", 33)])
def test_the_standard_error_is_that_of_repeated_estimates(layout, samples: int) -> None:
    backbone, tokens = model(), some_text(25)
    scores = [score(backbone, tokens, kind="elbo", layout=layout, samples=samples, seed=s) for s in range(50)]

    spread = np.std([one.value for one in scores], ddof=1)
    stated = np.sqrt(np.mean([one.stderr**2 for one in scores]))

    assert 1 / 1.5 < stated / spread < 1.5


def test_the_collapsed_variance_is_never_too_small_on_average() -> None:
    rng = np.random.default_rng(0)
    for num, slope in ((2, 0.0), (3, 3.0), (8, 3.0), (9, 0.0)):
        means = slope * np.arange(num)[:, None] / num
        draws = rng.normal(means, 1.0, size=(4000, num, 1))
        stated = np.mean([collapsed_variance(d) for d in draws])
        assert stated > 0.95 / num
        assert slope or stated < 1.05 / num


def test_scores_do_not_depend_on_how_their_forwards_are_batched(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone, tokens = model(), some_text(30)

    def scores() -> list[TokenScores]:
        bound = score(backbone, tokens, kind="elbo", layout=8, samples=7, seed=3)
        return [bound, score(backbone, tokens, kind="chain", layout=8, order="random"), score(backbone, tokens)]

    together = scores()
    monkeypatch.setattr("daguerre.scoring.likelihood.ROWS_AT_ONCE", 60)
    monkeypatch.setattr("daguerre.models.backends.answering.LOGITS_AT_ONCE", 40)

    for one, other in zip(together, scores(), strict=True):
        np.testing.assert_allclose(one.by_token, other.by_token, atol=1e-4)


def test_the_same_seed_gives_the_same_score_and_another_one_another() -> None:
    backbone, tokens = model(), some_text(30)
    one, same, other = (score(backbone, tokens, kind="elbo", layout="full", samples=4, seed=s) for s in (5, 5, 6))

    assert one == same
    assert one != other


def test_a_text_is_scored_after_bos() -> None:
    tokenizer = Tokenizer.default()
    special = {f"{name}_id": getattr(tokenizer, f"{name}_id") for name in ("mask", "eos", "bos", "pad", "null")}
    backbone = model(vocab_size=tokenizer.vocab_size, reserved_ids=tuple(range(16)), **special)

    scores = nll(TorchBackend(backbone), tokenizer, "x = 1\n")

    assert scores == score(backbone, [tokenizer.bos_id, *tokenizer.encode("x = 1\n")])


NOT_HONORED: list[tuple[dict[str, Any], dict[str, Any], type[InputError], str]] = [
    ({"context": "full"}, {"kind": "ar"}, UnsupportedError, "full context"),
    ({"context": "full"}, {"kind": "elbo", "layout": 4}, UnsupportedError, "layout=4"),
    ({"context": "block", "block_size": 4, "shift": False}, {"kind": "ar"}, UnsupportedError, "block context"),
    (
        {"context": "block", "block_size": 4, "shift": False},
        {"kind": "elbo", "layout": "full"},
        UnsupportedError,
        "blocks have 4",
    ),
    ({}, {"kind": "ar", "layout": 4}, InputError, "layout=4"),
    ({}, {"kind": "elbo", "samples": 1}, InputError, "samples=1"),
    ({}, {"kind": "elbo", "layout": 0}, InputError, "layout=0"),
    ({}, {"kind": "elbo", "order": "left"}, InputError, "order='left'"),
    ({}, {"kind": "chain", "order": "lefd"}, InputError, "did you mean 'left'"),
    ({}, {"kind": "chain", "order": [0, 1, 2]}, InputError, "numbers 0 to 6"),
    ({}, {"kind": "chain", "order": [0, 1, 2, 3, 4, 5, 5]}, InputError, "once"),
    ({"context": "full"}, {"kind": "chain", "layout": 4}, UnsupportedError, "layout=4"),
    ({}, {"kind": "elbow"}, InputError, "did you mean 'elbo'"),
]


def test_what_cannot_be_honored_is_an_error_that_names_it() -> None:
    for facts, options, error, names in NOT_HONORED:
        with pytest.raises(error, match=names):
            score(model(**facts), some_text(8), **options)


def test_tokens_that_cannot_be_scored_are_refused() -> None:
    for tokens in ([], [BOS], [EOS, EOS], [BOS, MASK], [BOS, 99], [BOS, -1], [BOS, *[EOS] * 64]):
        with pytest.raises(InputError):
            score(model(), tokens)
