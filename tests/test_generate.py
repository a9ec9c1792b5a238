"""The main path, on denoisers whose logits are written here, and on tiny random models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import main_path
from daguerre.canvas import Canvas
from daguerre.decoding.result import OPEN
from daguerre.errors import InputError
from daguerre.model import Model
from daguerre.models.tokenizer import Tokenizer
from driving import logits_of

Says = Callable[[Canvas, int], dict[int, float]]
EOS, NULL = Tokenizer.eos_id, Tokenizer.null_id


def writes(tokens: list[int], start: int, *, sure: float = 10.0) -> Says:
    """A denoiser that wants `tokens` from position `start` on, and the last of them ever after."""
    return lambda canvas, position: {tokens[min(position - start, len(tokens) - 1)]: sure}


def test_a_completion_is_what_the_denoiser_wants(scripted: Any, tokenizer: Tokenizer) -> None:
    prompt, want = tokenizer.encode("x = 1\n"), tokenizer.encode("y = x + 2\nprint(y)\n")
    for mode in ("ar", "block", "full", "speculative"):
        denoiser = scripted(writes(want, 1 + len(prompt)))
        options: dict[str, Any] = {"drafter": "head"} if mode == "speculative" else {}
        result = main_path.generate(denoiser, tokenizer, prompt, len(want), mode=mode, heal=False, **options)
        assert result.text == "y = x + 2\nprint(y)\n"
        assert result.finish_reason == "length"
        assert [t.id for t in result.tokens] == want
        assert "".join(t.text for t in result.tokens) == result.text
        forwards = {
            "ar": len(want),
            "block": 1 + (len(want) > 16),
            "full": 1,
            "speculative": 1 + -(-(len(want) - 1) // 5),
        }
        assert result.usage.forwards == forwards[mode]


def test_the_end_of_text_ends_a_completion_and_is_not_in_it(scripted: Any, tokenizer: Tokenizer) -> None:
    want = [*tokenizer.encode("a = b"), EOS, *tokenizer.encode("never")]
    for mode in ("ar", "block", "full", "speculative"):
        result = main_path.generate(scripted(writes(want, 1)), tokenizer, "", 32, mode=mode)
        assert (result.text, result.finish_reason) == ("a = b", "stop"), mode
        assert result.usage.completion_tokens == want.index(EOS), mode


def test_a_span_is_left_as_soon_as_its_text_has_ended(scripted: Any, tokenizer: Tokenizer) -> None:
    """What stands behind an <eos> is never asked again, sure or not."""
    word, other = tokenizer.encode("a")[0], tokenizer.encode("b")[0]

    def says(canvas: Canvas, position: int) -> dict[int, float]:
        return {EOS: 20.0} if position == 2 else {word: 20.0} if position == 1 else {word: 0.0, other: 0.0}

    result = main_path.generate(scripted(says), tokenizer, "", 16, mode="block")
    assert (result.text, result.usage.forwards) == ("a", 1)


def test_what_is_behind_an_end_of_text_is_left_while_what_is_before_it_is_open(
    scripted: Any, tokenizer: Tokenizer
) -> None:
    word, other = tokenizer.encode("a")[0], tokenizer.encode("b")[0]

    def says(canvas: Canvas, position: int) -> dict[int, float]:
        return {EOS: 20.0} if position == 5 else {word: 1.0, other: 0.0}

    denoiser = scripted(says)
    result = main_path.generate(denoiser, tokenizer, "", 16, mode="block")
    assert (result.text, result.usage.forwards) == ("aaaa", 5)
    assert [len(asked) for asked in denoiser.asked] == [16, 4, 3, 2, 1]


def test_a_span_is_left_once_a_stop_string_stands_in_its_settled_text(scripted: Any, tokenizer: Tokenizer) -> None:
    want = tokenizer.encode("a = 1\nb = 2\nc = 3\n")
    sure = len(tokenizer.encode("a = 1\n"))

    def says(canvas: Canvas, position: int) -> dict[int, float]:
        return {want[position - 1]: 20.0 if position <= sure else -19.0}

    for mode in ("block", "full"):
        result = main_path.generate(scripted(says), tokenizer, "", len(want), mode=mode, stop="\n")
        assert (result.text, result.finish_reason, result.usage.forwards) == ("a = 1", "stop", 1), mode


def test_min_tokens_holds_the_end_back(scripted: Any, tokenizer: Tokenizer) -> None:
    word = tokenizer.encode("a")[0]
    denoiser = scripted(lambda canvas, position: {EOS: 9.0, word: 5.0})
    for mode in ("ar", "block", "full", "speculative"):
        assert main_path.generate(denoiser, tokenizer, "", 8, mode=mode).text == ""
        assert main_path.generate(denoiser, tokenizer, "", 8, mode=mode, min_tokens=3).text == "aaa"


def test_a_healed_word_counts_as_one_of_the_least_tokens(scripted: Any, tokenizer: Tokenizer) -> None:
    word, whole = tokenizer.encode("a")[0], tokenizer.encode("import")
    assert len(whole) == 1
    ending = {EOS: 9.0, NULL: 9.0, word: 5.0}
    denoiser = scripted(lambda canvas, position: {whole[0]: 9.0} if position == 1 else ending)
    for result in (
        main_path.generate(denoiser, tokenizer, "impo", 8, min_tokens=3),
        main_path.infill(denoiser, tokenizer, "impo", "\n", 8, min_tokens=3),
    ):
        assert [t.text for t in result.tokens] == ["rt", "a", "a"]


def test_text_is_cut_before_a_stop_string_that_spans_tokens(scripted: Any, tokenizer: Tokenizer) -> None:
    want = tokenizer.encode("alpha = 1\nbeta = 2\ngamma = 3\n")
    for mode in ("ar", "block", "full", "speculative"):
        denoiser = scripted(writes(want, 1))
        result = main_path.generate(denoiser, tokenizer, "", len(want), mode=mode, stop=("\nbeta =", "gamma"))
        assert (result.text, result.finish_reason) == ("alpha = 1", "stop"), mode
        assert "".join(t.text for t in result.tokens) == result.text
        assert main_path.generate(denoiser, tokenizer, "", len(want), mode=mode, stop="lpha").text == "a"
        assert main_path.generate(denoiser, tokenizer, "", len(want), mode=mode, stop="zeta").finish_reason == "length"


def test_committed_text_waits_where_a_stop_string_may_have_begun(scripted: Any, tokenizer: Tokenizer) -> None:
    want = tokenizer.encode("a = 1\nb = 2\n")
    events = list(main_path.stream(scripted(writes(want, 1)), tokenizer, "", len(want), mode="ar", stop="\nb = 2"))
    assert events[-1].text == "a = 1"
    committed = [event.committed for event in events]
    assert committed[len(tokenizer.encode("a = 1")) :] == ["a = 1"] * (len(committed) - len(tokenizer.encode("a = 1")))
    *_, last = main_path.stream(scripted(writes(want, 1)), tokenizer, "", len(want), mode="ar", stop="\nb = 3")
    assert last.committed == "a = 1\nb = 2\n"


def gap_of(canvas: Canvas) -> list[int]:
    start, end = canvas.gaps[0]
    return canvas.tokens[start:end].tolist()


def test_an_infilled_gap_ends_with_one_run_of_nulls(scripted: Any, tokenizer: Tokenizer) -> None:
    want = [*tokenizer.encode("b + c"), NULL]
    denoiser = scripted(writes(want, 1 + len(tokenizer.encode("a = "))))
    result = main_path.infill(denoiser, tokenizer, "a = ", "\n", 12, mode="block", heal=False)
    assert (result.text, result.finish_reason) == ("b + c", "stop")
    *_, canvas = result.trace.replay()
    assert gap_of(canvas) == want + [NULL] * (12 - len(want))


def test_a_null_waits_for_what_is_left_of_it_unless_it_is_sure(scripted: Any, tokenizer: Tokenizer) -> None:
    word, other = tokenizer.encode("a")[0], tokenizer.encode("b")[0]

    def says(sure: float) -> Says:
        def at(canvas: Canvas, position: int) -> dict[int, float]:
            return {word: 1.0, other: 1.0} if position < 4 else {NULL: sure, word: 0.0}

        return at

    eager = main_path.infill(scripted(says(9.0)), tokenizer, "", "x", 6, mode="block", heal=False)
    assert len(eager.trace.steps[0].decision) == 3  # all nulls at once
    waiting = main_path.infill(scripted(says(3.0)), tokenizer, "", "x", 6, mode="block", heal=False)
    order = [t for step in waiting.trace.steps for t in step.decision.tokens.tolist()]
    assert NULL not in order[:3]
    assert eager.text == waiting.text == "aaa"


def test_the_last_step_of_a_schedule_commits_everything_along_the_rules(scripted: Any, tokenizer: Tokenizer) -> None:
    """A null that no policy may commit yet is committed with the rest, and ends the gap there."""
    word = tokenizer.encode("a")[0]
    denoiser = scripted(lambda canvas, position: {NULL: 1.0, word: 0.0} if position == 3 else {word: 5.0})
    result = main_path.infill(denoiser, tokenizer, "", "x", 6, heal=False, policy="confidence", steps=1)
    *_, canvas = result.trace.replay()
    assert gap_of(canvas) == [word, word, NULL, NULL, NULL, NULL]
    assert result.usage.forwards == 1


def test_no_null_is_drawn_left_of_a_committed_token(scripted: Any, tokenizer: Tokenizer) -> None:
    word, solid = tokenizer.encode("a")[0], tokenizer.encode("Z")[0]

    def says(canvas: Canvas, position: int) -> dict[int, float]:
        return {solid: 30.0} if position == 5 else {NULL: 2.0, word: 1.9, **({} if position > 5 else {20: -5.0})}

    result = main_path.infill(scripted(says), tokenizer, "", "x", 8, heal=False, policy="confidence", steps=8)
    assert result.text == "aaaaZ"
    *_, canvas = result.trace.replay()
    assert gap_of(canvas)[5:] == [NULL] * 3


def test_a_gap_never_has_text_behind_a_null_whatever_is_committed_together(causal: Model) -> None:
    for seed in range(8):
        for options in ({"threshold": 0.0}, {"threshold": 0.3}, {"policy": "random", "steps": 3}):
            for min_tokens in (0, 4):
                result = causal.infill(
                    "x = (",
                    ")\n",
                    12,
                    temperature=1.3,
                    seed=seed,
                    logit_bias={NULL: 6.0},
                    min_tokens=min_tokens,
                    **options,
                )
                *_, canvas = result.trace.replay()
                null = np.array(gap_of(canvas)) == NULL
                assert not canvas.open.any()
                assert not np.any(null[:-1] & ~null[1:])
                assert result.usage.completion_tokens >= min_tokens


def test_min_tokens_equal_to_max_tokens_is_an_exact_length(causal: Model) -> None:
    for prefix in ("", "x = ", "impo", "class A:\n"):
        for length in (1, 5, 17):
            for block_size in (None, 4):
                eager = {NULL: 50.0}
                result = causal.infill(prefix, "\n", length, min_tokens=length, block_size=block_size, logit_bias=eager)
                assert result.usage.completion_tokens == length
                assert result.finish_reason == "length"


CUT = {
    "impo": "import os\n",
    "def fib(n):\n   ": "def fib(n):\n    return n\n",
    "x = ": "x = foo\n",
    "configura": "configuration = 1\n",
    "print": "printer = 1\n",
    "a\n": "a\n    b\n",
    "    retu": "    return\n",
}


def test_a_cut_word_is_healed_to_the_text_without_the_cut(
    subtests: pytest.Subtests, scripted: Any, tokenizer: Tokenizer
) -> None:
    """A denoiser that only knows whole text in its canonical tokens completes it from any cut."""
    for cut, text in CUT.items():
        with subtests.test(cut):
            check_healing(scripted, tokenizer, cut, text)


def check_healing(scripted: Any, tokenizer: Tokenizer, cut: str, text: str) -> None:
    want = tokenizer.encode(text)

    def says(canvas: Canvas, position: int) -> dict[int, float]:
        index = position - 1
        drawn = zip(canvas.tokens[1:position], canvas.open[1:position], want, strict=False)
        if any(token != wanted and not opened for token, opened, wanted in drawn):
            return {tokenizer.encode("?")[0]: 10.0}
        return {want[index] if index < len(want) else EOS: 10.0}

    for mode in ("ar", "block"):
        result = main_path.generate(scripted(says), tokenizer, cut, 24, mode=mode)
        assert cut + result.text == text
        assert "".join(t.text for t in result.tokens) == result.text
    broken = main_path.generate(scripted(says), tokenizer, cut, 24, heal=False)
    assert (cut + broken.text == text) == (want[: len(tokenizer.encode(cut))] == tokenizer.encode(cut))


def test_healing_keeps_to_the_budget(causal: Model) -> None:
    never_ends = {EOS: float("-inf")}
    for prompt in ("impo", "x = ", "configura", "a\n"):
        for seed in range(4):
            for mode in ("ar", "block", "speculative"):
                result = causal.generate(prompt, 7, temperature=1.0, seed=seed, logit_bias=never_ends, mode=mode)
                assert result.usage.completion_tokens == 7


def test_a_stream_has_every_step_and_ends_with_the_result(causal: Model) -> None:
    events = list(causal.stream("x = ", 20, threshold=0.5, logit_bias={EOS: float("-inf")}))
    *steps, last = events
    assert last.result is not None
    assert last.text == last.committed == last.result.text
    assert all(event.result is None and event.step is not None for event in steps)
    assert any(OPEN in event.text for event in steps)
    assert len(steps) == last.result.usage.forwards
    direct = causal.generate("x = ", 20, threshold=0.5, logit_bias={EOS: float("-inf")})
    assert direct.text == last.result.text


def test_a_stream_of_an_infilling_gives_the_infilling(causal: Model) -> None:
    *_, last = causal.stream("x = ", 12, suffix="\ny", threshold=0.5)
    assert last.text == causal.infill("x = ", "\ny", 12, threshold=0.5).text


def test_with_nothing_behind_the_gap_an_infilling_is_a_completion(models: dict[str, Model]) -> None:
    for name in ("causal", "block"):
        model = models[name]
        for seed in range(3):
            options: dict[str, Any] = {"temperature": 1.0, "threshold": 0.5, "seed": seed, "logit_bias": {EOS: 4.0}}
            completed = model.generate("x = ", 24, **options)
            for suffix in ("", []):
                infilled = model.infill("x = ", suffix, **options)
                assert (infilled.text, infilled.finish_reason) == (completed.text, completed.finish_reason), name
                assert infilled.trace.canvas.continues
        assert model.infill("x = ", "", 4, temperature=1.0).usage.completion_tokens <= 4


def test_by_default_a_gap_is_as_long_as_training_made_them(causal: Model) -> None:
    bias = {NULL: float("-inf"), EOS: float("-inf")}
    assert causal.infill("x = ", "\n", logit_bias=bias).usage.completion_tokens == 24
    assert causal.generate("x = ", logit_bias=bias).usage.completion_tokens == main_path.MAX_TOKENS == 64
    for suffix, num in ((None, 64), ("\n", 24), ("", 24)):
        *_, last = causal.stream("x = ", suffix=suffix, logit_bias=bias)
        assert last.result is not None
        assert last.result.usage.completion_tokens == num


def test_an_infilling_needs_a_suffix(causal: Model) -> None:
    with pytest.raises(InputError, match="call generate"):
        causal.infill("x", None)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="must be a string"):
        causal.infill("x", 0)  # type: ignore[arg-type]


def test_wrong_arguments_of_a_stream_raise_at_the_call(causal: Model) -> None:
    with pytest.raises(InputError, match="max_tokens"):
        causal.stream("x", 0)
    with pytest.raises(InputError, match="one sample"):
        causal.stream("x", 8, n=2)


def test_a_timeout_keeps_what_is_committed(slow: Any, tokenizer: Tokenizer) -> None:
    result = main_path.generate(slow, tokenizer, "", 50, mode="ar", timeout=9.5)
    assert (result.text, result.finish_reason) == ("a" * 10, "timeout")
    assert result.usage.completion_tokens == result.usage.forwards == 10
    finished = main_path.generate(slow, tokenizer, "", 5, mode="ar", timeout=5.0)
    assert finished.finish_reason == "length"


def test_half_a_character_at_the_end_of_the_budget_is_replaced(scripted: Any, tokenizer: Tokenizer) -> None:
    halves = [next(t for t in range(16, 2048) if tokenizer.token_bytes(t) == bytes([b])) for b in "é".encode()]
    denoiser = scripted(lambda canvas, position: {halves[1 - position % 2]: 10.0})
    assert main_path.generate(denoiser, tokenizer, "", 3).text == "é\ufffd"
    assert main_path.generate(denoiser, tokenizer, "", 4).text == "éé"
    *steps, last = main_path.stream(denoiser, tokenizer, "", 3, mode="ar")
    assert [event.committed for event in steps] == ["", "é", "é\ufffd"]
    assert last.committed == "é\ufffd"


BAD: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": 0}, "max_tokens must be a whole number from 1 up, not 0"),
    ({"max_tokens": -3}, "max_tokens must be"),
    ({"max_tokens": 2.5}, "max_tokens must be"),
    ({"max_tokens": True}, "max_tokens must be"),
    ({"max_tokens": 300}, "need 302 positions and the model has 256"),
    ({"max_tokens": 4, "min_tokens": 5}, "min_tokens=5 is more than max_tokens=4"),
    ({"prompt": "a\ud800b"}, "lone surrogate"),
    ({"prompt": b"abc"}, "decode it first"),
    ({"prompt": [5, 2048]}, "token id 2048 is outside the vocabulary"),
    ({"prompt": [-1]}, "token id -1 is outside the vocabulary"),
    ({"prompt": [5.5]}, "a string or a sequence of token ids, not "),
    ({"prompt": None}, "a string or a sequence of token ids, not None"),
    ({"timeout": 0}, "timeout must be"),
    ({"timeout": "9"}, "timeout must be"),
    ({"decode": {"mode": "ar"}}, "decode must be a Decode"),
]


def test_bad_input_says_what_to_do_in_one_line(subtests: pytest.Subtests, causal: Model) -> None:
    for arguments, message in BAD:
        with subtests.test(ascii(arguments)):
            with pytest.raises(InputError, match=message) as caught:
                causal.generate(**({"prompt": "x"} | arguments))
            assert "\n" not in str(caught.value)


def test_the_longest_canvas_fits(causal: Model) -> None:
    prompt = causal.tokenizer.encode("a = 1\n") * 30
    room = causal.config.max_positions - 1 - len(prompt)
    result = causal.generate(prompt, room, logit_bias={EOS: float("-inf")}, stop_loops=False)
    assert result.usage.completion_tokens == room
    with pytest.raises(InputError, match="shorten the text"):
        causal.generate(prompt, room + 1)


def test_usage_adds_up(causal: Model) -> None:
    usage = causal.generate("x = 1", 20, threshold=0.5, logit_bias={EOS: float("-inf")}).usage
    assert usage.prompt_tokens == len(causal.tokenizer.encode("x = 1"))
    assert usage.tokens_per_forward == 20 / usage.forwards
    assert usage.tokens_per_second == pytest.approx(20 / usage.seconds)


def test_confidence_and_logprob_are_of_the_whole_vocabulary_at_temperature_one(causal: Model) -> None:
    result = causal.generate("x = 1\n", 6, mode="ar", temperature=0.7, top_k=3, heal=False)
    ids = [causal.tokenizer.bos_id, *causal.tokenizer.encode("x = 1\n"), *(t.id for t in result.tokens)]
    canvas = Canvas.lay_out([ids[:-1]], [1], 3).at((len(ids) - 1, len(ids)))
    logits = logits_of(causal.denoiser, canvas, canvas.active_positions())[0].astype(np.float64)
    logits[NULL] = -np.inf
    want = logits[ids[-1]] - np.log(np.exp(logits).sum())
    assert result.tokens[-1].logprob == pytest.approx(want, abs=1e-4)
    assert result.tokens[-1].confidence == pytest.approx(np.exp(want), abs=1e-4)
