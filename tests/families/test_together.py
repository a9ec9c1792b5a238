"""Contract 3 for the published families: requests that share forwards get the tokens that they get alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import daguerre
from backends import BACKENDS
from daguerre.decoding.defaults import with_defaults
from daguerre.decoding.generate import plan_request
from daguerre.decoding.request import Decode, TokenRequest
from daguerre.decoding.sample import Sample, Together, drive
from daguerre.model import Model
from published import CASES, END, MASK, START, made

NUM = 9


def prompts() -> list[list[int]]:
    """Of unlike lengths, with masks, ends of text and other special tokens written in them."""
    rng = np.random.default_rng(1)
    return [
        [*rng.integers(256, size=size).tolist(), *more] for size, more in ((1, [MASK]), (6, []), (11, [END, START]))
    ]


def begin(model: Model) -> list[Sample]:
    """Two ways to decode each prompt: by the published defaults, and sampled with other numbers."""
    out = []
    for number, prompt in enumerate([*prompts(), *prompts()]):
        options = {"seed": number} | ({} if number < 3 else {"temperature": 0.8})
        decode = Decode(**with_defaults(model.defaults, options)).resolved(model.config, infilling=False)
        plan = plan_request(model.config, model.tokenizer, TokenRequest(decode, [prompt, []], [(0, NUM)], heal=False))
        out.append(Sample(model.denoiser, plan, 0, None))
    return out


@pytest.mark.parametrize("backend", BACKENDS)
def test_requests_together_get_the_tokens_of_each_alone(
    backend: str, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for number, name in enumerate(CASES):
        with subtests.test(name):
            (parent := tmp_path / str(number)).mkdir()
            model = daguerre.load(CASES[name].write(parent, made(name)), dtype="float32", backend=backend)  # type: ignore[arg-type]
            alone, together = begin(model), begin(model)
            for sample in alone:
                for _ in drive(sample):
                    pass

            Together(model.denoiser.backend, together).run()

            for got, want in zip(together, alone, strict=True):
                assert [token.id for token in got.result().tokens] == [token.id for token in want.result().tokens]
            for sample, prompt in zip(together, [*prompts(), *prompts()], strict=True):
                (start, _), final = sample.plan.canvas.gaps[0], [*sample.result().trace.replay()][-1]
                assert final.tokens[start - len(prompt) : start].tolist() == prompt
