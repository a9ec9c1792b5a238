"""Decisions: which of a few labels belongs at a place in a text, for many questions in one forward.

A question is a template that follows a state: `before`, a label, `after`. Each label makes one text, which is encoded
as a whole, so that its tokens are those the model knows. A label's score is a log-probability:

    causal  log p(label, after | state, before), by the autoregressive distribution of mode "ar". A row sees nothing
            after it, so `after` counts by how likely it is to follow the label, which is Bayes' rule for
            p(label | before, after).
    block   the same product, left to right; each token is predicted with the rest of its block masked.
    full    log p(label | state, before, after), left to right, the label's later positions masked; `after` is seen.

Tokens that all texts of a question begin with are left out: they change no probability over its labels. The score of a
label of several tokens is exact, by the chain rule, and not a product of independent positions.

One forward holds all of it. In causal context the texts are a tree: what two texts begin with is computed once, and a
row sees only the rows of its text. In the other contexts a row may depend on what is masked after it, so every scored
token has a copy of its text, and equal copies are computed once: labels of one token share one.

In full context labels of different lengths have canvases of different lengths, and nothing corrects for length: a
long label of easy tokens wins too often. Compare labels of one length there, or fit a bias.

Letters: B copies, R rows, A wanted rows, V vocabulary.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise

import numpy as np

from daguerre.canvas import Canvas
from daguerre.decoding.context import TOKEN_LENGTH, Context, Showing, choose, context_of
from daguerre.decoding.generate import ScoredQuestions
from daguerre.decoding.result import Usage
from daguerre.errors import InputError, UnsupportedError, shown, unknown
from daguerre.kinds import TEXT, Instance, Several, Whole, check_fields
from daguerre.models.core.config import ModelConfig
from daguerre.models.forward import Forward, Layout, LogProbs
from daguerre.models.rows import Tree, plan_rows, plan_tree
from daguerre.models.session import Asking, Counts
from daguerre.models.tokenizer import Tokenizer
from daguerre.scoring.calibration import Calibration

JOINED = 2
"""Tokens that a state may have more where a question follows it than alone."""

Value = bool | int | str
QUESTIONS = "a list of YesNo, Choice and Score, a single one in brackets, too"
CALIBRATION = Instance(of=(str, Calibration), what="the name of a calibration, or one", none=True)
NUMBER = Whole(low=-(10**9), high=10**9)
"""What the ends of a score may be."""


@dataclass(frozen=True, kw_only=True)
class Question(ABC):
    """A label between two texts, after a state. Subclasses define the labels.

    before, after  the texts around the label, character by character: a space belongs to one of them or to every label
    calibration    the name of one that the model has, or a `Calibration`; None: the model's probabilities as they are
    """

    before: str = ""
    after: str = ""
    calibration: Calibration | str | None = None

    @property
    @abstractmethod
    def texts(self) -> dict[str, str]:
        """The text that each label writes."""

    @property
    def num_labels(self) -> int:
        """How many labels there are, without making their texts."""
        return len(self.texts)

    def value(self, label: str) -> Value:
        """The value of a label."""
        return label

    def expected(self, probabilities: Mapping[str, float]) -> float | None:
        """The mean of the values; None where they are not numbers."""
        return None

    def __post_init__(self) -> None:
        check_fields(self, {"before": TEXT, "after": TEXT, "calibration": CALIBRATION})
        if self.num_labels < 2:
            raise InputError(f"a question needs two labels or more, not {self.num_labels}: there is nothing to decide")
        _check_labels(self.num_labels, "the question has")
        filled = sorted(self.texts.values())
        if not filled[0]:
            raise InputError("a label has no text, so no token: give every label at least one character")
        for text, longer in pairwise(filled):
            if text == longer:
                raise InputError(f"two labels have the text {shown(text)}: make them differ")
            if longer.startswith(text) and not self.after:  # what begins with a text is sorted right behind it
                raise InputError(
                    f"{shown(longer)} begins with {shown(text)}, and no text ends the label: give the text after it, "
                    "as `after`"
                )


@dataclass(frozen=True, kw_only=True)
class YesNo(Question):
    """Labels "yes" and "no", whose texts are `yes` and `no`. The expected value is p(yes)."""

    yes: str = " True"
    no: str = " False"

    def __post_init__(self) -> None:
        check_fields(self, {"yes": TEXT, "no": TEXT})
        super().__post_init__()

    @property
    def texts(self) -> dict[str, str]:
        return {"yes": self.yes, "no": self.no}

    def value(self, label: str) -> Value:
        return label == "yes"

    def expected(self, probabilities: Mapping[str, float]) -> float | None:
        return probabilities["yes"]


@dataclass(frozen=True, kw_only=True)
class Choice(Question):
    """A question whose answer is one of `labels`. The model writes the label itself."""

    labels: Sequence[str]

    def __post_init__(self) -> None:
        check_fields(self, {"labels": Several(one=TEXT, what="a list of texts")})
        for label, another in pairwise(sorted(self.labels)):
            if label == another:
                raise InputError(f"the label {shown(label)} is given twice: leave one out")
        object.__setattr__(self, "labels", tuple(self.labels))
        super().__post_init__()

    @property
    def texts(self) -> dict[str, str]:
        return {label: label for label in self.labels}


@dataclass(frozen=True, kw_only=True)
class Score(Question):
    """A whole number from `low` to `high`, written in digits."""

    low: int
    high: int

    def __post_init__(self) -> None:
        check_fields(self, {"low": NUMBER, "high": NUMBER})
        if self.low >= self.high:
            raise InputError(f"a score from {self.low} to {self.high} has nothing to decide: give low below high")
        super().__post_init__()

    @property
    def num_labels(self) -> int:
        return self.high - self.low + 1

    @property
    def texts(self) -> dict[str, str]:
        return {str(number): str(number) for number in range(self.low, self.high + 1)}

    def value(self, label: str) -> Value:
        return int(label)

    def expected(self, probabilities: Mapping[str, float]) -> float | None:
        return sum(int(label) * probability for label, probability in probabilities.items())


@dataclass(frozen=True, kw_only=True)
class QuestionAnswer:
    """The model's answer to one question.

    answer         the value of the most probable label: True or False, a label, a number
    probabilities  by label, calibrated; they sum to one
    expected       mean of the values: p(yes), the mean score; None for a choice
    entropy        of the probabilities, in nats
    scores         log-probabilities of the labels before calibration, in nats, up to a constant that all share
    calibration    the one that was applied
    usage          of the call, all its questions together: one forward
    context        what the model was shown of the state
    """

    answer: Value
    probabilities: dict[str, float]
    expected: float | None
    entropy: float
    scores: dict[str, float]
    calibration: Calibration
    usage: Usage = field(repr=False, compare=False)
    context: Context = field(repr=False, compare=False)


@dataclass(frozen=True)
class ScoredLabel:
    """A text of one label: its tokens, `<bos>` first, of which [start, stop) are scored."""

    ids: tuple[int, ...]
    start: int
    stop: int


MOST_LABELS = 4096
"""The most labels of a question, and of the questions of one call together: each is a text that is computed."""
LIST = Several(one=Instance(of=(Question,), what=QUESTIONS), what=QUESTIONS)


@dataclass(frozen=True)
class Questions(ScoredQuestions):
    """Questions of one request. calibrations: by the names that they may give."""

    questions: Sequence[Question]
    calibrations: Mapping[str, Calibration] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self, {"questions": LIST})
        _check_labels(sum(question.num_labels for question in self.questions), "the questions have")

    def answers(
        self, config: ModelConfig, tokenizer: Tokenizer, state: str, context: Showing
    ) -> Asking[list[QuestionAnswer]]:
        """The answers, in order, by one forward; no question changes the answer of another.

        context: "auto" shows the last lines of a state that is too long, "whole" refuses it. InputError, in one line,
        for a text that does not fit; UnsupportedError for a model of another process than the absorbing one.
        """
        began = time.perf_counter()
        if config.process != "absorbing":
            raise UnsupportedError(f"a model of the {config.process} process cannot score labels")
        chosen = [_calibration(question, self.calibrations) for question in self.questions]
        shown = _shown(config, tokenizer, state, self.questions) if context == "auto" else context_of([state], [])
        (state,) = shown.texts
        texts = [label_texts(config, tokenizer, state, question) for question in self.questions]
        if not texts:
            return []
        counts = Counts()
        scores = (yield from score_texts(config, [text for several in texts for text in several], counts)).tolist()
        seconds = time.perf_counter() - began
        usage = Usage(len(tokenizer.encode(state)), 0, **asdict(counts), seconds=seconds)
        answers, first = [], 0
        for question, of_question, calibration in zip(self.questions, texts, chosen, strict=True):
            answers.append(_answer(question, calibration, scores[first : first + len(of_question)], usage, shown))
            first += len(of_question)
        return answers


def _check_labels(number: int, whose: str) -> None:
    if number > MOST_LABELS:
        raise InputError(f"{whose} {number:,} labels and {MOST_LABELS:,} is the most (MOST_LABELS): ask for fewer")


def _calibration(question: Question, known: Mapping[str, Calibration]) -> Calibration:
    given = question.calibration
    if isinstance(given, str):
        if given not in known:
            raise InputError(f"{unknown('calibration', given, known)}; `daguerre calibrate` fits those of a model")
        given = known[given]
    calibration = given or Calibration()
    calibration.check(list(question.texts))
    return calibration


def _shown(config: ModelConfig, tokenizer: Tokenizer, state: str, questions: Sequence[Question]) -> Context:
    """What is shown of a state, so that each question fits behind it: all, or its last lines."""
    asked = [question.before + text + question.after for question in questions for text in question.texts.values()]
    most = config.max_positions - len(config.first)
    room = most - JOINED - max((len(tokenizer.encode(text)) for text in asked), default=0)
    short = len(state) <= most * TOKEN_LENGTH
    if room < 1 or (short and all(len(tokenizer.encode(state + text)) <= most for text in asked)):
        return context_of([state], [])
    shown = choose(tokenizer, [state, ""], [""], room)
    return replace(shown, texts=shown.texts[:1], shown=shown.shown[:1])


def _answer(
    question: Question, calibration: Calibration, scores: Sequence[float], usage: Usage, context: Context
) -> QuestionAnswer:
    labels = list(question.texts)
    logs = calibration.log_probabilities(scores, labels)
    probabilities = dict(zip(labels, np.exp(logs).tolist(), strict=True))
    return QuestionAnswer(
        answer=question.value(labels[int(logs.argmax())]),
        probabilities=probabilities,
        expected=question.expected(probabilities),
        entropy=float(-(np.exp(logs) * np.where(np.isfinite(logs), logs, 0.0)).sum()),
        scores=dict(zip(labels, scores, strict=True)),
        calibration=calibration,
        usage=usage,
        context=context,
    )


def label_texts(config: ModelConfig, tokenizer: Tokenizer, state: str, question: Question) -> list[ScoredLabel]:
    """The texts of a question's labels. InputError when one has more tokens than the model positions."""
    whole = [state + question.before + text + question.after for text in question.texts.values()]
    ids = [(*config.first, *tokenizer.encode(text)) for text in whole]
    longest = max(map(len, ids))
    if longest > config.max_positions:
        raise InputError(
            f"state, template and label have {longest} tokens and the model {config.max_positions} positions: "
            f"shorten the state by {longest - config.max_positions} tokens or more"
        )
    shortest = min(map(len, ids))
    start = min(_num_common(ids), shortest - 1)
    if config.shift and not start:
        raise InputError(
            "this model predicts a token from the one before it, and its labels begin the text: give a state of a "
            "token or more"
        )
    if config.context != "full":
        return [ScoredLabel(text, start, len(text)) for text in ids]
    behind = min(_num_common([text[::-1] for text in ids]), shortest - start - 1)
    return [ScoredLabel(text, start, len(text) - behind) for text in ids]


