"""Correction: which tokens are wrong, and what counts as fixed and as broken."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from daguerre.errors import DataError
from daguerre.evals.correction import RATES, REVISIONS, Revision, correct_line, line_correction
from daguerre.evals.lines import MissingLine, make_examples
from daguerre.heldout import Document
from daguerre.model import Model

SOURCE = "".join(f"def area_{i}(width, height):\n    return compute({i}, width * height)\n\n\n" for i in range(8))
Says = Callable[[list[int], Any, int], dict[int, float]]
SURE = 20.0


@pytest.fixture(scope="module")
def examples() -> list[MissingLine]:
    texts = [SOURCE, SOURCE.replace("area", "border")]
    documents = [Document("p", "1", "", "", hashlib.sha256(t.encode()).hexdigest(), t) for t in texts]
    return make_examples(documents, 6, shown=(60, 30))


@pytest.fixture
def judge(scripted: Callable[..., Any], causal: Model) -> Callable[[MissingLine, Says], Any]:
    """A model that knows the line: judge(example, says), where says(truth by position, canvas, position).

    It has no shift, so that each token of the line has a row, and is seen.
    """

    def make(example: MissingLine, says: Says) -> Any:
        encode = causal.tokenizer.encode
        before, line = [causal.tokenizer.bos_id, *encode(example.prefix)], encode(example.line)
        truth = [*before, *line, *encode(example.suffix)]
        oracle = scripted(lambda canvas, position: says(truth, canvas, position), max_positions=256, shift=False)
        return SimpleNamespace(config=oracle.config, tokenizer=causal.tokenizer, denoiser=oracle)

    return make


def test_a_model_that_knows_the_line_fixes_all_and_breaks_nothing(examples: list[MissingLine], judge: Any) -> None:
    example = examples[0]
    model = judge(example, lambda truth, canvas, position: {truth[position]: SURE})

    trials = correct_line(model, 0, example)

    assert {kind for kind, *_ in trials} == {"none", "random"}, "it has no wrong guesses"
    for (kind, rate, revision), trial in trials.items():
        wanted = 0 if kind == "none" else max(1, round(rate * (trial.num_wrong + trial.num_right)))
        assert (trial.num_wrong, trial.fixed, trial.broken, trial.refilled) == (wanted, wanted, 0, wanted)
        assert trial.exact
        rounds = 1 + (wanted if revision.order == "one" else min(wanted, 1))
        assert trial.forwards == rounds * (len(truth(model, example)) if revision.reading == "leave_one_out" else 1)


def truth(model: Any, example: MissingLine) -> list[int]:
    return model.tokenizer.encode(example.line)


def test_a_leave_one_out_reading_finds_what_an_unmasked_one_cannot(examples: list[MissingLine], judge: Any) -> None:
    """A model that believes what it sees, and knows what it does not see."""
    example = examples[0]
    model = judge(example, lambda truth, canvas, at: {truth[at] if canvas.open[at] else canvas.tokens[at]: SURE})

    trials = correct_line(model, 0, example)

    assert {kind for kind, *_ in trials} == {"none", "random"}
    for (kind, _, revision), trial in trials.items():
        found = (trial.num_wrong, 2 * len(truth(model, example))) if revision.reading == "leave_one_out" else (0, 1)
        assert kind == "none" or (trial.fixed, trial.forwards) == found
        assert trial.broken == 0
        assert trial.exact == (kind == "none" or revision.reading == "leave_one_out")


def test_a_model_that_believes_what_it_sees_changes_nothing(examples: list[MissingLine], judge: Any) -> None:
    example = examples[0]
    model = judge(
        example, lambda truth, canvas, position: {500 if canvas.open[position] else canvas.tokens[position]: SURE}
    )

    trials = {key: trial for key, trial in correct_line(model, 0, example).items() if key[2].reading == "unmasked"}

    assert {kind for kind, *_ in trials} == {"none", "random", "guess"}
    assert {(trial.fixed, trial.broken, trial.forwards) for trial in trials.values()} == {(0, 0, 1)}
    for (kind, *_), trial in trials.items():
        assert trial.exact == (kind == "none")


def test_what_is_broken_is_counted_and_only_above_the_threshold(examples: list[MissingLine], judge: Any) -> None:
    """Three in four for another token wherever the token is right or masked, at half the places; sure of nothing else.

    Masked, that is not enough to replace a token by, where the right one has a fourth.
    """
    example = examples[0]

    def says(truth: list[int], canvas: Any, position: int) -> dict[int, float]:
        if canvas.open[position]:
            return {600: np.log(3.0) + SURE, truth[position]: SURE}
        if position % 2 or canvas.tokens[position] != truth[position]:
            return {int(canvas.tokens[position]): SURE}
        return {600: np.log(3.0) + SURE, truth[position]: SURE}

    trials = correct_line(judge(example, says), 0, example)

    for (kind, _, revision), trial in trials.items():
        breaks = revision.reading == "unmasked" and revision.threshold < 0.75
        assert trial.fixed == 0
        assert (trial.broken > 0) == breaks
        if kind == "none" and breaks and revision.order == "all":
            assert trial.broken == trial.num_right // 2 or trial.broken == -(-trial.num_right // 2)


def test_wrong_tokens_are_ordinary_and_wrong(
    examples: list[MissingLine], judge: Any, causal: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[np.ndarray] = []
    example = examples[1]
    truth = np.array(causal.tokenizer.encode(example.line))
    start = 1 + len(causal.tokenizer.encode(example.prefix))

    def says(known: list[int], canvas: Any, position: int) -> dict[int, float]:
        if not canvas.open.any():
            seen.append(canvas.tokens[start : start + len(truth)])
        return {700: SURE}

    correct_line(judge(example, says), 3, example)
    corrupted = {tuple(np.flatnonzero(tokens != truth)): tokens for tokens in seen}
    first = next(tokens for places, tokens in corrupted.items() if len(places) == 1)
    assert np.isin(first[first != truth], causal.config.ordinary_ids).all()


def test_guesses_are_the_models_own(examples: list[MissingLine], judge: Any) -> None:
    example, shown = examples[2], set()

    def says(truth: list[int], canvas: Any, position: int) -> dict[int, float]:
        if not canvas.open.any():
            wrong = set(canvas.tokens) - set(truth)
            shown.update(int(token) for token in wrong)
            return {int(canvas.tokens[position]): SURE}
        return {2000 + position % 2: SURE}

    trials = correct_line(judge(example, says), 0, example)

    assert shown & {2000, 2001}
    wrong = {trial.num_wrong for (kind, rate, *_), trial in trials.items() if (kind, rate) == ("guess", 0.15)}
    (count,) = wrong
    assert count >= 1


def test_rows_pool_the_tokens_of_lines(
    causal: Model, examples: list[MissingLine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daguerre.evals.correction.ROUNDS", 2)
    result = line_correction(causal, examples[:2])

    assert result.left_out == 0
    trials = [correct_line(causal, 0, example) for example in examples[:2]]
    for row in result.rows:
        found = [trial.get((row.kind, row.rate, Revision(row.reading, row.order, row.threshold))) for trial in trials]
        some = [trial for trial in found if trial is not None]
        assert row.num == len(some)
        assert row.broken == pytest.approx(sum(t.broken for t in some) / sum(t.num_right for t in some))
        assert (row.fixed is None) == (row.kind == "none")
        assert row.broken_interval[0] - 1e-9 <= row.broken <= row.broken_interval[1] + 1e-9
    assert set(result.best) == {f"{kind} {rate:g}" for kind in ("random", "guess") for rate in RATES}
    for name, place in result.best.items():
        if place is not None:
            row = result.rows[place]
            rivals = [r for r in result.rows if (r.kind, r.rate) == (row.kind, row.rate) and r.broken <= 0.02]
            assert f"{row.kind} {row.rate:g}" == name
            assert row.fixed == max(rival.fixed or 0.0 for rival in rivals)
    assert {Revision(row.reading, row.order, row.threshold) for row in result.rows} == set(REVISIONS)


def test_lines_that_do_not_fit_are_left_out(make_model: Callable[..., Model], examples: list[MissingLine]) -> None:
    with pytest.raises(DataError, match="no line fits the model's 24 positions"):
        line_correction(make_model(max_positions=24), examples)
