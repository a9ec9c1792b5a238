"""The losses of concept heads against restatements, what each of them trains, and a run that is killed and resumed."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from daguerre.concepts.taxonomy import taxonomy
from daguerre.errors import InputError
from daguerre.models.core.batched import run_batch
from daguerre.models.core.config import ConceptShape
from daguerre.models.loading import load_model, open_source
from daguerre.train.batch import Batch, batch_loss
from daguerre.train.concept_heads import count_concepts, initialize_heads, with_concept_heads
from daguerre.train.concept_labels import corpus_labels
from daguerre.train.concept_loss import (
    EVEN,
    WEIGHTS,
    ConceptLoss,
    ConceptTraining,
    TokensOf,
    alignment_loss,
    any_loss,
    forced_discovered,
    forced_known,
    hidden_states,
    independence_loss,
    presence_loss,
    reconstruction_loss,
    unexplained,
)
from daguerre.train.data import Cutter, LabeledWindows, MicroBatches, ObjectiveMixture, TextWindows
from daguerre.train.noising import IGNORE
from daguerre.train.objectives import Objective
from daguerre.train.recipe import Share, load_recipe, recipe_from_dict
from daguerre.train.row_pool import CLEAN, MASKED, READING, PooledRows, RowPool, rows_of, spans_of
from daguerre.train.shards import Shard
from daguerre.train.trainer import Trainer
from training_runs import RECIPE, run, run_until

OPTIONS = ConceptTraining(
    labeled=10**6,
    discovered=1,
    rank=8,
    kept_known=6,
    kept_discovered=10,
    frozen=0.3,
    sparse=0.4,
    unforced=0.6,
    inject=0.5,
)
NUM = taxonomy().num_ids


@pytest.fixture(autouse=True)
def few_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs count concepts in 200 windows and not in 20,000, which takes longer than all else here."""
    monkeypatch.setattr("daguerre.train.pretraining.count_concepts", partial(count_concepts, num_windows=200))


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_the_loss_of_presence_is_the_cross_entropy_of_every_concept_in_every_row() -> None:
    z, y = 3 * random(7, 5), (random(7, 5, seed=1) > 0).float()
    total = 0.0
    for row, truth in zip(z.tolist(), y.tolist(), strict=True):
        for logit, present in zip(row, truth, strict=True):
            p = 1 / (1 + math.exp(-logit))
            total -= math.log(p if present else 1 - p)
    assert float(presence_loss(z, y)) == pytest.approx(total / 7, rel=1e-5)


def test_the_loss_of_spans_is_the_cross_entropy_of_any_row_having_a_concept() -> None:
    z, y = random(9, 4), random(9, 4, seed=1) > 1
    number = torch.tensor([2, 2, IGNORE, 5, 5, 5, IGNORE, 9, 2])
    total = 0.0
    for span in (2, 5, 9):
        rows = (number == span).nonzero()[:, 0].tolist()
        for concept in range(4):
            none = math.prod(1 - 1 / (1 + math.exp(-float(z[row, concept]))) for row in rows)
            has = any(bool(y[row, concept]) for row in rows)
            total -= math.log(1 - none if has else none)
    assert float(any_loss(z, y.float(), number)) == pytest.approx(total / 3, rel=1e-5)
    assert float(any_loss(z, y.float(), torch.full((9,), IGNORE))) == 0


def test_logits_far_from_zero_leave_the_loss_of_spans_finite_and_with_a_gradient() -> None:
    z = torch.full((3, 2), -15.0, requires_grad=True)
    y = torch.tensor([[1.0, 0.0]] * 3)
    loss = any_loss(z, y, torch.zeros(3, dtype=torch.int64))
    loss.backward()
    assert torch.isfinite(loss) and z.grad is not None and torch.isfinite(z.grad).all() and z.grad[0, 0] < 0


def test_a_span_counts_by_its_masked_rows_or_by_all_where_nothing_is_masked() -> None:
    sequence = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1])
    span = torch.tensor([-1, 0, 0, 1, 1, 0, 0, -1])
    masked = torch.tensor([False, True, False, False, False, False, True, False])
    found = spans_of(sequence, span, masked).tolist()
    assert [number == IGNORE for number in found] == [True, False, True, False, False, True, False, True]
    assert found[3] == found[4] and len({found[1], found[3], found[6]}) == 3


