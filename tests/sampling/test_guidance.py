"""Guidance: the formula, two questions for one, every mode, context and operation; and the scorer in the same place."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import main_path
from conftest import tiny_config
from daguerre.canvas import Canvas
from daguerre.decoding.request import Decode
from daguerre.decoding.result import Result
from daguerre.errors import InputError
from daguerre.model import Model
from daguerre.models.guidance import Guidance
from daguerre.models.tokenizer import Tokenizer
from daguerre.models.wrappers.guidance import Guided, unconditional_prefix, with_prefix
from driving import Recorded, logits_of
from plans import make_plan

PROMPT = "def area(w, h):\n    return "
EVERY = ["causal", "causal_unshifted", "full", "full_unshifted", "block", "block_shifted"]
OPTIONS: list[dict[str, Any]] = [
    {"mode": "ar"},
    {"mode": "ar", "temperature": 1.0},
    {"mode": "block"},
    {"mode": "block", "policy": "random", "temperature": 1.0},
    {"mode": "full"},
]
POSSIBLE = [
    (name, options)
    for name in EVERY
    for options in OPTIONS
    if not (name.startswith("block") and options["mode"] == "full") and (name == "causal" or options["mode"] != "ar")
]


def ids(result: Result) -> list[tuple[int, float | None]]:
    return [(token.id, token.logprob) for token in result.tokens]


def spread(canvas: Canvas, positions: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """A scorer that wants other tokens at every position and for every canvas."""
    seed = np.add.outer(positions * 7 + int(canvas.tokens[~canvas.open].sum()), np.arange(logits.shape[1]) * 13)
    return 3 * np.sin(seed.astype(np.float64))


def test_the_answer_is_the_formula_of_two_plain_answers_of_one_batch(
    models: dict[str, Model], subtests: pytest.Subtests
) -> None:
    for name in EVERY:
        with subtests.test(name):
            model = models[name]
            for negative in ("", "import os\nimport re\n"):
                decode = Decode(mode="block", guidance=2.5, negative=negative)
                plan = make_plan(model.config, model.tokenizer, decode, PROMPT, None, 8, False)
                canvas = plan.canvas.at(plan.spans(plan.canvas)[0])
                positions, prefix = canvas.active_positions(), plan.unconditional
                assert prefix is not None
                without = with_prefix(canvas, prefix)
                plain = logits_of(model.denoiser, canvas, positions)
                other = logits_of(model.denoiser, without, positions + len(prefix) - canvas.gaps[0][0])
                recorded = Recorded(model.denoiser)
                got = logits_of(Guided(recorded, Guidance(2.5), prefix), canvas, positions)
                assert [len(batch) for batch in recorded.backend.batches] == [2], "both questions are in one batch"
                known = np.isfinite(plain)
                plain[~known] = other[~known] = 0.0
                np.testing.assert_allclose(
                    got[known], other[known] + 2.5 * (plain - other)[known], rtol=1e-4, atol=1e-4
                )
                assert np.isneginf(got[~known]).all()
                assert np.abs(got - plain)[known].max() > 1


def test_the_unconditional_prompt_is_left_out_or_masked_as_the_context_can_see_it(tokenizer: Tokenizer) -> None:
    config = partial(tiny_config, tokenizer)
    bos, mask = tokenizer.bos_id, tokenizer.mask_id
    block = config(context="block", shift=False, block_size=8)
    assert unconditional_prefix(config(), 20, []).tolist() == [bos]
    assert unconditional_prefix(config(context="full"), 4, [30]).tolist() == [bos, mask, mask, 30]
    assert unconditional_prefix(config(context="full"), 2, [30, 31]).tolist() == [bos, 30, 31]
    assert unconditional_prefix(block, 20, []).tolist() == [bos, mask, mask, mask]
    assert len(unconditional_prefix(block, 4, [30] * 9)) % 8 == 4
    shifted = partial(config, bos_id=None, shift=True)
    assert unconditional_prefix(shifted(), 20, []).tolist() == [tokenizer.eos_id]
    assert unconditional_prefix(shifted(), 20, [30]).tolist() == [30]
    assert unconditional_prefix(shifted(context="full"), 2, []).tolist() == [mask, mask]
    block = shifted(context="block", block_size=4)
    assert [len(unconditional_prefix(block, num, [])) for num in (3, 4, 5, 8)] == [3, 4, 1, 4]


FACTS: list[dict[str, Any]] = [{}, {"context": "full"}, {"context": "block", "block_size": 4}]


def test_a_shifted_model_without_a_first_token_is_guided(make_model: Any, subtests: pytest.Subtests) -> None:
    """Whatever the prompt's place on the grid of blocks, something predicts the first position without it."""
    for facts in FACTS:
        with subtests.test(str(facts)):
            model = make_model(bos_id=None, **facts)
            for num in (1, 4, 6):
                prompt = model.tokenizer.encode(PROMPT)[:num]
                plain, guided = (
                    model.generate(prompt, 8, guidance=scale, heal=False, min_tokens=8) for scale in (1.0, 3.0)
                )
                assert ids(guided) != ids(plain)


