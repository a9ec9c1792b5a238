"""The loss of verified drafts: against a slow one by forwards of decoding, what it trains, what recipes need."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from conftest import tiny_config
from daguerre.errors import InputError
from daguerre.model import Model
from daguerre.models.backends.torch_backend import TorchBackend
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.low_rank import LowRank
from daguerre.models.forward import Forward, Hidden, Layout
from daguerre.models.loading import load_model
from daguerre.models.tokenizer import Tokenizer
from daguerre.train import acceptance
from daguerre.train.acceptance import MEASURES, acceptance_loss, drafted, race, suffix_weights
from daguerre.train.batch import Batch, collate
from daguerre.train.data import TextWindows
from daguerre.train.drafting import drafting_loss, with_draft_head
from daguerre.train.examples import groups
from daguerre.train.monitor import held_out
from daguerre.train.noising import Source
from daguerre.train.objectives import Objective
from daguerre.train.recipe import load_recipe
from daguerre.train.shards import Shard, write_tokens
from daguerre.train.trainer import Trainer
from training_runs import rows

OBJECTIVE = Objective(layout="groups", times="full")
TEXTS = 30, 26
RUN = ["minutes=0.0", "draft_head=8", "draft_rank=4", "precision=float32", "stages.0.length=64", "eval_steps=0"]


@pytest.fixture(scope="module")
def model(tokenizer: Tokenizer) -> Model:
    """A model whose distributions are flat enough that drafts have some overlap."""
    config = tiny_config(tokenizer, draft_head=24, draft_rank=8)
    return Model(Backbone(config).initialize(0, zero_outputs=False).eval().requires_grad_(False), tokenizer)


@pytest.fixture(scope="module")
def batch(model: Any) -> Batch:
    """Two texts of unlike lengths with seven and five groups."""
    rng, tokenizer = np.random.default_rng(0), model.tokenizer
    sources = [Source(rng.integers(20, 200, num), tokenizer.mask_id) for num in TEXTS]
    examples = [groups(s, OBJECTIVE, 0.0, rng, budget) for s, budget in zip(sources, (28, 22), strict=True)]
    return replace(collate(examples, OBJECTIVE, tokenizer.pad_id), seed=3)


def trained(model: Any) -> Backbone:
    """A copy of the model whose drafts can be trained."""
    copy = Backbone(model.config)
    copy.load_state_dict(model.backbone.state_dict())
    return with_draft_head(copy, 24, 0, 8)


def verified(backbone: Backbone, text: np.ndarray, after: int) -> tuple[np.ndarray, np.ndarray]:
    """Hidden states of a text's rows, and of a group of masked rows behind row `after`: a forward of decoding."""
    num = len(text)
    tokens = np.append(text, [backbone.config.mask_id] * OBJECTIVE.group)
    position = np.append(np.arange(num), after + 1 + np.arange(OBJECTIVE.group))
    end = np.append(np.arange(1, num + 1), [after + 1] * OBJECTIVE.group).astype(np.int32)
    mask = np.zeros((num + OBJECTIVE.group, num + OBJECTIVE.group), dtype=bool)
    mask[num:, num:] = True
    wanted = np.arange(num + OBJECTIVE.group, dtype=np.int32)
    one = Forward(tokens, Layout(position, end, num, mask=mask), None, wanted, Hidden(), drafting=True)
    hidden = TorchBackend(backbone).forward([one])[0].hidden
    assert hidden is not None
    return hidden[:num], hidden[num:]