def test_reconstruction_is_the_squared_distance_by_the_size_of_the_target() -> None:
    u, target = random(6, 3), random(6, 3, seed=1)
    distance = sum(float(((a - b) ** 2).sum()) for a, b in zip(u, target, strict=True))
    size = sum(float((b**2).sum()) for b in target)
    assert float(reconstruction_loss(u, target)) == pytest.approx(distance / size, rel=1e-5)
    assert unexplained(target, target) == 0 and unexplained(target, target.mean(0).expand(6, 3)) == pytest.approx(1)


def test_alignment_is_the_cross_entropy_of_the_tokens_of_each_concept() -> None:
    """Two concepts and one without tokens, by loops."""
    raised = random(3, 5)
    usual, given = torch.tensor([0.3, 0.2, 0.2, 0.2, 0.1]), torch.tensor([[0.1, 0, 0.8, 0, 0.1], [0.0, 1, 0, 0, 0]])
    given = torch.cat([given, torch.zeros(1, 5)])
    liked = given / usual >= 2
    most = torch.where(liked, given / usual, torch.ones(())).amax(dim=1).log()
    tokens, total = TokensOf(usual, given, liked, most), 0.0
    even = [(1 - EVEN) * p + EVEN / 5 for p in usual.tolist()]
    for row, wanted, peak in zip(raised[:2].tolist(), given.tolist(), (math.log(4), math.log(5)), strict=False):
        weights = [p * math.exp(peak / max(row) * r) for p, r in zip(even, row, strict=True)]
        total -= sum(p * math.log(w / sum(weights)) for p, w in zip(wanted, weights, strict=True))
    assert min(float(row.max()) for row in raised[:2]) > 0
    raised.requires_grad_()
    loss = alignment_loss(raised, tokens)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(total / 2, rel=1e-5)
    assert raised.grad is not None and raised.grad[:2].any() and not raised.grad[2].any()
    nothing = replace(tokens, liked=torch.zeros(3, 5, dtype=torch.bool))
    assert float(alignment_loss(raised.detach(), nothing)) == 0


def test_the_vector_of_least_alignment_loss_raises_tokens_by_their_log_lift() -> None:
    usual, given = torch.tensor([0.25, 0.25, 0.25, 0.25]), torch.tensor([[0.625, 0.25, 0.0625, 0.0625]])
    lift = given / usual
    tokens = TokensOf(usual, given, lift >= 2, lift.amax(dim=1).log())
    best = float(alignment_loss(lift.log(), tokens))
    entropy = -float((given * given.log()).sum())
    assert best == pytest.approx(entropy, rel=1e-5)
    for seed in range(5):
        assert float(alignment_loss(lift.log() + 0.1 * random(1, 4, seed=seed), tokens)) > best


def test_independence_is_the_linear_hsic_of_the_two_parts() -> None:
    """By Gram matrices: tr(K H L H) / (A - 1), over the square of the width."""
    k, u = random(12, 4), random(12, 4, seed=1)
    center = torch.eye(12) - 1 / 12
    hsic = torch.trace(center @ (k @ k.T) @ center @ (u @ u.T)) / 11
    assert float(independence_loss(k, u)) == pytest.approx(float(hsic) / 16, rel=1e-4)
    assert float(independence_loss(k, torch.ones(12, 4))) == pytest.approx(0, abs=1e-6)


def test_teacher_forcing_falls_as_in_the_report() -> None:
    assert [forced_known(share) for share in (0, 0.15, 0.325, 0.5, 1)] == pytest.approx([1, 1, 0.75, 0.5, 0.5])
    assert [forced_discovered(share) for share in (0, 0.25, 0.625, 1)] == pytest.approx([1, 1, 0.75, 0.5])


@pytest.fixture(scope="module")
def labeled(corpus: Path, tokenizer: Any) -> LabeledWindows:
    shard = Shard.open(corpus, "train")
    return LabeledWindows(
        TextWindows(shard, tokenizer.bos_id), corpus_labels(shard, tokenizer, shard.num_tokens), tokenizer
    )


@pytest.fixture(scope="module")
def batches(labeled: LabeledWindows, tokenizer: Any) -> list[Batch]:
    mixture = ObjectiveMixture({"only": Objective(layout="blocks")}, {"only": 1.0})
    maker = MicroBatches(labeled.windows, Cutter(tokenizer), mixture, 0, labeled)
    return [maker.make(index, 3, 40) for index in range(3)]


