"""Policy "chain": tokens from the left, each given those proposed with it."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch

from backends import BACKENDS
from daguerre.canvas import Canvas
from daguerre.decoding.request import Decode
from daguerre.decoding.result import Result
from daguerre.errors import InputError, UnsupportedError
from daguerre.model import Model
from daguerre.models.denoiser import BackboneDenoiser
from daguerre.models.forward import Forward, Hidden, Layout
from daguerre.models.load_options import BackendName
from daguerre.models.rows import first_run
from daguerre.models.session import compute

PROMPT, SUFFIX = "def f(a):\n    x = ", "\n    return x\n"


def slowly(model: Model, result: Result, threshold: float) -> None:
    """Every step of a result again, without a cache: the first open position by its own distribution, those behind it
    by the draft head's, up to the first that is not sure enough."""
    backbone = model.backbone
    denoiser = BackboneDenoiser(backbone, "torch")
    before = result.trace.canvas
    several = 0
    for step, after in zip(result.trace.steps, result.trace.replay(), strict=True):
        canvas = before.at(step.span)
        run = first_run(canvas.active_positions())
        if canvas.continues and len(run) > 1:
            answer = denoiser.backend.forward([drafting_rows(model, canvas, run)])[0]
        else:
            answer = compute(denoiser.session(canvas, "none").ask(canvas, run, Hidden()), denoiser.backend)
        assert answer.hidden is not None
        hidden, want = torch.from_numpy(answer.hidden), []
        state = hidden[:1]
        for row in range(len(run)):
            if row and backbone.draft_head is not None:
                state = backbone.draft_head(hidden[row : row + 1], backbone.embedding.weight[want[-1]][None], state)
            elif row:
                state = hidden[row : row + 1]
            logits = backbone.logits(state)[0].double().numpy()
            logits[model.config.ends] = -np.inf
            probs = np.exp(logits - logits.max())
            probs /= probs.sum()
            if row and probs.max() < threshold:
                break
            want.append(int(probs.argmax()))
        assert step.decision.tokens.tolist() == want
        several += len(want) > 1
        before = after
    assert several


@pytest.fixture(scope="module")
def low_rank(make_model: Any) -> Model:
    """The same with low-rank weights, which act on the masked rows of drafts at the end of a text."""
    return cast(Model, make_model(draft_head=24, draft_rank=8))


def drafting_rows(model: Model, canvas: Canvas, run: np.ndarray) -> Forward:
    """All rows of a draft at once: the text before, causal, and a masked row for each position but the first."""
    start, end = int(run[0]), int(run[-1])
    tokens = np.append(canvas.tokens[:start], np.full(end - start, model.config.mask_id))
    ends = np.append(np.arange(1, start + 1), np.full(end - start, end)).astype(np.int32)
    wanted = np.arange(start - 1, end, dtype=np.int32)
    low_rank = model.config.draft_rank > 0
    return Forward(tokens, Layout(np.arange(end), ends, start), None, wanted, Hidden(), drafting=low_rank)


@pytest.mark.parametrize("backend", BACKENDS)
def test_each_step_is_that_of_a_slow_reference(
    causal: Model, drafting: Model, low_rank: Model, backend: BackendName
) -> None:
    for given in (causal, drafting, low_rank):
        model = Model(given.backbone, given.tokenizer, backend)
        options: dict[str, Any] = {"policy": "chain", "threshold": 0.3, "heal": False, "min_tokens": 12}
        slowly(model, model.generate(PROMPT, 12, block_size=6, **options), 0.3)
        slowly(model, model.infill(PROMPT, SUFFIX, 12, **options), 0.3)


def test_a_threshold_of_one_commits_one_token_a_forward_and_what_is_certain(drafting: Model) -> None:
    result = drafting.generate(PROMPT, 12, policy="chain", threshold=1.0, heal=False, min_tokens=12)
    assert all((step.decision.probabilities[1:] == 1.0).all() for step in result.trace.steps)


def test_a_model_without_a_draft_head_commits_from_the_left(models: dict[str, Model]) -> None:
    for name in ("block", "full_unshifted", "causal"):
        result = models[name].generate(PROMPT, 12, policy="chain", threshold=0.2, heal=False, min_tokens=12)
        committed = [position for step in result.trace.steps for position in step.decision.positions.tolist()]
        assert committed == sorted(committed), name
        assert result.usage.forwards == len(result.trace.steps), name


def test_what_it_cannot_keep_is_refused() -> None:
    with pytest.raises(UnsupportedError, match='policy "chain" cannot honor the option regex'):
        Decode(policy="chain", regex="a+")
    with pytest.raises(InputError, match="policy is not used in mode 'ar'"):
        Decode(policy="chain", mode="ar")


def test_the_first_run_is_what_is_side_by_side() -> None:
    assert first_run(np.array([3, 4, 5, 7, 8])).tolist() == [3, 4, 5]
    assert first_run(np.array([9])).tolist() == [9]