def slow_drafts(backbone: Backbone, batch: Batch) -> list[list[tuple[np.ndarray, np.ndarray, np.ndarray]]]:
    """By group and place: the head's state, and q and p in double precision; every group by a forward of its own."""
    head, labels, num_clean = backbone.draft_head, batch.layout.rows, batch.layout.num_clean
    assert head is not None
    out = []
    for b, length in enumerate(TEXTS):
        text = batch.tokens[b, :length].numpy()
        for number in range(int(labels.span[b].max()) + 1):
            members = (labels.span[b] == number).nonzero().flatten()
            after = int(labels.position[b, members[0]]) - 1
            assert labels.position[b, members].tolist() == [after + 1 + k for k in range(OBJECTIVE.group)]
            assert (members >= num_clean).all() and (batch.tokens[b, members] == backbone.config.mask_id).all()
            clean, masked = (torch.from_numpy(x) for x in verified(backbone, text, after))
            state, places = clean[after], []
            for k in range(OBJECTIVE.group):
                state = head(masked[k], backbone.embedding.weight[text[after + 1 + k]], state)
                q, p = (torch.softmax(backbone.logits(x).double(), -1) for x in (state, clean[after + 1 + k]))
                places.append((state.numpy(), q.numpy(), p.numpy()))
            out.append(places)
    return out


def test_the_loss_is_that_of_forwards_of_decoding_one_group_at_a_time(model: Any, batch: Batch) -> None:
    backbone = model.backbone
    slow = slow_drafts(backbone, batch)
    assert len(slow) == 7 + 5
    found = drafted(backbone, batch)
    for group, places in enumerate(slow):
        for k, (state, q, p) in enumerate(places):
            assert np.allclose(found.state[group, k], state, atol=1e-3)
            assert np.allclose(found.log_draft[group, k].exp(), q, atol=1e-4)
            assert np.allclose(found.teacher[group, k], p, atol=1e-4)
    overlap = np.array([[np.minimum(p, q).sum() for _, q, p in places] for places in slow])
    weight = np.zeros_like(overlap)
    for k in range(OBJECTIVE.group):  # the sum over j >= k of the chance that the first j are accepted
        for j in range(k, OBJECTIVE.group):
            weight[:, k] += np.prod(0.5 + 0.5 * overlap[:, : j + 1], axis=1)
    weight /= weight.mean()
    ce = np.array([[-(p[p > 0] * np.log(q[p > 0])).sum() for _, q, p in places] for places in slow])
    expected = (weight * (0.1 * ce + 0.9 * 2 * (1 - overlap))).mean()
    with torch.no_grad():
        report = acceptance_loss(without_confidence(model), batch)
    assert float(report.loss) == pytest.approx(expected, rel=1e-4)
    assert report.level_sum[-1] == pytest.approx(ce.sum(), rel=1e-4)
    assert report.level_count[-1] == ce.size
    assert report.accepted is not None
    assert report.num_drafts == len(slow)
    assert report.accepted[MEASURES.index("overlap")] == pytest.approx(overlap.sum(0), rel=1e-4)
    right = np.array([[q.argmax() == p.argmax() for _, q, p in places] for places in slow])
    assert report.accepted[MEASURES.index("greedy")].tolist() == right.sum(0).tolist()
    assert 0.01 < overlap.mean() < 0.9


def without_confidence(model: Any) -> Backbone:
    plain = trained(model).requires_grad_(False)
    assert plain.draft_head is not None
    plain.draft_head.confidence = None
    return plain


def test_weights_are_the_expected_rest_of_the_draft() -> None:
    """With nothing accepted s = 1/2 at every place, and with all of it 1: geometric sums, and how many are left."""
    found = suffix_weights(torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.6, 0.2, 1.0]]))
    assert found[0].tolist() == pytest.approx([7 / 8, 3 / 8, 1 / 8])
    assert found[1].tolist() == [3, 2, 1]
    assert found[2].tolist() == pytest.approx([0.8 + 0.48 + 0.48, 0.48 + 0.48, 0.48])


