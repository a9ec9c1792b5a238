"""Decoding many answers at once in training, against the policies on what the engine computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from answers import STAGE, hidden_answers
from daguerre.canvas import Canvas
from daguerre.model import Model
from daguerre.models.denoiser import BackboneDenoiser
from daguerre.models.forward import Logits
from daguerre.models.session import compute
from daguerre.sampling.logits import Proposals
from daguerre.sampling.policies import POLICIES, Policy, Progress
from daguerre.sampling.random import Counter
from daguerre.train.distill.answers import answers_of, sequences_of, times, with_visible
from daguerre.train.distill.options import Distill
from daguerre.train.distill.rollout import by_policy, roll_out, step_sizes, top
from daguerre.train.sft.batches import AnswerBatches

MakeModel = Callable[..., Model]
FACTS: dict[str, dict[str, Any]] = {
    "causal": {},
    "nemotron": {"masks_in_place": True, "block_size": 8},
    "full": {"context": "full"},
    "full_unshifted": {"context": "full", "shift": False},
    "block": {"context": "block", "shift": False, "block_size": 8},
    "fast_dllm": {"context": "block", "anchor": "clean", "block_size": 8},
}


def reference(model: Model, text: np.ndarray, places: list[int], policy: Policy) -> tuple[dict[int, int], int]:
    """The tokens that a policy commits at open places of a text, all else being known, and the number of forwards."""
    config, num = model.config, len(text)
    denoiser, canvas_tokens = BackboneDenoiser(model.backbone, backend="torch"), text.copy()
    mask, step = np.zeros(num, dtype=bool), 0
    mask[places] = True
    start, end = min(places), max(places) + 1
    if config.context == "block":
        start, end = start // 8 * 8 + (config.anchor == "clean"), min(num, (start // 8 + 1) * 8)
    elif config.context == "full":
        start, end = 1, num
    while mask.any():
        first = int(np.flatnonzero(mask)[0]) if config.context == "causal" else max(1, start)
        if config.context == "causal" and step:  # rows of a span see it whole: it stays where it began
            first = min(places)
        canvas = Canvas(canvas_tokens, mask, ((1, num),), (first, end))
        positions = np.flatnonzero(mask)
        answer = compute(denoiser.session(canvas).ask(canvas, positions, Logits()), denoiser.backend)
        assert answer.logits is not None
        probs = torch.from_numpy(answer.logits).double().softmax(-1).numpy()
        best = -np.sort(-probs, axis=-1)[:, :2]
        with np.errstate(divide="ignore", invalid="ignore"):
            entropies = -np.nansum(probs * np.log(probs), axis=-1)
        proposals = Proposals(positions, probs.argmax(-1), probs.max(-1), entropies=entropies, best=best)
        decision = policy.decide(proposals, Progress(step, step, len(places)), Counter(0))
        canvas_tokens[decision.positions], mask[decision.positions] = decision.tokens, False
        step += 1
    return {place: int(canvas_tokens[place]) for place in places}, step


@pytest.mark.parametrize("name", [name for name in FACTS if name != "nemotron"])
def test_answers_are_decoded_as_the_policy_decodes_them_in_the_engine(
    make_model: MakeModel, tmp_path: Path, name: str, subtests: pytest.Subtests
) -> None:
    model = make_model(**FACTS[name])
    maker = hidden_answers(model, tmp_path)
    for policy in ("margin", "entropy", "confidence", "threshold"):
        with subtests.test(policy):
            check_policy(model, maker, policy)


def check_policy(model: Model, maker: AnswerBatches, policy: str) -> None:
    offset, options = model.config.noisy_offset, Distill(policy=policy, threshold=0.6, steps=3)
    made = POLICIES[policy](threshold=0.6) if policy == "threshold" else POLICIES[policy](steps=3)  # type: ignore[call-arg]
    several = 0
    for index in range(2):
        batch = maker.draw(index, replace(STAGE, block_size=8))
        answers = answers_of(batch, offset)
        assert (answers.target >= 0).all() and answers.sizes.sum() == len(answers.group)
        found = roll_out(
            model.backbone, batch, answers, by_policy(options, 3), torch.Generator().manual_seed(0), "sdpa"
        )
        rows, num_rows = batch.layout.rows, batch.tokens.shape[1]
        place = rows.position.flatten()[answers.predicts] + offset
        for group in range(answers.num_groups):
            inside = torch.nonzero(answers.group == group)[:, 0]
            sequence = int(answers.predicts[inside[0]]) // num_rows
            document = int(maker._pack(index * STAGE.sequences + sequence, 64)[0])
            text = maker.text(document).tokens
            wanted, forwards = reference(model, text, sorted(place[inside].tolist()), made)
            got = dict(zip(place[inside].tolist(), found.tokens[inside].tolist(), strict=True))
            assert got == wanted
            assert int(found.steps[group]) == forwards
            several += forwards > 1
    assert several > 3


def test_a_visible_token_is_read_where_it_stands_and_nowhere_else(
    make_model: MakeModel, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    """With all tokens of the data visible, rows read the text."""
    for name, packing in product(FACTS, (False, True)):
        with subtests.test(name, packing=packing):
            model, folder = make_model(**FACTS[name]), tmp_path / f"{name}-{packing}"
            batch = hidden_answers(model, folder, packing=packing).draw(0, replace(STAGE, block_size=8))
            answers = answers_of(batch, model.config.noisy_offset)
            every = torch.ones_like(answers.group, dtype=torch.bool)
            shown = with_visible(batch, answers, every, answers.target)
            changed = torch.nonzero((shown != batch.tokens).flatten())[:, 0]
            assert sorted(changed.tolist()) == sorted(answers.reads[answers.reads >= 0].tolist())
            assert (batch.tokens.flatten()[changed] == model.config.placeholder).all()
            rows = batch.layout.rows
            for label, more in ((rows.position, model.config.noisy_offset), (rows.span, 0), (rows.document, 0)):
                held = answers.reads >= 0
                values = label.flatten()
                assert torch.equal(values[answers.reads[held]], values[answers.predicts[held]] + more)
            assert torch.equal(with_visible(batch, answers, ~every, answers.target), batch.tokens)


def test_a_batch_repeated_has_its_answers_one_behind_the_other(make_model: MakeModel, tmp_path: Path) -> None:
    model = make_model(context="full", shift=False)
    batch = hidden_answers(model, tmp_path, packing=True).draw(0, STAGE)
    once, twice = answers_of(batch, 0), answers_of(times(batch, 2), 0)
    assert torch.equal(twice.target, once.target.repeat(2))
    assert torch.equal(twice.group, torch.cat([once.group, once.group + once.num_groups]))
    assert torch.equal(sequences_of(batch, torch.tensor([1])).tokens[0], batch.tokens[1])


def test_counts_and_the_highest_of_each_group() -> None:
    sizes = [step_sizes(torch.tensor([7, 2]), 3, step).tolist() for step in range(3)]
    assert [each[0] for each in sizes] == [3, 2, 2] and [each[1] for each in sizes][:2] == [1, 1]
    score = torch.tensor([0.1, 0.9, 0.9, 0.3, 0.2, 0.8])
    chosen = top(score, torch.tensor([0, 0, 0, 1, 1, 1]), torch.tensor([1, 2]))
    assert chosen.tolist() == [False, True, False, True, False, True]
