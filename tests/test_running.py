"""A running request takes pins, unpins and remasked positions between its steps, and keeps every promise it made."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daguerre.canvas import Canvas
from daguerre.decoding.pins import Pin
from daguerre.decoding.running import Running
from daguerre.errors import InputError, UnsupportedError
from daguerre.model import Model
from daguerre.sampling.policies import POLICIES
from daguerre.trace import Trace

few = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
NAMES = ["causal", "causal_unshifted", "full", "block", "block_shifted"]
BUDGET = 12


@st.composite
def requests(draw: st.DrawFn, name: str) -> dict[str, Any]:
    options: dict[str, Any] = {"seed": draw(st.integers(0, 99)), "temperature": draw(st.sampled_from([0.0, 1.2]))}
    options["policy"] = draw(st.sampled_from(sorted(POLICIES.keys() - {"chain"})))
    if not name.startswith("block"):
        options["block_size"] = draw(st.integers(1, BUDGET))
        options |= {"suffix": "\n"} if draw(st.booleans()) else {}
    kinds = ["plain", "revise", *(["regex", "forbidden"] if not POLICIES[options["policy"]].edits else [])]
    kind = draw(st.sampled_from(kinds))
    more: dict[str, dict[str, Any]] = {
        "revise": {"revise": 1, "revise_threshold": 0.2},
        "regex": {"regex": "[a-z ]{2,}"},
        "forbidden": {"forbidden": ["e", "x ="], "keywords": "ab"},
    }
    return options | more.get(kind, {})


def act(running: Running, data: Any) -> bool:
    """One change, drawn; whether it was accepted."""
    at, what = data.draw(st.integers(0, BUDGET - 1)), data.draw(st.sampled_from(["pin", "unpin", "remask"]))
    try:
        if what == "pin":
            running.pin(at, data.draw(st.sampled_from(["ab", "x", " no"])))
        else:
            getattr(running, what)(at, data.draw(st.integers(at + 1, BUDGET)))
    except InputError:
        return False
    return True


def alike(a: Canvas, b: Canvas) -> bool:
    pairs = [(a.tokens, b.tokens), (a.open, b.open), (a.pins, b.pins)]
    return all(np.array_equal(x, y) for x, y in pairs) and (a.span, a.gaps) == (b.span, b.gaps)


@pytest.mark.parametrize("name", NAMES)
@few
@given(data=st.data())
def test_whatever_is_changed_every_promise_holds(models: dict[str, Model], name: str, data: Any) -> None:
    model, options = models[name], data.draw(requests(name))
    running = model.start("x = ", BUDGET, **options)
    seen: list[Canvas] = []
    left, before, changed = 6, "", False
    if data.draw(st.booleans()):
        changed = act(running, data)
    for event in running:
        if event.step is None:
            break
        seen.append(event.step.canvas)
        own = event.step.decision.pin.size or event.step.decision.unpin.size or event.step.decision.reopen.size
        assert own or event.committed.startswith(before)
        before = event.committed
        if left and data.draw(st.integers(0, 2)) == 0:
            left -= 1
            changed |= act(running, data)
    result = running.result()
    for restored in (result.trace, Trace.from_json(result.trace.to_json())):
        assert all(alike(a, b) for a, b in zip(restored.replay(), seen, strict=True))
    held: dict[int, int] = {}
    for canvas in seen:  # what is pinned stays as it is until it is no more
        held = {p: t for p, t in held.items() if p in canvas.pins.tolist()}
        assert all(canvas.tokens[p] == t and not canvas.open[p] for p, t in held.items())
        held |= {p: int(canvas.tokens[p]) for p in canvas.pins.tolist()}
    final, (start, end) = (seen[-1], seen[-1].gaps[0]) if seen else (result.trace.canvas, result.trace.canvas.gaps[0])
    assert result.usage.forwards <= running.bound
    assert all(p < start + len(final.filled((start, end))) for p in held)
    whole = model.tokenizer.decode_bytes(final.filled((start, end)).tolist()).decode("utf-8", errors="replace")
    assert result.text == whole if held else whole.startswith(result.text)
    if "regex" in options:
        assert re.fullmatch(options["regex"], result.text)
    if "forbidden" in options:
        assert "ab" in result.text
        assert not any(word in "x = "[-2:] + result.text for word in ("e", "x ="))


def steps(running: Running, num: int) -> None:
    for _ in range(num):
        next(running)


def test_a_pin_is_seen_by_what_is_drawn_after_it(models: dict[str, Model]) -> None:
    beginnings = set()
    for text in ("x", "def", "(("):
        running = models["full"].start("x = ", BUDGET, mode="full", policy="confidence", min_tokens=BUDGET)
        running.pin(-1, text)
        result = running.result()
        assert result.text.endswith(text)
        beginnings.add(result.text[: -len(text)])
    assert len(beginnings) > 1


def test_what_is_refused_leaves_the_run_as_it_was(causal: Model) -> None:
    options: dict[str, Any] = {"regex": "[a-z]+", "temperature": 1.0, "block_size": 3, "min_tokens": 8}
    plain = causal.start("x = ", BUDGET, **options).result()
    running = causal.start("x = ", BUDGET, **options)
    steps(running, 2)
    bound = running.bound
    for wrong, message in (
        (lambda: running.pin(3, "5"), "fixed|begins like"),
        (lambda: running.pin(BUDGET, "a"), "its gap 12"),
        (lambda: running.pin(0, ""), "needs some text"),
        (lambda: running.pin(0, [3]), "special"),
        (lambda: running.unpin(0), "nothing is pinned"),
        (lambda: running.remask(10, 12), "nothing is drawn"),
        (lambda: running.remask(3, 99), "not in the gap"),
    ):
        with pytest.raises(InputError, match=message):
            wrong()
    result = running.result()
    assert (result.text, running.bound) == (plain.text, bound)
    assert result.trace.to_json() == plain.trace.to_json()
    with pytest.raises(InputError, match="is done"):
        running.pin(0, "a")


def test_a_text_that_has_ended_takes_no_pin_behind_its_end(causal: Model) -> None:
    bias = {causal.tokenizer.eos_id: 80.0}
    running = causal.start("x = ", BUDGET, min_tokens=4, logit_bias=bias, mode="ar")
    steps(running, 5)
    with pytest.raises(InputError, match="remask its end first"):
        running.pin(8, "x")
    running.remask(4, BUDGET)
    running.pin(8, "x")
    result = running.result()
    assert len(result.tokens) == 8 + 1
    assert result.tokens[8].text == "x"
    assert (result.tokens[8].logprob, result.tokens[8].step) == (None, -1)


def test_remasked_text_is_drawn_again_and_unpinned_text_is_free(causal: Model) -> None:
    running = causal.start("x = ", 6, suffix="\n", min_tokens=6, mode="full", temperature=1.0)
    running.pin(2, "zz")
    first = next(running)
    assert first.step is not None
    assert first.step.decision.pin.size
    steps(running, 2)
    running.remask(0, 6)
    event = next(running)
    assert event.step is not None
    start = event.step.canvas.gaps[0][0]
    size = len(causal.tokenizer.encode("zz"))
    assert np.flatnonzero(~event.step.canvas.open[start : start + 6]).tolist() == list(range(2, 2 + size))
    running.unpin(2, 2 + size)
    event = next(running)
    assert event.step is not None
    assert event.step.canvas.open[start : start + 6].all()
    assert not event.step.canvas.pins.size
    assert len(running.result().tokens) == 6


def test_what_a_running_request_cannot_have_is_named(models: dict[str, Model], make_model: Any) -> None:
    uniform = make_model(process="uniform", null_id=None, context="full", shift=False, time_input=True)
    with pytest.raises(UnsupportedError, match="takes no stop strings"):
        models["causal"].start("x", 4, stop="y")
    for model, options, mode in (
        (models["causal"], {"mode": "speculative"}, "speculative"),
        (models["causal"], {"suffix": "y", "mode": "beam"}, "beam"),
        (models["causal"], {"suffix": "y", "num_beams": 4}, "beam"),
        (uniform, {"mode": "ancestral"}, "ancestral"),
        (uniform, {}, "ancestral"),
    ):
        with pytest.raises(UnsupportedError, match=f'mode "{mode}" cannot be changed while it runs'):
            model.start("x", 4, **options)
    with pytest.raises(InputError, match="gives one sample"):
        models["causal"].start("x", 4, n=2)
    with pytest.raises(UnsupportedError, match="block context cannot infill"):
        models["block"].start("x", 4, suffix="y")


def test_a_change_of_a_guided_request_counts_both_its_questions(causal: Model) -> None:
    options: dict[str, Any]
    for options in ({"mode": "full"}, {"mode": "ar"}, {"revise": 1}, {}):
        running = causal.start("x = 1\ny = ", BUDGET, min_tokens=BUDGET, guidance=2.0, **options)
        steps(running, 1)
        running.pin(BUDGET - 1, "b")
        assert running.result().usage.forwards <= running.bound


def test_a_change_keeps_a_search_in_the_bound(make_model: Any) -> None:
    running = make_model(null_id=None).start("x = ", BUDGET, suffix="\n", policy="confidence")
    first = next(running)
    assert first.step is not None
    at = int(first.step.decision.positions[0]) - first.step.canvas.gaps[0][0]
    running.remask(at)
    result = running.result()
    assert result.searched is not None
    assert result.usage.forwards == running.bound


def test_a_text_may_end_where_a_pin_of_its_constraint_is_no_more(causal: Model) -> None:
    options: dict[str, Any] = {"regex": "[a-z]+", "logit_bias": {causal.tokenizer.eos_id: 80.0}, "mode": "ar"}
    assert len(causal.generate("x = ", BUDGET, pins=[Pin("b", at=-1)], **options).tokens) == BUDGET
    running = causal.start("x = ", BUDGET, pins=[Pin("b", at=-1)], **options)
    steps(running, 1)
    running.unpin(BUDGET - 1)
    assert len(running.result().tokens) == 1
