"""Contract 1 over any Unicode: what is outside an edited span, or between a template's gaps, stands byte for byte."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daguerre.canvas import Canvas
from daguerre.decoding.result import Result
from daguerre.decoding.text_spans import CharSpan, split_at
from daguerre.errors import InputError, UnsupportedError
from daguerre.model import Model

CONTEXTS = ("causal", "causal_unshifted", "full", "full_unshifted")
PARTS = (
    "x = 1", " ", "    ", "\t", "\n", "\r\n", "\r", "\ufeff", "é", "e\u0301", "\u0301\u0323", "ß", "日本", "🙂",
    "👩\u200d👩\u200d👧", "\U0001f1e9\U0001f1ea", "\u202e", "\x00", "\x7f", "\u2028", "\ufffd", "<mask>", "<null>",
    "<eos>", "{", "}", "def f():", "#",
)  # fmt: skip
texts = st.lists(st.one_of(st.sampled_from(PARTS), st.text(max_size=4)), max_size=10).map("".join)
few = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
names = pytest.mark.parametrize("name", CONTEXTS)


@st.composite
def texts_with_spans(draw: st.DrawFn, least: int = 0) -> tuple[str, list[CharSpan]]:
    """A text and up to three spans, ascending and apart; empty, adjacent and at the edges too where `least` is 0."""
    text = draw(texts.filter(lambda t: len(t) >= 3 * least))
    edges = st.integers(0, len(text)) | st.sampled_from([0, len(text)])
    num = draw(st.integers(1, 3))
    found = sorted(draw(st.lists(edges, min_size=2 * num, max_size=2 * num, unique=bool(least and len(text) > 6))))
    spans = list(zip(found[::2], found[1::2], strict=True))
    return text, [(a, b) for a, b in spans if b - a >= least]


def options_of(seed: int) -> dict[str, Any]:
    """A policy, a temperature and a parallelism, by number."""
    ways: tuple[dict[str, Any], ...] = (
        {"threshold": 0.0},
        {"threshold": 0.3, "temperature": 1.0},
        {"policy": "random", "temperature": 1.5},
        {"mode": "full", "heal": False},
        {"revise": 1, "revise_threshold": 0.1},
    )
    return {**ways[seed % len(ways)], "seed": seed}


def assert_verbatim(model: Model, pieces: tuple[str, ...], result: Result) -> None:
    """The result is `pieces` with the gaps' texts between them, in its text, in its spans and in its canvas."""
    assert split_at(result.text, result.spans) == pieces
    assert tuple(result.text[a:b] for a, b in result.spans) == result.texts
    canvases: list[Canvas] = [result.trace.canvas, *result.trace.replay()]
    given = ~canvases[0].in_gap
    for canvas in canvases:
        assert np.array_equal(canvas.tokens[given], canvases[0].tokens[given])
    last, decode = canvases[-1], model.tokenizer.decode_bytes
    runs = [decode(last.tokens[max(1, a) : b].tolist()) for a, b in last.segments]
    for piece, run, gap in zip(pieces, runs, last.gaps, strict=False):
        healed = run + decode(last.filled(gap).tolist())
        assert healed.startswith(piece.encode()), "what healing took back stands again"
        assert piece.encode().startswith(run)
    assert len(last.segments) == len(pieces)
    assert runs[-1] == pieces[-1].encode()


@names
@few
@given(texts_with_spans(), st.integers(0, 9))
def test_an_edit_keeps_what_is_outside(
    models: dict[str, Model], name: str, case: tuple[str, list[CharSpan]], seed: int
) -> None:
    text, spans = case
    result = models[name].edit(text, spans, max_tokens=2, **options_of(seed))
    assert_verbatim(models[name], split_at(text, spans), result)
    assert result.original == text


@names
@few
@given(texts_with_spans(least=1), st.integers(0, 9), st.sampled_from([0.1, 0.5, 0.99]))
def test_an_edit_of_part_of_the_tokens_keeps_what_is_outside_and_the_others(
    models: dict[str, Model], name: str, case: tuple[str, list[CharSpan]], seed: int, strength: float
) -> None:
    text, spans = case
    if not spans:
        return
    options = options_of(seed) | {"heal": False}
    result = models[name].edit(text, spans, strength=strength, **options)
    assert_verbatim(models[name], split_at(text, spans), result)
    begin = result.trace.canvas
    kept = begin.in_gap & ~begin.open
    *_, end = (begin, *result.trace.replay())
    if not result.trace.steps or "revise" not in options:
        assert np.array_equal(begin.tokens[kept], end.tokens[kept])


@names
@few
@given(st.lists(texts.filter(lambda t: "§" not in t), min_size=2, max_size=4), st.integers(0, 9))
def test_a_template_keeps_what_is_between_its_gaps(
    models: dict[str, Model], name: str, pieces: list[str], seed: int
) -> None:
    result = models[name].fill("§".join(pieces), 2, mark="§", **options_of(seed))
    assert_verbatim(models[name], tuple(pieces), result)


@names
@few
@given(texts_with_spans())
def test_gaps_may_end_with_nothing_in_them(
    models: dict[str, Model], name: str, case: tuple[str, list[CharSpan]]
) -> None:
    """A gap of length 0 leaves what is around it as it was, joined."""
    model, (text, spans) = models[name], case
    ends = dict.fromkeys(model.config.ends, 1e4)
    result = model.edit(text, spans, max_tokens=3, logit_bias=ends, heal=False)
    assert result.texts == ("",) * len(spans)
    assert result.text == "".join(split_at(text, spans))
    assert result.usage.completion_tokens == 0


@few
@given(texts_with_spans(), st.data())
def test_spans_that_overlap_or_lie_outside_are_errors(
    causal: Model, case: tuple[str, list[CharSpan]], data: st.DataObject
) -> None:
    text, spans = case
    wide = [(a, b) for a, b in spans if b - a > 1]
    if wide:
        a, b = wide[0]
        inner = data.draw(st.integers(a + 1, b - 1))
        with pytest.raises(InputError, match="overlap"):
            causal.edit(text, [*spans, (inner, inner)])
    for outside in ((-1, 0), (0, len(text) + 1), (len(text) + 1, len(text) + 1)):
        with pytest.raises(InputError, match="not within the text"):
            causal.edit(text, [*spans, outside])


@few
@given(texts_with_spans())
def test_block_context_refuses_what_has_a_text_behind_it(
    models: dict[str, Model], case: tuple[str, list[CharSpan]]
) -> None:
    """Only what is at the very end can be written anew there: that is a completion."""
    text, spans = case
    if len(spans) == 1 and spans[0][1] == len(text):
        result = models["block"].edit(text, spans, max_tokens=2)
        assert_verbatim(models["block"], split_at(text, spans), result)
    else:
        with pytest.raises(UnsupportedError, match="block context"):
            models["block"].edit(text, spans, max_tokens=2)


def test_a_lone_surrogate_is_an_error_that_says_where(causal: Model) -> None:
    for text in ("a\ud800b", "\udfff", "x = '\udc80'"):
        with pytest.raises(InputError, match="lone surrogate"):
            causal.edit(text, [(0, 0)])
        with pytest.raises(InputError, match="lone surrogate"):
            causal.fill(text + "<gap>x", 2)