def test_a_race_draws_from_both_distributions_and_matches_as_often_as_the_formula_says() -> None:
    """P(match) = sum_j 1 / sum_i max(p_i/p_j, q_i/q_j), from E_i >= E_j max(p_i/p_j, q_i/q_j) for all i."""
    p, q = np.array([0.5, 0.3, 0.2, 0.0]), np.array([0.2, 0.3, 0.4, 0.1])
    num = 20_000
    teacher, draft = (torch.from_numpy(x).float().expand(num, 1, -1) for x in (p, q))
    none = torch.zeros(num, 1, dtype=torch.int64)
    found = acceptance.GroupDrafts(torch.zeros(num, 1, 2), draft.log(), teacher, none, none[:, 0])
    drawn, wanted = race(found, seed=0)
    matches = (drawn == wanted).float()
    assert np.bincount(wanted[:, 0, 1], minlength=4) / num == pytest.approx(p, abs=0.02)
    assert np.bincount(drawn[:, 0, 1], minlength=4) / num == pytest.approx(q, abs=0.02)
    assert set(drawn[:, 0, 0].tolist()) == {2}
    both = [1 / np.maximum(p / p[j], q / q[j]).sum() for j in range(3)]
    assert float(matches[:, 0, 1].mean()) == pytest.approx(sum(both), abs=0.02)
    assert float(matches[:, 0, 0].max()) == 0
    again, _ = race(found, seed=0)
    other, _ = race(found, seed=1)
    assert torch.equal(again, drawn)
    assert not torch.equal(other, drawn)


def test_the_confidence_learns_from_places_that_are_reached_and_moves_no_state(model: Any, batch: Batch) -> None:
    """Its loss by hand, one place at a time; its gradient reaches the confidence alone."""
    backbone = trained(model)
    head = backbone.draft_head
    assert head is not None
    found, rng = drafted(backbone, batch).every(1), np.random.default_rng(0)
    drawn, wanted = race(found, batch.seed)
    agree = torch.from_numpy(rng.random(drawn.shape) < 0.7)  # a random model accepts too little
    drawn = torch.where(agree, wanted, drawn)
    first = torch.where(torch.arange(len(drawn)) % 3 > 0, found.read[:, 0], found.first)
    read = found.read.clone()
    read[:, 1:] = torch.where(torch.from_numpy(rng.random(read[:, 1:].shape) < 0.7), wanted[:, :-1, 0], read[:, 1:])
    found = replace(found, first=first, read=read)
    loss = acceptance.confidence_loss(head, found, drawn, wanted)
    means, counts = [], []
    for kind, temperature in enumerate((0.0, 1.0)):
        terms = []
        for group in range(len(drawn)):
            for k in range(OBJECTIVE.group):
                likely = first[group] if k == 0 else wanted[group, k - 1, 0]
                if kind == 0 and read[group, k] != likely:
                    break
                log_q = found.log_draft[group, k, drawn[group, k, kind]]
                chance = float(head.acceptance(found.state[group, k][None], log_q[None], temperature).detach())
                accepted = bool(drawn[group, k, kind] == wanted[group, k, kind])
                terms.append(-np.log(chance if accepted else 1 - chance))
                if not accepted:
                    break
        means.append(np.mean(terms))
        counts.append(len(terms))
    assert counts[1] > counts[0] > 8
    assert float(loss.detach()) == pytest.approx(sum(means), rel=1e-4)
    loss.backward()
    reached = {name for name, weight in backbone.named_parameters() if weight.grad is not None}
    assert reached == {"draft_head.confidence.weight", "draft_head.confidence.bias"}


def test_the_first_token_that_a_head_reads_is_compared_with_the_row_before_it(model: Any, batch: Batch) -> None:
    found = drafted(model.backbone, batch)
    number = 0
    for b, length in enumerate(TEXTS):
        for group in range(int(batch.layout.rows.span[b].max()) + 1):
            members = (batch.layout.rows.span[b] == group).nonzero().flatten()
            after = int(batch.layout.rows.position[b, members[0]]) - 1
            text = batch.tokens[b, :length].numpy()
            clean, _ = verified(model.backbone, text, after)
            assert found.first[number] == model.backbone.logits(torch.from_numpy(clean[after])).argmax()
            assert found.read[number].tolist() == text[after + 1 : after + 1 + OBJECTIVE.group].tolist()
            number += 1
    assert number == len(found.first) == len(found.read)