@pytest.fixture
def model(make_model: Any, labeled: LabeledWindows, tokenizer: Any) -> Any:
    made = with_concept_heads(make_model(draft_head=24).backbone, OPTIONS, 0)
    initialize_heads(made, count_concepts(labeled, tokenizer.vocab_size, 20), 0)
    return made


def test_fresh_heads_expect_each_concept_as_often_as_it_occurs(
    model: Any, labeled: LabeledWindows, tokenizer: Any
) -> None:
    share = count_concepts(labeled, tokenizer.vocab_size, 20).prevalence
    concept = int(share.argmax())
    with torch.no_grad():
        weight = model.concepts.known_logits(torch.zeros(1, model.config.width)).sigmoid()[0]
    assert float(weight[concept]) == pytest.approx(share[concept], rel=1e-3) and 0 < share[concept] < 1
    assert model.config.concepts == ConceptShape(
        known=NUM, discovered=NUM, rank=8, kept_known=6, kept_discovered=10, taxonomy=taxonomy().sha256
    )


def test_heads_change_no_logit_and_drafts_are_not_trained(model: Any, make_model: Any, batches: list[Batch]) -> None:
    plain = make_model(draft_head=24).backbone
    with torch.no_grad():
        hidden = run_batch(model, batches[0].tokens, batches[0].layout)
        assert torch.equal(hidden, run_batch(plain, batches[0].tokens, batches[0].layout))
        assert torch.equal(model.logits(hidden), plain.logits(hidden))
    still = {name for name, weight in model.named_parameters() if not weight.requires_grad}
    assert still and all(name.startswith("draft_head.") for name in still)


def test_the_held_out_loss_is_that_of_the_model_as_it_is_and_its_parts_are_restated(
    model: Any, batches: list[Batch]
) -> None:
    batch, heads = batches[0], model.concepts
    with torch.no_grad():
        report, plain = ConceptLoss(OPTIONS)(model, batch), batch_loss(model, batch)
        hidden = run_batch(model, batch.tokens, batch.layout)
    assert report.clean_sum == plain.clean_sum and np.array_equal(report.level_sum, plain.level_sum)
    rows = (batch.origin != IGNORE).nonzero().tolist()
    h = torch.stack([hidden[b, r] for b, r in rows])
    y = torch.stack([batch.concepts[b, batch.origin[b, r]] for b, r in rows]).float()  # type: ignore[index]
    with torch.no_grad():
        parts = heads.decompose(h)
        assert report.parts["presence"] == pytest.approx(float(presence_loss(heads.known_logits(h), y)), rel=1e-5)
        target = h - y @ heads.known_embedding.weight
        expected = {
            "reconstruction": float(reconstruction_loss(parts.discovered, target)),
            "independence": float(independence_loss(parts.known, parts.discovered)),
            "residual": float(unexplained(h, parts.known + parts.discovered)),
        }
    for name, value in expected.items():
        assert report.parts[name] == pytest.approx(value, rel=1e-4), name
    total = float(plain.loss) + sum(getattr(OPTIONS, name) * value for name, value in report.parts.items())
    assert float(report.loss) == pytest.approx(total, rel=1e-5)


def liking(which: slice, vocab_size: int) -> TokensOf:
    """Every concept makes these tokens likelier, and has the first of them alone."""
    liked, given = torch.zeros(NUM, vocab_size, dtype=torch.bool), torch.zeros(NUM, vocab_size)
    liked[:, which] = True
    given[:, int(liked[0].int().argmax())] = 1.0
    return TokensOf(torch.full((vocab_size,), 1 / vocab_size), given, liked, torch.full((NUM,), math.log(vocab_size)))


def gradients(model: Any, batch: Batch, share: float, **options: Any) -> dict[str, float]:
    """The largest gradient of each weight that has one."""
    model.zero_grad(set_to_none=True)
    loss = ConceptLoss(replace(OPTIONS, **options), liking(slice(None), model.config.vocab_size))
    now = loss.at(share)
    if now.heads_alone:
        with torch.no_grad():
            rows = rows_of(batch, hidden_states(model, batch, "sdpa"))
        now.of_rows(model, rows, rows, 0).loss.backward()
    else:
        now(model, batch).loss.backward()
    return {n: float(w.grad.abs().max()) for n, w in model.named_parameters() if w.grad is not None}


OFF = dict.fromkeys(WEIGHTS, 0.0)


def test_until_the_backbone_learns_only_heads_have_gradients(model: Any, batches: list[Batch]) -> None:
    frozen, joint = gradients(model, batches[0], 0.2), gradients(model, batches[0], 0.35)
    assert {name for name in frozen if not name.startswith("concepts.")} == set()
    assert frozen and any(size for name, size in joint.items() if name.startswith("layers."))