def _num_common(texts: Sequence[tuple[int, ...]]) -> int:
    """How many tokens all begin with."""
    differs = (index for index, column in enumerate(zip(*texts, strict=False)) if len(set(column)) > 1)
    return next(differs, min(map(len, texts)))


def predicted_span(config: ModelConfig, text: ScoredLabel, position: int) -> tuple[int, int]:
    """The span in which a position is predicted: itself, the rest of its block, or the whole label. A block is whole
    even where the text ends before it.
    """
    if config.is_ordered:
        return position, position + 1
    if config.context == "full":
        return text.start, text.stop
    assert config.block_size is not None
    first = position // config.block_size * config.block_size
    if config.anchor == "clean" and position == first:
        return position, position + 1
    start = max(first + (config.anchor == "clean"), text.start)
    return start, min(first + config.block_size, config.max_positions)


def score_texts(config: ModelConfig, texts: Sequence[ScoredLabel], counts: Counts) -> Asking[np.ndarray]:
    """Scores of texts, float64: sums of the log-probabilities of their tokens. One batch, which counts as one forward;
    rows that predict a token are query tokens, the others prefill tokens.
    """
    batch, owners = _as_tree(config, texts) if config.is_ordered else _as_copies(config, texts)
    answers = yield list(batch)
    num_rows = sum(len(forward.tokens) for forward in batch)
    num_wanted = sum(len(np.unique(forward.wanted)) for forward in batch)
    counts.add(Counts(forwards=1, query_tokens=num_wanted, prefill_tokens=num_rows - num_wanted))
    logprobs = [answer.log_probs for answer in answers if answer.log_probs is not None]
    return np.bincount(np.concatenate(owners), np.concatenate(logprobs), minlength=len(texts))


