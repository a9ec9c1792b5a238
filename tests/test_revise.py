"""Finished spans read again: token-to-token editing inside a request."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from daguerre.errors import InputError
from daguerre.model import Model
from daguerre.plan import make_plan
from daguerre.sampling.decode import Decode
from daguerre.sampling.revision import revise

REQUESTS: list[tuple[str, str | None, dict[str, Any]]] = [
    ("def f(a):\n    x = ", None, {"block_size": 4}),
    ("def f(a):\n    x = ", None, {"mode": "full"}),
    ("def f(a):\n    x = ", "\n    return x\n", {}),
    ("def f(a):\n    x = ", "\n    return x\n", {"block_size": 3, "temperature": 1.0}),
]
each_request = pytest.mark.parametrize(("prefix", "suffix", "options"), REQUESTS)
EAGER: dict[str, Any] = {"revise": 3, "revise_threshold": 0.2, "threshold": 0.0}


def call(model: Model, prefix: str, suffix: str | None, **options: Any) -> Any:
    if suffix is None:
        return model.generate(prefix, 10, heal=False, **options)
    return model.infill(prefix, suffix, 10, heal=False, **options)


@each_request
@pytest.mark.parametrize("name", ["causal", "full_unshifted"])
def test_a_finished_span_is_revised_as_a_slow_reference_does(
    models: dict[str, Model], name: str, prefix: str, suffix: str | None, options: dict[str, Any]
) -> None:
    """Every replacement is that of `revise` on logits computed anew, and where the run stopped nothing is left."""
    model = models[name]
    result = call(model, prefix, suffix, **options, **EAGER)
    decode = Decode(**options, **EAGER)
    plan = make_plan(model.config, model.tokenizer, decode, prefix, suffix, 10, False)
    before, rounds = plan.canvas, 0
    for step, canvas in zip(result.trace.steps, result.trace.replay(), strict=True):
        if step.decision.replace.size:
            rounds += 1
            now = before.at(step.span)
            positions = plan.revisable(now)
            logits = model.denoiser.session(now, "none").logits(now, positions).astype(np.float64)
            logits[:, model.config.ends] = -np.inf
            expected = revise(now, positions, logits, 0.2)
            assert np.array_equal(step.decision.replace, expected.positions)
            assert np.array_equal(step.decision.tokens, expected.tokens)
        else:
            assert before.open[step.decision.positions].all()
        before = canvas
    assert rounds > 0
    assert result.usage.forwards <= plan.bound


@each_request
def test_what_is_given_stands_and_a_stream_takes_nothing_back(
    causal: Model, prefix: str, suffix: str | None, options: dict[str, Any]
) -> None:
    committed = ""
    for event in causal.stream(prefix, 10, suffix=suffix, **options, **EAGER):
        assert event.committed.startswith(committed)
        committed = event.committed
    assert event.result is not None
    assert event.result.text == committed
    start = event.result.trace.canvas
    for canvas in event.result.trace.replay():
        assert np.array_equal(canvas.tokens[~start.in_gap], start.tokens[~start.in_gap])


def test_a_span_that_is_read_again_is_finished_first(causal: Model) -> None:
    """A stop string may be taken back; what is behind it must be there then."""
    for stop in "abcdefghijklmnopqrstuvwxyz":
        options: dict[str, Any] = {"block_size": 4, "stop": stop, "revise": 3, "revise_threshold": 0.2, "seed": 1}
        result = causal.generate("def f(a):\n    x = ", 12, heal=False, temperature=1.0, **options)
        *_, last = result.trace.replay()
        spans = {step.span for step in result.trace.steps if step.span is not None}
        assert result.finish_reason in ("stop", "length")
        assert not any(last.open[start:end].any() for start, end in spans)


def test_healed_bytes_are_not_revised(causal: Model) -> None:
    result = causal.infill("impo", " os\nretu", 6, **EAGER)
    *_, canvas = result.trace.replay()
    drawn = causal.tokenizer.decode_bytes(canvas.tokens[1:].tolist()).decode("utf-8", errors="replace")
    assert drawn == "impo" + result.text + " os\nretu"


def test_nothing_is_revised_unless_asked(causal: Model) -> None:
    result = causal.generate("x = ", 12, threshold=0.0)
    assert not any(step.decision.replace.size for step in result.trace.steps)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"revise": -1}, "revise must be"),
        ({"revise": 1, "mode": "ar"}, "revise has no part in mode 'ar'"),
        ({"revise": 1, "mode": "speculative"}, "revise has no part in mode 'speculative'"),
        ({"revise_threshold": 0.5}, "without revise"),
        ({"revise": 1, "revise_threshold": 1.5}, "a probability"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Decode(**options)
