"""Texts that are longer than the model's positions, scored in windows; and scores by line."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import daguerre
from daguerre.errors import InputError, UnsupportedError
from daguerre.models.backends.torch_backend import TorchBackend
from daguerre.models.core.config import ModelConfig
from daguerre.scoring.decisions import Choice
from daguerre.scoring.likelihood import TokenScores, score_tokens
from daguerre.scoring.lines import by_line
from daguerre.scoring.windows import score_long, windows
from test_likelihood import BOS, model, some_text

SIZE = 16
CAUSAL = {"max_positions": SIZE}
BLOCK = {"max_positions": SIZE, "context": "block", "block_size": 4}
FULL = {"max_positions": SIZE, "context": "full", "shift": False}


def config(**facts: Any) -> ModelConfig:
    return model(**facts).config


def test_windows_score_each_token_once_with_half_of_the_positions_before_it(subtests: pytest.Subtests) -> None:
    for facts in (CAUSAL, BLOCK, FULL, CAUSAL | {"bos_id": None}):
        shape = config(**facts)
        for length in (2, SIZE, SIZE + 1, 24, 25, 61):
            with subtests.test(str(facts), length=length):
                check_windows(shape, length)


def check_windows(shape: ModelConfig, length: int) -> None:
    tokens = list(range(100, 100 + length))
    if shape.first:
        tokens[0] = shape.first[0]
    scored: list[int] = []
    for number, window in enumerate(windows(shape, tokens)):
        assert len(window.tokens) <= SIZE
        assert list(window.tokens[: len(shape.first)]) == shape.first
        assert 1 <= window.given < len(window.tokens)
        if number:
            assert window.given >= SIZE // 2
        if shape.context == "block":
            assert number == 0 or window.given % 4 == 0
        scored += window.tokens[window.given :]
    assert scored == tokens[1:]


@pytest.mark.parametrize("how", [{"kind": "ar"}, {"kind": "chain", "layout": 4}])
def test_long_scores_are_those_of_each_token_after_its_window(how: dict[str, Any]) -> None:
    backbone, tokens = model(**CAUSAL), some_text(45)
    backend = TorchBackend(backbone)
    got = score_long(backend, tokens, **how)
    expected: list[float] = []
    for window in windows(backbone.config, tokens):
        if how["kind"] == "chain":
            expected += score_tokens(backend, window.tokens, given=window.given, **how).by_token.tolist()
            continue
        for end in range(window.given, len(window.tokens)):  # each token alone, in a forward of its own
            expected.append(score_tokens(backend, window.tokens[: end + 1], given=end, kind="ar").value)

    assert got.num_tokens == 44
    assert got.num_windows == len(list(windows(backbone.config, tokens))) > 1
    assert np.allclose(got.by_token, expected, atol=1e-5)
    assert got.value == pytest.approx(sum(expected), abs=1e-4)
    assert got.stderr == 0


def test_bounds_of_windows_add_up(subtests: pytest.Subtests) -> None:
    for facts in (BLOCK, FULL, CAUSAL):
        backbone, tokens = model(**facts), some_text(45)
        backend = TorchBackend(backbone)
        with subtests.test(str(facts)):
            got = score_long(backend, tokens, kind="elbo", samples=8, seed=3)
            parts = [
                score_tokens(
                    backend,
                    window.tokens,
                    given=window.given,
                    kind="elbo",
                    samples=8,
                    seed=[3, number] if number else 3,
                )
                for number, window in enumerate(windows(backbone.config, tokens))
            ]

            assert got.value == pytest.approx(sum(part.value for part in parts))
            assert got.stderr == pytest.approx(math.sqrt(sum(part.stderr**2 for part in parts)))
            assert got.stderr > 0


def test_a_text_that_fits_has_the_score_that_it_had() -> None:
    backbone, tokens = model(**CAUSAL), some_text(SIZE)
    backend = TorchBackend(backbone)
    for how in ({"kind": "ar"}, {"kind": "elbo", "seed": 5}, {"kind": "chain", "order": "random", "seed": 2}):
        got, expected = score_long(backend, tokens, **how), score_tokens(backend, tokens, **how)
        assert got == expected
        assert got.by_token.tolist() == expected.by_token.tolist()


def test_a_process_that_replaces_tokens_has_windows_of_its_own() -> None:
    shape = config(**FULL, process="uniform", time_input=True, null_id=None)
    tokens = [BOS, *range(100, 140)]
    assert [window.given for window in windows(shape, tokens)] == [1, 1, 1]
    assert [token for window in windows(shape, tokens) for token in window.tokens[1:]] == tokens[1:]


def test_an_order_of_all_tokens_needs_one_window() -> None:
    backend = TorchBackend(model(**CAUSAL))
    with pytest.raises(InputError, match="order='left' or 'random'"):
        score_long(backend, some_text(30), kind="chain", order=list(range(29)))


@pytest.fixture(scope="module")
def default() -> daguerre.Model:
    return daguerre.load()


SOURCE = "".join(f"def name_{number}(a, b):\r\n    return a + b  # {number} é\n\n" for number in range(60)) + "x = '☃'"


def test_lines_have_the_bits_of_the_text(default: daguerre.Model) -> None:
    scores = default.nll(SOURCE)
    lines = by_line(default.tokenizer, SOURCE, scores)

    assert scores.num_windows > 1
    assert [line.text for line in lines] == [line.rstrip("\r") for line in SOURCE.split("\n")]
    assert sum(line.num_bytes for line in lines) == len(SOURCE.encode())
    assert sum(line.bits for line in lines) == pytest.approx(scores.value / math.log(2))
    assert sum(len(line.tokens) for line in lines) == scores.num_tokens
    assert all(line.bits == pytest.approx(sum(token.bits for token in line.tokens)) for line in lines)


def test_a_line_that_is_wrong_is_surprising(default: daguerre.Model) -> None:
    wrong = SOURCE.replace("    return a + b  # 40", "    retrun a b +  # 40")
    lines = by_line(default.tokenizer, wrong, default.nll(wrong))
    marked = [line.number for line in lines if line.surprising]

    assert 40 * 3 + 2 in marked
    assert len(marked) < 12
    assert lines[40 * 3 + 1].worst is not None


def test_whole_refuses_and_tokenizers_that_change_the_text_are_refused(default: daguerre.Model) -> None:
    with pytest.raises(InputError, match="1024 positions"):
        default.nll(SOURCE, context="whole")
    with pytest.raises(InputError, match="unknown context"):
        default.nll("x = 1", context="half")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="empty"):
        by_line(default.tokenizer, "", TokenScores(0.0, 0.0, 0, np.zeros(0)))

    class Lower(type(default.tokenizer)):  # type: ignore[misc]
        def encode(self, text: str, *, begins: bool = True) -> list[int]:
            return list(default.tokenizer.encode(text.lower()))

    with pytest.raises(UnsupportedError, match="changes the text"):
        by_line(Lower(default.tokenizer.to_bytes().decode()), "X = 1", default.nll("x = 1"))


def test_a_long_state_is_shown_from_its_end(default: daguerre.Model) -> None:
    question = Choice(labels=["yes", "no"], before="\n# right: ")
    (answer,) = default.decide(SOURCE + "\n", [question])
    (alone,) = default.decide(answer.context.texts[0], [question])

    assert not answer.context.complete
    assert (SOURCE + "\n").endswith(answer.context.texts[0][-200:])
    assert answer.probabilities == alone.probabilities
    assert default.decide("x = 1\n", [question])[0].context.complete
    with pytest.raises(InputError, match="shorten the state"):
        default.decide(SOURCE, [question], context="whole")
