"""What each layout puts into a batch, what its loss is, and that every parameter learns from it."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from daguerre.errors import InputError
from daguerre.models.core.attention import ATTN_IMPLS
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.batched import CLEAN, EVERY_SPAN, NO_HORIZON, PADDING, run_batch
from daguerre.models.core.config import ModelConfig
from daguerre.noise.schedule import SCHEDULES
from daguerre.train.batch import batch_loss, collate
from daguerre.train.examples import LAYOUTS, MAX_SLACK, make_example
from daguerre.train.noising import IGNORE, NUM_LEVELS, Example, Source
from daguerre.train.objectives import CONTEXT_OF, TIMES, WEIGHTS, Objective

BOS, MASK, NULL, PAD, VOCAB = 1, 3, 4, 0, 48
MakeSource = Callable[[int, str, int], Source]
CAUSAL = [name for name, context in CONTEXT_OF.items() if context == "causal"]
FACTS: dict[str, dict[str, object]] = {"bd3": {"shift": False, "block_size": 8}}
NOISY = [name for name in LAYOUTS if name != "next_token"]


def random_source(seed: int = 0, length: int = 40) -> Source:
    tokens = np.random.default_rng(seed).integers(16, VOCAB, length)
    tokens[0] = BOS
    third = length // 3
    return Source(tokens, MASK, NULL, starts=(third, 2 * third), gaps=((4, 7), (third + 4, third + 9)))


def objective_of(layout: str, **parts: object) -> Objective:
    return Objective(layout=layout, **(FACTS.get(layout, {}) | parts))  # type: ignore[arg-type]


def example_of(layout: str, seed: int = 0, length: int = 40, u: float = 0.6, **parts: object) -> Example:
    objective = objective_of(layout, **parts)
    return make_example(random_source(seed, length), objective, u, np.random.default_rng(seed), length)


def tiny(dtype: torch.dtype = torch.float32) -> Backbone:
    """A random model whose logits keep their precision."""

    class Precise(Backbone):
        def logits(self, hidden: Tensor) -> Tensor:
            return F.linear(hidden, self.embedding.weight).index_fill(-1, self.never, float("-inf"))  # type: ignore[arg-type]

    special = {"pad_id": PAD, "bos_id": BOS, "eos_id": 2, "mask_id": MASK, "null_id": NULL}
    shape = {"width": 16, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "mlp_width": 24, "max_positions": 256}
    config = ModelConfig(vocab_size=VOCAB, **special, **shape)
    return Precise(config).initialize(0, zero_outputs=False).to(dtype)


def noisy_rows(example: Example) -> np.ndarray:
    return np.arange(len(example.tokens)) >= example.num_clean


# ---- rows ---------------------------------------------------------------------------------------------------------


def test_the_clean_stream_is_the_text_with_its_next_tokens() -> None:
    for layout in CAUSAL:
        source, example = random_source(), example_of(layout)
        num = example.num_clean
        assert np.array_equal(example.tokens[:num], source.tokens)
        assert np.array_equal(example.target[:num], np.append(source.tokens[1:], IGNORE))
        assert example.weight[:num].tolist() == [1.0] * (num - 1) + [0.0]
        assert (example.span[:num] == CLEAN).all()
        assert (example.level[:num] == IGNORE).all()
        assert layout == "infill" or np.array_equal(example.position[:num], np.arange(num))


def test_without_shift_clean_rows_predict_nothing_and_noisy_rows_themselves() -> None:
    for layout in [name for name in NOISY if name != "groups"]:
        example = example_of(layout, shift=False)
        noisy = noisy_rows(example)
        assert (example.target[~noisy] == IGNORE).all()
        masked = noisy & (example.tokens == MASK)
        assert ((example.target != IGNORE) == masked).all()


@pytest.mark.parametrize("shift", [True, False], ids=["shift", "self"])
def test_noisy_rows_predict_the_text_at_their_position(shift: bool) -> None:
    """Undo what the layout did: the token that a row predicts is the text's (or a gap filler) at its position."""
    for layout in [name for name in CAUSAL if name not in ("next_token", "groups")]:
        source, example = random_source(), example_of(layout, shift=shift, u=0.99)
        noisy = noisy_rows(example)
        place = dict(zip(example.position[~noisy].tolist(), source.tokens.tolist(), strict=True))
        at = example.position[noisy] + (1 if shift else 0)
        for position, target in zip(at.tolist(), example.target[noisy].tolist(), strict=True):
            if target != IGNORE:
                assert target == place.get(int(position), NULL)


