"""WeDLM: blocks, windows and gaps, token for token as its published loops commit them by transformers."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from daguerre.canvas import Canvas
from daguerre.decoding.lengths import calibrated
from daguerre.decoding.request import Decode
from daguerre.decoding.result import Result
from daguerre.model import Model
from oracles.published import Decoded
from oracles.wedlm import (
    CASES,
    NEVER,
    Reordered,
    in_blocks,
    in_window,
    load_all,
    made,
    masked,
    oracle_of,
    probabilities,
    prompts,
)
from pairwise import covering
from plans import make_plan
from published import END, MASK, TURN

NUM = 37
"""New tokens: no multiple of a window."""
SLIDING: dict[str, Any] = {"mode": "block", "sliding": True, "block_size": 5, "policy": "entropy_threshold"}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    return load_all(tmp_path_factory.mktemp("published"))


def generated(model: Model, prompt: list[int], num: int = NUM, **options: Any) -> Result:
    return model.generate(prompt, num, Decode(mode="block", end_of_text="plain", **options), heal=False)


def check(result: Result, want: Decoded) -> int:
    """Each forward commits the same positions, and they have the same tokens, up to where the text has ended; returns
    the number of forwards.
    """
    *_, canvas = result.trace.replay()
    commits = [step.decision.positions.tolist() for step in result.trace.steps]
    assert result.usage.forwards == len(commits)
    assert commits == want.commits[: len(commits)]
    done = ~canvas.open
    assert np.array_equal(canvas.tokens[done], want.tokens[done])
    if len(commits) < len(want.commits):
        assert {END, TURN} & set(canvas.filled(canvas.gaps[0]).tolist()), "it ends early only behind an end of text"
    return len(commits)


def test_fixed_blocks_commit_the_same_tokens_in_the_same_order(
    loaded: dict[str, Model], subtests: pytest.Subtests
) -> None:
    settings = [(16, 0.9), (5, 0.5), (16, 1.0), (NUM, 0.7)]
    nums = {setting: list[int]() for setting in settings}
    cases = covering({"setting": settings, "name": [*CASES], "prompt": prompts()})
    for (size, threshold), name, prompt in map(dict.values, cases):
        with subtests.test(name, size=size, threshold=threshold, length=len(prompt)):
            want = in_blocks(oracle_of(name), masked(prompt, NUM), len(prompt), size, threshold)
            num = check(generated(loaded[name], prompt, block_size=size, threshold=threshold), want)
            nums[size, threshold].append(num)
    assert all(sum(each) > len(each) for each in nums.values()), nums


WINDOWS = [(16, 0.4, 0.02), (16, 2.5, 0.02), (5, 1.5, 0.3), (16, 0.0, 0.0), (64, 2.0, 0.1)]


def test_a_sliding_window_commits_the_same_tokens_in_the_same_order(
    loaded: dict[str, Model], subtests: pytest.Subtests
) -> None:
    ahead = dict.fromkeys(WINDOWS, 0)
    for window, name, prompt in map(dict.values, covering({"window": WINDOWS, "name": [*CASES], "prompt": prompts()})):
        size, threshold, penalty = window
        with subtests.test(name, size=size, threshold=threshold, penalty=penalty, length=len(prompt)):
            options = {"policy": "entropy_threshold", "entropy_threshold": threshold, "position_penalty": penalty}
            want = in_window(oracle_of(name), masked(prompt, NUM), len(prompt), size, threshold, penalty)
            result = generated(loaded[name], prompt, block_size=size, sliding=True, **options)
            forwards = check(result, want)
            ahead[window] += sum(positions[0] > len(prompt) for positions in want.commits[:forwards])
    for window, num in ahead.items():
        assert num or window[0] == 5, "some step commits nothing at the window's front"


def test_a_request_that_names_nothing_has_the_published_defaults(loaded: dict[str, Model]) -> None:
    model = loaded["8B"]
    assert model.family == "wedlm"
    for prompt in prompts():
        want = in_window(oracle_of("8B"), masked(prompt, NUM), len(prompt), 16, 0.4, 0.02)
        assert check(model.generate(prompt, NUM), want) > 1
    assert model.generate(prompts()[1], NUM, policy="confidence").usage.mode == "block", "its blocks do not slide"


class Biased(Reordered):
    """Ends of text are more likely by `BIAS`."""

    def of(self, tokens: np.ndarray, opened: np.ndarray) -> np.ndarray:
        out = super().of(tokens, opened)
        out[:, [*BIAS]] += [*BIAS.values()]
        return out


BIAS = {END: 5.0, TURN: 4.0}
ENDED: dict[str, Any] = {"mode": "block", "sliding": True, "block_size": 8, "policy": "entropy_threshold"}


def test_a_text_ends_where_nothing_before_its_end_is_open(loaded: dict[str, Model]) -> None:
    """Also where the end comes in the middle of a window, while positions to its left are open."""
    inside = num_ended = 0
    for name, prompt in itertools.product(CASES, prompts()):
        model, oracle = loaded[name], Biased(made(name), MASK, NEVER)
        decode = Decode(end_of_text="plain", entropy_threshold=0.5, logit_bias=BIAS, **ENDED)
        result = model.generate(prompt, NUM, decode, heal=False)
        want = in_window(oracle, masked(prompt, NUM), len(prompt), 8, 0.5, 0.0, (END, TURN))
        check(result, want)
        assert len(result.trace.steps) == len(want.commits)
        num_ended += result.finish_reason == "stop"
        for step, canvas in zip(result.trace.steps, result.trace.replay(), strict=True):
            ends = step.decision.positions[np.isin(step.decision.tokens, [END, TURN])]
            inside += bool(ends.size and canvas.open[: ends[0]].any())
    assert num_ended > 3 and inside


def test_behind_an_end_that_fills_nothing_is_computed(loaded: dict[str, Model]) -> None:
    num_filled = 0
    for name, prompt in itertools.product(CASES, prompts()):
        decode = Decode(end_of_text="fill", entropy_threshold=0.05, logit_bias=BIAS, **ENDED)
        result = loaded[name].generate(prompt, NUM, decode, heal=False)
        steps, canvases = result.trace.steps, [*result.trace.replay()]
        for later, canvas in zip(steps[1:], canvases[:-1], strict=True):
            ends = np.flatnonzero(np.isin(canvas.tokens, [END, TURN]) & canvas.drawn)
            if ends.size:
                assert later.decision.positions[-1] < ends[0]
                num_filled += 1
    assert num_filled


def test_a_gap_is_filled_with_the_text_after_it_in_sight(loaded: dict[str, Model], subtests: pytest.Subtests) -> None:
    """The published decoding only continues texts; this is the same rule of attention with known text behind."""
    for name in CASES:
        with subtests.test(name):
            model, after = loaded[name], [70, 71, MASK, 72, 73]
            for prompt in prompts()[1:]:
                want = in_window(
                    oracle_of(name), masked(prompt, 13, after), len(prompt), 6, 1.0, 0.02, after=len(after)
                )
                options = {"policy": "entropy_threshold", "entropy_threshold": 1.0, "position_penalty": 0.02}
                decode = Decode(mode="block", sliding=True, block_size=6, min_tokens=13, **options)
                result = model.infill(prompt, after, 13, decode, heal=False)
                *_, canvas = result.trace.replay()
                assert canvas.tokens.tolist() == want.tokens.tolist()
                assert [step.decision.positions.tolist() for step in result.trace.steps] == want.commits
                alone = in_window(oracle_of(name), masked(prompt, 13), len(prompt), 6, 1.0, 0.02)
                assert alone.tokens[len(prompt) :].tolist() != want.tokens[len(prompt) : -len(after)].tolist()


def test_the_length_of_a_gap_is_searched_with_each_text_at_its_place(loaded: dict[str, Model]) -> None:
    """The text after a gap sees the text before it, across a gap of each length."""
    prompt, after, model = prompts()[2], [70, 71, 72, 73], loaded["8B"]
    searched = model.infill(prompt, after, 6, search_length=True, min_tokens=1).searched
    assert searched is not None
    scores = []
    for length in searched.lengths:
        canvas = masked(prompt, length, after)
        opened = np.zeros(len(canvas), dtype=bool)
        opened[len(prompt) : len(prompt) + length] = True
        logits = oracle_of("8B").of(canvas, opened)
        logits[:, [END, TURN]] = -np.inf
        scores.append(np.log(probabilities(logits).max(-1)).mean())
    assert len(scores) == 6
    assert calibrated(searched.lengths, scores) == pytest.approx(searched.scores, abs=1e-4)


def test_a_window_never_leaves_its_gap_or_goes_beyond_an_end_that_fills(loaded: dict[str, Model]) -> None:
    model = loaded["7B"]
    plan = make_plan(model.config, model.tokenizer, Decode(**SLIDING), [1, 2, 3], None, 12, False)
    opened = plan.canvas.open.copy()
    assert plan.window(plan.canvas) == (3, 8)
    opened[[3, 4, 6]] = False
    assert plan.window(Canvas(plan.canvas.tokens, opened, plan.canvas.gaps)) == (5, 10)
    opened[3:12] = False
    assert plan.window(Canvas(plan.canvas.tokens, opened, plan.canvas.gaps)) == (12, 15)
    tokens, opened = plan.canvas.tokens.copy(), plan.canvas.open.copy()
    tokens[6], opened[6] = END, False
    assert plan.window(Canvas(tokens, opened, plan.canvas.gaps)) == (3, 6)