@pytest.mark.parametrize(
    ("part", "trained", "left"),
    [
        ("presence", ("known_predictor", "layers.0"), ("known_embedding", "discovered")),
        ("any", ("known_predictor", "layers.0"), ("known_embedding", "discovered")),
        ("reconstruction", ("discovered_up", "discovered_basis"), ("known", "layers.0")),
        ("independence", ("discovered_up", "discovered_basis"), ("known", "layers.0")),
        ("residual", ("known_embedding", "discovered_up", "discovered_basis"), ("known_predictor", "layers.0")),
        ("alignment", ("known_embedding",), ("known_predictor", "discovered", "layers.0", "embedding")),
    ],
)
def test_each_loss_trains_what_it_should(
    part: str, trained: tuple[str, ...], left: tuple[str, ...], model: Any, batches: list[Batch]
) -> None:
    """The difference to the language loss alone, whose residual is kept."""
    plain = gradients(model, batches[0], 0.45, **OFF, residual_drop=0.0)
    found = gradients(model, batches[0], 0.45, **{**OFF, part: 1.0}, residual_drop=0.0)
    changed = {name for name, size in found.items() if size != plain.get(name, 0.0)}
    for name in trained:
        assert any(name in one for one in changed), name
    for name in left:
        assert not any(one.startswith((f"concepts.{name}", name)) for one in changed), name


def test_without_the_residual_the_prediction_rests_on_the_concepts_alone(model: Any, batches: list[Batch]) -> None:
    """All sequences dropped: the loss is that of known + discovered, and with the residual that of h."""
    batch, heads = batches[1], model.concepts
    with torch.no_grad():
        hidden = run_batch(model, batch.tokens, batch.layout)
        kept = ConceptLoss(replace(OPTIONS, **OFF, residual_drop=0.0)).at(0.9)(model, batch)
        dropped = ConceptLoss(replace(OPTIONS, **OFF, residual_drop=1.0)).at(0.9)(model, batch)
        composed = hidden.clone()
        for b, r in (batch.origin != IGNORE).nonzero().tolist():
            parts = heads.decompose(hidden[b, r][None])
            composed[b, r] = (parts.known + parts.discovered)[0]
        target = batch.target != IGNORE
        ce = torch.nn.functional.cross_entropy(model.logits(composed[target]), batch.target[target], reduction="none")
        plain = batch_loss(model, batch)
    assert float(kept.loss) == pytest.approx(float(plain.loss), rel=1e-6)
    assert float(dropped.loss) == pytest.approx(float((batch.weight[target] * ce).sum() / batch.norm), rel=1e-5)
    assert abs(float(dropped.loss) - float(kept.loss)) > 1e-3


def test_at_first_labels_take_the_place_of_weights_so_nothing_is_lost_without_the_residual(
    model: Any, batches: list[Batch]
) -> None:
    with torch.no_grad():
        options = replace(OPTIONS, **OFF, residual_drop=1.0, frozen=0.0)
        forced = ConceptLoss(options).at(0.05)(model, batches[0])
        assert float(forced.loss) == pytest.approx(float(batch_loss(model, batches[0]).loss), rel=1e-4)
        later = ConceptLoss(options).at(0.7)(model, batches[0])
        assert abs(float(later.loss) - float(forced.loss)) > 1e-3


def test_the_language_loss_trains_discovered_concepts_only_where_it_is_asked_to(
    model: Any, batches: list[Batch]
) -> None:
    options = {**OFF, "residual_drop": 1.0}
    detached, attached = (gradients(model, batches[0], 0.9, **options, detached=flag) for flag in (True, False))
    assert not any(size for name, size in detached.items() if "discovered" in name)
    assert any(size for name, size in attached.items() if "discovered" in name)


def test_the_loss_of_rows_is_that_of_their_concepts_alone(model: Any, batches: list[Batch]) -> None:
    """Cross-entropy without the residual, and each loss as it is of the same rows of a batch."""
    batch, heads = batches[0], model.concepts
    with torch.no_grad():
        hidden = hidden_states(model, batch, "sdpa")
        rows = rows_of(batch, hidden)
        report = ConceptLoss(OPTIONS).at(0.9).of_rows(model, rows, rows, 3)
        whole = ConceptLoss(OPTIONS).at(0.9)(model, batch)
        parts = heads.decompose(rows.hidden)
        ce = torch.nn.functional.cross_entropy(model.logits(parts.known + parts.discovered), rows.token)
    assert dict(report.parts) == pytest.approx(dict(whole.parts), rel=1e-5)
    total = float(ce) + sum(getattr(OPTIONS, name) * value for name, value in report.parts.items())
    assert float(report.loss) == pytest.approx(total, rel=1e-5)
    assert report.clean_count == int((rows.kind == CLEAN).sum()) > 0


