"""Repetition against transformers' processors and by enumeration; texts that end where they loop."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import daguerre
from daguerre.canvas import Canvas
from daguerre.errors import InputError
from daguerre.model import Model
from daguerre.sampling.repetition import COPIES, LONGEST_UNIT, LOOPING, Repetition, loops

PROMPT = "def area(width, height):\n    return width * height\n\n\ndef "


def loops_slowly(tokens: Sequence[int]) -> bool:
    """Whether they end with copies of something, by the definition."""
    num = len(tokens)
    for unit in range(1, min(LONGEST_UNIT, num // COPIES) + 1):
        size = max(COPIES * unit, LOOPING)
        if size <= num and all(tokens[num - size + i] == tokens[num - size + i + unit] for i in range(size - unit)):
            return True
    return False


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(0, 2), max_size=30),
    st.lists(st.integers(0, 2), min_size=1, max_size=24),
    st.integers(1, 60),
    st.lists(st.integers(0, 2), max_size=4),
)
def test_loops_are_found_where_they_first_close(begin: list[int], unit: list[int], copies: int, end: list[int]) -> None:
    tokens = np.array([*begin, *(unit * copies)[:120], *end], dtype=np.int64)
    found = [loops_slowly(tokens[:num].tolist()) for num in range(len(tokens) + 1)]

    assert [loops(tokens[:num]) for num in range(len(tokens) + 1)] == found


def canvas_of(tokens: Sequence[int], num_open: int) -> Canvas:
    return Canvas.lay_out([list(tokens), []], [num_open], 0)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 7), min_size=1, max_size=24),
    st.sampled_from([0.7, 1.0, 1.3]),
    st.integers(0, 4),
    st.integers(0, 9),
)
def test_numbers_are_those_of_transformers(tokens: list[int], penalty: float, size: int, seed: int) -> None:
    transformers = pytest.importorskip("transformers")
    logits = np.random.default_rng(seed).normal(size=(1, 8)).astype(np.float32)
    expected, ids = torch.tensor(logits), torch.tensor([tokens])
    if penalty != 1:
        expected = transformers.RepetitionPenaltyLogitsProcessor(penalty)(ids, expected)
    if size:
        expected = transformers.NoRepeatNGramLogitsProcessor(size)(ids, expected)
    got = logits + Repetition(penalty, size)(canvas_of(tokens, 3), np.array([len(tokens)]), logits)

    banned = torch.isinf(expected).numpy()
    assert np.array_equal(got < -1e8, banned)
    assert np.allclose(got[~banned], expected.numpy()[~banned], atol=1e-6)


def test_ngrams_on_both_sides_by_enumeration(subtests: pytest.Subtests) -> None:
    for size in (1, 2, 3):
        with subtests.test(str(size)):
            rng = np.random.default_rng(size)
            for _ in range(40):
                tokens, opened = rng.integers(4, size=12), rng.random(12) < 0.25
                position = int(rng.integers(12))
                opened[position] = True
                canvas = Canvas(np.where(opened, 9, tokens), opened, ((0, 12),))
                added = Repetition(1.0, size)(canvas, np.array([position]), np.zeros((1, 10), np.float32))[0]
                shown = [None if hidden else int(token) for token, hidden in zip(tokens, opened, strict=True)]
                known = {tuple(shown[i : i + size]) for i in range(13 - size)}
                for token in range(4):
                    new = [*shown[:position], token, *shown[position + 1 :]]
                    around = [
                        tuple(new[i : i + size])
                        for i in range(max(0, position - size + 1), min(13 - size, position + 1))
                    ]
                    assert (added[token] < -1e8) == any(None not in gram and gram in known for gram in around)


@pytest.fixture(scope="module")
def default() -> Model:
    return daguerre.load()


OPTIONS = [
    {"repetition_penalty": 1.3},
    {"no_repeat_ngram_size": 3},
    {"repetition_penalty": 1.1, "no_repeat_ngram_size": 4},
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_speculation_keeps_the_tokens_of_ar(default: Model, options: dict[str, float], temperature: float) -> None:
    how = {"temperature": temperature, "seed": 3, "stop_loops": False} | options
    slow = default.generate(PROMPT, 40, mode="ar", **how)
    for drafter in ("auto", "head", "lookup"):
        fast = default.generate(PROMPT, 40, mode="speculative", drafter=drafter, **how)
        assert [token.id for token in fast.tokens] == [token.id for token in slow.tokens]
    assert fast.usage.forwards <= slow.usage.forwards
    plain = {name: value for name, value in how.items() if name not in options}
    assert slow.text != default.generate(PROMPT, 40, mode="ar", **plain).text


@pytest.mark.parametrize("options", OPTIONS)
def test_greedy_tokens_are_those_of_a_loop_with_transformers_processors(
    default: Model, options: dict[str, float]
) -> None:
    transformers = pytest.importorskip("transformers")
    processors = transformers.LogitsProcessorList()
    if "repetition_penalty" in options:
        processors.append(transformers.RepetitionPenaltyLogitsProcessor(options["repetition_penalty"]))
    if "no_repeat_ngram_size" in options:
        processors.append(transformers.NoRepeatNGramLogitsProcessor(options["no_repeat_ngram_size"]))
    bans = dict.fromkeys(default.config.unpredictable_ids, float("-inf")) | {default.config.eos_id: float("-inf")}
    got = default.generate(PROMPT, 30, mode="ar", heal=False, logit_bias=bans, stop_loops=False, **options)
    ids = [*default.config.first, *default.tokenizer.encode(PROMPT)]
    seen: list[np.ndarray] = []

    def note(canvas: Canvas, positions: np.ndarray, logits: np.ndarray) -> np.ndarray:
        seen.append(logits[0].copy())
        return np.zeros_like(logits)

    for token in got.tokens:
        seen.clear()
        default.generate(ids[1:], 1, mode="ar", heal=False, scorer=note)
        logits = torch.tensor(seen[0])[None]
        for banned in bans:
            logits[0, banned] = -torch.inf
        assert int(processors(torch.tensor([ids]), logits).argmax()) == token.id
        ids.append(token.id)
    grams = [tuple(ids[i : i + 4]) for i in range(len(ids) - 3)]
    if options.get("no_repeat_ngram_size") == 4:
        new = grams[len(ids) - len(got.tokens) - 3 :]
        assert len(set(new)) == len(new)


def test_text_that_loops_ends_there(default: Model) -> None:
    looping = default.generate(PROMPT, 400, stop_loops=False)
    stopped = default.generate(PROMPT, 400)
    ids = np.array([token.id for token in looping.tokens])
    end = next(num for num in range(len(ids) + 1) if loops(ids[:num]))

    assert not looping.looped
    assert stopped.looped
    assert stopped.finish_reason == "stop"
    assert [token.id for token in stopped.tokens] == ids[:end].tolist()
    assert looping.text.startswith(stopped.text)
    one_by_one = default.generate(PROMPT, 400, mode="ar")
    assert (one_by_one.text, one_by_one.looped) == (stopped.text, True)
    assert one_by_one.usage.forwards <= end + 4
    *events, last = default.stream(PROMPT, 400)
    assert last.result is not None and last.result.text == stopped.text
    shown = [event.committed for event in events]
    assert all(after.startswith(before) for before, after in zip(shown, shown[1:], strict=False))
    assert stopped.text.startswith(shown[-1])


def test_it_is_for_greedy_completions_unless_asked(default: Model) -> None:
    quiet = {"temperature": 1.0, "logit_bias": {300: 60.0}}  # always the same token
    assert not default.generate("x", 80, **quiet).looped
    assert default.config.ends_loops, "other models write on unless asked"
    assert default.generate("x", 80, stop_loops=True, **quiet).looped
    assert not default.generate("x", 80, min_tokens=80, logit_bias={300: 60.0}).looped
    assert len(default.generate("x", 80, mode="block", logit_bias={300: 60.0}).tokens) == 80
    assert len(default.generate("x", 80, mode="block", logit_bias={300: 60.0}, stop_loops=True).tokens) == LOOPING
    assert default.generate("x = ", 80, regex="a{60}").text == "a" * 60


def test_options_are_checked(default: Model) -> None:
    for options, words in (
        ({"repetition_penalty": 0}, "repetition_penalty must be a number above 0"),
        ({"repetition_penalty": "x"}, "must be a number"),
        ({"no_repeat_ngram_size": -1}, "whole number from 0 up"),
        ({"stop_loops": "yes"}, "stop_loops must be"),
        ({"stop_loops": True, "regex": "a+"}, "stop_loops is not used"),
        ({"repetition_penalty": 1.2, "mode": "beam"}, "not used in mode 'beam'"),
    ):
        with pytest.raises(InputError, match=words):
            default.generate("x", 4, **options)  # type: ignore[arg-type]


def test_a_constraint_comes_before_a_ban(default: Model) -> None:
    assert default.generate("aaaa", 12, regex="a{8}", no_repeat_ngram_size=1).text == "a" * 8


def test_parallel_modes_repeat_nothing_that_stood_before(default: Model, subtests: pytest.Subtests) -> None:
    for mode in ("block", "full"):
        with subtests.test(mode):
            how = {"mode": mode, "policy": "confidence", "heal": False, "end_of_text": "never"}
            one = default.generate(PROMPT, 16, no_repeat_ngram_size=2, steps=16, **how)
            ids = [*default.config.first, *default.tokenizer.encode(PROMPT), *(token.id for token in one.tokens)]
            pairs = list(zip(ids, ids[1:], strict=False))
            new = pairs[-len(one.tokens) :]
            assert len(set(new)) == len(new)
            assert not set(new) & set(pairs[: -len(new)])