Batch = tuple[list[Forward], list[np.ndarray]]
"""Forwards, and for each of their scored tokens the number of its text."""


def _as_tree(config: ModelConfig, texts: Sequence[ScoredLabel]) -> Batch:
    """The texts as one tree of tokens, the last of each text left out; a row sees the path to it.

    In a shifted model the row of a token predicts what follows it; else a masked row after it does.
    """
    tree, paths = Tree.of([text.ids[:-1] for text in texts])
    scored = [
        (path[position - 1], text.ids[position], number)
        for number, (text, path) in enumerate(zip(texts, paths, strict=True))
        for position in range(text.start, len(text.ids))
    ]
    node, target, owner = (np.array(column, dtype=np.int64) for column in zip(*scored, strict=True))
    tokens, places, seen, wanted = tree.tokens, plan_tree(0, tree).noisy, tree.ancestors, node
    if not config.shift:
        read, index = np.unique(node, return_inverse=True)
        num, wanted = len(tokens), len(tokens) + index.ravel()
        alone = np.concatenate([np.zeros((num, len(read)), dtype=bool), np.eye(len(read), dtype=bool)])
        seen = np.concatenate([np.concatenate([seen, seen[read]]), alone], axis=1)
        tokens = np.concatenate([tokens, np.full(len(read), config.placeholder)])
        places = np.concatenate([places, places[read] + 1])
    layout = Layout(places, np.zeros(len(tokens), dtype=np.int32), 0, None, np.ascontiguousarray(seen))
    return [Forward(tokens, layout, None, wanted.astype(np.int32), LogProbs(target))], [owner]


