"""The training of a draft head: its loss against a slow sum, what it changes, and what it refuses."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from daguerre.errors import InputError, UnsupportedError
from daguerre.models.core.batched import run_batch
from daguerre.models.loading import load_model
from daguerre.train.batch import collate
from daguerre.train.drafting import DECAY, draft_head_loss, with_draft_head
from daguerre.train.examples import drafts
from daguerre.train.monitor import draft_match
from daguerre.train.noising import Source
from daguerre.train.objectives import Objective
from daguerre.train.recipe import Share, load_recipe, recipe_from_dict
from daguerre.train.trainer import Trainer


@pytest.fixture(scope="module")
def drafting(make_model: Any) -> Any:
    return make_model(draft_head=24)


def test_the_loss_is_the_cross_entropy_of_every_place_under_the_autoregressive_distribution(drafting: Any) -> None:
    """Span by span and place by place, with the next-token distributions of the text alone as the teacher."""
    backbone, t = drafting.denoiser.backbone, drafting.tokenizer
    rng, objective = np.random.default_rng(0), Objective(layout="drafts", times="full")
    texts = [rng.integers(20, 200, num) for num in (30, 40)]
    batch = collate([drafts(Source(x, t.mask_id), objective, 0.0, rng, 48) for x in texts], objective, t.pad_id)
    rows, num_clean = batch.layout.rows, batch.layout.num_clean
    hidden = run_batch(backbone, batch.tokens, batch.layout)
    found: list[tuple[int, int, list[int]]] = []  # length, sequence, rows: in the order in which spans take turns
    for b in range(len(texts)):
        for span in dict.fromkeys(n for n in rows.span[b].tolist() if n >= 0):
            members = [r for r in range(num_clean, rows.num_rows) if rows.span[b, r] == span]
            found.append((len(members), b, members))
    found.sort(key=lambda each: -each[0])
    total, weights, count = 0.0, 0.0, 0
    for number, (_, b, members) in enumerate(found):
        anchor = int(rows.position[b, members[0]])
        state = hidden[b, anchor if number % 2 == 0 else members[0]]
        for place, row in enumerate(members[1:], 1):
            token = texts[b][anchor + place]
            state = backbone.draft_head(hidden[b, row], backbone.embedding.weight[token], state)
            teacher = torch.softmax(backbone.logits(hidden[b, anchor + place]), -1).double()
            log = torch.log_softmax(backbone.logits(state), -1).double()
            total -= DECAY**place * float((teacher * log)[teacher > 0].sum())
            weights += DECAY**place
            count += 1
    report = draft_head_loss(backbone, batch)
    assert float(report.loss) == pytest.approx(total / weights, rel=1e-4)
    assert report.level_count[-1] == count > 40


def test_a_model_gets_a_head_that_changes_nothing_yet(causal: Any) -> None:
    plain = causal.denoiser.backbone
    grown = with_draft_head(plain, 16, seed=1)
    assert grown.config == replace(plain.config, draft_head=16)
    trained = {name for name, weight in grown.named_parameters() if weight.requires_grad}
    assert trained == {"draft_head.up.weight", "draft_head.down.weight"}
    prompts = torch.randint(20, 200, (6, 10), generator=torch.Generator().manual_seed(0))
    assert draft_match(grown, prompts, 6)[0].tolist() == draft_match(plain, prompts, 6)[0].tolist()
    assert with_draft_head(grown, 16, seed=1) is grown
    with pytest.raises(InputError, match="has width 16"):
        with_draft_head(grown, 8, seed=1)


def test_a_model_that_cannot_draft_is_refused(models: Any) -> None:
    with pytest.raises(UnsupportedError, match="causal context with a shift"):
        with_draft_head(models["full_unshifted"].denoiser.backbone, 8, seed=0)


def test_only_drafts_of_the_data_teach_it(start: str, tmp_path: Path) -> None:
    recipe = load_recipe("draft", ["steps=2", "minutes=0.0", "stages.0.length=64"])
    for share in (Share(share=1.0, layout="blocks"), Share(share=1.0, layout="drafts", times="full", teacher="self")):
        wrong = recipe_from_dict(asdict(replace(recipe, mixture={"other": share})))
        with pytest.raises(InputError, match=r"mixture\.other: a draft head learns from"):
            Trainer(wrong, tmp_path / "run", tmp_path, start_from=start, quiet=True)


def test_a_run_trains_the_head_and_leaves_the_rest_to_the_bit(start: str, corpus: Path, tmp_path: Path) -> None:
    small = ["minutes=0.0", "draft_head=8", "precision=float32", "stages.0.length=64", "eval_steps=0"]
    recipe = load_recipe("draft", ["steps=4", *small])
    folder = Trainer(recipe, tmp_path / "run", corpus, start_from=start, quiet=True).run()
    (before, _), (after, _) = load_model(start), load_model(folder)
    for name, weight in before.named_parameters():
        assert torch.equal(weight, after.get_parameter(name)) or name.startswith("draft_head."), name
    assert after.draft_head is not None
    assert float(after.draft_head.down.weight.abs().max()) > 0
    resumed = Trainer(load_recipe("draft", ["steps=6", *small]), tmp_path / "run", corpus, resume=True, quiet=True)
    assert resumed.progress.step == 4
    assert resumed.run() == folder
