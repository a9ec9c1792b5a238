"""Decisions on held-out code: how often they are right, and how well their probabilities are calibrated.

Documents are split in two: calibrations are fitted to questions about one part, and all figures are of the other. The
baseline does not read the text: it always gives the label that was most often right in the first part, with the shares
of that part as its probabilities.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from daguerre.errors import DataError, InputError
from daguerre.evals.lines import hashed_order
from daguerre.evals.questions import FREE, KINDS, QuestionExample, make_questions
from daguerre.evals.statistics import Bin, calibration_error, ratio_interval, reliability
from daguerre.evals.workers import Progress, map_examples, no_progress
from daguerre.heldout import Document, load_frozen
from daguerre.model import Model
from daguerre.models.loading import load_model, model_folder, weights_hash
from daguerre.scoring.calibration import Calibration, fit, save_calibrations
from daguerre.scoring.decisions import label_texts

FIT_SHARE = 3
"""One document in this many is for fitting."""
MIN_FIT = 2
MAJORITY = "always the majority"
Scores = tuple[list[float], float, int]
"""Of one question: its labels' scores, seconds, computed tokens."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """One method (`way`) over the questions of the test part.

    accuracy            share of right answers
    difference          to the accuracy of the baseline; its interval is of 95% and takes the questions of a document
                        together
    nats                mean of -log p(right label); None where a right label had probability 0
    brier               mean over questions of sum over labels of (p - 1[right])^2, from 0 to 2
    calibration_error   of the answers' probabilities, see `statistics.calibration_error`
    bins                what that error is computed from
    """

    way: str
    accuracy: float
    difference: float
    difference_interval: tuple[float, float] | None
    nats: float | None
    brier: float
    calibration_error: float
    bins: tuple[Bin, ...]


@dataclass(frozen=True, kw_only=True)
class QuestionsOutcome:
    """One kind of questions.

    labels            how many a question has
    num, fitted       questions answered for the figures, and for the calibration
    documents         that the former are from
    majority          the baseline; its label, or the place by nearness where every question has other labels
    figures           uncalibrated; with a temperature; and, where all questions have the same labels, with their biases
    temperature       fitted without biases
    calibration       of the last of `figures`
    decisions_per_second  one question per call, in one process, the mean
    rows              tokens computed in a call, the mean
    """

    kind: str
    labels: int
    num: int
    fitted: int
    documents: int
    majority_label: str
    majority: Figures
    figures: tuple[Figures, ...]
    temperature: float
    calibration: Calibration
    decisions_per_second: float
    rows: float


def split_documents(documents: Sequence[Document], seed: int = 0) -> tuple[list[Document], list[Document]]:
    """Documents to fit to and documents to test on, in an order hashed from `seed`. DataError for fewer than two."""
    if len(documents) < 2:
        raise DataError("decisions are fitted to some documents and tested on others: give two files or more")
    ordered = sorted(documents, key=lambda document: hashed_order(seed, "part", document.sha256))
    num = max(1, len(ordered) // FIT_SHARE)
    return ordered[:num], ordered[num:]


def make_all(model: Model, documents: Sequence[Document], limit: int, seed: int) -> dict[str, list[QuestionExample]]:
    """Questions of every kind that the documents have at least MIN_FIT of, and the model can be asked."""
    out = {}
    for kind in KINDS:
        made = make_questions(documents, kind, limit, model.config.max_positions, seed=seed)
        out[kind] = [example for example in made if _can_be_asked(model, example)]
    return {kind: questions for kind, questions in out.items() if len(questions) >= MIN_FIT}


def _can_be_asked(model: Model, example: QuestionExample) -> bool:
    """Whether the model has positions for the question, and something before its labels where it needs that."""
    try:
        label_texts(model.config, model.tokenizer, example.state, example.question)
    except InputError:
        return False
    return True


def fit_all(
    model: Model, examples: Mapping[str, Sequence[QuestionExample]], workers: int = 1, progress: Progress = no_progress
) -> dict[str, Calibration]:
    """The calibration of every kind, fitted to its questions."""
    out = {}
    for kind, questions in examples.items():
        scores, truth, _ = answer_all(model, questions, workers, progress, kind)
        out[kind] = fit(scores, truth, _labels(kind, questions))
    return out


def calibrate_folder(
    name: str,
    documents: Sequence[Document] | None = None,
    limit: int = 250,
    *,
    seed: int = 0,
    workers: int = 1,
    progress: Progress = no_progress,
) -> tuple[Path, dict[str, Calibration]]:
    """Fit a model's calibrations to at most `limit` questions of each kind, and write them into its folder.

    documents: None: the frozen held-out sample. Those that `split_documents` gives for fitting are used. DataError
    where no question can be made of them.
    """
    if limit < MIN_FIT or workers < 1:
        raise InputError(f"questions must be {MIN_FIT} or more and workers 1 or more, not {limit} and {workers}")
    folder = model_folder(name)
    model = Model(*load_model(folder))
    to_fit, _ = split_documents(load_frozen() if documents is None else documents, seed)
    examples = make_all(model, to_fit, limit, seed)
    if not examples:
        raise DataError("no question can be made that fits the model: give Python files that parse")
    fitted = fit_all(model, examples, workers, progress)
    return save_calibrations(folder, weights_hash(folder), fitted), fitted


def measure_kind(
    model: Model,
    to_fit: Sequence[QuestionExample],
    to_test: Sequence[QuestionExample],
    kind: str,
    workers: int = 1,
    progress: Progress = no_progress,
) -> QuestionsOutcome:
    """Fit to one list of questions and measure on the other."""
    fit_scores, fit_truth, _ = answer_all(model, to_fit, workers, progress, f"{kind}, to fit")
    scores, truth, costs = answer_all(model, to_test, workers, progress, kind)
    labels = _labels(kind, to_fit)
    names = labels or [str(place) for place in range(scores.shape[1])]
    shares = np.bincount(fit_truth, minlength=scores.shape[1]) / len(fit_truth)
    temperature = fit(fit_scores, fit_truth)
    calibrations = {"uncalibrated": Calibration(), "temperature": temperature}
    if labels is not None:
        calibrations["temperature and biases"] = fit(fit_scores, fit_truth, labels)
    probabilities = {name: np.exp(each.log_probabilities(scores, names)) for name, each in calibrations.items()}
    group = np.unique([example.document.sha256 for example in to_test], return_inverse=True)[1]
    majority_right = truth == shares.argmax()
    majority, *figures = (
        _figures(name, probs_NL, truth, majority_right, group)
        for name, probs_NL in ({MAJORITY: np.tile(shares, (len(truth), 1))} | probabilities).items()
    )
    return QuestionsOutcome(
        kind=kind,
        labels=scores.shape[1],
        num=len(truth),
        fitted=len(fit_truth),
        documents=len(set(group.tolist())),
        majority_label=names[int(shares.argmax())],
        majority=majority,
        figures=tuple(figures),
        temperature=temperature.temperature,
        calibration=list(calibrations.values())[-1],
        decisions_per_second=len(truth) / costs[:, 0].sum(),
        rows=float(costs[:, 1].mean()),
    )


def answer_all(
    model: Model, examples: Sequence[QuestionExample], workers: int, progress: Progress, part: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores (N, L), the right labels' indices (N,), and seconds and computed tokens (N, 2), one question per call."""
    answers = map_examples(_Answering(model), examples, workers, partial(progress, part))
    scores = np.array([scores for scores, _, _ in answers])
    costs = np.array([(seconds, computed) for _, seconds, computed in answers])
    return scores, np.array([example.truth for example in examples]), costs