def test_masks_stand_exactly_where_targets_are(subtests: pytest.Subtests) -> None:
    """Shifted rows hold the token before the one they predict; an anchor row holds the clean token, never a mask."""
    for layout in [name for name in LAYOUTS if name not in ("next_token", "bd3", "groups")]:
        with subtests.test(layout):
            example = example_of(layout, u=0.5)
            for span_rows in np.split(np.flatnonzero(noisy_rows(example)), _breaks(example)):
                inputs, targets = example.tokens[span_rows], example.target[span_rows]
                assert inputs[0] != MASK
                assert np.array_equal(inputs[1:] == MASK, targets[:-1] != IGNORE)
                kept = inputs[1:][targets[:-1] == IGNORE]
                assert (kept != MASK).all()


def _breaks(example: Example) -> np.ndarray:
    """Where, among the open rows, a new run of positions begins."""
    noisy = noisy_rows(example)
    position, span = example.position[noisy], example.span[noisy]
    return np.flatnonzero((np.diff(position) != 1) | (np.diff(span) != 0)) + 1


@pytest.mark.parametrize(
    ("layout", "shift"), [("drafts", True), ("blocks", False), ("suffix", True), ("canvas", False)]
)
def test_a_span_sees_what_is_before_it_and_nothing_else(layout: str, shift: bool) -> None:
    example = example_of(layout, shift=shift)
    noisy = noisy_rows(example)
    for span in np.unique(example.span[noisy]):
        rows = example.span == span
        assert (example.horizon[rows] == example.position[rows].min()).all()
    assert (example.gap == -1).all()
    assert (example.segment == 0).all()


def test_drafts_are_whole_spans_of_2_to_32_tokens_fully_masked_and_blind_to_what_follows() -> None:
    lengths: list[int] = []
    for seed in range(60):
        example = example_of("drafts", seed, 100, times="full")
        noisy = noisy_rows(example)
        assert noisy.sum() <= 100
        for span in np.unique(example.span[noisy]):
            rows = np.flatnonzero(example.span == span)
            lengths.append(len(rows))
            assert (example.target[rows] != IGNORE).all()
            assert (example.tokens[rows[1:]] == MASK).all()
            assert (example.horizon[rows] == example.position[rows[0]]).all()
    assert set(lengths) == {*range(2, 17), 24, 32}


@pytest.mark.parametrize("layout", ["drafts", "blocks"])
def test_the_text_after_a_span_does_not_change_its_logits(layout: str) -> None:
    model, source = tiny(torch.float64), random_source()
    objective = Objective(layout=layout, times="full")
    example = make_example(source, objective, 0.5, np.random.default_rng(3), 40)
    other = make_example(source, objective, 0.5, np.random.default_rng(3), 40)
    noisy = noisy_rows(example)
    last = max(int(example.position[(example.span == s)].min()) for s in np.unique(example.span[noisy]))
    other.tokens[: other.num_clean][last + 1 :] = 20
    batches = [collate([each], objective, PAD) for each in (example, other)]
    before, after = (run_batch(model, batch.tokens, batch.layout) for batch in batches)
    assert torch.allclose(before[0, example.num_clean :], after[0, example.num_clean :])


