"""Next-line completion: what is counted, when writing stops, and which setting is called the best."""

from __future__ import annotations

import dataclasses
import hashlib
import pickle
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from daguerre.decoding.request import Decode
from daguerre.evals import completion
from daguerre.evals.completion import AR, Attempt, attempts, grid, label, line_end, next_line_completion
from daguerre.evals.infilling import first_line
from daguerre.evals.lines import MissingLine, make_examples
from daguerre.heldout import Document
from daguerre.model import Model

SOURCE = "".join(f"def area_{i}(width, height):\n    return compute({i}, width * height)\n\n\n" for i in range(8))
SETTINGS = (
    Decode(mode="block", block_size=8, threshold=0.5),
    Decode(mode="block", block_size=4, policy="confidence", steps=2),
    Decode(mode="speculative"),
)


@pytest.fixture(scope="module")
def examples() -> list[MissingLine]:
    texts = [SOURCE, SOURCE.replace("area", "border")]
    return make_examples([Document("p", "1", "", "", hashlib.sha256(t.encode()).hexdigest(), t) for t in texts], 6)


def unclocked(found: list[Attempt]) -> list[Attempt]:
    return [dataclasses.replace(attempt, seconds=0.0) for attempt in found]


def test_a_line_ends_with_the_first_break_after_something_that_is_not_blank() -> None:
    ends = {"": None, "\n  \n": None, "a = 1": None, "a\nb\n": 2, "\n\n  a = 1\nb": 10, "    a\n": 6}

    assert {text: line_end(text) for text in ends} == ends


def test_the_line_is_that_of_an_ordinary_request(causal: Model, examples: list[MissingLine]) -> None:
    settings = [AR, *SETTINGS]
    for example in examples[:3]:
        _, found = attempts(causal, settings, example)
        for decode, attempt in zip(settings, found, strict=True):
            whole = causal.generate(example.prefix, completion.LINE_TOKENS, decode)
            assert attempt.line == first_line(whole.text)
            assert attempt.exact == (attempt.line.strip() == example.line.strip())
            assert 0 < attempt.forwards <= whole.usage.forwards
            assert attempt.tokens <= attempt.produced
            if decode is AR:
                assert attempt.produced == attempt.forwards
    assert len({attempt.line for attempt in found}) > 1


def test_settings_do_not_see_what_the_one_before_wrote(causal: Model, examples: list[MissingLine]) -> None:
    together = attempts(causal, [AR, *SETTINGS], examples[0])[1]
    alone = [attempts(causal, [decode], examples[0])[1][0] for decode in [AR, *SETTINGS]]

    assert unclocked(together) == unclocked(alone)


