"""The loss of confidence-and-trajectory distillation: against a slow one, and what a run of it trains."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from conftest import tiny_config
from daguerre.model import Model
from daguerre.models.core.backbone import Backbone
from daguerre.models.loading import load_model
from daguerre.models.tokenizer import Tokenizer
from daguerre.train import trajectory
from daguerre.train.acceptance import GroupDrafts, acceptance_loss
from daguerre.train.batch import Batch, collate
from daguerre.train.drafting import drafting_loss, with_draft_head
from daguerre.train.examples import groups
from daguerre.train.noising import Source
from daguerre.train.objectives import Objective
from daguerre.train.recipe import load_recipe
from daguerre.train.trainer import Trainer

OBJECTIVE = Objective(layout="groups", times="full", group=6, certainty=2.0)
RUN = ["minutes=0.0", "draft_head=8", "draft_rank=4", "precision=float32", "stages.0.length=64", "eval_steps=0"]


@pytest.fixture(scope="module")
def model(tokenizer: Tokenizer) -> Model:
    """A model without a confidence: its loss is that of the drafts alone."""
    config = tiny_config(tokenizer, draft_head=24, draft_rank=8)
    backbone = with_draft_head(Backbone(config).initialize(3, zero_outputs=False).eval(), 24, 0, 8)
    assert backbone.draft_head is not None
    backbone.draft_head.confidence = None
    return Model(backbone, tokenizer)


@pytest.fixture(scope="module")
def batch(model: Any) -> Batch:
    source = Source(np.random.default_rng(1).integers(20, 200, 30), model.tokenizer.mask_id)
    return collate([groups(source, OBJECTIVE, 0.0, np.random.default_rng(0), 60)], OBJECTIVE, model.tokenizer.pad_id)


def some_drafts(num: int = 400, words: int = 4) -> GroupDrafts:
    """Drafts of few words, which are often right; most of the text that the head has read is the most likely one."""
    random = torch.Generator().manual_seed(0)
    shape = (num, OBJECTIVE.group, words)
    log_teacher = (3 * torch.randn(shape, generator=random)).log_softmax(-1)
    log_draft = (log_teacher + torch.randn(shape, generator=random)).log_softmax(-1).requires_grad_(True)
    first = torch.randint(words, (num,), generator=random)
    read = torch.cat([first[:, None], log_teacher.argmax(-1)[:, :-1]], dim=1)
    read = torch.where(torch.rand(read.shape, generator=random) < 0.1, (read + 1) % words, read)
    return GroupDrafts(torch.zeros(num, OBJECTIVE.group, 1), log_draft, log_teacher.exp(), read, first)


def test_places_count_as_far_as_the_draft_is_right_and_one_more(
    model: Any, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kinds of places are found by walking along each group, not by products of matches."""
    found = some_drafts()
    monkeypatch.setattr(trajectory, "drafted", lambda *_: found)
    with torch.no_grad():
        report = drafting_loss(model.backbone, batch)
    q, p = found.log_draft.detach().double(), found.teacher.double()
    total, kinds = 0.0, {"committed": 0, "next": 0, "later": 0, "off": 0}
    for group in range(len(q)):
        right = on_path = True
        before = int(found.first[group])
        for place in range(OBJECTIVE.group):
            on_path = on_path and int(found.read[group, place]) == before
            best, log_q = int(p[group, place].argmax()), q[group, place]
            if on_path and right:
                total -= float(log_q[best])
                right = int(log_q.argmax()) == best
                if right:
                    sharp = torch.softmax(log_q / 0.5, -1)
                    total += 2.0 * float(-(sharp * sharp.clamp(min=1e-300).log()).sum())
                kinds["committed" if right else "next"] += 1
            else:
                total += float(F.cross_entropy(log_q[None], p[group, place][None]))
                kinds["later" if on_path else "off"] += 1
            before = best
    assert all(kinds.values()), kinds
    assert float(report.loss) == pytest.approx(total / (len(q) * OBJECTIVE.group), rel=1e-4)


def test_the_recipe_chooses_the_loss(model: Any, batch: Batch) -> None:
    with torch.no_grad():
        plain = drafting_loss(model.backbone, replace(batch, certainty=0.0))
        assert float(plain.loss) == float(acceptance_loss(model.backbone, batch).loss)
        assert float(plain.loss) != float(drafting_loss(model.backbone, batch).loss)


def test_certainty_sharpens_what_is_committed_and_nothing_else(
    model: Any, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradient of the weight of the entropy: zero but for places that are right with all before them right."""
    found = some_drafts()
    monkeypatch.setattr(trajectory, "drafted", lambda *_: found)

    def gradient(certainty: float) -> torch.Tensor:
        loss = drafting_loss(model.backbone, replace(batch, certainty=certainty)).loss
        return torch.autograd.grad(loss, found.log_draft)[0]

    moved = (gradient(3.0) - gradient(1.0)).abs().sum(-1) > 1e-9
    right = found.log_draft.argmax(-1) == found.teacher.argmax(-1)
    assert 0.1 < moved.float().mean() < 0.9
    assert not (moved & ~right.long().cumprod(-1).bool()).any()


def test_a_run_leaves_the_rest_to_the_bit(start: str, corpus: Path, tmp_path: Path) -> None:
    recipe = load_recipe("trajectory", ["steps=3", *RUN])
    folder = Trainer(recipe, tmp_path / "run", corpus, start_from=start, quiet=True).run()
    (before, _), (after, _) = load_model(start), load_model(folder)
    for name, weight in before.named_parameters():
        assert torch.equal(weight, after.get_parameter(name)), name
    assert len(after.config.draft_acceptance[0]) == recipe.mixture["groups"].group == 8