def test_rows_have_the_labels_and_the_kind_of_the_token_that_they_predict(model: Any, batches: list[Batch]) -> None:
    batch = batches[1]
    assert batch.concepts is not None
    hidden = torch.arange(batch.tokens.numel()).reshape(*batch.tokens.shape, 1).float()
    rows, seen = rows_of(batch, hidden), 0
    kinds = set[int]()
    for b, r in (batch.origin != IGNORE).nonzero().tolist():
        origin = int(batch.origin[b, r])
        kind = CLEAN if batch.layout.rows.span[b, r] < 0 else MASKED if batch.level[b, r] >= 0 else READING
        kinds.add(kind)
        assert float(rows.hidden[seen, 0]) == b * batch.tokens.shape[1] + r and int(rows.kind[seen]) == kind
        assert torch.equal(rows.concepts[seen], batch.concepts[b, origin])
        expected = batch.target[b, r] if batch.target[b, r] != IGNORE else batch.tokens[b, origin]
        assert int(rows.token[seen]) == int(expected)
        seen += 1
    assert seen == len(rows.kind) and kinds == {CLEAN, READING, MASKED}


def made_rows(number: int) -> PooledRows:
    """Rows whose hidden state says which they are: 5 to 8 of a number, of kinds in turn."""
    place = torch.arange(5 + number % 4)
    return PooledRows((1000.0 * number + place)[:, None], torch.zeros(len(place), 1).bool(), place, place % 3, place)