def test_forwards_and_tokens_by_hand(scripted: Callable[..., Any], causal: Model, examples: list[MissingLine]) -> None:
    """A model that knows the text and is sure of it; the break before the line is healed by one that has its indent."""
    example, tokenizer = next(e for e in examples if e.line.startswith("    return")), causal.tokenizer
    known = [tokenizer.bos_id, *tokenizer.encode(example.before + example.line + example.after)]
    oracle = scripted(lambda canvas, position: {known[position]: 20.0}, max_positions=1024)
    model = SimpleNamespace(config=oracle.config, tokenizer=tokenizer, denoiser=oracle, heal=None)
    shown = dataclasses.replace(example, prefix=example.before)

    _, (ar, block) = attempts(model, [AR, Decode(mode="block", block_size=4)], shown)  # type: ignore[arg-type]

    start = len(tokenizer.encode(example.before))
    drawn = [tokenizer.decode([token]) for token in known[start : start + ar.tokens]]
    assert (drawn[0], drawn[-1]) == ("\n    ", "\n\n\n")
    assert "".join(drawn).strip() == example.line.strip()
    assert ar.exact and ar.ended and ar.similarity == 1.0
    assert ar.line == block.line == example.line
    assert ar.characters == len(example.line) + 1
    assert ar.forwards == ar.produced == ar.tokens
    spans = -(-(ar.tokens - 1) // 4)
    assert (block.forwards, block.tokens, block.produced) == (1 + spans, ar.tokens, 1 + 4 * spans)
    assert block.produced > block.tokens


def test_what_goes_to_a_process_does_the_same_there(causal: Model, examples: list[MissingLine]) -> None:
    there = pickle.loads(pickle.dumps(partial(attempts, causal, SETTINGS)))

    assert unclocked(there(examples[0])[1]) == unclocked(attempts(causal, SETTINGS, examples[0])[1])


def test_the_best_setting_is_the_fastest_that_is_right_as_often(
    monkeypatch: pytest.MonkeyPatch, causal: Model, examples: list[MissingLine]
) -> None:
    many = examples * 100
    wrong, fast, slow = (Decode(mode="block", block_size=size) for size in (32, 16, 8))
    tokens = {AR: 1, wrong: 8, fast: 4, slow: 2}

    def fake(model: Model, decodes: list[Decode], example: MissingLine) -> tuple[float, list[Attempt]]:
        return 0.5, [
            Attempt("x", decode is not wrong and example is many[0], 0.5, True, 2, tokens[decode], 9, 12, 0.1)
            for decode in decodes
        ]

    monkeypatch.setattr(completion, "attempts", fake)
    done = next_line_completion(causal, many, settings=[slow, wrong, fast], grid_lines=60)

    assert [(row.label, row.num) for row in done.rows] == [
        ("ar", 600),
        (label(fast), 600),
        (label(slow), 60),
        (label(wrong), 60),
    ]
    assert [(row.label, row.num) for row in done.grid_rows] == [(label(fast), 60)]
    assert done.best_within_margin == done.best_no_worse == label(fast)
    assert done.prefill_seconds == 0.5
    row = done.rows[1]
    assert (row.tokens_per_forward, row.produced_per_forward, row.forwards) == (2.0, 4.5, 2.0)
    assert (row.tokens_per_second, row.characters_per_second) == pytest.approx((40.0, 120.0))
    assert (row.accuracy, row.difference) == (pytest.approx(1 / 6), 0.0)
    assert done.rows[3].difference_interval[1] < 0
    assert [row.no_worse for row in done.rows] == [True, True, True, False]
    unlike = dataclasses.replace(row, similarity_difference_interval=(-0.2, -0.1))
    assert not unlike.no_worse
    assert dataclasses.replace(row, similarity_difference_interval=(-0.2, 0.1)).no_worse
    assert done.lines[0] == {"ar": "x", label(fast): "x"}


def test_a_setting_that_is_wrong_on_all_lines_is_not_the_best(
    monkeypatch: pytest.MonkeyPatch, causal: Model, examples: list[MissingLine]
) -> None:
    """On the lines of the grid it does not differ from `ar`; on the others it does, and the next setting is tried."""
    many = [dataclasses.replace(example, number=number) for number, example in enumerate(examples * 50)]
    wrong, right = Decode(mode="block", block_size=32), Decode(mode="block", block_size=8)

    def fake(model: Model, decodes: list[Decode], example: MissingLine) -> tuple[float, list[Attempt]]:
        return 0.5, [
            Attempt("x", decode is not wrong and example.number >= 10, 0.5, True, 1, 2 + (decode is wrong), 3, 4, 0.1)
            for decode in decodes
        ]

    monkeypatch.setattr(completion, "attempts", fake)
    done = next_line_completion(causal, many, settings=[wrong, right], grid_lines=10)

    assert [(row.label, row.num) for row in done.rows] == [("ar", 300), (label(wrong), 300), (label(right), 300)]
    assert [(row.label, row.num) for row in done.grid_rows] == [(label(wrong), 10), (label(right), 10)]
    whole = next_line_completion(causal, many[:10], settings=[wrong, right], grid_lines=10)
    assert (whole.grid_rows, {row.num for row in whole.rows}) == ((), {10})
    assert done.best_within_margin == done.best_no_worse == label(right)


def test_the_grid_has_every_block_size_and_threshold_once() -> None:
    labels = [label(decode) for decode in grid()]

    assert len(labels) == len(set(labels)) == 4 * 4 + 4 + 3 * 6
    assert "block 8, threshold 0.7" in labels
    assert "block 32, confidence, 16 steps" in labels
    assert "block 8, chain 0.5" in labels
