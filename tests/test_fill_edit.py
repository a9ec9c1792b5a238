"""Fill and edit: several gaps in one run, and the rest verbatim."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daguerre.errors import InputError, UnsupportedError
from daguerre.model import Model
from daguerre.models.tokenizer import Tokenizer

TEXT = "import os\r\n\r\ndef read(päth):\r\n\twith open(päth) as f:\r\n\t\treturn f.read()  # 🙂\r\n"
few = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def test_every_gap_of_a_template_is_filled(models: dict[str, Model]) -> None:
    ways: tuple[dict[str, object], ...] = (
        {},
        {"mode": "full"},
        {"block_size": 3, "temperature": 1.0},
        {"heal": False},
    )
    for name, options in product(("causal", "causal_unshifted", "full"), ways):
        result = models[name].fill("def <gap>(a, b):\n    return <gap>\n", max_tokens=[4, 6], threshold=0.4, **options)
        assert len(result.texts) == 2
        assert result.text == f"def {result.texts[0]}(a, b):\n    return {result.texts[1]}\n"
        assert [result.text[a:b] for a, b in result.spans] == list(result.texts)
        assert "".join(token.text for token in result.tokens) == "".join(result.texts)
        assert len(result.tokens) <= 10
        *_, canvas = result.trace.replay()
        assert not canvas.open.any(), (name, options)
        assert result.diff == ""


def test_gaps_see_each_other(causal: Model) -> None:
    """What is asked of one gap depends on what is behind the other."""
    texts = {
        causal.fill(f"x = <gap>\ny = <gap>\n{end}", 6, heal=False).texts[0] for end in ("z\n", "import os\n", "((\n")
    }
    assert len(texts) > 1


def test_one_gap_is_infilling_and_one_at_the_end_a_completion(causal: Model) -> None:
    assert causal.fill("x = <gap>\ny\n", 8).texts[0] == causal.infill("x = ", "\ny\n", 8).text
    assert causal.fill("x = <gap>", 8).text == "x = " + causal.generate("x = ", 8).text


def test_budgets_are_of_each_gap(causal: Model) -> None:
    result = causal.fill("a<gap>b<gap>c", max_tokens=[2, 7], min_tokens=[2, 7], heal=False)
    *_, canvas = result.trace.replay()
    assert [end - start for start, end in canvas.gaps] == [2, 7]
    assert causal.config.null_id not in canvas.tokens
    assert len(result.tokens) == 9
    assert result.finish_reason == "length"


def test_gaps_that_touch_and_gaps_at_both_ends(causal: Model) -> None:
    result = causal.fill("<gap><gap> = 1<gap>", 3)
    assert result.text == result.texts[0] + result.texts[1] + " = 1" + result.texts[2]


def test_each_gap_is_healed_by_itself(causal: Model) -> None:
    result = causal.fill("impo<gap> os\nretu<gap> x\n", 3)
    *_, canvas = result.trace.replay()
    drawn = causal.tokenizer.decode_bytes(canvas.tokens[1:].tolist()).decode("utf-8", errors="replace")
    assert drawn == result.text
    assert drawn.startswith("impo")
    assert "\nretu" in drawn


def test_a_template_that_cannot_be_filled(causal: Model) -> None:
    options: dict[str, object]
    for template, options, message in (
        ("x = 1", {}, "no gap"),
        ("<gap> <gap>", {"max_tokens": [1]}, "one for each of the 2 gaps"),
        ("<gap> <gap>", {"max_tokens": [1, 0]}, "max_tokens must be"),
        ("<gap> <gap>", {"max_tokens": 2, "min_tokens": [1, 3]}, "min_tokens=3 is more"),
        ("<gap> x", {"max_tokens": 300}, "positions"),
    ):
        with pytest.raises(InputError, match=message):
            causal.fill(template, **options)


def test_block_context_cannot_fill(models: dict[str, Model]) -> None:
    with pytest.raises(UnsupportedError, match="block context"):
        models["block"].fill("a<gap>b<gap>c", 2)
    with pytest.raises(UnsupportedError, match="block context"):
        models["block"].edit("abc", [(1, 2)])


@few
@given(st.text(alphabet="ab é🙂\t\r\n\ufeff<mask>", min_size=1, max_size=24), st.data())
def test_an_edit_leaves_everything_else_as_it_was(causal: Model, text: str, data: st.DataObject) -> None:
    edges = sorted(data.draw(st.lists(st.integers(0, len(text)), min_size=2, max_size=6, unique=True)))
    spans = list(zip(edges[::2], edges[1::2], strict=False))
    result = causal.edit(text, spans, max_tokens=3, threshold=0.3, temperature=1.0, seed=len(text))
    kept = [text[b:a] for (_, b), (a, _) in zip([(0, 0), *spans], [*spans, (len(text), 0)], strict=True)]
    assert result.text == "".join(k + t for k, t in zip(kept, [*result.texts, ""], strict=True))
    assert [result.text[a:b] for a, b in result.spans] == list(result.texts)
    *_, canvas = result.trace.replay()
    drawn = causal.tokenizer.decode_bytes(canvas.tokens[1:].tolist())
    assert drawn.decode("utf-8", errors="replace") == result.text


def test_edits_by_lines_and_by_pattern(causal: Model) -> None:
    by_line = causal.edit(TEXT, lines=[(5, 5)], max_tokens=5)
    head, tail = TEXT[: TEXT.index("\t\treturn")], "\r\n"
    assert by_line.text == head + by_line.texts[0] + tail
    by_pattern = causal.edit(TEXT, pattern="päth", max_tokens=3)
    first, second = by_pattern.texts
    assert by_pattern.text == TEXT.replace("päth", first, 1).replace("päth", second, 1)
    assert by_pattern.diff.startswith("@@")


def test_a_weak_edit_keeps_part_of_the_tokens_in_their_places(causal: Model) -> None:
    start, end = TEXT.index("with"), TEXT.index(" as f")
    draft = causal.tokenizer.encode(TEXT[start:end])
    for strength in (0.2, 0.5, 0.99):
        result = causal.edit(TEXT, [(start, end)], strength=strength, seed=3)
        begin = result.trace.canvas
        ((a, b),) = begin.gaps
        assert begin.open[a:b].sum() == np.ceil(strength * len(draft))
        *_, canvas = result.trace.replay()
        kept = ~begin.open[a:b]
        assert np.array_equal(canvas.tokens[a:b][kept], np.array(draft)[kept])
        assert [t.logprob is None for t in result.tokens] == kept.tolist()
        others = [causal.edit(TEXT, [(start, end)], strength=strength, seed=seed).trace.canvas for seed in range(4)]
        assert strength > 0.9 or len({tuple(canvas.open) for canvas in others}) > 1


def test_a_weak_edit_at_the_end_of_a_text_sees_the_tokens_that_stay(causal: Model, drafting: Model) -> None:
    """Nothing stands behind the span, so it is a completion, but not one from the left alone."""
    text = "x = 1\nvalue = foo(bar)"
    for model in (causal, drafting):
        result = model.edit(text, [(6, len(text))], strength=0.5, seed=1)
        begin, *_, end = [result.trace.canvas, *result.trace.replay()]
        ((a, b),) = begin.gaps
        kept = ~begin.open[a:b]
        assert 0 < kept.sum() < b - a
        assert np.array_equal(end.tokens[a:b][kept], begin.tokens[a:b][kept])
        by_name = [model.edit(text, [(6, len(text))], strength=0.5, seed=1, mode=mode).text for mode in ("block", "ar")]
        assert result.text == by_name[0]


def test_a_weak_edit_that_cannot_be(causal: Model) -> None:
    for options, message in (
        ({"strength": 0.0}, "strength must be"),
        ({"strength": 1.5}, "strength"),
        ({"strength": 0.5, "max_tokens": 4}, "keeps its length"),
        ({"strength": 0.5, "heal": True}, "keeps its length"),
    ):
        with pytest.raises(InputError, match=message):
            causal.edit("abc def", [(0, 3)], **options)
    with pytest.raises(UnsupportedError, match='mode "speculative" redraws all of a gap: leave out strength'):
        causal.edit("abc def", [(4, 7)], strength=0.5, mode="speculative")


def test_an_empty_span_is_an_insertion(causal: Model, tokenizer: Tokenizer) -> None:
    result = causal.edit("ab\ncd\n", [(3, 3)], max_tokens=4)
    assert result.text == "ab\n" + result.texts[0] + "cd\n"
    with pytest.raises(InputError, match="empty"):
        causal.edit("ab\ncd\n", [(3, 3)], strength=0.5)