def test_a_pool_draws_from_the_last_batches_and_each_kind_by_its_share() -> None:
    asked = list[int]()
    pool = RowPool(lambda number: asked.append(number) or made_rows(number), slots=4)  # type: ignore[func-returns-value]
    for number in range(2, 9):
        rows = pool.draw(number, made_rows(number), 400, seed=number)
    assert asked == [0, 1], "earlier ones are computed, as in a run that was resumed; each once"
    numbers = (rows.hidden[:, 0] // 1000).int()
    assert set(numbers.tolist()) == {5, 6, 7, 8}
    assert [int((rows.kind == kind).sum()) for kind in range(3)] == [100, 100, 200]
    for value, kind, token in zip(rows.hidden[:, 0].tolist(), rows.kind.tolist(), rows.token.tolist(), strict=True):
        assert value % 1000 == token and kind == token % 3


def test_what_a_pool_draws_does_not_depend_on_what_was_drawn_before() -> None:
    went_on, fresh = RowPool(made_rows, slots=3), RowPool(made_rows, slots=3)
    for number in range(6):
        kept = went_on.draw(number, made_rows(number), 40, seed=number)
    again = fresh.draw(5, made_rows(5), 40, seed=5)
    assert torch.equal(kept.hidden, again.hidden) and torch.equal(kept.kind, again.kind)
    assert not torch.equal(kept.hidden, fresh.draw(5, made_rows(5), 40, seed=6).hidden)


def test_injected_concepts_are_recognized_and_expressed(model: Any, batches: list[Batch]) -> None:
    """Both losses, restated row by row with the concept that was drawn, are what is added. The largest products are
    those of the mask, which is never predicted.
    """
    batch, heads = batches[0], model.concepts
    with torch.no_grad():
        heads.known_embedding.weight.add_(0.1)
        model.embedding.weight[model.config.mask_id] = 5.0
    can_be_predicted = [v for v in range(model.config.vocab_size) if v not in model.config.unpredictable_ids]
    tokens = liking(slice(30, 60), model.config.vocab_size)
    only = replace(OPTIONS, **OFF, residual_drop=0.0)
    found = {}
    with torch.no_grad():
        for name in ("respond", "express"):
            loss = ConceptLoss(replace(only, **{name: 1.0}), tokens).at(0.9)(model, batch)
            found[name] = float(loss.loss) - float(batch_loss(model, batch).loss)
        hidden = run_batch(model, batch.tokens, batch.layout)
        rows = [
            (b, r)
            for b, r in (batch.origin != IGNORE).nonzero().tolist()
            if batch.level[b, r] >= 0 and batch.concepts[b, batch.origin[b, r]].any()  # type: ignore[index]
        ]
        labels = torch.stack([batch.concepts[b, batch.origin[b, r]] for b, r in rows]).float()  # type: ignore[index]
        drawn = torch.multinomial(labels, 1, generator=torch.Generator().manual_seed(batch.seed ^ 1))[:, 0]
        respond, expressed = 0.0, 0.0
        for (b, r), concept in zip(rows, drawn.tolist(), strict=True):
            vector = heads.known_embedding.weight[concept]
            raised = (model.projection @ vector)[can_be_predicted]
            h = hidden[b, r] + OPTIONS.strength * vector / (raised.max() - raised.mean())
            respond -= math.log(1 / (1 + math.exp(-float(heads.known_logits(h)[concept]))))
            expressed -= math.log(float(model.logits(h).softmax(-1)[30:60].sum()))
    assert found["respond"] == pytest.approx(respond / len(rows), rel=1e-3)
    assert found["express"] == pytest.approx(expressed / len(rows), rel=1e-3)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rank": 0}, "concepts.rank"),
        ({"frozen": 1.5}, "concepts.frozen"),
        ({"express": -1.0}, "concepts.express"),
    ],
)
def test_impossible_settings_are_named(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        ConceptTraining(**change)


def test_heads_and_a_draft_head_are_not_trained_in_one_run() -> None:
    with pytest.raises(InputError, match="leave out"):
        replace(RECIPE, concepts=OPTIONS, draft_head=16)


def test_the_recipe_of_the_repository_is_read_and_written() -> None:
    recipe = load_recipe("concepts")
    assert recipe.concepts is not None and recipe_from_dict(asdict(recipe)) == recipe


RUN = replace(RECIPE, concepts=OPTIONS, steps=8, checkpoint_steps=2, eval_steps=8)


def test_a_run_that_is_stopped_and_resumed_ends_with_the_same_heads(corpus: Path, tmp_path: Path) -> None:
    whole = run(RUN, tmp_path / "whole", corpus)
    run_until(3, Trainer(RUN, tmp_path / "parts", corpus, quiet=True))
    resumed = run(RUN, tmp_path / "parts", corpus, resume=True)
    for name, weight in whole.model.named_parameters():
        assert torch.equal(weight, dict(resumed.model.named_parameters())[name]), name
    found = open_source(tmp_path / "whole" / "model").config().concepts
    assert found is not None and found.taxonomy == taxonomy().sha256
    header = (tmp_path / "whole" / "held.csv").read_text().splitlines()[0]
    assert {"presence", "any", "residual"} <= set(header.split(","))


@pytest.mark.parametrize(
    ("layout", "shift"),
    [("bd3", False), ("full", False), ("full", True), ("full_gap", False), ("full_gap", True)],
)
def test_heads_train_alone_and_jointly_in_other_contexts(
    layout: str, shift: bool, corpus: Path, tmp_path: Path
) -> None:
    """Also where a row reads the first token of a text, which nothing predicts."""
    context = {"context": "block", "block_size": 8} if layout == "bd3" else {"context": "full", "block_size": None}
    assert RECIPE.model is not None
    shape = replace(RECIPE.model, **context, shift=shift)
    mixture = {"only": Share(share=1.0, layout=layout)}
    trained = run(
        replace(RUN, model=shape, mixture=mixture, steps=4, checkpoint_steps=4, eval_steps=0), tmp_path / "run", corpus
    )
    for weight in trained.model.parameters():
        assert weight.isfinite().all()
    heads = trained.model.concepts
    assert heads is not None and heads.known_embedding.weight.any()


def test_a_run_from_a_model_with_heads_keeps_them(corpus: Path, tmp_path: Path) -> None:
    run(replace(RUN, steps=2), tmp_path / "first", corpus)
    folder = str(tmp_path / "first" / "model")
    before = load_model(folder)[0].concepts
    again = Trainer(replace(RUN, model=None), tmp_path / "second", corpus, start_from=folder, quiet=True)
    assert before is not None and again.model.concepts is not None
    assert torch.equal(before.known_embedding.weight, again.model.concepts.known_embedding.weight)
    other = replace(RUN, model=None, concepts=replace(OPTIONS, rank=4))
    with pytest.raises(InputError, match="another shape"):
        Trainer(other, tmp_path / "third", corpus, start_from=folder, quiet=True)