def test_a_suffix_begins_at_a_chosen_start_and_runs_to_the_end() -> None:
    for seed in range(20):
        example = example_of("suffix", seed)
        position = example.position[noisy_rows(example)]
        assert position[0] + 1 in random_source(seed).starts
        assert position[-1] == 38


def test_a_canvas_is_all_but_the_beginning_of_text_and_sees_no_clean_row() -> None:
    example = example_of("canvas", times="full")
    noisy = noisy_rows(example)
    assert example.position[noisy].tolist() == list(range(39))
    assert example.tokens[noisy].tolist() == [BOS] + [MASK] * 38
    assert (example.horizon[noisy] == 0).all()


def test_noisy_rows_stay_within_the_budget() -> None:
    for layout, seed, budget in itertools.product(NOISY, range(10), (3, 10, 25)):
        example = make_example(random_source(seed), objective_of(layout), 0.5, np.random.default_rng(seed), budget)
        assert noisy_rows(example).sum() <= budget


# ---- infilling ----------------------------------------------------------------------------------------------------


def slacks(example: Example) -> list[int]:
    """Gap fillers behind each gap, read off the jumps of the clean positions."""
    jumps = np.diff(example.position[: example.num_clean]) - 1
    return jumps[np.flatnonzero(np.diff(example.segment[: example.num_clean]))].tolist()


def test_gaps_end_in_0_to_16_gap_fillers_that_move_what_follows() -> None:
    seen: list[int] = []
    for seed in range(200):
        example = example_of("infill", seed, 60, times="full")
        noisy = noisy_rows(example)
        seen += slacks(example)
        assert (np.diff(example.position[: example.num_clean]) >= 1).all()
        assert (example.target[noisy] == NULL).sum() == sum(slacks(example))
    assert set(seen) == set(range(MAX_SLACK + 1))
    expected = len(seen) / (MAX_SLACK + 1)
    assert ((np.bincount(seen) - expected) ** 2 / expected).sum() < 40  # chi squared, 16 degrees: p = .001


@pytest.mark.parametrize("shift", [True, False], ids=["shift", "self"])
def test_noisy_rows_of_all_gaps_are_one_span_and_are_blind_to_answers_and_anchors(shift: bool) -> None:
    source = random_source(0, 60)
    objective = Objective(layout="infill", shift=shift)
    example = make_example(source, objective, 0.5, np.random.default_rng(1), 60)
    noisy = noisy_rows(example)
    assert set(example.span[noisy].tolist()) == {0}
    assert (example.horizon[noisy] == NO_HORIZON).all()
    hidden = [i for start, end in source.gaps for i in range(start - (1 if shift else 0), end)]
    assert np.flatnonzero(example.gap[: example.num_clean] == EVERY_SPAN).tolist() == hidden


def test_segments_end_with_their_gap_s_answer() -> None:
    source, example = random_source(0, 60), example_of("infill", 0, 60)
    borders = np.flatnonzero(np.diff(example.segment[: example.num_clean])) + 1
    assert borders.tolist() == [end for _, end in source.gaps]


def test_the_filler_that_ends_a_gap_weighs_as_a_token_and_those_behind_it_as_one_together() -> None:
    checked = 0
    for seed, u in itertools.product(range(40), (0.2, 0.6, 1.0)):
        example = example_of("infill", seed, 60, u=u, weight="one")
        noisy = np.flatnonzero(noisy_rows(example))
        for rows in np.split(noisy, _breaks(example)):
            weight, after_null = example.weight[rows], _follows_null(example, rows)
            masked = example.target[rows] != IGNORE
            assert (weight[masked & ~after_null] == 1).all()
            if (masked & after_null).any():
                checked += 1
                assert weight[masked & after_null].sum() == pytest.approx(1.0)
    assert checked > 90


