"""Length search: the right length found by the model's first look, alike in a batch and one by one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest

import main_path
from daguerre.canvas import Canvas
from daguerre.decoding.generate import plan_request
from daguerre.decoding.lengths import MAX_LENGTHS, calibrated, candidates, look_alone, look_together, search_length
from daguerre.decoding.request import Decode, TokenRequest
from daguerre.errors import InputError, UnsupportedError
from daguerre.model import Model
from daguerre.models.tokenizer import Tokenizer

BEFORE, AFTER = "def area(width):\n    return ", "\n\nprint(area(2))\n"
NULL = Tokenizer.null_id


@pytest.fixture(scope="module")
def without_null(make_model: Any) -> dict[str, Model]:
    """Of each context that sees a suffix, a model that was not trained to end a gap."""
    facts: dict[str, dict[str, Any]] = {
        "causal": {},
        "causal_unshifted": {"shift": False},
        "full": {"context": "full"},
        "full_unshifted": {"context": "full", "shift": False},
    }
    return {name: make_model(null_id=None, **each) for name, each in facts.items()}


def knows(right: list[int], start: int, num_behind: int) -> Callable[[Canvas, int], dict[int, float]]:
    """Sure of the right tokens in a gap that fits them, else of nothing, and of long gaps still less."""

    def says(canvas: Canvas, position: int) -> dict[int, float]:
        length = len(canvas) - num_behind - start
        if length == len(right):
            return {right[position - start]: 9.0, 99: 8.0}
        return {100: 4.0, 101: 3.0} | {200 + i: 4.0 for i in range(2 * length)}

    return says


def test_the_length_that_the_denoiser_knows_is_found(scripted: Any, tokenizer: Tokenizer) -> None:
    start, num_behind = 1 + len(tokenizer.encode(BEFORE)), len(tokenizer.encode(AFTER))
    for text, null in (("x", NULL), ("width * width", None), ("[width, 2, 'abcdefgh']", NULL)):
        want = tokenizer.encode(text)
        denoiser = scripted(knows(want, start, num_behind), null_id=null)
        result = main_path.infill(denoiser, tokenizer, BEFORE, AFTER, 20, search_length=True, heal=False)
        assert result.text == text
        assert result.searched is not None
        assert result.searched.best == len(want)
        assert result.searched.lengths == tuple(range(1, 21))
        assert result.usage.forwards == 20 + len(want), "one each, and a token a forward"


def test_a_batch_finds_what_a_search_one_by_one_finds(without_null: dict[str, Model]) -> None:
    texts = ((BEFORE, AFTER), ("", ")"), ("import os\nx = [", "]\n"))
    for (name, model), (before, after) in product(without_null.items(), texts):
        tokenizer = model.tokenizer
        segments = [tokenizer.encode(before), tokenizer.encode(after)]
        plan_of = partial(plan_request, model.config, tokenizer)
        fast, slow = (
            search_length(
                model.denoiser, TokenRequest(Decode(mode="block"), segments, [(2, 14)]), plan_of, look
            ).searched
            for look in (look_together, look_alone)
        )
        assert fast is not None
        assert slow is not None
        assert np.allclose(fast.scores, slow.scores, atol=1e-4)
        assert (fast.best, fast.lengths) == (slow.best, slow.lengths)
        assert fast.counts.forwards <= 1 + name.startswith("causal") < slow.counts.forwards


def test_a_model_without_null_searches_unless_the_length_is_exact(
    subtests: pytest.Subtests, without_null: dict[str, Model]
) -> None:
    for name, model in without_null.items():
        with subtests.test(name):
            check_search(model)


def check_search(model: Model) -> None:
    result = model.infill(BEFORE, AFTER, 12, min_tokens=3)
    assert result.searched is not None
    assert result.searched.lengths == tuple(range(3, 13))
    exact = model.infill(BEFORE, AFTER, result.searched.best, min_tokens=result.searched.best)
    assert exact.searched is None
    assert [t.id for t in exact.tokens] == [t.id for t in result.tokens]
    assert len(exact.tokens) == result.searched.best
    assert result.usage.forwards == exact.usage.forwards + result.searched.counts.forwards
    assert result.usage.prefill_tokens == exact.usage.prefill_tokens + result.searched.counts.prefill_tokens
    assert model.infill(BEFORE, AFTER, 12, min_tokens=3).searched.scores == result.searched.scores  # type: ignore[union-attr]
    assert model.fill(BEFORE + "<gap>" + AFTER, 12, min_tokens=3).texts == (result.text,)
    edited = model.edit(BEFORE + "x" + AFTER, [(len(BEFORE), len(BEFORE) + 1)], 12, min_tokens=3)
    assert edited.text == BEFORE + result.text + AFTER
    *_, last = model.stream(BEFORE, 12, suffix=AFTER, min_tokens=3)
    assert last.text == result.text


def test_a_model_with_null_searches_where_it_is_asked(causal: Model) -> None:
    assert causal.infill(BEFORE, AFTER, 12).searched is None
    options: dict[str, Any] = {"temperature": 1.0, "n": 3, "heal": False}
    result = causal.infill(BEFORE, AFTER, 12, search_length=True, **options)
    assert result.searched is not None
    for choice in result.choices:
        assert len(choice.tokens) == result.searched.best
        *_, canvas = choice.trace.replay()
        assert NULL not in canvas.tokens[canvas.in_gap]
    first, second, _ = result.choices
    assert first.usage.prefill_tokens > second.usage.prefill_tokens, "the search is counted once"
    exact = causal.infill(BEFORE, AFTER, result.searched.best, min_tokens=result.searched.best, **options)
    assert [choice.text for choice in exact.choices] == [choice.text for choice in result.choices]


def test_a_constraint_leaves_the_lengths_that_it_has_texts_of(causal: Model) -> None:
    result = causal.infill(BEFORE, AFTER, 9, search_length=True, regex="(ab){2,3}")
    assert result.searched is not None
    assert max(result.searched.lengths) <= 6
    assert result.text in ("abab", "ababab")
    with pytest.raises(InputError, match="too few"):
        causal.infill(BEFORE, AFTER, 2, search_length=True, regex="[0-9]{40}")


def test_what_cannot_be_searched_is_refused(models: dict[str, Model], without_null: dict[str, Model]) -> None:
    causal = models["causal"]
    with pytest.raises(UnsupportedError, match="block context cannot infill"):
        models["block"].infill("a", "b", 8, search_length=True)
    with pytest.raises(UnsupportedError, match='mode "ar" cannot infill'):
        causal.infill("a", "b", 8, search_length=True, mode="ar")
    with pytest.raises(UnsupportedError, match=r'mode "ancestral" cannot search .* or use mode="block"'):
        models["full"].infill("a", "b", 8, search_length=True, mode="ancestral")
    with pytest.raises(InputError, match="needs a text after the gap"):
        causal.infill("a", "", 8, search_length=True)
    with pytest.raises(UnsupportedError, match="these are 2"):
        causal.fill("a<gap>b<gap>c", 8, search_length=True)
    with pytest.raises(UnsupportedError, match="the same number as min_tokens and max_tokens"):
        without_null["causal"].fill("a<gap>b<gap>c", 8)
    with pytest.raises(UnsupportedError, match=r"min_tokens=8 with max_tokens=8, or have it found by search_length=Tr"):
        without_null["full"].infill("a", "b", 8, search_length=False)
    with pytest.raises(UnsupportedError, match=r'min_tokens=8 with max_tokens=8, or have it found in mode="block"'):
        without_null["full"].infill("a", "b", 8, mode="ancestral")
    assert len(without_null["full"].infill("a", "b", 8, mode="block").tokens) <= 8  # as both errors say
    with pytest.raises(UnsupportedError, match="no <null>"):
        without_null["full"].infill("a", "b", 8, search_length=False)
    with pytest.raises(InputError, match="leave out steps"):
        causal.infill("a", "b", 8, search_length=True, policy="confidence", steps=2)
    with pytest.raises(InputError, match="keeps its length"):
        causal.edit("abc", [(1, 2)], strength=0.5, search_length=True)
    with pytest.raises(InputError, match="shorten the text"):
        causal.infill("a", "b", 400, search_length=True)
    with pytest.raises(InputError, match="max_tokens must be"):
        causal.infill("a", "b", 0, search_length=True)
    with pytest.raises(InputError, match="min_tokens=5 is more"):
        causal.infill("a", "b", 3, min_tokens=5, search_length=True)
    with pytest.raises(InputError, match="search_length must be"):
        causal.infill("a", "b", 3, search_length="yes")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="search_length is an argument of other calls"):
        causal.generate("a", 3, search_length=True)


def test_candidates_are_all_lengths_or_as_many_as_a_search_takes() -> None:
    assert candidates(0, 5) == (1, 2, 3, 4, 5)
    assert candidates(4, 4) == (4,)
    many = candidates(2, 500)
    assert (many[0], many[-1]) == (2, 500)
    assert MAX_LENGTHS // 2 < len(many) <= MAX_LENGTHS
    assert candidates(1, MAX_LENGTHS) == tuple(range(1, MAX_LENGTHS + 1))


def test_what_is_usual_at_a_length_is_taken_off() -> None:
    lengths = range(1, 13)
    usual = -1.5 * np.log(lengths) - 0.2
    assert np.allclose(calibrated(lengths, usual.tolist()), 0.0)
    usual[6] += 0.3
    assert int(np.argmax(calibrated(lengths, usual.tolist()))) == 6
    assert np.argmax(usual) == 0
    assert calibrated([3, 4], [-1.0, -2.0]).tolist() == [-1.0, -2.0]
