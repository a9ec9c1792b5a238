"""Contract 10: a trace replays to the same canvas at every step; committed text never changes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from daguerre.decoding.generate import plan_request
from daguerre.decoding.request import Decode, TokenRequest
from daguerre.decoding.result import committed_text
from daguerre.decoding.sample import Sample, drive
from daguerre.errors import DataError, InputError
from daguerre.model import Model
from daguerre.trace import Trace
from pairwise import covering

CASES: list[dict[str, Any]] = [
    {"mode": "ar"},
    {"mode": "speculative", "block_size": 4},
    {},
    {"mode": "block", "block_size": 6, "threshold": 0.5},
    {"mode": "full", "policy": "random", "steps": 5},
    {"suffix": "\n    return x\n", "threshold": 0.5},
    {"suffix": "", "temperature": 1.0},
]


def test_a_trace_replays_to_every_canvas_of_the_run(causal: Model, subtests: pytest.Subtests) -> None:
    for options in CASES:
        with subtests.test(str(options)):
            events = list(causal.stream("x = impo", 20, **options))
            result = events[-1].result
            assert result is not None
            restored = Trace.from_json(result.trace.to_json())
            seen = [event.step.canvas for event in events if event.step is not None]
            assert len(seen) > 2
            for trace in (result.trace, restored):
                for replayed, canvas in zip(trace.replay(), seen, strict=True):
                    assert np.array_equal(replayed.tokens, canvas.tokens)
                    assert np.array_equal(replayed.open, canvas.open)
                    assert (replayed.span, replayed.gaps) == (canvas.span, canvas.gaps)
            assert restored.to_json() == result.trace.to_json()


def test_committed_text_only_grows_and_begins_the_result(causal: Model, subtests: pytest.Subtests) -> None:
    met = set[tuple[str, ...]]()
    for case in covering({"options": CASES, "stop": ((), ("o",), ("ol", "e")), "seed": range(3)}):
        options, how = case.pop("options"), {"temperature": 1.0}
        with subtests.test(str(options), **case):
            events = list(causal.stream("x = impo", 20, **(how | options | case)))
            final = events[-1].text
            committed = [event.committed for event in events]
            for before, after in zip(committed, [*committed[1:], final], strict=True):
                assert after.startswith(before)
            assert committed[-1] == final
            *_, whole = causal.stream("x = impo", 20, **(how | options | case | {"stop": ()}))
            met |= {case["stop"]} if whole.text != final else set()
    assert met == {("o",), ("ol", "e")}


def test_a_trace_does_not_fit_another_canvas(causal: Model) -> None:
    result = causal.generate("a", 8)
    *_, full = result.trace.replay()
    with pytest.raises(InputError, match="step 0 of the trace does not fit"):
        list(result.trace.replay(full))


def test_a_damaged_trace_is_refused_in_one_line(causal: Model) -> None:
    good = causal.generate("a", 8).trace.to_json()
    value = json.loads(good)
    value["steps"][0]["positions"][0] = 0  # a given position
    endless = json.loads(good)
    endless["steps"][0]["confidence"][0] = float("nan")
    broken = [
        json.dumps(endless),
        good.replace('"probabilities":[', '"probabilities":[1e999,', 1),
        good[:-5],
        "[]",
        "3",
        "{}",
        json.dumps(value),
        json.dumps({**json.loads(good), "version": 9}),
    ]
    del value["steps"][0]["tokens"]
    for text in [*broken, json.dumps(value)]:
        with pytest.raises(DataError) as caught:
            Trace.from_json(text)
        assert "\n" not in str(caught.value)


def test_committed_text_of_several_gaps_begins_the_result(causal: Model, scripted: Any) -> None:
    """A gap that ends within a character reads as it will, with the text behind it."""
    tokenizer = causal.tokenizer
    (half,) = {t for t in range(tokenizer.vocab_size) if tokenizer.token_bytes(t) == b"\xc3"}
    denoiser = scripted(lambda canvas, position: {half: 20.0})
    texts = ("a", "b", "c")
    segments = [tokenizer.encode(text) for text in texts]
    request = TokenRequest(Decode(mode="block", block_size=2), segments, [(2, 2), (2, 2)], heal=False, around=texts)
    plan = plan_request(denoiser.config, tokenizer, request)
    sample = Sample(denoiser, plan, 0, None)
    committed = [committed_text(plan, event.canvas) for event in drive(sample)]
    text = sample.result().text
    assert text == "a\ufffd\ufffdb\ufffd\ufffdc"
    assert all(text.startswith(one) for one in committed)
    assert committed[0] == "a\ufffd\ufffdb"
