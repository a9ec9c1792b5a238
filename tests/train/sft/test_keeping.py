"""The loss that keeps what a model can do: on plain text the divergence from its start, on answers the usual one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from answers import RECIPE, STAGE, batches_of, corpus_of, some_pairs, write_rows
from daguerre.errors import InputError
from daguerre.model import Model
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.batched import run_batch
from daguerre.models.loading import load_model
from daguerre.train.batch import Batch, batch_loss
from daguerre.train.noising import IGNORE
from daguerre.train.run import DATA, CopiedAnswers
from daguerre.train.sft.keeping import KeepingLoss
from daguerre.train.sft.presets import Sft
from daguerre.train.trainer import Trainer
from training_runs import run_until

FACTS: dict[str, dict[str, Any]] = {
    "causal": {},
    "full": {"context": "full", "shift": False},
    "block": {"context": "block", "shift": False, "block_size": 8},
}
PACKED = {"padding": "unsupervised", "packing": True}


def mixed_rows() -> list[dict[str, str]]:
    """Pairs, and plain texts."""
    pairs = some_pairs(30)
    return [{"text": row["prompt"] + row["completion"]} if i % 3 == 0 else row for i, row in enumerate(pairs)]


def drawn(model: Model, folder: Path, num: int = 6, **options: Any) -> list[Batch]:
    maker = batches_of(corpus_of(mixed_rows(), folder, model), model, **options)
    return [maker.draw(index, STAGE) for index in range(num)]


def changed(start: Backbone) -> Backbone:
    """The model after some training."""
    model = copy.deepcopy(start)
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.05 * torch.randn_like(weight))
    return model


def expected(model: Backbone, start: Backbone, batch: Batch, weight: float) -> float:
    """The loss by its definition, a row at a time, in float64."""
    total = 0.0
    with torch.no_grad():
        laws = [
            one.logits(run_batch(one, batch.tokens, batch.layout)).double().log_softmax(-1) for one in (model, start)
        ]
    for b, r in zip(*np.nonzero((batch.target != IGNORE).numpy()), strict=True):
        now, before = laws[0][b, r], laws[1][b, r]
        assert batch.plain is not None
        if batch.plain[b, r]:
            able = torch.isfinite(before)
            cost = weight * float((before[able].exp() * (before[able] - now[able])).sum())
        else:
            cost = -float(now[batch.target[b, r]])
        total += float(batch.weight[b, r]) * cost
    return total / batch.norm


@pytest.mark.parametrize("name", FACTS)
@pytest.mark.parametrize("packing", [False, True])
def test_plain_texts_cost_the_divergence_and_answers_their_loss(
    make_model: Callable[..., Model], tmp_path: Path, name: str, packing: bool
) -> None:
    made = make_model(**FACTS[name])
    start = made.backbone.requires_grad_(True)
    model = changed(start)
    loss, seen = KeepingLoss(3.0, start), set[tuple[bool, bool]]()
    for batch in drawn(made, tmp_path, **(PACKED if packing else {"packing": False})):
        assert batch.plain is not None
        targets = batch.target != IGNORE
        seen.add((bool((batch.plain & targets).any()), bool((~batch.plain & targets).any())))
        found = loss(model, batch).loss
        assert float(found.detach()) == pytest.approx(expected(model, start, batch, 3.0), rel=2e-5)
    assert (True, True) in seen


def test_the_rows_of_plain_texts_are_marked(make_model: Callable[..., Model], tmp_path: Path) -> None:
    model = make_model()
    maker = batches_of(corpus_of(mixed_rows(), tmp_path, model), model, packing=True)
    for index in range(6):
        batch = maker.draw(index, STAGE)
        assert batch.plain is not None
        for row in range(STAGE.sequences):
            pack = maker._pack(index * STAGE.sequences + row, STAGE.length)
            for number, document in enumerate(pack.tolist()):
                rows = (batch.layout.rows.document[row] == number) & (batch.target[row] != IGNORE)
                assert set(batch.plain[row][rows].tolist()) == {bool(maker.text(document).answer[1:].all())}


def test_of_a_model_that_has_not_changed_plain_text_costs_nothing(
    make_model: Callable[..., Model], tmp_path: Path
) -> None:
    """Nor does it pull the weights anywhere."""
    made = make_model()
    model = made.backbone.requires_grad_(True)
    loss = KeepingLoss(1.0, model)
    for batch in drawn(made, tmp_path, packing=False):
        assert batch.plain is not None
        alone = replace(batch, target=batch.target.masked_fill(~batch.plain, IGNORE))
        if not (alone.target != IGNORE).any():
            continue
        found = loss(model, alone).loss
        found.backward()
        assert float(found.detach()) == pytest.approx(0.0, abs=1e-6)
        assert max(float(w.grad.abs().max()) for w in model.parameters() if w.grad is not None) < 1e-5
        assert float(batch_loss(model, alone).loss.detach()) > 1.0


def test_a_run_that_is_resumed_keeps_to_the_same_start(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", mixed_rows())
    Trainer(replace(RECIPE, steps=2), tmp_path / "start", _files(path, tmp_path / "start"), quiet=True).run()
    recipe = replace(RECIPE, model=None, sft=Sft(keep=1.0), steps=4)
    begun = str(tmp_path / "start" / "model")
    for out in (tmp_path / "whole", tmp_path / "run"):
        files = _files(path, out)
        trainer = Trainer(recipe, out, files, start_from=begun, quiet=True)
        if out.name == "whole":
            trainer.run()
        else:
            run_until(2, trainer)
            Trainer(recipe, out, out / DATA, resume=True, quiet=True).run()
    weights = "model/model.safetensors"
    assert (tmp_path / "run" / weights).read_bytes() == (tmp_path / "whole" / weights).read_bytes()


def test_a_second_run_keeps_the_law_of_the_model_that_its_start_was_trained_from(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", mixed_rows())
    recipe = replace(RECIPE, model=None, steps=4)
    Trainer(replace(RECIPE, steps=2), tmp_path / "base", _files(path, tmp_path / "base"), quiet=True).run()
    base, tuned = (str(tmp_path / name / "model") for name in ("base", "tuned"))
    Trainer(recipe, tmp_path / "tuned", _files(path, tmp_path / "tuned"), start_from=base, quiet=True).run()
    for name, sft in (("start", Sft(keep=1.0)), ("base", Sft(keep=1.0, keep_of=base))):
        out = tmp_path / f"keeps-{name}"
        trainer = Trainer(replace(recipe, sft=sft), out, _files(path, out), start_from=tuned, quiet=True)
        weights = {n: w.detach().clone() for n, w in trainer.model.named_parameters()}
        other, _ = load_model(base)
        assert isinstance(trainer.method.loss, KeepingLoss)
        for key, kept in trainer.method.loss.reference.values.items():
            assert torch.equal(kept, weights[key] if name == "start" else other.get_parameter(key))
        assert any(not torch.equal(weights[key], other.get_parameter(key)) for key in weights)
        if name == "base":
            run_until(2, trainer)
            again = Trainer(replace(recipe, sft=sft), out, out / DATA, resume=True, quiet=True)
            assert isinstance(again.method.loss, KeepingLoss)
            for key, kept in again.method.loss.reference.values.items():
                assert torch.equal(kept, other.get_parameter(key))


def _files(path: Path, out: Path) -> CopiedAnswers:
    return CopiedAnswers([path], out / DATA, 64, 0.1)


def test_the_law_of_a_model_of_another_shape_cannot_be_kept(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", mixed_rows())
    Trainer(replace(RECIPE, steps=1), tmp_path / "start", _files(path, tmp_path / "start"), quiet=True).run()
    recipe = replace(RECIPE, model=None, sft=Sft(keep=1.0, keep_of="default"))
    begun, out = str(tmp_path / "start" / "model"), tmp_path / "run"
    with pytest.raises(InputError, match=r"keep_of: default has other weights .* train all weights"):
        Trainer(recipe, out, _files(path, out), start_from=begun, quiet=True)


def test_what_has_no_start_to_keep_is_refused() -> None:
    with pytest.raises(InputError, match=r"set sft\.keep, too"):
        Sft(keep_of="default")
    with pytest.raises(InputError, match="keeps what a trained model does"):
        replace(RECIPE, sft=Sft(keep=1.0))
    with pytest.raises(InputError, match="keep must be at least 0"):
        Sft(keep=-1.0)
