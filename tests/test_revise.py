"""Finished spans read again: token-to-token editing inside a request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from daguerre.canvas import Canvas
from daguerre.decoding.request import Decode
from daguerre.decoding.revision import ODDS, RevisionReading, revise
from daguerre.errors import InputError
from daguerre.model import Model
from driving import logits_of
from pairwise import covering
from plans import make_plan

REQUESTS: list[tuple[str, str | None, dict[str, Any]]] = [
    ("def f(a):\n    x = ", None, {"block_size": 4}),
    ("def f(a):\n    x = ", None, {"mode": "full"}),
    ("def f(a):\n    x = ", "\n    return x\n", {}),
    ("def f(a):\n    x = ", "\n    return x\n", {"block_size": 3, "temperature": 1.0}),
]
EAGER: dict[str, Any] = {"revise": 3, "revise_threshold": 0.2, "threshold": 0.0}


def call(model: Model, prefix: str, suffix: str | None, **options: Any) -> Any:
    if suffix is None:
        return model.generate(prefix, 10, heal=False, **options)
    return model.infill(prefix, suffix, 10, heal=False, **options)


def test_a_finished_span_is_revised_as_a_slow_reference_does(
    subtests: pytest.Subtests, models: dict[str, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every replacement is that of `revise` on logits computed anew, and where the run stopped nothing is left."""
    monkeypatch.setitem(ODDS, "leave_one_out", 1.0)  # a model of random weights doubts nothing a thousand times
    readings, names = ["unmasked", "leave_one_out"], ["causal", "full_unshifted"]
    for case in covering({"request": range(len(REQUESTS)), "reading": readings, "name": names}):
        prefix, suffix, options = REQUESTS[case["request"]]
        with subtests.test(**case):
            check_revision(models[case["name"]], case["reading"], prefix, suffix, options)


def check_revision(
    model: Model, reading: RevisionReading, prefix: str, suffix: str | None, options: dict[str, Any]
) -> None:
    options = {**options, **EAGER, "revise_reading": reading}
    result = call(model, prefix, suffix, **options)
    decode = Decode(**options)
    plan = make_plan(model.config, model.tokenizer, decode, prefix, suffix, 10, False)
    before, rounds = plan.canvas, 0
    for step, canvas in zip(result.trace.steps, result.trace.replay(), strict=True):
        if step.decision.replace.size:
            rounds += 1
            now = before.at(step.span)
            positions = plan.revisable(now)
            logits = read_slowly(model, now, positions, reading)
            logits[:, model.config.ends] = -np.inf
            expected = revise(now, positions, logits, 0.2, reading=reading)
            assert np.array_equal(step.decision.replace, expected.positions)
            assert np.array_equal(step.decision.tokens, expected.tokens)
        else:
            assert before.open[step.decision.positions].all()
        before = canvas
    assert rounds > 0
    assert result.usage.forwards <= plan.max_forwards


def read_slowly(model: Model, canvas: Canvas, positions: np.ndarray, reading: RevisionReading) -> np.ndarray:
    """Logits (A, V), float64, without a cache: with all tokens unmasked, or each of them masked in turn."""

    def logits(now: Canvas, wanted: np.ndarray) -> np.ndarray:
        return logits_of(model.denoiser, now, wanted, cache="none").astype(np.float64)

    if reading == "unmasked":
        return logits(canvas, positions)
    rows = []
    for position in positions:
        opened = canvas.open.copy()
        opened[position] = True
        rows.append(logits(replace(canvas, open=opened), np.array([position]))[0])
    return np.stack(rows)


def test_a_masked_reading_takes_a_forward_a_token(causal: Model) -> None:
    options: dict[str, Any] = {"heal": False, "block_size": 4, "threshold": 0.0}
    plain = causal.generate("x = ", 12, **options)
    read = causal.generate("x = ", 12, **options, revise=1, revise_reading="leave_one_out")
    assert read.usage.forwards == plain.usage.forwards + 12


def test_a_masked_reading_replaces_only_what_is_far_less_likely() -> None:
    canvas = Canvas(np.array([3, 1, 1, 3]), np.zeros(4, dtype=bool), ((1, 3),), (1, 3))
    logits = np.log([[0.0009, 0.0899, 0.9, 0.0092], [0.00979, 0.0001, 0.99, 0.00011]])
    assert revise(canvas, np.array([1, 2]), logits, 0.3).positions.tolist() == [1, 2]
    assert revise(canvas, np.array([1, 2]), logits, 0.3, reading="leave_one_out").positions.tolist() == [2]


def test_what_is_given_stands_and_a_stream_takes_nothing_back(causal: Model) -> None:
    for prefix, suffix, options in REQUESTS:
        committed = ""
        for event in causal.stream(prefix, 10, suffix=suffix, **options, **EAGER):
            assert event.committed.startswith(committed), options
            committed = event.committed
        assert event.result is not None
        assert event.result.text == committed
        start = event.result.trace.canvas
        for canvas in event.result.trace.replay():
            assert np.array_equal(canvas.tokens[~start.in_gap], start.tokens[~start.in_gap]), options


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


def test_nothing_is_revised_by_default(causal: Model) -> None:
    result = causal.generate("x = ", 12, threshold=0.0, heal=False)
    assert result.usage.forwards == 1
    assert not any(step.decision.replace.size for step in result.trace.steps)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"revise": -1}, "revise must be"),
    ({"revise": 1, "mode": "ar"}, "revise is not used in mode 'ar'"),
    ({"revise": 1, "mode": "speculative"}, "revise is not used in mode 'speculative'"),
    ({"revise_threshold": 0.5}, "without revise"),
    ({"revise_reading": "leave_one_out"}, "without revise"),
    ({"revise": 1, "revise_reading": "read"}, "revise_reading"),
    ({"revise": 1, "revise_threshold": 1.5}, "a probability"),
]


def test_options_that_cannot_be(subtests: pytest.Subtests) -> None:
    for options, message in REFUSED:
        with subtests.test(str(options)), pytest.raises(InputError, match=message):
            Decode(**options)
