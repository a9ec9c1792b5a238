"""What every request promises, checked on its samples: those of `contracts/` that can be seen from a result."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from daguerre.decoding import sample as drivers
from daguerre.decoding.result import Result, committed_text
from daguerre.decoding.sample import Sample
from daguerre.errors import InputError
from daguerre.model import Model


class Recorder:
    """The samples that requests make, and a clock that every look at moves by a second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.samples: list[Sample] = []
        monkeypatch.setattr(drivers, "Sample", self._make)
        ticks = count()
        clock = SimpleNamespace(perf_counter=lambda: float(next(ticks)))
        monkeypatch.setattr("daguerre.decoding.denoise.time", clock)

    def _make(self, *given: Any) -> Sample:
        self.samples.append(Sample(*given))
        return self.samples[-1]

    def run(self, call: Callable[..., Result], model: Model, options: dict[str, Any]) -> Result | None:
        """The result, whose samples have kept their contracts; None where the request was refused, in one line."""
        self.samples.clear()
        try:
            result = call(model, **options)
        except InputError as error:
            refused = str(error)
        else:
            refused = ""
        if refused:
            assert "\n" not in refused
            assert not any(sample.events for sample in self.samples), "refused after it had begun"
            return None
        assert len(result.choices) == len(self.samples) == options.get("n", 1)
        for one, sample in zip(result.choices, self.samples, strict=True):
            check(one, sample, options)
        return result


def check(result: Result, sample: Sample, options: dict[str, Any]) -> None:
    plan, usage, cut = sample.plan, result.usage, result.finish_reason == "timeout"
    assert usage.forwards <= sample.bound
    *_, last = [plan.canvas, *result.trace.replay()]
    given = ~plan.canvas.in_gap
    given[last.pins] = True
    pinned = plan.canvas.pins
    assert np.array_equal(last.tokens, sample.canvas.tokens)
    assert np.array_equal(last.open, sample.canvas.open)
    assert np.array_equal(last.tokens[~plan.canvas.in_gap], plan.canvas.tokens[~plan.canvas.in_gap])
    assert np.array_equal(last.tokens[pinned], plan.canvas.tokens[pinned])
    assert not last.open[pinned].any()
    before = ""
    changes = [event for event in sample.events if event.decision.pin.size or event.decision.unpin.size]
    for event in sample.events:
        text = committed_text(plan, event.canvas)
        assert text.startswith(before) or changes or event.decision.reopen.size, (text, before)
        before = text
    assert result.text.startswith(before)
    assert cut or "timeout" not in options or not plan.opened(last).size or result.finish_reason == "stop"
    for text in result.texts:
        check_text(text, options)
    whole = "stop" not in options and not cut
    for slot, gap in zip(plan.gaps, plan.canvas.gaps, strict=True):
        ends = np.flatnonzero(np.isin(last.filled(gap), plan.ending))
        num = int(ends[0]) if ends.size else len(last.filled(gap))
        assert not whole or num >= slot.min_tokens
        assert not whole or all(position - gap[0] < num for position in pinned if gap[0] <= position < gap[1])
    assert min(usage.accepted_prediction_tokens, usage.rejected_prediction_tokens) >= 0
    assert usage.accepted_prediction_tokens <= usage.completion_tokens or "stop" in options
    if "timeout" not in options:
        assert usage.deadline_forced == 0


def check_text(text: str, options: dict[str, Any]) -> None:
    """What a constraint, a wording and stop strings say; at a timeout too."""
    assert "regex" not in options or re.fullmatch(options["regex"], text)
    assert options.get("keywords", "") in text
    assert text.endswith(options.get("ending", ""))
    assert not any(word in text for word in (*options.get("forbidden", ()), *options.get("stop", ())))
    assert not any(pin.floats and pin.text not in text for pin in options.get("pins", ()))