def test_gradients_reach_low_rank_weights_the_head_and_the_confidence_alone(model: Any, batch: Batch) -> None:
    backbone = trained(model)
    drafting_loss(backbone, batch).loss.backward()
    low_rank = {name for name, _ in backbone.named_parameters() if "_draft." in name}
    assert len(low_rank) == 2 * 3 * model.config.num_layers
    for name, weight in backbone.named_parameters():
        learns = name in low_rank or name.startswith("draft_head.")
        assert (weight.grad is not None) == learns, name
        assert not learns or float(weight.grad.abs().max()) > 0, name


def test_the_gradient_is_that_of_differences(model: Any, batch: Batch) -> None:
    """Of the acceptance, by a small step along the gradient of one matrix of each kind: cached keys add none."""
    backbone, step = without_confidence(model), 0.01

    def accepted() -> torch.Tensor:
        found = drafted(backbone, batch)
        return torch.minimum(found.teacher, found.log_draft.exp()).sum()

    for name in ("layers.0.attention.qkv_draft.a", "layers.1.attention.out_draft.b", "layers.0.mlp.down_draft.b"):
        weight = backbone.get_parameter(f"{name}.weight").requires_grad_(True)
        (gradient,) = torch.autograd.grad(accepted(), weight)
        weight.requires_grad_(False)
        before, direction = weight.clone(), gradient / gradient.norm()
        weight.copy_(before + step * direction)
        up = float(accepted())
        weight.copy_(before - step * direction)
        down = float(accepted())
        weight.copy_(before)
        assert (up - down) / (2 * step) == pytest.approx(float(gradient.norm()), rel=0.02)


def test_groups_read_no_prompt_and_end_within_the_text(model: Any) -> None:
    """All of a text's places are used if there is room; one at least where a model has written too little."""
    rng, text = np.random.default_rng(0), np.arange(20, 40)
    example = groups(Source(text, 3, given=9), OBJECTIVE, 0.0, rng, 400)
    after = example.horizon[example.num_clean :: OBJECTIVE.group] - 1
    assert after.tolist() == list(range(8, 20 - 1 - OBJECTIVE.group))
    assert len(groups(Source(text, 3, given=20), OBJECTIVE, 0.0, rng, 400).tokens) == 20 + OBJECTIVE.group
    assert len(groups(Source(text, 3), OBJECTIVE, 0.0, rng, 3 * OBJECTIVE.group + 1).tokens) == 20 + 3 * OBJECTIVE.group


def test_a_shard_says_what_was_given(tokenizer: Any, tmp_path: Path) -> None:
    ids = np.arange(20, 60)
    write_tokens(tmp_path, {"train": [(ids, 40), (ids[:20], 20)]}, tokenizer, {"train": [10, 0]})
    shard = Shard.open(tmp_path)
    assert shard.given is not None and shard.given.tolist() == [10, 0]
    windows, rng, seen = TextWindows(shard, tokenizer.bos_id), np.random.default_rng(0), set()
    for _ in range(200):
        drawn = windows.place(32, rng)
        window, given = drawn.tokens, drawn.given
        first = int(window[1])
        seen.add((first, len(window)))
        assert given == (1 if len(window) < 32 else 1 + max(0, 10 - (first - 20)))
    assert len(seen) > 5
    write_tokens(tmp_path, {"train": [(ids, 40)]}, tokenizer)
    assert Shard.open(tmp_path).given is None


def test_a_run_trains_drafts_and_leaves_the_rest_to_the_bit(start: str, corpus: Path, tmp_path: Path) -> None:
    recipe = load_recipe("verified", ["steps=4", *RUN])
    folder = Trainer(recipe, tmp_path / "run", corpus, start_from=start, quiet=True).run()
    (before, _), (after, _) = load_model(start), load_model(folder)
    acceptance = after.config.draft_acceptance
    assert after.config == replace(before.config, draft_head=8, draft_rank=4, draft_acceptance=acceptance)
    for name, weight in before.named_parameters():
        assert torch.equal(weight, after.get_parameter(name)), name
    assert float(after.get_parameter("layers.0.attention.qkv_draft.b.weight").abs().max()) > 0
    measured = rows(tmp_path / "run", "held.csv")[-1]
    assert {f"{measure}_{place}" for measure in MEASURES for place in range(1, OBJECTIVE.group + 1)} <= set(measured)
    greedy, race = acceptance
    assert len(greedy) == len(race) == OBJECTIVE.group
    assert all(0 <= share <= 1 for share in (*greedy, *race))


