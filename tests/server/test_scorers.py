"""Penalties and alternatives beside a plain loop over the model's logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from daguerre.canvas import Canvas, Decision
from daguerre.model import Model
from daguerre.models.forward import Forward, Layout, Logits
from daguerre.sampling.logits import log_softmax
from daguerre.server.logprobs import LogprobRecorder, TokenLog
from daguerre.server.protocol.common import Penalties


def next_logits(model: Model, ids: list[int]) -> np.ndarray:
    """The logits (V,) of the token after these, <bos> included."""
    num = len(ids)
    layout = Layout(np.arange(num), np.arange(1, num + 1, dtype=np.int32), num)
    ask = Forward(np.array(ids), layout, None, np.array([num - 1], dtype=np.int32), Logits())
    (answer,) = model.denoiser.backend.forward([ask])
    assert answer.logits is not None
    out: np.ndarray = answer.logits[0].astype(np.float64)
    return out


def penalized(model: Model, prompt: list[int], num: int, frequency: float, presence: float) -> list[int]:
    """Greedy decoding with OpenAI's formula: logit - c * frequency - (c > 0) * presence."""
    new: list[int] = []
    for _ in range(num):
        logits = next_logits(model, [*model.config.first, *prompt, *new])
        for token in set(new):
            logits[token] -= new.count(token) * frequency + presence
        logits[list(model.config.ends)] = -np.inf
        new.append(int(logits.argmax()))
    return new


def test_penalties_are_openai_s_formula(causal: Model, subtests: pytest.Subtests) -> None:
    prompt, ends = causal.tokenizer.encode("x = [1, 1, 1, 1"), tuple(causal.config.ends)
    for frequency, presence in ((0.0, 0.0), (2.0, 0.0), (0.0, 2.0), (1.5, -1.0), (-1.0, 0.5)):
        wanted = penalized(causal, prompt, 24, frequency, presence)
        for mode in ("ar", "speculative"):
            with subtests.test(mode, frequency=frequency, presence=presence):
                scorer = Penalties(frequency, presence, ends)
                result = causal.generate(prompt, 24, mode=mode, heal=False, min_tokens=24, scorer=scorer)
                assert [token.id for token in result.tokens] == wanted


def test_what_is_committed_counts_wherever_it_is_and_ends_of_text_do_not() -> None:
    canvas = Canvas.lay_out([[5, 5], []], [6], 3)
    first = np.array([2, 4, 7])
    canvas = canvas.apply(Decision(first, np.array([6, 6, 2]), np.ones(3), np.ones(3)))
    added = Penalties(0.5, 2.0, ends=(2,))(canvas, np.array([3]), np.zeros((1, 8), np.float32))
    assert added.tolist() == [[0, 0, 0, 0, 0, 0, -3.0, 0]]


def test_penalties_change_what_is_written(causal: Model) -> None:
    prompt = causal.tokenizer.encode("x = [1, 1, 1, 1")
    assert len({tuple(penalized(causal, prompt, 24, f, p)) for f, p in [(0, 0), (2, 0), (0, 2), (1.5, -1)]}) > 2


@pytest.mark.parametrize("how", [{"mode": "ar"}, {"mode": "speculative"}, {"mode": "ar", "logit_bias": {300: 2.0}}])
def test_alternatives_are_those_of_the_forward_that_committed_the_token(causal: Model, how: dict[str, Any]) -> None:
    prompt = causal.tokenizer.encode("def f(x):\n")
    options: dict[str, Any] = {"heal": False, "temperature": 1.0, "seed": 4, "n": 3, "min_tokens": 12, **how}
    recorder = LogprobRecorder(5, bias=how.get("logit_bias") or {})
    result = causal.generate(prompt, 12, scorer=recorder, **options)
    assert result.choices[0].text != result.choices[1].text
    for one in result.choices:
        seen = [*causal.config.first, *prompt]
        canvas, found = one.trace.canvas, []
        for step, after in zip(one.trace.steps, one.trace.replay(), strict=True):
            found += [recorder.alternatives(canvas, step.decision, place) for place in range(len(step.decision))]
            canvas = after
        for token, alternatives in zip(one.tokens, found, strict=True):
            logits = next_logits(causal, seen)
            for biased, bias in (how.get("logit_bias") or {}).items():
                logits[biased] += bias
            logp = log_softmax(logits[None])[0]
            best = np.argsort(-logp)[:5]
            assert [token for token, _ in alternatives] == best.tolist()
            assert np.allclose([value for _, value in alternatives], logp[best], atol=1e-3)
            assert token.logprob == pytest.approx(logp[token.id], abs=1e-3)
            seen.append(token.id)


@pytest.mark.parametrize("name", ["causal", "full", "block"])
def test_in_blocks_alternatives_are_those_of_the_last_forward_before_the_commit(
    models: dict[str, Model], name: str
) -> None:
    model, recorder = models[name], LogprobRecorder(1)
    result = model.generate("a = 1\n", 16, mode="block", block_size=8, policy="confidence", scorer=recorder)
    canvas, num = result.trace.canvas, 0
    for step, after in zip(result.trace.steps, result.trace.replay(), strict=True):
        for place, token in enumerate(step.decision.tokens.tolist()):
            ((best, logprob),) = recorder.alternatives(canvas, step.decision, place) or [(token, 0.0)]
            probability = step.decision.probabilities[place]
            if best == token and probability < 1:
                num += 1
                assert logprob == pytest.approx(float(np.log(probability)), abs=1e-3)
        canvas = after
    assert num >= 8


def test_the_tokens_of_a_stream_are_told_once_and_as_their_texts_are_final(causal: Model) -> None:
    text = causal.generate("a = 1\n", 16, mode="block", block_size=4, min_tokens=16).text
    how: dict[str, Any] = {"mode": "block", "block_size": 4, "min_tokens": 16, "stop": [text[3:8] + "☃"]}
    events = list(causal.stream("a = 1\n", 16, **how))
    result = events.pop().result
    assert result is not None
    from daguerre.decoding.generate import Request, plan_of

    log = TokenLog(plan_of(causal.denoiser, causal.tokenizer, Request.of("stream", "a = 1\n", 16, **how)))
    told = []
    for event in events:
        assert event.step is not None
        told += log.after(event.step, len(event.committed))
        assert event.committed.startswith("".join(one.text for one in told))
    told += log.last(result)
    assert [(one.text, one.id, one.step) for one in told] == [(x.text, x.id, x.step) for x in result.tokens]
    assert [one.logprob for one in told] == pytest.approx([x.logprob for x in result.tokens])