def _follows_null(example: Example, rows: np.ndarray) -> np.ndarray:
    """Which rows of a gap predict a filler after the first; a filler that is no target is the next row's input."""
    is_null = example.target[rows] == NULL
    is_null[:-1] |= example.tokens[rows][1:] == NULL
    return np.concatenate([[False], is_null[:-1]])


@pytest.mark.parametrize("layout", ["infill", "blocks", "drafts"])
def test_masks_from_the_left_are_what_decoding_leaves(layout: str) -> None:
    mixed, partly = 0, 0
    for seed in range(20):
        for left in (1.0, 0.5):
            example = example_of(layout, seed, 60, u=0.4, left=left)
            for span in np.split(np.flatnonzero(noisy_rows(example)), _breaks(example)):
                masked = example.target[span] != IGNORE
                ordered = (np.diff(masked.astype(int)) >= 0).all()
                assert ordered or left < 1
                mixed += int(left < 1 and not ordered)
                partly += int(0 < masked.sum() < len(masked))
    assert mixed > 5
    assert partly > 50


def test_the_token_that_decoding_draws_next_weighs_more_in_a_span_masked_from_the_left() -> None:
    example = example_of("blocks", 1, 60, u=0.4, left=1.0, next=4.0)
    plain = example_of("blocks", 1, 60, u=0.4, next=4.0)
    for span in np.split(np.flatnonzero(noisy_rows(example)), _breaks(example)):
        weight = example.weight[span][example.target[span] != IGNORE]
        assert weight.tolist() == [4.0] + [1.0] * (len(weight) - 1)
    assert set(plain.weight[noisy_rows(plain)]) == {0.0, 1.0}
    with pytest.raises(InputError, match="next"):
        Objective(layout="blocks", next=0.0)


def test_infilling_needs_a_gap_filler_and_a_gap() -> None:
    tokens, rng = np.arange(16, 40), np.random.default_rng(0)
    with pytest.raises(InputError, match="gap filler"):
        make_example(Source(tokens, MASK, None, gaps=((2, 4),)), Objective(layout="infill"), 0.5, rng, 20)
    with pytest.raises(InputError, match="at least one gap"):
        make_example(Source(tokens, MASK, NULL), Objective(layout="infill"), 0.5, rng, 20)


# ---- noise levels and weights -------------------------------------------------------------------------------------


def test_the_elbo_weight_is_the_bound_that_draws_k_of_n() -> None:
    """Over all levels and orders, a canvas's weighted loss is sum_k E[CE of k masked] / k of a table model."""

    class Order:
        def __init__(self, order: tuple[int, ...]) -> None:
            self.order = order

        def permutation(self, num: int) -> np.ndarray:
            return np.array(self.order)

    num = 4
    source = Source(np.array([BOS, 20, 21, 22, 23]), MASK, NULL)
    rng = np.random.default_rng(0)
    subsets = [m for k in range(1, num + 1) for m in itertools.combinations(range(num), k)]
    table = {m: rng.exponential(size=num) for m in subsets}
    expected = sum(
        np.mean([sum(table[m][i] for i in m) for m in subsets if len(m) == k]) / k for k in range(1, num + 1)
    )
    totals = []
    objective = Objective(layout="canvas", times="uniform", weight="elbo", clean=0.0)
    for level, order in itertools.product(range(num), itertools.permutations(range(num))):
        example = make_example(source, objective, (level + 0.5) / num, Order(order), num)  # type: ignore[arg-type]
        noisy = noisy_rows(example)
        masked = tuple(np.flatnonzero(example.target[noisy] != IGNORE).tolist())
        assert len(masked) == level + 1
        totals.append(sum(example.weight[noisy][i] * table[masked][i] for i in masked))
    assert np.mean(totals) == pytest.approx(expected, rel=1e-6)


