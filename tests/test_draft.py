"""A draft of the caller's: lossless where there is an autoregressive law, read once in the other modes."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import numpy as np
import pytest

import daguerre
import main_path
from daguerre.canvas import Canvas
from daguerre.decoding.drafters import Alignment, Draft, longest_match
from daguerre.decoding.request import Decode
from daguerre.decoding.result import Result
from daguerre.errors import InputError
from daguerre.heldout import load_frozen
from daguerre.model import Model
from daguerre.models.tokenizer import Tokenizer
from daguerre.server.logprobs import score_prompt
from plans import make_plan

LAWS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0},
    {"temperature": 1.3, "top_k": 3, "min_tokens": 30},
    {"stop": "e", "temperature": 1.0},
    {"guidance": 2.0},
]
UNRELATED = "import re\nclass B(A):\n    pass\n"


def same(one: Result, other: Result) -> bool:
    first, second = ([(t.id, t.text, t.logprob) for t in r.tokens] for r in (one, other))
    return first == second and (one.text, one.finish_reason) == (other.text, other.finish_reason)


def changed(text: str) -> list[str]:
    """The text with something left out, put in, and replaced."""
    half = len(text) // 2
    return [text, text[:half] + text[half + 3 :], text[:half] + " or x" + text[half:], "q" + text[1:], UNRELATED, ""]


@pytest.mark.parametrize("mode", ["ar", "speculative"])
def test_no_draft_changes_a_token_of_ar(subtests: pytest.Subtests, causal: Model, mode: str) -> None:
    for law, (seed, prompt) in product(LAWS, enumerate(["import os\n", "x = impo"])):
        options = {"seed": seed, **law}
        want = causal.generate(prompt, 32, mode="ar", **options)
        with subtests.test(prompt, law=law):
            for draft in changed(want.text):
                got = causal.generate(prompt, 32, mode=mode, draft=draft, **options)
                assert same(got, want)
                assert got.usage.forwards <= want.usage.forwards


def test_a_constraint_and_a_draft_give_the_tokens_of_ar(causal: Model) -> None:
    options: dict[str, Any] = {"mode": "ar", "regex": "[a-z]{4,9}(, [0-9]+)*", "temperature": 1.0}
    for seed in range(3):
        want = causal.generate("x = ", 24, seed=seed, **options)
        for draft in changed(want.text):
            got = causal.generate("x = ", 24, seed=seed, draft=draft, **options)
            assert [t.id for t in got.tokens] == [t.id for t in want.tokens]


def test_a_right_draft_of_held_out_code_takes_a_fraction_of_the_forwards() -> None:
    model, prompt = daguerre.load(), load_frozen()[4].text[:150]
    want = model.generate(prompt, 40, mode="ar")
    wrong = want.text[:20] + "zq" + want.text[22:]
    for draft, most in ((want.text, 0.25), (wrong, 0.67)):
        got = model.generate(prompt, 40, mode="ar", draft=draft)
        assert same(got, want)
        assert got.usage.forwards < most * want.usage.forwards
        assert got.usage.accepted_prediction_tokens > got.usage.rejected_prediction_tokens


def test_a_draft_is_found_again_where_the_text_has_left_it() -> None:
    draft = np.array([1, 2, 3, 4, 5, 6, 7, 8])

    def follow(text: list[int]) -> Alignment:
        return Alignment(draft).after(np.array(text), len(text))

    assert (follow([1, 2]).place, follow([1, 2]).accepted) == (2, 2)
    replaced = follow([1, 2, 9])  # 3 was replaced: token stands for token
    assert (replaced.place, replaced.known, replaced.agreed) == (3, 2, 0)
    assert follow([1, 2, 9, 4]).accepted == 3
    assert follow([1, 2, 5]).place == 5  # 3 and 4 are left out
    assert follow([1, 2, 9, 9, 9, 3]).place == 3  # three are put in
    assert follow([1, 2, 8, 3]).place == 3  # 8 is far ahead, and was none of the draft's
    assert follow([9] * 20).ahead(5).size == 0
    assert follow([1, 2, 9]).ahead(50).tolist() == [4, 5]
    assert Alignment(draft).ahead(3).tolist() == [1, 2, 3]
    length, places = longest_match(np.array([1, 1, 1]), np.array([1, 1]), 9)
    assert (length, places.tolist()) == (2, [2, 3])
    assert longest_match(np.array([1]), np.array([1, 1]), 9)[0] == 1
    assert longest_match(np.array([1]), np.array([2]), 9)[0] == 0


def test_lines_that_are_put_in_or_moved_do_not_lose_the_place() -> None:
    lines = [[7, 1, 2, 9], [7, 3, 4, 9], [7, 5, 6, 9], [8, 1, 3, 5, 9]]  # each begins alike, and ends alike
    draft = np.concatenate(lines)

    def follow(*text: list[int]) -> Alignment:
        written = np.concatenate(text)
        return Alignment(draft).after(written, len(written))

    assert follow(lines[0], [20, 9]).place == 4, "a line before the second"
    assert follow(lines[0], [20, 9], [7]).misses == 0, "which goes on"
    assert follow(lines[0], [7, 20, 9], [7, 3]).place == 6, "one that begins as the second: behind three tokens of that"
    moved = follow(lines[0], lines[2], [7, 3])
    assert (moved.place, moved.known, moved.agreed) == (6, 12, 2), (
        "a line that was passed over is found by three tokens"
    )
    assert follow(lines[0], lines[2], [2]).place == 13, "but not by one"


def test_healing_takes_its_part_of_the_draft(causal: Model, tokenizer: Tokenizer) -> None:
    draft = Draft("port os", tokenizer)
    assert draft.tokens().tolist() == tokenizer.encode("port os")
    assert draft.tokens(b"port").tolist() == tokenizer.encode(" os")
    assert draft.tokens(b"x").tolist() == tokenizer.encode("port os")
    assert Draft("é", tokenizer).tokens("é".encode()[:1]).size == 0
    plan = make_plan(causal.config, tokenizer, Decode(), "im", None, 8, None, "port os")
    (word,) = tokenizer.encode("import")
    slot = plan.gaps[0]
    canvas = Canvas(plan.canvas.tokens.copy(), plan.canvas.open.copy(), plan.canvas.gaps)
    tokens, opened = canvas.tokens.copy(), canvas.open.copy()
    tokens[slot.start], opened[slot.start] = word, False
    start, rest = plan.drafted(Canvas(tokens, opened, canvas.gaps))
    assert (start, rest.tolist()) == (slot.start + 1, tokenizer.encode(" os"))


def test_what_the_model_believes_of_a_draft_stays(
    subtests: pytest.Subtests, scripted: Any, tokenizer: Tokenizer
) -> None:
    """It believes in the tokens at even places, whatever it sees, and in another at odd ones."""
    ways: tuple[dict[str, Any], ...] = (
        {"mode": "block"},
        {"block_size": 4},
        {"mode": "full"},
        {"policy": "confidence"},
    )
    for options in ways:
        with subtests.test(str(options)):
            check_belief(scripted, tokenizer, options)


def check_belief(scripted: Any, tokenizer: Tokenizer, options: dict[str, Any]) -> None:
    draft = "def f(a, b):\n    return a"
    tokens, other = tokenizer.encode(draft), tokenizer.encode("x")[0]
    says = [{token: 20.0} if place % 2 == 0 else {token: 20.0, other: 21.0} for place, token in enumerate(tokens)]
    denoiser = scripted(lambda canvas, position: says[position - 1])
    result = main_path.generate(denoiser, tokenizer, "", len(tokens), heal=False, draft=draft, **options)
    assert [t.id for t in result.tokens] == [t if n % 2 == 0 else other for n, t in enumerate(tokens)]
    usage, half = result.usage, -(-len(tokens) // 2)
    assert (usage.accepted_prediction_tokens, usage.rejected_prediction_tokens) == (half, len(tokens) - half)
    first = result.trace.steps[0].decision
    assert all(position % 2 == 1 for position in first.positions.tolist())
    assert (first.probabilities > 0.9).all()


def test_what_of_a_draft_the_text_has_not_is_no_more_accepted(scripted: Any, tokenizer: Tokenizer) -> None:
    """All of it is believed but the second token, where the text ends; or the first is replaced when it is revised."""
    draft = "def f(a, b):"
    tokens, eos = tokenizer.encode(draft), tokenizer.eos_id
    ends = scripted(lambda canvas, at: {tokens[at - 1]: 20.0} | ({eos: 21.0} if at == 2 else {}))
    usage = main_path.generate(ends, tokenizer, "", len(tokens), heal=False, draft=draft, threshold=0.5).usage
    assert usage.completion_tokens == usage.accepted_prediction_tokens == 1
    assert usage.rejected_prediction_tokens == len(tokens) - 1

    other = tokenizer.encode("x")[0]
    revises = scripted(lambda canvas, at: {tokens[at - 1]: 20.0} | ({other: 20.5} if at == 1 else {}))
    options: dict[str, Any] = {"threshold": 0.3, "revise": 1, "revise_threshold": 0.5}
    usage = main_path.generate(revises, tokenizer, "", len(tokens), heal=False, draft=draft, **options).usage
    assert (usage.accepted_prediction_tokens, usage.rejected_prediction_tokens) == (len(tokens) - 1, 1)


def test_a_draft_is_read_in_every_context_within_the_bound(subtests: pytest.Subtests, models: dict[str, Model]) -> None:
    for name in ("causal", "causal_unshifted", "full", "full_unshifted", "block"):
        with subtests.test(name):
            check_draft(models[name], name)


def check_draft(model: Model, name: str) -> None:
    for options in ({}, {"threshold": 0.0}, {"temperature": 1.0, "min_tokens": 20, "policy": "random"}):
        decode = Decode(**options)
        plan = make_plan(model.config, model.tokenizer, decode, "x = 1\n", None, 20, False, UNRELATED)
        result = model.generate("x = 1\n", 20, decode, heal=False, draft=UNRELATED)
        usage = result.usage
        assert usage.forwards <= plan.max_forwards
        total = usage.accepted_prediction_tokens + usage.rejected_prediction_tokens
        assert total == len(model.tokenizer.encode(UNRELATED))
        if name != "block":
            filled = model.infill("x = ", "\ny = 2\n", 8, decode=Decode(seed=1), draft="foo(a)")
            assert filled.usage.accepted_prediction_tokens >= 0
        if options.get("threshold") == 0.0:
            assert result.text.startswith("import re\nclass")
            assert usage.rejected_prediction_tokens == 0
    *_, last = model.stream("x = ", 8, draft="foo", seed=2)
    assert last.text == model.generate("x = ", 8, draft="foo", seed=2).text


def test_nothing_of_a_draft_is_committed_before_it_was_read(causal: Model) -> None:
    *events, last = causal.stream("", 24, draft="value = 1\nother = value\n" * 3, block_size=4)
    assert last.result is not None
    for event in events:
        assert last.text.startswith(event.committed)
    assert last.result.trace.canvas.open[last.result.trace.canvas.in_gap].all()


def test_a_constraint_holds_whatever_the_draft(causal: Model) -> None:
    properties = {
        "a": {"type": "integer", "minimum": 0, "maximum": 99},
        "b": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    }
    schema = {"type": "object", "properties": properties, "required": ["a", "b"], "additionalProperties": False}
    drafts = ['{"a":1,"b":[true]}', '{"a":"x","b":[]}', "[1", "}{", '{"a":1']
    for draft, threshold, mode in product(drafts, (0.0, 0.5), ("block", "full")):
        result = causal.generate("x = ", 24, schema=schema, draft=draft, threshold=threshold, mode=mode)
        value = json.loads(result.text)
        assert 0 <= value["a"] <= 99, (draft, threshold, mode)
        assert all(isinstance(item, bool) for item in value["b"]), (draft, threshold, mode)
    for mode in ("block", "full"):
        result = causal.generate("x = ", 24, schema=schema, draft=drafts[0], threshold=0.0, mode=mode)
        assert result.text == drafts[0]
        assert result.usage.rejected_prediction_tokens == 0


def test_banned_tokens_of_a_draft_are_rejected(causal: Model) -> None:
    word, *rest = causal.tokenizer.encode("import os\n")
    options: dict[str, Any] = {"heal": False, "threshold": 0.0, "logit_bias": {word: float("-inf")}}
    result = causal.generate("x = ", 6, draft="import os\n", **options)
    assert word not in [t.id for t in result.tokens]
    assert (result.usage.accepted_prediction_tokens, result.usage.rejected_prediction_tokens) == (len(rest), 1)


def test_a_draft_that_is_no_text_is_refused(causal: Model, make_model: Any) -> None:
    with pytest.raises(InputError, match="draft must be a string or None"):
        causal.generate("x", 4, draft=[1, 2])
    timed = make_model(context="full", shift=False, time_input=True)
    with pytest.raises(InputError, match="begins with noise and takes no draft"):
        timed.generate("x", 4, mode="ancestral", draft="y")
    with pytest.raises(InputError, match="draft is an argument of other calls"):
        causal.fill("<gap>", 4, draft="x")


def test_a_likely_draft_is_taken_as_it_is_and_an_unlikely_one_only_verified(subtests: pytest.Subtests) -> None:
    """The mean is that of the model's own log-probabilities, from left to right."""
    model, prompt = daguerre.load(), load_frozen()[4].text[:150]
    own = model.generate(prompt, 40, mode="ar")
    draft = own.text[:20] + " and 7\n"
    ids = model.tokenizer.encode_plain(draft, begins=False)
    told = score_prompt(model, [*model.tokenizer.encode(prompt), *ids], 0)[-len(ids) :]
    mean = float(np.exp(np.mean([one.logprob for one in told])))
    for mode in ("ar", "speculative"):
        with subtests.test(mode=mode):
            how: dict[str, Any] = {"mode": mode, "draft": draft, "heal": False}
            taken = model.generate(prompt, 40, accept_draft=mean - 1e-3, **how)
            assert (taken.text, taken.finish_reason) == (draft, "stop")
            assert taken.usage.rejected_prediction_tokens == 0 and taken.usage.forwards < own.usage.forwards / 4
            assert [one.logprob for one in taken.tokens] == pytest.approx([one.logprob for one in told], abs=1e-2)
            written = model.generate(prompt, 40, accept_draft=mean + 1e-3, **how)
            assert same(written, model.generate(prompt, 40, mode=mode, heal=False))
    with pytest.raises(InputError, match="accept_draft"):
        model.generate(prompt, 40, mode="ar", accept_draft=0.5)
    first = model.tokenizer.encode(draft)[0]
    changes: list[dict[str, Any]] = [
        {"regex": "[a-z]{4}"},
        {"logit_bias": {first: -100.0}},
        {"repetition_penalty": 1.5},
    ]
    for change in (*changes, {"guidance": 1.5, "negative": "import"}):
        asked: dict[str, Any] = {"mode": "ar", "heal": False, **change}
        found = model.generate(prompt, 40, draft=draft, accept_draft=0.0, **asked)
        assert same(found, model.generate(prompt, 40, **asked)), change