def test_every_mode_and_context_is_guided(models: dict[str, Model], subtests: pytest.Subtests) -> None:
    for name, options in POSSIBLE:
        with subtests.test(name, options=options):
            model = models[name]
            decode = Decode(guidance=3.0, min_tokens=12, **options)
            plan = make_plan(model.config, model.tokenizer, decode, PROMPT, None, 12, None)
            plain = model.generate(PROMPT, 12, min_tokens=12, **options)
            recorded = Recorded(model.denoiser)
            guided = main_path.generate(recorded, model.tokenizer, PROMPT, 12, decode)
            assert ids(guided) != ids(plain)
            assert guided.usage.forwards == 2 * len(guided.trace.steps) <= plan.max_forwards
            assert [len(batch) for batch in recorded.backend.batches] == [2] * len(guided.trace.steps)
            assert ids(model.generate(PROMPT, 12, decode)) == ids(guided)
            assert ids(model.generate(PROMPT, 12, decode, cache="none"))[0][0] == ids(guided)[0][0]
            one = model.generate(PROMPT, 12, min_tokens=12, guidance=1.0, **options)
            assert ids(one) == ids(plain)
            assert one.usage.forwards == plain.usage.forwards


def test_infill_fill_and_edit_are_guided(models: dict[str, Model], subtests: pytest.Subtests) -> None:
    for name in ("causal", "causal_unshifted", "full", "full_unshifted"):
        with subtests.test(name):
            model, text = models[name], "a = 1\nb = foo(a)\nc = 3\n"
            options: dict[str, Any] = {"max_tokens": 6, "min_tokens": 6}
            for call, given in (
                (model.infill, (PROMPT, "\n")),
                (model.fill, ("x = <gap>\ny = <gap>\n",)),
                (model.edit, (text, [(10, 16)])),
            ):
                plain, guided = call(*given, **options), call(*given, guidance=4.0, **options)
                assert ids(guided) != ids(plain)
            *_, last = model.stream(PROMPT, 6, guidance=4.0)
            assert last.text == model.generate(PROMPT, 6, guidance=4.0).text


def test_guidance_reaches_a_constraint_and_a_revision(causal: Model) -> None:
    result = causal.generate(PROMPT, 12, guidance=3.0, regex="[a-z]{3,5}", temperature=1.0)
    assert 3 <= len(result.text) <= 5
    assert causal.generate(PROMPT, 8, guidance=3.0, revise=1).usage.forwards % 2 == 0


