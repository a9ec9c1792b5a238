"""Pins, keywords, forbidden strings, endings and lengths hold for any policy, parallelism, temperature and weights."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

import daguerre
from daguerre.canvas import Canvas
from daguerre.decoding.pins import Pin
from daguerre.decoding.request import Decode
from daguerre.decoding.result import Result
from daguerre.errors import InputError
from daguerre.model import Model
from daguerre.sampling.policies import POLICIES
from plans import make_plan

few = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
NAMES = ["causal", "full", "full_unshifted", "block"]
WORDS = ["a", "e", "in", "to", "re", "é", "((", " =", "\n"]
PIECES = ["x", "def", "return x", "né", " = 1\n", "  "]
BUDGET = 14


@st.composite
def decodings(draw: st.DrawFn, name: str, infilling: bool = False) -> dict[str, Any]:
    """Any mode, policy, block size, temperature and seed that the model of a context honors."""
    modes = ["block"] if name == "block" else ["block", "full"]
    modes += ["ar"] if name == "causal" and not infilling else []
    options: dict[str, Any] = {"mode": draw(st.sampled_from(modes)), "seed": draw(st.integers(0, 999))}
    if options["mode"] != "ar":
        options["policy"] = draw(st.sampled_from(sorted(POLICIES)))
        if options["policy"] == "threshold":
            options["threshold"] = draw(st.sampled_from([0.0, 0.5, 0.9]))
        if options["mode"] == "block" and name != "block":
            options["block_size"] = draw(st.integers(1, BUDGET))
    options["temperature"] = draw(st.sampled_from([0.0, 0.7, 1.5]))
    return options


def last(result: Result) -> Canvas:
    return [*result.trace.replay()][-1] if result.trace.steps else result.trace.canvas


@pytest.mark.parametrize("name", NAMES)
@few
@given(data=st.data())
def test_pinned_positions_never_change_and_are_in_the_text(models: dict[str, Model], name: str, data: Any) -> None:
    model, infilling = models[name], name != "block" and data.draw(st.booleans())
    options = data.draw(decodings(name, infilling))
    if options["mode"] != "ar":
        options["revise"] = data.draw(st.sampled_from([0, 2]))
    text, at = data.draw(st.sampled_from(PIECES)), data.draw(st.integers(-1, 4))
    options["pins"] = [Pin(text, at=at), Pin(model.tokenizer.encode("yz"), at=8)]
    if data.draw(st.booleans()):  # a text that would end at once
        options["logit_bias"] = dict.fromkeys((model.tokenizer.eos_id, model.tokenizer.null_id), 80.0)
    suffix = "\nend" if infilling else None
    plan = make_plan(model.config, model.tokenizer, Decode(**options), "x = fo", suffix, BUDGET, None)
    result = (
        model.infill("x = fo", suffix, BUDGET, **options) if suffix else model.generate("x = fo", BUDGET, **options)
    )
    start, ids = plan.canvas.gaps[0][0], model.tokenizer.encode(text)
    first = at if at >= 0 else BUDGET + at + 1 - len(ids)
    for canvas in (result.trace.canvas, *result.trace.replay()):
        assert canvas.tokens[start + first : start + first + len(ids)].tolist() == ids
        assert not canvas.open[canvas.pins].any()
    drawn = model.tokenizer.decode_bytes(last(result).filled(plan.canvas.gaps[0]).tolist())
    assert result.text == drawn.decode("utf-8", errors="replace")
    shown = {int(position): token for position, token in enumerate(last(result).filled(plan.canvas.gaps[0]).tolist())}
    assert [shown[first + i] for i in range(len(ids))] == ids
    assert result.usage.forwards <= plan.max_forwards
    if len(result.tokens) > first + len(ids):
        assert (result.tokens[first].logprob, result.tokens[first].step) == (None, -1)


def holds(options: dict[str, Any], result: Result, before: str, after: str) -> None:
    for text in result.texts:
        assert all(word in text for word in options.get("keywords", ())), (options, text)
        assert text.endswith(options.get("ending", ""))
        asked = [name for name in ("keywords", "forbidden", "ending", "pins", "regex") if options.get(name)]
        assert not asked or "\ufffd" not in text
        if "regex" in options:
            assert re.fullmatch(options["regex"], text, re.DOTALL)
    (text,), whole = result.texts, before + result.text + after
    for word in options.get("forbidden", ()):
        for match in re.finditer(f"(?={re.escape(word)})", whole):
            start, end = match.start(), match.start() + len(word)
            assert end <= len(before) or start >= len(before) + len(text), (options, whole)
    for pin in options.get("pins", ()):
        start, end = pin.at
        assert pin.text in "".join(token.text for token in result.tokens[start:end]), (options, text)


@st.composite
def wordings(draw: st.DrawFn) -> dict[str, Any]:
    options: dict[str, Any] = {
        "forbidden": draw(st.lists(st.sampled_from(WORDS), max_size=3)),
        "keywords": draw(st.lists(st.sampled_from(["ab", "if", "née", "x =", "or"]), max_size=2)),
    }
    if draw(st.booleans()):
        options["ending"] = draw(st.sampled_from([";", "x\n", "é"]))
    if draw(st.booleans()):
        start = draw(st.integers(0, 6))
        options["pins"] = [Pin(draw(st.sampled_from(["do", "z"])), at=(start, start + draw(st.integers(2, 6))))]
    if draw(st.integers(0, 3)) == 0:
        options["regex"] = draw(st.sampled_from(["[a-zé =;\\n]*", '[^"]{3,}']))
    return options


@pytest.mark.parametrize("name", NAMES)
@few
@given(data=st.data())
def test_what_the_text_must_and_must_not_say_holds(models: dict[str, Model], name: str, data: Any) -> None:
    model, infilling = models[name], name != "block" and data.draw(st.booleans())
    options = data.draw(wordings()) | data.draw(decodings(name, infilling))
    before, after = data.draw(st.sampled_from(["x = (", "wi", ""])), "(\n" if infilling else ""
    late = {"timeout": 1e-9} if data.draw(st.integers(0, 5)) == 0 else {}
    ask = model.infill if infilling else model.generate
    try:
        result = ask(before, *([after] if infilling else []), BUDGET + 4, **options, **late)
    except InputError as error:
        event(re.sub("'.*'|[0-9]+", "", str(error))[:40])
        assume(False)
    holds(options, result, before, after)


def test_nothing_forbidden_crosses_the_gaps_of_a_template(models: dict[str, Model]) -> None:
    template = "a<gap>1<gap><gap>xb"
    for name, seed in product(("causal", "full"), range(3)):
        model = models[name]
        free = model.fill(template, 5, temperature=1.5, seed=seed, heal=False)
        edges = {free.text[at - 1 : at + 1] for span in free.spans for at in span}
        words = sorted(edges - {"a1", "1x", "xb"})
        result = model.fill(template, 5, temperature=1.5, seed=seed, forbidden=words)
        assert words
        assert not any(word in result.text for word in words), (words, result.text)
        pins = [Pin("yes", at=0, gap=1)]
        texts = model.fill(template, 6, keywords="no", ending="s", pins=pins, seed=seed).texts
        assert all("no" in text and text.endswith("s") for text in texts)
        assert texts[1].startswith("yes")


def test_an_edit_has_pins_beside_its_draft(models: dict[str, Model]) -> None:
    text = "limit = 25\nother = 250\n"
    for name, strength in product(("causal", "full"), (1.0, 0.5)):
        result = models[name].edit(text, [(8, 10)], pins=[Pin("9", at=0)], strength=strength, temperature=1.0)
        assert result.text.startswith("limit = 9")
        assert result.text.endswith("\nother = 250\n")


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"pins": [Pin("ab", at=0), Pin("x", at=0)]}, "'ab' at 0 and 'x' at 0 contradict each other at position 0"),
    ({"pins": [Pin("x", at=8)]}, "the pin 'x' at 8 has 1 tokens and its gap 8"),
    ({"pins": [Pin("x", at=-9)]}, "the pin 'x' at -9 has 1 tokens"),
    ({"pins": [Pin("x", at=(4, 9))]}, "the interval"),
    ({"pins": [Pin("x", at=(4, 4))]}, "the interval"),
    ({"pins": [Pin("x", at=0, gap=1)]}, "for gap 1 and there are 1"),
    ({"pins": [Pin([2], at=0)]}, "token 2 is special"),
    ({"pins": [Pin([9999], at=0)]}, "outside the vocabulary"),
    ({"pins": [Pin("x", at=0)], "regex": "[0-9]+"}, "fixed at position 0|begins like the draft or the pins"),
    ({"pins": [Pin("x", at=3)], "forbidden": "x"}, "fixed"),
    ({"pins": [Pin("ax", at=(0, 5))], "forbidden": "x"}, "pinned 'ax' contains 'x', which is forbidden"),
    ({"keywords": "a keyword that is longer than the budget allows"}, "max_tokens=8 is too few"),
    ({"keywords": "abc", "forbidden": "b"}, "keyword 'abc' contains 'b', which is forbidden"),
    ({"ending": "abc", "forbidden": ["x", "bc"]}, "ending 'abc' contains 'bc'"),
    ({"keywords": "x", "regex": "[0-9]+"}, "the option regex together with keywords"),
    ({"keywords": ""}, "keywords must be a string or several"),
    ({"forbidden": [1]}, "forbidden must be a string or several"),
    ({"ending": ""}, "ending must be a string that is not empty"),
    ({"pins": "x"}, "pins must be several of daguerre.Pin"),
    ({"pins": Pin("x", at=0)}, "pins must be several of daguerre.Pin"),
    ({"keywords": "x", "stop": "y"}, "stop is not used with the option keywords"),
    ({"pins": [Pin("x", at=0)], "stop": "y"}, "stop is not used with the option pins"),
    ({"pins": [Pin("x", at=0)], "heal": True}, "not healed"),
    ({"ending": "x", "revise": 1}, "revise cannot honor the option ending"),
    ({"pins": [Pin("x", at=0)], "mode": "speculative"}, 'mode "speculative" cannot honor the option pins'),
    ({"keywords": "x", "mode": "ancestral"}, 'mode "ancestral" cannot honor the option keywords'),
]


def test_what_cannot_be_is_refused_up_front(causal: Model) -> None:
    for options, message in REFUSED:
        with pytest.raises(InputError, match=message) as caught:
            causal.generate("y = ", 8, **options)
        assert "\n" not in str(caught.value)


def test_what_is_no_pin_is_refused() -> None:
    wrong: Any
    for wrong in (("", 0), ("x", None), ("x", (0, "a")), (3, 0), ([1.5], 0), ("x", 0, -1), ("x", (1,))):
        with pytest.raises(InputError, match="a pin"):
            Pin(*wrong)


def test_pins_are_written_as_text_on_the_command_line() -> None:
    assert Pin.parse("3=a=b") == Pin("a=b", at=3)
    assert Pin.parse("-1=;") == Pin(";", at=-1)
    assert Pin.parse("2:=x") == Pin("x", at=(2, None))
    assert Pin.parse("-4:-1=x") == Pin("x", at=(-4, -1))
    for text in ("x", "=x", "a=x", "1:b=x"):
        with pytest.raises(InputError, match="is not a pin"):
            Pin.parse(text)


LENGTHS = [(7, 7), (3, 7)]


@pytest.mark.parametrize(
    ("name", "temperature"), [("causal", 0.0), ("causal", 1.0), ("full", 1.0), ("full_unshifted", 0.0), ("block", 1.0)]
)
def test_lengths_are_exact_within_a_range_or_all_of_the_canvas(
    models: dict[str, Model], name: str, temperature: float
) -> None:
    """Least equal to most is exact, and fills the canvas; the bias would end or never end the text."""
    model = models[name]
    for least, most in LENGTHS:
        for bias in (80.0, -80.0):
            for more in ({}, {"regex": "[a-z \\n]*"}, {"forbidden": "e"}, {"mode": "ar"}, {"mode": "full"}):
                if name != "causal" and "mode" in more:
                    continue
                shared: dict[str, Any] = {"min_tokens": least, "temperature": temperature, **more}
                shared["logit_bias"] = dict.fromkeys((model.tokenizer.eos_id, model.tokenizer.null_id), bias)
                results = [model.generate("x = ", most, **shared)]
                if name != "block" and more.get("mode") != "ar":
                    results.append(model.infill("x = ", "\n", most, **shared))
                    filled = model.fill("x = <gap>\ny = <gap>\n", most, **shared)
                    assert all(least <= len(filled_gap) <= most for filled_gap in tokens_of(model, filled))
                for result in results:
                    assert least <= result.usage.completion_tokens <= most, (least, more, bias)
                    if least < most and not more:
                        assert (result.usage.completion_tokens < most) == (bias > 0)


def tokens_of(model: Model, result: Result) -> list[np.ndarray]:
    """The tokens of each gap, without nulls."""
    canvas = last(result)
    return [canvas.tokens[a:b][canvas.tokens[a:b] != model.tokenizer.null_id] for a, b in canvas.gaps]


def test_the_default_model_keeps_to_all_of_it() -> None:
    model = daguerre.load()
    pins = [Pin("    return", at=(8, 24))]
    result = model.generate("def mean(values):\n", 32, pins=pins, keywords="sum", forbidden=["len", "#"], ending="\n")
    assert "    return" in result.text
    assert "sum" in result.text
    assert "len" not in result.text
    assert result.text.endswith("\n")
    result = model.infill("x = [", "]\n", 12, pins=[Pin("for", at=2)], forbidden=":", temperature=1.0)
    assert "for" in result.text
    assert ":" not in result.text