@dataclass(frozen=True)
class _Answering:
    model: Model

    def __call__(self, example: QuestionExample) -> Scores:
        began = time.perf_counter()
        (answer,) = self.model.decide(example.state, [example.question])
        seconds = time.perf_counter() - began
        return list(answer.scores.values()), seconds, answer.usage.computed_tokens


def _labels(kind: str, questions: Sequence[QuestionExample]) -> list[str] | None:
    """The labels that all questions of a kind have; None where every question has other labels."""
    return None if kind in FREE else list(questions[0].question.texts)


def _figures(
    way: str, probs_NL: np.ndarray, truth: np.ndarray, majority_right: np.ndarray, group: np.ndarray
) -> Figures:
    rows = np.arange(len(truth))
    right = probs_NL.argmax(axis=1) == truth
    confidence = probs_NL.max(axis=1)
    difference = right.astype(float) - majority_right
    interval = ratio_interval(difference, np.ones(len(truth)), group)
    chosen = probs_NL[rows, truth]
    bins = reliability(confidence, right)
    return Figures(
        way=way,
        accuracy=float(right.mean()),
        difference=float(difference.mean()),
        difference_interval=interval,
        nats=float(-np.log(chosen).mean()) if chosen.all() else None,
        brier=float(((probs_NL - np.eye(probs_NL.shape[1])[truth]) ** 2).sum(axis=1).mean()),
        calibration_error=calibration_error(bins),
        bins=tuple(bins),
    )