def test_a_run_that_is_resumed_ends_with_the_same_weights(start: str, corpus: Path, tmp_path: Path) -> None:
    whole = load_recipe("verified", ["steps=6", *RUN])
    alone = Trainer(whole, tmp_path / "alone", corpus, start_from=start, quiet=True)
    alone.run()
    cut = Trainer(whole, tmp_path / "cut", corpus, start_from=start, quiet=True)
    cut.reporter.step = lambda row, share: setattr(cut, "stop_asked", row["step"] == 3)  # type: ignore[method-assign]
    cut.run()
    resumed = Trainer(whole, tmp_path / "cut", corpus, resume=True, quiet=True)
    assert resumed.progress.step == 3
    resumed.run()
    for name, weight in alone.model.named_parameters():
        assert torch.equal(weight, resumed.model.get_parameter(name)), name


def test_held_out_figures_are_shares_of_all_drafts(model: Any, batch: Batch) -> None:
    none = torch.zeros(model.config.vocab_size, dtype=torch.int64)
    prompts = torch.randint(20, 200, (2, 8), generator=torch.Generator().manual_seed(0))
    held = held_out(model.backbone, [batch, batch], prompts, none, "sdpa", drafting_loss)
    with torch.no_grad():
        once = acceptance_loss(model.backbone, batch)
    assert once.accepted is not None
    assert np.allclose(held.acceptance, once.accepted / once.num_drafts)


def test_a_recipe_needs_what_low_rank_weights_learn_from(start: str, tmp_path: Path) -> None:
    def trainer(*overrides: str, recipe: str = "verified") -> Trainer:
        made = load_recipe(recipe, ["steps=2", *RUN, *overrides])
        return Trainer(made, tmp_path / "run", tmp_path, start_from=start, quiet=True)

    with pytest.raises(InputError, match="draft_rank needs draft_head"):
        load_recipe("verified", ["draft_head=0"])
    with pytest.raises(InputError, match='low-rank weights learn from layout = "groups"'):
        trainer(recipe="draft")
    with pytest.raises(InputError, match=r"mixture\.groups: a draft head learns from"):
        trainer("mixture.groups.times=uniform")
    with pytest.raises(InputError, match="the same `group`"):
        trainer('mixture.more={layout="groups", times="full", share=0.5, group=2}')
    with pytest.raises(InputError, match='"groups" trains a draft head: set draft_head'):
        trainer("draft_head=0", "draft_rank=0")


def test_a_lower_rank_keeps_the_nearest_weights(model: Any) -> None:
    """By the singular values that are left out: the squared distance is the sum of their squares."""
    before, after = (x.requires_grad_(False) for x in (trained(model), with_draft_head(trained(model), 24, 0, 4)))
    assert after.config.draft_rank == 4
    matrices = [name for name, part in after.named_modules() if isinstance(part, LowRank)]
    assert len(matrices) == 3 * model.config.num_layers
    for name in matrices:
        old, new = (cast(LowRank, backbone.get_submodule(name)) for backbone in (before, after))
        full = old.b.weight @ old.a.weight
        missing = (full - new.b.weight @ new.a.weight).norm() ** 2
        assert float(missing) == pytest.approx(float((torch.linalg.svdvals(full)[4:] ** 2).sum()), rel=1e-3)
        assert float(missing) > 0
    for name, weight in before.named_parameters():
        if "_draft." not in name:
            assert torch.equal(weight, after.get_parameter(name)), name


def test_a_model_with_low_rank_weights_gets_none_of_a_higher_rank(model: Any) -> None:
    backbone = trained(model)
    with pytest.raises(InputError, match="have rank 8"):
        with_draft_head(backbone, 24, 0, 9)
    head_alone = with_draft_head(backbone, 24, 0)
    assert head_alone is backbone
    assert {n.split(".")[0] for n, w in backbone.named_parameters() if w.requires_grad} == {"draft_head"}