def test_levels_are_the_masked_share_in_eight_bins() -> None:
    for u in np.linspace(0.01, 1.0, 17):
        example = example_of("canvas", length=65, u=float(u))
        noisy = noisy_rows(example)
        masked = example.target[noisy] != IGNORE
        share = masked.mean()
        assert set(example.level[noisy][masked]) == {min(NUM_LEVELS - 1, int(share * NUM_LEVELS))}
        assert (example.level[noisy][~masked] == IGNORE).all()


def test_noise_levels_are_stratified_over_the_spans_of_a_sequence() -> None:
    example = example_of("blocks", 1, 200, u=0.37)
    noisy = noisy_rows(example)
    shares = []
    for span in np.unique(example.span[noisy]):
        rows = example.span == span
        shares.append(((example.target[rows] != IGNORE).mean(), rows.sum()))
    num = len(shares)
    assert num >= 6
    for index, (share, rows) in enumerate(shares):
        t = (0.37 + index / num) % 1.0
        assert t <= share <= t + 1 / rows + 1e-9


def test_times_lie_in_zero_to_one() -> None:
    for name, times in TIMES.items():
        values = [times(u) for u in (0.0, 0.25, 0.999)]
        assert all(0 <= t <= 1 for t in values)
        assert name == "light" or min(values) > 0
        assert values == sorted(values)


def test_weights_are_what_their_names_say() -> None:
    assert [WEIGHTS[name](0.1, 1.0) for name in ("one", "elbo", "clipped")] == pytest.approx([1.0, 10.0, 5.0])
    assert [WEIGHTS[name](0.5, 1.0) for name in ("one", "elbo", "clipped")] == pytest.approx([1.0, 2.0, 2.0])


# ---- batches and losses -------------------------------------------------------------------------------------------


def test_padding_changes_no_loss(subtests: pytest.Subtests) -> None:
    """Examples of different lengths: the sums of a batch are the sums of its examples alone."""
    for layout, attn_impl in zip(LAYOUTS, itertools.cycle(ATTN_IMPLS), strict=False):
        with subtests.test(layout, attn_impl=attn_impl):
            check_padding(layout, attn_impl)


def check_padding(layout: str, attn_impl: str) -> None:
    model, objective = tiny(torch.float64), objective_of(layout)
    examples = [example_of(layout, seed, length) for seed, length in enumerate((40, 23, 31))]
    with torch.no_grad():
        together = collate(examples, objective, PAD)
        solo = [collate([example], objective, PAD) for example in examples]
        whole = batch_loss(model, together, attn_impl)
        parts = [batch_loss(model, batch, attn_impl) for batch in solo]
    assert together.norm == sum(batch.norm for batch in solo)
    summed = sum(float(p.loss) * b.norm for p, b in zip(parts, solo, strict=True))
    assert float(whole.loss) * together.norm == pytest.approx(summed, rel=1e-6)
    assert together.num_tokens == 40 + 23 + 31
    assert whole.clean_count == sum(p.clean_count for p in parts) == (40 + 23 + 31 - 3 if layout in CAUSAL else 0)
    assert whole.clean_sum == pytest.approx(sum(p.clean_sum for p in parts), rel=1e-5)
    assert np.array_equal(whole.level_count, sum(p.level_count for p in parts))
    assert whole.level_sum == pytest.approx(sum(p.level_sum for p in parts), rel=1e-5)


def test_the_loss_is_the_weighted_cross_entropy_over_the_norm() -> None:
    model, objective = tiny(torch.float64), Objective(layout="infill", weight="elbo", clean=0.5)
    batch = collate([example_of("infill", seed, weight="elbo", clean=0.5) for seed in range(2)], objective, PAD)
    with torch.no_grad():
        logp = model.logits(run_batch(model, batch.tokens, batch.layout)).log_softmax(-1)
    total = 0.0
    for b, r in itertools.product(*map(range, batch.tokens.shape)):
        if batch.target[b, r] != IGNORE:
            total -= float(batch.weight[b, r]) * float(logp[b, r, batch.target[b, r]])
    assert float(batch_loss(model, batch).loss.detach()) == pytest.approx(total / batch.norm, rel=1e-6)