def _as_copies(config: ModelConfig, texts: Sequence[ScoredLabel]) -> Batch:
    """For each scored token a copy of its text up to the end of the token's span, masked from the token on.

    Equal copies are one forward.
    """
    copies: dict[tuple[tuple[int, ...], int, float], list[tuple[int, int, int]]] = {}
    for number, text in enumerate(texts):
        for position in range(text.start, text.stop):
            start, end = predicted_span(config, text, position)
            first, tail = (start, ()) if config.context == "block" else (0, text.ids[end:])
            level = (text.stop - position) / (text.stop - text.start) if config.time_input else 0.0
            key = (*text.ids[:position], *[config.placeholder] * (end - position), *tail), first, level
            copies.setdefault(key, []).append((position, text.ids[position], number))
    batch, owners = [], []
    for (ids, first, level), scored in copies.items():
        positions, target, owner = (np.array(column, dtype=np.int64) for column in zip(*scored, strict=True))
        row, start = np.array(ids, dtype=np.int64), int(positions.min())
        canvas = Canvas(row, np.zeros(len(row), dtype=bool), ((start, len(row)),), (max(first, 1), len(row)))
        plan = plan_rows(config, canvas)
        tokens = np.concatenate([plan.tokens(canvas), plan.noisy_tokens(config, canvas)])
        layout, wanted, noise = plan.layout(config, 0), plan.rows_of(positions, 0), level if config.time_input else None
        batch.append(Forward(tokens, layout, None, wanted, LogProbs(target), noise))
        owners.append(owner)
    return batch, owners
