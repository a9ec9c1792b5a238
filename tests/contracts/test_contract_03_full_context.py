"""Contract 3 in full context: unlike prompts that are decoded together, with masks and padding as literal tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backends import BACKENDS
from daguerre.canvas import Canvas
from daguerre.decoding.generate import plan_request
from daguerre.decoding.request import Decode, TokenRequest
from daguerre.decoding.sample import Sample, Together, drive
from daguerre.model import Model
from daguerre.models.denoiser import BackboneDenoiser

NUM = 12
HOWS: list[dict[str, Any]] = [
    {"mode": "block", "block_size": 4, "policy": "confidence", "steps": 2, "end_of_text": "plain"},
    {"mode": "block", "block_size": 6, "policy": "random", "temperature": 0.8, "end_of_text": "last"},
    {"mode": "block", "block_size": 4, "threshold": 0.6, "guidance": 2.0},
    {"mode": "block", "block_size": 4, "policy": "factor", "end_of_text": "never"},
    {"mode": "full", "policy": "entropy", "schedule": "time", "steps": 7, "rank_by": "drawn", "top_p": 0.9},
    {"mode": "full", "policy": "margin", "schedule": "time", "rank_temperature": 0.2, "temperature": 0.4},
    {"mode": "full", "policy": "origin", "steps": 9, "temperature": 0.7},
    {"mode": "full", "policy": "first_hitting", "steps": 6, "temperature": 0.9, "top_k": 50},
]


def prompts(model: Model) -> list[list[int]]:
    """Of unlike lengths; masks, padding and ends of text stand in some of them."""
    rng, config = np.random.default_rng(2), model.config
    out = [rng.choice(config.ordinary_ids, length).tolist() for length in (1, 2, 5, 9, 14, 17, 23, 40)]
    mask, pad, eos = config.mask_id, config.pad_id, config.eos_id
    assert mask is not None
    out[1][0] = out[4][3] = out[4][4] = out[5][-1] = out[6][0] = mask
    out[2][:2] = out[5][:3] = [pad] * 2
    out[3][4] = eos
    return [*out, [*[mask] * 6, 33], [pad, mask, eos]]


def begin(denoiser: BackboneDenoiser, model: Model) -> list[Sample]:
    """Each prompt with two of the ways to decode."""
    out = []
    for number, prompt in enumerate([*prompts(model), *prompts(model)]):
        decode = Decode(seed=number, **HOWS[number % len(HOWS)])
        plan = plan_request(model.config, model.tokenizer, TokenRequest(decode, [prompt, []], [(0, NUM)], heal=False))
        out.append(Sample(denoiser, plan, 0, None))
    return out


def steps(sample: Sample) -> list[tuple[list[int], list[int]]]:
    return [(event.decision.positions.tolist(), event.decision.tokens.tolist()) for event in sample.events]


def check_prompt_stays(sample: Sample, prompt: list[int]) -> None:
    """Whatever its tokens are, at every step of a run."""
    for event in drive(sample):
        canvas: Canvas = event.canvas
        assert canvas.tokens[: len(prompt)].tolist() == prompt
        assert not canvas.open[: len(prompt)].any()
    committed = sum(len(positions) for positions, _ in steps(sample))
    assert committed == NUM or sample.result().finish_reason == "stop"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shift", [False, True])
def test_unlike_prompts_stay_and_are_decoded_together_as_each_alone(make_model: Any, backend: str, shift: bool) -> None:
    """On the torch backend the last bits of a row may change with its neighbors, but here no token does."""
    model: Model = make_model(context="full", shift=shift, bos_id=None, null_id=None)
    denoiser = BackboneDenoiser(model.backbone, backend)
    alone = begin(denoiser, model)
    for sample, prompt in zip(alone, [*prompts(model), *prompts(model)], strict=True):
        check_prompt_stays(sample, prompt)
    together = begin(denoiser, model)
    side_by_side, waiting = Together(denoiser.backend), list(together)
    while waiting or len(side_by_side):
        if waiting:
            side_by_side.add(waiting.pop())
        side_by_side.step()
    assert len({tuple(map(str, steps(sample))) for sample in alone}) > len(alone) - 3
    for got, want in zip(together, alone, strict=True):
        assert steps(got) == steps(want), want.plan.decode
        for a, b in zip(got.events, want.events, strict=True):
            if backend == "native":
                assert np.array_equal(a.decision.probabilities, b.decision.probabilities)
            else:
                assert np.allclose(a.decision.probabilities, b.decision.probabilities, atol=1e-4)