def test_normalizers_are_clean_tokens_or_the_sum_of_weights() -> None:
    lengths = (40, 23)
    for normalizer in ("tokens", "masked"):
        objective = Objective(layout="blocks", normalizer=normalizer, weight="elbo")
        examples = [example_of("blocks", i, n, normalizer=normalizer, weight="elbo") for i, n in enumerate(lengths)]
        batch = collate(examples, objective, PAD)
        weights = float(batch.weight[batch.target != IGNORE].sum())
        assert batch.norm == pytest.approx(63 if normalizer == "tokens" else weights)


def test_padding_rows_carry_no_target_weight_or_level() -> None:
    batch = collate([example_of("blocks", 0, 40), example_of("blocks", 1, 20)], Objective(layout="blocks"), PAD)
    padding = batch.layout.rows.span == PADDING
    assert padding.any()
    assert (batch.target[padding] == IGNORE).all()
    assert (batch.weight[padding] == 0).all()
    assert (batch.level[padding] == IGNORE).all()
    assert (batch.tokens[padding] == PAD).all()


def test_the_gradient_of_every_objective_is_its_slope_and_reaches_every_parameter(subtests: pytest.Subtests) -> None:
    """Central differences in float64 along random directions, with both implementations of attention."""
    for layout, weight in zip(LAYOUTS, itertools.cycle(WEIGHTS), strict=False):
        with subtests.test(layout, weight=weight):
            check_gradient(layout, weight)


def check_gradient(layout: str, weight: str) -> None:
    model = tiny(torch.float64)
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.data = 0.5 + torch.rand(parameter.shape, generator=generator, dtype=torch.float64)
    objective = objective_of(layout, weight=weight)
    batch = collate([example_of(layout, seed, 30 - seed, weight=weight) for seed in range(2)], objective, PAD)
    parameters = list(model.parameters())
    gradients = {b: torch.autograd.grad(batch_loss(model, batch, b).loss, parameters) for b in ATTN_IMPLS}
    assert all(gradient.abs().max() > 1e-6 for gradient in gradients["sdpa"])
    for ours, theirs in zip(*gradients.values(), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-6, atol=1e-9)
    step = 1e-5
    for _ in range(3):
        direction = [torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in parameters]
        losses = []
        for sign in (1, -2):  # forward, then back past the start
            with torch.no_grad():
                torch._foreach_add_(parameters, direction, alpha=sign * step)
                losses.append(batch_loss(model, batch).loss.item())
        with torch.no_grad():
            torch._foreach_add_(parameters, direction, alpha=step)
        slope = sum(float((g * d).sum()) for g, d in zip(gradients["sdpa"], direction, strict=True))
        assert (losses[0] - losses[1]) / (2 * step) == pytest.approx(slope, rel=1e-4, abs=1e-7)


@pytest.mark.parametrize(("schedule", "t"), [("linear", 0.4), ("cosine", 0.1), ("polynomial", 0.9)])
def test_a_schedule_sets_the_masked_share_and_the_elbo_weight(schedule: str, t: float) -> None:
    """On a long span the masks are 1 - alpha(t) of it, and the weight is the schedule's."""
    tokens = np.arange(4002) % 40 + 20
    objective = Objective(layout="canvas", schedule=schedule, weight="elbo")
    example = make_example(Source(tokens, MASK, NULL), objective, t, np.random.default_rng(0), 4001)
    noisy = np.arange(len(example.tokens)) >= example.num_clean
    masked = noisy & (example.target != IGNORE)
    time = torch.tensor(t, dtype=torch.float64)
    made = SCHEDULES[schedule]()
    assert masked.sum() / noisy.sum() == pytest.approx(1 - float(made.alpha(time)), abs=1e-3)
    assert example.weight[masked].mean() == pytest.approx(float(made.weight(time)), rel=0.03)
