"""Which draft is verified, and where masked rows follow it."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

import daguerre
from backends import needs_compiler
from conftest import tiny_config
from daguerre.canvas import Canvas
from daguerre.decoding.drafters import (
    CYCLE_TIME,
    LONGEST_MATCH,
    LOOKED_UP,
    LOOKUP_ACCEPTANCE,
    MASKED_PLACES,
    MIN_ACCEPTED,
    NO_DRAFT,
    UNKNOWN_ACCEPTANCE,
    WORTH_DRAFTING,
    Alignment,
    Drafted,
    best,
    given_by_caller,
    look_up,
    worth_drafting,
)
from daguerre.model import Model
from daguerre.models.core.backbone import Backbone
from daguerre.models.forward import Rules
from daguerre.models.session import compute
from daguerre.models.tokenizer import Tokenizer
from daguerre.sampling.random import TOKEN, Counter


def searched(text: list[int]) -> tuple[int, list[int]]:
    """The definition, by trying every place: the length of the longest match, cut, and the tokens behind it."""
    num, found = len(text), (0, -1)
    for place in range(num - 1):
        length = 0
        while length <= place and length < LONGEST_MATCH and text[place - length] == text[num - 1 - length]:
            length += 1
        if length:
            found = max(found, (length, place))
    length, place = found
    behind = text[place + 1 :] if length else []
    while behind and len(behind) < LOOKED_UP:
        behind = behind + behind
    return length, behind[:LOOKED_UP]


def test_a_lookup_is_what_followed_the_longest_match() -> None:
    rng = np.random.default_rng(0)
    lengths = set()
    for trial in range(400):
        text = rng.integers(0, 2 + trial % 7, 1 + trial % 40).tolist()
        length, want = searched(text)
        got = look_up(np.array(text), 0.0)
        assert got.tokens.tolist() == want
        assert got.source == ("lookup" if want else "head")
        if want:
            assert got.reached[1] == LOOKUP_ACCEPTANCE[length - 1][0][0]
        lengths.add(length)
    assert lengths == set(range(LONGEST_MATCH + 1))


def test_of_equal_matches_the_most_recent_is_taken_and_its_period_goes_on() -> None:
    assert look_up(np.array([5, 1, 9, 9, 5, 2, 8, 8, 5]), 1.0).tokens[:3].tolist() == [2, 8, 8]
    assert look_up(np.array([7, 1, 2, 3, 1, 2, 3]), 0.5).tokens.tolist() == [1, 2, 3, 1, 2, 3, 1, 2]


def test_chances_between_the_temperatures_are_in_between() -> None:
    text = np.array([1, 2, 3, 9, 1, 2, 3])
    cold, warm, hot, hotter = (look_up(text, temperature).reached for temperature in (0.0, 0.5, 1.0, 2.0))
    assert warm[1] == pytest.approx((cold[1] + hot[1]) / 2)
    assert hot == hotter


def test_a_draft_ends_where_it_is_hardly_ever_right() -> None:
    draft = Drafted.of(np.arange(4), [0.5, 0.3, 0.2, 0.9])
    assert [len(draft.first(num)) for num in (0, 1, 2, 9)] == [0, 1, 2, 2]
    assert draft.reached[3] < MIN_ACCEPTED <= draft.reached[2]
    assert draft.first(1).tokens.tolist() == [0]


def test_masked_rows_follow_the_places_where_the_text_probably_ends() -> None:
    draft = Drafted.of(np.arange(3), [0.95, 0.5, 0.9])
    chances = [0.05, 0.475, 0.0475, 0.4275]
    for least, want in ((0.1, (1, 3)), (0.45, (1,)), (0.049, (0, 1, 3)), (0.9, ())):
        assert draft.ends(least) == tuple(place for place, chance in enumerate(chances) if chance >= least) == want
    assert Drafted(draft.tokens, draft.reached, "lookup").ends(0.1) == (1,), "a copy that is right to its end goes on"
    assert NO_DRAFT.ends(1.0) == (0,)


def test_the_draft_that_is_likely_to_commit_more_is_verified() -> None:
    sure, unsure, long = (Drafted.of(np.arange(len(p)), p) for p in ([0.9, 0.9], [0.4], [0.9] * 8))
    assert best([unsure, sure], 9, 0.02) is sure
    assert best([sure, long], 9, 0.02) is long
    assert not len(best([sure, long], 9, 2.0)), "rows take time"
    assert best([NO_DRAFT, Drafted.of(np.arange(1), [0.01])], 9, 0.02) is NO_DRAFT
    assert len(best([sure, long], 1, 0.02)) == 1
    assert best([given_by_caller(Alignment(np.arange(6)), 6, 1.0), sure], 9, 0.02).source == "caller"


def test_a_draft_is_as_long_as_pays() -> None:
    drafts = [Drafted.of(np.arange(5), chances) for chances in np.random.default_rng(3).uniform(0.6, 1.0, (20, 5))]
    for draft, row_time in product(drafts, (0.0, 0.02, 0.25, 0.6, 2.0)):
        speeds = [sum(draft.reached[: num + 1]) / (1 + row_time * num) for num in range(6)]
        assert draft.fastest(9, row_time) == (int(np.argmax(speeds)), pytest.approx(max(speeds)))
        assert best([draft], 9, row_time).speed(row_time) == pytest.approx(max(speeds))


def test_the_model_drafts_where_that_gains_time_on_this_machine(tokenizer: Tokenizer) -> None:
    good, poor = ((0.9, 0.8, 0.7), (0.68, 0.6, 0.2)), ((0.4, 0.2, 0.1), (0.3, 0.1, 0.1))
    for acceptance, temperature, most, row_time, head_time, num in (
        (good, 0.0, 4, 0.02, 0.04, 3),
        (good, 0.0, 1, 0.02, 0.04, 1),
        (good, 1.0, 4, 0.02, 0.04, 2),
        (good, 0.5, 4, 0.02, 0.04, 3),
        (good, 1.0, 4, 0.02, 0.4, 0),
        (good, 1.0, 4, 0.2, 0.04, 0),
        (good, 0.0, 4, 0.08, 0.2, 2),
        (poor, 0.0, 4, 0.02, 0.04, 0),
        (poor, 0.0, 0, 0.02, 0.04, 0),
        ((), 1.0, 4, 0.08, 0.3, 0),
    ):
        config = tiny_config(tokenizer, draft_head=16, draft_acceptance=acceptance)
        assert worth_drafting(config, temperature, most, row_time, head_time) == num
        cold, warm = config.draft_acceptance or UNKNOWN_ACCEPTANCE
        chances = [(1 - temperature) * a + temperature * b for a, b in zip(cold, warm, strict=True)]
        speeds = [  # of every number, written out
            (1 + sum(np.prod(chances[: k + 1]) for k in range(n)))
            / (1 + CYCLE_TIME + n * head_time + n * (1 + MASKED_PLACES) * row_time)
            for n in range(1, min(most, len(chances)) + 1)
        ]
        assert num == (1 + int(np.argmax(speeds)) if max(speeds, default=0.0) > WORTH_DRAFTING else 0)


def test_a_head_of_clean_rows_drafts_as_many_tokens_as_rows_are_cheap(tokenizer: Tokenizer) -> None:
    chances = ((0.6, 0.5, 0.45, 0.4), (0.5, 0.4, 0.35, 0.3))
    config = tiny_config(tokenizer, mask_id=None, null_id=None, draft_head=16, draft_acceptance=chances)
    assert worth_drafting(config, 0.0, 4, 0.25, 0.05) == 1
    assert worth_drafting(config, 0.0, 4, 0.02, 0.08) == 2
    assert worth_drafting(config, 0.0, 4, 0.9, 0.2) == 0  # in a crowd


@pytest.fixture(scope="module")
def default() -> Model:
    return daguerre.load(dtype="float32")


@needs_compiler
def test_native_drafts_in_8_bit_numbers_are_hardly_worse(default: Model) -> None:
    """Accepted tokens of the head, of as many texts by both backends."""
    accepted = {}
    for backend in ("native", "torch"):
        model = Model(default.backbone, default.tokenizer, backend)
        options = {"mode": "speculative", "drafter": "head", "temperature": 1.0}
        usages = [model.generate("import os\n\n\ndef ", 48, seed=seed, **options).usage for seed in range(6)]
        assert sum(usage.head_drafted for usage in usages) > 100
        accepted[backend] = sum(usage.head_accepted for usage in usages)
    assert accepted["native"] > 0.85 * accepted["torch"] > 50


OPTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.9, "stop": "\n\n"},
    {"temperature": 1.0, "min_tokens": 24, "logit_bias": {2: 9.0, 30: 2.0}},
    {"temperature": 1.0, "top_k": 8, "guidance": 1.5},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_the_text_is_the_same_whatever_drafts(default: Model, options: dict[str, Any]) -> None:
    """Without a drafter, by the head, by lookup, by both, and by the caller."""
    prompt, drafted = "for i in range(3):\n    print(i)\nfor j in range(", set()
    for seed in range(2):
        texts = {default.generate(prompt, 24, mode="ar", seed=seed, **options).text}
        for size, drafter in ((3, "head"), (3, "lookup"), (3, "auto"), (1, ("head", "auto")[seed])):
            one = default.generate(
                prompt, 24, mode="speculative", seed=seed, block_size=size, drafter=drafter, **options
            )
            texts.add(one.text)
            usage = one.usage
            drafted |= {name for name in ("head", "lookup") if getattr(usage, f"{name}_drafted")}
            assert usage.drafted == usage.head_drafted + usage.lookup_drafted
            assert usage.accepted == usage.head_accepted + usage.lookup_accepted
            assert not (drafter == "head" and usage.lookup_drafted)
            assert not (drafter == "lookup" and usage.head_drafted)
            assert size > 1 or not usage.drafted
        given = default.generate(prompt, 24, mode="speculative", seed=seed, draft="3):\n    print(j)\n", **options)
        assert texts == {given.text}
    assert drafted == {"head", "lookup"}


@needs_compiler
@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.0])
def test_both_backends_say_alike_how_likely_drafted_tokens_are_accepted(default: Model, temperature: float) -> None:
    """By a confidence of random weights, which the state and the token's probability both move."""
    backbone = Backbone(default.config).eval().requires_grad_(False)
    backbone.load_state_dict(default.backbone.state_dict())
    head = backbone.draft_head
    assert head is not None and head.confidence is not None
    head.confidence.weight.normal_(0, 0.1, generator=torch.Generator().manual_seed(1))
    head.confidence.weight[:, -1] = 0.5
    prompt = np.array([1, *default.tokenizer.encode("import os\n\n\ndef read(path):\n    with open(path) as ")])
    compared, found = 0, []
    for seed in range(8):
        canvas = Canvas.lay_out([prompt.tolist()], [20], default.config.mask_id).at((len(prompt), len(prompt) + 20))
        answers = []
        for backend in ("native", "torch"):
            denoiser = Model(backbone, default.tokenizer, backend).denoiser
            rules = Rules(temperature=temperature, rng=Counter(seed), purpose=TOKEN)
            session = denoiser.session(canvas)
            answers.append(compute(session.cycle(canvas, np.zeros(0, np.int64), 3, None, rules, 0.0), denoiser.backend))
        native, torch_ = answers
        assert len(native.draft) == len(native.acceptance) == 3
        same = int(np.cumprod(native.draft == torch_.draft).sum())
        assert np.abs(native.acceptance[:same] - torch_.acceptance[:same]).max(initial=0.0) < 0.05
        compared, found = compared + same, [*found, *native.acceptance.tolist()]
    assert compared >= 12
    assert max(found) - min(found) > 0.02