@pytest.mark.parametrize(
    ("name", "guided"),
    [
        ("causal", {"guidance": 2.0}),
        ("causal", {"guidance": 2.0, "guidance_schedule": "cosine", "temperature": 1.0}),
        ("causal", {"scorer": spread, "temperature": 1.0}),
        ("drafting", {"guidance": 2.0, "temperature": 1.0}),
        ("drafting", {"scorer": spread, "guidance": 2.0, "guidance_schedule": "linear"}),
    ],
)
def test_speculation_has_the_tokens_of_guided_ar(
    name: str, guided: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(name)
    for seed in range(3):
        options = {"seed": seed, "min_tokens": 15, **guided}
        want = model.generate(PROMPT, 16, mode="ar", **options)
        got = model.generate(PROMPT, 16, mode="speculative", block_size=4, **options)
        assert [token.id for token in got.tokens] == [token.id for token in want.tokens]
        chances = [[token.logprob for token in result.tokens] for result in (got, want)]
        assert chances[0] == pytest.approx(chances[1], abs=1e-4)
        assert got.usage.forwards <= want.usage.forwards


def test_a_schedule_begins_with_the_plain_answer_and_one_forward(causal: Model) -> None:
    canvas = Canvas.lay_out([[1, 20]], [8], 3)
    half = Canvas(canvas.tokens, canvas.open & (np.arange(10) >= 6), canvas.gaps)
    for schedule, want in (("constant", (5.0, 5.0)), ("linear", (1.0, 3.0)), ("cosine", (1.0, 3.0))):
        guidance = Guidance(5.0, schedule)
        assert (guidance.at(canvas), guidance.at(half)) == pytest.approx(want)
    options: dict[str, Any] = {"policy": "confidence", "steps": 1, "heal": False, "mode": "full"}
    plain = causal.generate(PROMPT, 8, **options)
    grown = causal.generate(PROMPT, 8, guidance=9.0, guidance_schedule="linear", **options)
    assert [token.id for token in grown.tokens] == [token.id for token in plain.tokens]
    assert grown.usage.forwards == 1


def test_rows_of_both_questions_are_counted(causal: Model) -> None:
    prompt = causal.tokenizer.encode(PROMPT)
    options: dict[str, Any] = {"policy": "confidence", "steps": 2, "heal": False, "mode": "full"}
    plain = causal.generate(prompt, 8, **options).usage
    guided = causal.generate(prompt, 8, guidance=2.0, **options).usage
    assert (guided.forwards, guided.query_tokens) == (2 * plain.forwards, 2 * plain.query_tokens)
    assert guided.prefill_tokens == plain.prefill_tokens  # <bos>, all that is left of a hidden prompt, is the anchor


def test_a_bias_and_a_scorer_act_alike_in_every_mode(causal: Model, subtests: pytest.Subtests) -> None:
    word = causal.tokenizer.encode("a")[0]
    wants = np.zeros(causal.config.vocab_size)
    wants[word] = 1000.0
    for mode in ("ar", "block", "full", "speculative"):
        with subtests.test(mode):
            for options in ({"logit_bias": {word: 1000.0}}, {"scorer": lambda canvas, positions, logits: wants}):
                assert causal.generate("x = ", 6, mode=mode, heal=False, **options).text == "aaaaaa"


def test_a_bias_acts_in_every_context(models: dict[str, Model]) -> None:
    for name in ("causal_unshifted", "full", "full_unshifted", "block"):
        word = models[name].tokenizer.encode("a")[0]
        for mode in ("block", "full")[: 1 + (name != "block")]:
            biased = {"logit_bias": {word: 1000.0}, "heal": False}
            assert models[name].generate("x = ", 6, mode=mode, **biased).text == "aaaaaa"


def test_a_scorer_is_shown_the_canvas_and_may_not_change_it(scripted: Any, tokenizer: Tokenizer) -> None:
    one, two = tokenizer.encode("a")[0], tokenizer.encode("b")[0]
    seen: list[list[int]] = []

    def scorer(canvas: Canvas, positions: np.ndarray, logits: np.ndarray) -> np.ndarray:
        seen.append(positions.tolist())
        logits[:] = 0.0
        out = np.zeros(logits.shape)
        out[positions % 2 == 1, two] = 50.0
        return out

    denoiser = scripted(lambda canvas, position: {one: 20.0})
    result = main_path.generate(denoiser, tokenizer, "", 4, heal=False, scorer=scorer, mode="full")
    assert result.text == "baba"
    assert seen[0] == [1, 2, 3, 4]


WRONG_ANSWERS: list[tuple[Any, str]] = [
    (np.zeros(3), "must have the shape"),
    ("many", "must have the shape"),
    (float("nan"), "must be finite"),
    (float("-inf"), "must be finite"),
]


def test_a_scorers_wrong_answer_is_named(causal: Model) -> None:
    for answer, message in WRONG_ANSWERS:
        with pytest.raises(InputError, match=message):
            causal.generate("x", 4, scorer=lambda canvas, positions, logits, answer=answer: answer)


WRONG_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"guidance": -1.0}, "guidance must be a number from 0 up"),
    ({"guidance": float("inf")}, "guidance must be a number from 0 up"),
    ({"guidance": "much"}, "guidance must be a number"),
    ({"guidance": 2.0, "guidance_schedule": "cosin"}, "did you mean 'cosine'"),
    ({"guidance_schedule": "linear"}, "guidance_schedule is not used without guidance"),
    ({"negative": "a"}, "negative is not used without guidance"),
    ({"guidance": 2.0, "negative": 5}, "negative must be a string or None"),
    ({"scorer": 5}, "scorer must be a function or None"),
    ({"guidance": 2.0, "mode": "ancestral"}, "guidance is not used in mode 'ancestral'"),
    ({"scorer": spread, "mode": "ancestral"}, "scorer is not used in mode 'ancestral'"),
]


def test_a_wrong_option_of_guidance_says_what_to_do() -> None:
    for options, message in WRONG_OPTIONS:
        with pytest.raises(InputError, match=message) as caught:
            Decode(**options)
        assert "\n" not in str(caught.value)


def test_guidance_with_nothing_to_compare_is_refused(causal: Model) -> None:
    for options in ({}, {"negative": ""}):
        with pytest.raises(InputError, match="nothing to compare"):
            causal.generate("", 4, guidance=2.0, **options)
    with pytest.raises(InputError, match="nothing to compare"):
        causal.generate("a = b", 4, guidance=2.0, negative="a = b", heal=False)
    with pytest.raises(InputError, match="leaves no room"):
        causal.generate("a = b", 4, guidance=2.0, negative="a = b\n" * 100)
    assert causal.generate("", 4, guidance=2.0, negative="a").usage.forwards % 2 == 0
