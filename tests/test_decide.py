"""Decisions: exact in one forward for every context, questions apart from each other, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from backends import needs_compiler
from daguerre.errors import InputError, UnsupportedError
from daguerre.evals.questions import KINDS
from daguerre.model import Model, load
from daguerre.models.session import Counts, compute
from daguerre.scoring.calibration import Calibration
from daguerre.scoring.decisions import (
    MOST_LABELS,
    Choice,
    Question,
    QuestionAnswer,
    Score,
    ScoredLabel,
    YesNo,
    label_texts,
    score_texts,
)
from driving import Recording
from oracles.decided import score_slowly

STATE = "class Box:\n    def size(self, unit):\n        return self.width * unit\n\n    def area(self):\n"
QUESTIONS: tuple[Question, ...] = (
    YesNo(before="\nx = size is", yes=" None", no=" not None", after=":\n    pass\n"),
    Choice(before="        ", labels=["return", "if", "for", "x = y", "raise ValueError("], after=" self.width\n"),
    Choice(before="        return self.", labels=["width", "unit_of_measure"], after=" + 1"),
    Score(before="        x = ", low=8, high=12, after=" * y\n"),
    Choice(before="  ", labels=["a", "b"]),
)
NAMES = ["causal", "causal_unshifted", "full", "full_unshifted", "block", "block_shifted", "reordered"]


def all_scores(answers: list[QuestionAnswer]) -> list[float]:
    return [score for answer in answers for score in answer.scores.values()]


def test_labels_of_several_tokens_score_as_each_does_by_itself(
    subtests: pytest.Subtests, models: dict[str, Model]
) -> None:
    for name in NAMES:
        model = models[name]
        texts = [text for question in QUESTIONS for text in label_texts(model.config, model.tokenizer, STATE, question)]
        with subtests.test(name):
            slowly = [score_slowly(model.denoiser, text) for text in texts]

            answers = model.decide(STATE, QUESTIONS)

            assert max(text.stop - text.start for text in texts) > 3
            assert all_scores(answers) == pytest.approx(slowly, rel=1e-5, abs=1e-4)
            assert np.std(slowly) > 1
            assert all(answer.usage.forwards == 1 for answer in answers)


def test_a_tree_and_a_plain_likelihood_agree_in_causal_context(causal: Model) -> None:
    question = QUESTIONS[1]
    (answer,) = causal.decide(STATE, [question])
    whole = [causal.nll(STATE + question.before + text + question.after).value for text in question.texts.values()]
    scores = list(answer.scores.values())

    assert [scores[0] - score for score in scores] == pytest.approx([nll - whole[0] for nll in whole], abs=1e-3)


@needs_compiler
def test_both_backends_agree(causal: Model) -> None:
    native, torch = (
        all_scores(Model(causal.backbone, causal.tokenizer, name).decide(STATE, QUESTIONS))
        for name in ("native", "torch")
    )
    assert native == pytest.approx(torch, abs=1e-3)


def test_a_time_input_gets_the_share_of_the_label_that_is_masked(make_model: Callable[..., Model]) -> None:
    model = make_model(context="full", shift=False, time_input=True)
    texts = [text for question in QUESTIONS for text in label_texts(model.config, model.tokenizer, STATE, question)]

    assert all_scores(model.decide(STATE, QUESTIONS)) == pytest.approx(
        [score_slowly(model.denoiser, text) for text in texts], rel=1e-5, abs=1e-4
    )
    (batch,) = batches_of(model, texts)
    assert {one.level for one in batch if one.level is not None and one.level < 1}


def test_an_answer_does_not_depend_on_the_other_questions(subtests: pytest.Subtests, models: dict[str, Model]) -> None:
    for name in NAMES:
        with subtests.test(name):
            together = models[name].decide(STATE, QUESTIONS)
            alone = [models[name].decide(STATE, [question])[0] for question in QUESTIONS]

            assert all_scores(together) == pytest.approx(all_scores(alone), rel=1e-5, abs=1e-4)
            again = models[name].decide(STATE, QUESTIONS)
            assert [answer.scores for answer in again] == [answer.scores for answer in together]


def batches_of(model: Model, texts: list[ScoredLabel]) -> list[list[Any]]:
    """What scoring asks to be computed."""
    recording = Recording(model.denoiser.backend)
    compute(score_texts(model.config, texts, Counts()), recording)
    return recording.batches


def test_branches_are_kept_apart_by_the_mask_alone(causal: Model) -> None:
    """With one more key seen by one row, a score changes."""
    texts = label_texts(causal.config, causal.tokenizer, STATE, QUESTIONS[1])
    ((forward,),) = batches_of(causal, texts)
    assert forward.layout.mask is not None
    (right,) = causal.denoiser.backend.forward([forward])
    row = int(forward.wanted[-1])
    forward.layout.mask[row, np.flatnonzero(~forward.layout.mask[row])[0]] = True
    (wrong,) = causal.denoiser.backend.forward([forward])
    assert np.abs(right.log_probs - wrong.log_probs).max() > 1e-3


def test_what_texts_begin_with_is_computed_once(models: dict[str, Model]) -> None:
    causal, full = models["causal"], models["full"]
    question = Choice(before="        ", labels=["return", "raise", "if"], after=" x\n")
    (answer,) = causal.decide(STATE, [question])
    texts = label_texts(causal.config, causal.tokenizer, STATE, question)
    (other,) = full.decide(STATE, [Choice(before="x =", labels=[" 1", " 2", " 3"], after=" + y\n")])

    begun = {text.ids[:n] for text in texts for n in range(1, len(text.ids))}
    assert answer.usage.query_tokens + answer.usage.prefill_tokens == len(begun)
    assert answer.usage.prompt_tokens == len(causal.tokenizer.encode(STATE))
    assert other.usage.query_tokens == 1


def test_probabilities_are_normalized_over_the_labels(models: dict[str, Model]) -> None:
    answered = [
        (name, question, answer)
        for name in NAMES
        for question, answer in zip(QUESTIONS, models[name].decide(STATE, QUESTIONS), strict=True)
    ]
    for name, question, answer in answered:
        probs = answer.probabilities
        assert list(probs) == list(question.texts), name
        assert sum(probs.values()) == pytest.approx(1.0)
        assert answer.answer == question.value(max(probs, key=lambda label: probs[label]))
        entropy = -sum(p * math.log(p) for p in probs.values() if p)
        assert answer.entropy == pytest.approx(entropy, abs=1e-9)
        first, *_ = answer.scores
        for label, score in answer.scores.items():
            if probs[label] > 1e-200 and probs[first] > 1e-200:
                assert math.log(probs[label] / probs[first]) == pytest.approx(score - answer.scores[first])


def test_answers_have_the_type_of_their_question(causal: Model) -> None:
    yes, choice, _, score, _ = causal.decide(STATE, QUESTIONS)

    assert yes.answer in (True, False)
    assert yes.expected == yes.probabilities["yes"]
    assert choice.expected is None
    assert isinstance(score.answer, int) and 8 <= score.answer <= 12
    assert score.expected == pytest.approx(sum(int(k) * p for k, p in score.probabilities.items()))
    assert causal.decide(STATE, []) == []


def test_a_calibration_is_applied_by_name_or_as_it_is(causal: Model) -> None:
    even = Calibration(temperature=1e6, bias={"b": math.log(3)})
    model = Model(causal.backbone, causal.tokenizer, calibrations={"letters": even})
    plain, own, named = model.decide(
        STATE, [Choice(labels=["a", "b"], calibration=which) for which in (None, even, "letters")]
    )

    assert own == named
    assert own.probabilities == pytest.approx({"a": 0.25, "b": 0.75}, abs=1e-4)
    assert own.scores == plain.scores
    assert plain.calibration == Calibration()
    with pytest.raises(InputError, match=r"did you mean 'letters'.*daguerre calibrate"):
        model.decide(STATE, [Choice(labels=["a", "b"], calibration="letter")])
    with pytest.raises(InputError, match="bias for 'b', which is no label"):
        model.decide(STATE, [Choice(labels=["a", "c"], calibration=even)])


CANNOT_BE_ASKED: list[tuple[Callable[[], Question], str]] = [
    (lambda: Choice(labels=[]), "two labels or more, not 0"),
    (lambda: Choice(labels=["a"]), "two labels or more, not 1"),
    (lambda: Choice(labels="ab"), "a list of texts"),
    (lambda: Choice(labels=["a", "b", "a"]), "'a' is given twice"),
    (lambda: Choice(labels=["a", ""]), "at least one character"),
    (lambda: Choice(labels=["a", 5]), "labels must be a string, not 5"),  # type: ignore[list-item]
    (lambda: Choice(labels=["a", "ab"]), "give the text after it, as `after`"),
    (lambda: YesNo(yes=" x", no=" x"), "make them differ"),
    (lambda: YesNo(before=None), "before must be a string, not None"),  # type: ignore[arg-type]
    (lambda: Score(low=3, high=3), "low below high"),
    (lambda: Score(low=0, high=1.5), "whole number"),  # type: ignore[arg-type]
    (lambda: Score(low=1, high=10), "'10' begins with '1'"),
]


def test_a_question_that_cannot_be_asked_says_why() -> None:
    for make, says in CANNOT_BE_ASKED:
        with pytest.raises(InputError, match=says):
            make()


def test_labels_without_end_are_refused_before_they_are_made(causal: Model) -> None:
    for question in (
        lambda: Score(low=0, high=99_999_999),
        lambda: Choice(labels=[str(number) for number in range(MOST_LABELS + 1)]),
    ):
        with pytest.raises(InputError, match=r"labels and 4,096 is the most \(MOST_LABELS\): ask for fewer"):
            question()


def test_the_default_model_has_a_calibration_for_every_kind_of_question() -> None:
    model = load()
    question = Score(before=" = ", low=0, high=9, after="\n", calibration="digit")
    (answer,) = model.decide("size", [question])

    assert set(model.calibrations) == set(KINDS)
    assert answer.calibration.temperature > 0
    assert set(answer.calibration.bias) == set("0123456789")


def test_what_a_model_cannot_answer_says_why(causal: Model, make_model: Callable[..., Model]) -> None:
    question = Choice(labels=["a", "b"])
    with pytest.raises(InputError, match=r"model 256 positions: shorten the state by \d+ tokens"):
        causal.decide("x = 1\n" * 200, [question], context="whole")
    with pytest.raises(InputError, match="state must be a string, not b'x'"):
        causal.decide(b"x", [question])  # type: ignore[arg-type]
    for wrong in (question, ["a"]):
        with pytest.raises(InputError, match="questions must be a list of YesNo"):
            causal.decide(STATE, wrong)  # type: ignore[arg-type]
    for facts in ({"context": "causal"}, {"context": "full"}, {"context": "block", "block_size": 8}):
        bare = make_model(bos_id=None, **facts)
        assert bare.decide("x", [question])
        with pytest.raises(InputError, match="labels begin the text: give a state of a token or more"):
            bare.decide("", [question])
    uniform = make_model(context="full", shift=False, process="uniform", time_input=True)
    with pytest.raises(UnsupportedError, match="uniform process"):
        uniform.decide(STATE, [question])
