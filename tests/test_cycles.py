"""A cycle of speculation in one answer is the slow one on logits: the same tokens, counts and events."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from backends import BACKENDS
from daguerre.decoding.request import Decode
from daguerre.decoding.result import Result
from daguerre.decoding.sample import Sample, drive
from daguerre.model import Model
from daguerre.models.forward import Cycle
from daguerre.models.load_options import BackendName
from driving import OnLogits, Ticking
from plans import make_plan

PROMPTS = ("import os\nx = impo", "def area(w, h):\n    return w")
NUM = 24
CASES: list[dict[str, Any]] = [
    {},
    {"block_size": 1, "temperature": 1.0},
    {"block_size": 2, "temperature": 0.7, "min_tokens": 20},
    {"block_size": 7, "temperature": 1.3, "top_k": 3},
    {"block_size": NUM, "top_p": 0.8, "temperature": 1.0},
    {"block_size": 4, "logit_bias": {20: 3.0, 21: float("-inf")}, "temperature": 0.7},
    {"block_size": 4, "stop": ("e", "\n"), "temperature": 1.0},
    {"block_size": 3, "stop": "in"},
    {"block_size": 5, "min_tokens": NUM, "stop": "zz"},
    {"block_size": 3, "timeout": 7.5, "min_tokens": NUM},
    {"block_size": 6, "timeout": 6.5, "temperature": 1.0, "min_tokens": NUM},
    {"draft": "the text itself"},
    {"draft": "a changed text", "block_size": 4, "temperature": 1.0},
    {"draft": "another text", "block_size": 2, "temperature": 0.7, "stop": "e"},
    {"draft": "a changed text", "mode": "ar", "temperature": 1.0, "logit_bias": {40: 2.0}},
    {"draft": "the text itself", "mode": "ar", "timeout": 5.5, "min_tokens": NUM},
]


def run(model: Model, prompt: str, decode: Decode, timeout: float | None, draft: str | None, slow: bool) -> Result:
    """One request; every forward takes a second of its clock."""
    denoiser = Ticking(OnLogits(model.denoiser) if slow else model.denoiser)
    plan = make_plan(model.config, model.tokenizer, decode, prompt, None, NUM, None, draft)
    sample = Sample(denoiser, plan, 0, timeout, denoiser.clock)
    for _ in drive(sample):
        pass
    cycles = any(isinstance(one.ask, Cycle) for one in denoiser.forwards)
    result = sample.result()
    assert cycles != slow or not (slow or result.usage.drafted), "each way is taken where it is meant"
    return result


def draft_of(kind: str | None, text: str) -> str | None:
    drafts = {
        "the text itself": text,
        "a changed text": text[: len(text) // 2] + " or" + text[len(text) // 2 + 2 :],
        "another text": "import re\nclass B(A):\n    pass\n",
    }
    return None if kind is None else drafts[kind]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["causal", "drafting"])
def test_a_cycle_in_one_answer_is_the_slow_one(name: str, backend: BackendName, request: pytest.FixtureRequest) -> None:
    given = request.getfixturevalue(name)
    model, drafted = Model(given.backbone, given.tokenizer, backend), 0
    for number, case in enumerate(CASES):
        prompt, options = PROMPTS[number % 2], {"mode": "speculative", "seed": number, **case}
        timeout, kind = options.pop("timeout", None), options.pop("draft", None)
        decode = Decode(**options)
        draft = draft_of(kind, model.generate(prompt, NUM, decode).text)
        fast, slow = (run(model, prompt, decode, timeout, draft, slow) for slow in (False, True))
        assert fast.text == slow.text, case
        assert fast.finish_reason == slow.finish_reason == ("timeout" if timeout else fast.finish_reason), case
        assert [token.id for token in fast.tokens] == [token.id for token in slow.tokens], case
        drafted += fast.usage.drafted
        if (name, backend) == ("drafting", "native"):  # which drafts in 8-bit numbers
            continue
        counts = [asdict(one.usage) for one in (fast, slow)]
        for each in counts:
            del each["tokens_per_second"]
        assert counts[0] == counts[1], case
        for one, other in zip(fast.trace.steps, slow.trace.steps, strict=True):
            assert (one.step, one.span) == (other.step, other.span)
            assert np.array_equal(one.decision.positions, other.decision.positions)
            assert np.array_equal(one.decision.tokens, other.decision.tokens)
            assert np.allclose(one.decision.probabilities, other.decision.probabilities, atol=1e-4)
    assert drafted > 50
