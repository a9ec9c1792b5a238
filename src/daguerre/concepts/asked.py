"""Concepts without a rule: a chat model is asked, span by span, whether a text has them, by one `decide` for all.

A span is a paragraph, or some sentences of a long one. What the model says is calibrated, for each concept, on half of
what a person has marked; how well it agrees with the other half decides whether the concept is taken.

Letters: C concepts, E marks.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from daguerre.concepts.own import Mark, OwnConcept, OwnTaxonomy
from daguerre.concepts.source import Span
from daguerre.errors import InputError, UnsupportedError, shown
from daguerre.model import Model
from daguerre.scoring.agreement import RaterAgreement, agreement
from daguerre.scoring.calibration import Calibration, fit
from daguerre.scoring.decisions import YesNo

LONGEST = 400
"""Characters of a span, about: a longer paragraph is cut at ends of sentences."""
MOST = 1000
"""Characters of a span, at most."""
FEWEST = 4
"""Marks of either kind that an asked concept needs: half of them are held out."""
TIMED = 4
"""Spans by which the time is measured."""
PARAGRAPH, SENTENCE = re.compile(r"\S(?:(?!\n[ \t]*\n).)*", re.DOTALL), re.compile(r"(?<=[.!?])\s+(?=\S)")
TEXT, QUESTION = "\ue000", "\ue001"
"""Characters in whose place a template's text has a span and a question."""
ASKED = f'Here is a text:\n"""\n{TEXT}\n"""\n\nDoes it have this? {QUESTION}\nAnswer Yes or No.'
LABELS = ("yes", "no")


def text_spans(text: str) -> Iterator[Span]:
    """The spans of a text: paragraphs, without white space around them, of which long ones are cut."""
    for found in PARAGRAPH.finditer(text):
        start, end = found.start(), found.start() + len(found[0].rstrip())
        cuts = [cut.span() for cut in SENTENCE.finditer(text, start, end)]
        begins, ends = [start, *(after for _, after in cuts)], [*(before for before, _ in cuts), end]
        first, last = start, start
        for begin, stop in zip(begins, ends, strict=True):
            if stop - first > LONGEST and begin > first:
                yield from _cut(first, last)
                first = begin
            last = stop
        yield from _cut(first, last)


def _cut(start: int, end: int) -> Iterator[Span]:
    """A span in parts of at most MOST characters."""
    yield from ((cut, min(cut + MOST, end)) for cut in range(start, end, MOST))


class ConceptAsker:
    """A chat model that says which concepts a span has. UnsupportedError for one without a chat template."""

    def __init__(
        self, model: Model, concepts: Sequence[OwnConcept], calibrations: Mapping[str, Calibration] | None = None
    ) -> None:
        self._model, self.concepts, self.calibrations = model, list(concepts), dict(calibrations or {})
        template = getattr(model.tokenizer, "chat_template", None)
        if template is None:
            raise UnsupportedError("a model that is asked for concepts needs a chat template: give --ask a chat model")
        whole = template.render([{"role": "user", "content": ASKED}])
        first = list(model.config.first)
        if first and model.tokenizer.encode(whole)[: len(first)] == first:
            whole = whole.removeprefix(template.tokens.get("bos_token", ""))
        self._head, _, rest = whole.partition(TEXT)
        self._between, _, self._tail = rest.partition(QUESTION)

    def can_ask(self, text: str) -> bool:
        """Whether a text has no text of a special token, which would not be read as text."""
        return not self._model.tokenizer.find_special(text)

    def scores(self, text: str, concepts: Sequence[OwnConcept]) -> np.ndarray:
        """Log-probabilities of "yes" and "no", before calibration, float64 (C, 2)."""
        questions = [YesNo(before=f"{self._between}{one.means}{self._tail}", yes="Yes", no="No") for one in concepts]
        answers = self._model.decide(f"{self._head}{text}", questions)
        return np.array([[answer.scores[label] for label in LABELS] for answer in answers])

    def says(self, concept: str, scores: np.ndarray) -> np.ndarray:
        """Whether a concept is there, bool (E,), by scores (E, 2)."""
        found = self.calibrations.get(concept, Calibration()).log_probabilities(scores, LABELS)
        out: np.ndarray = found[..., 0] > found[..., 1]
        return out

    def label(self, text: str) -> list[tuple[str, int, int]] | None:
        """The spans of a text that have concepts, each with the name of one; None for a text that cannot be asked
        about, since it has the text of a special token.
        """
        if not self.can_ask(text):
            return None
        out = list[tuple[str, int, int]]()
        for start, end in text_spans(text):
            scores = self.scores(text[start:end], self.concepts)
            out += [
                (one.name, start, end)
                for one, row in zip(self.concepts, scores, strict=True)
                if self.says(one.name, row)
            ]
        return out


@dataclass(frozen=True)
class JudgedConcept:
    """How a rule, or the model that is asked, agrees with held-out marks."""

    name: str
    agreement: RaterAgreement

    def line(self, least: float) -> str:
        """What is said of it."""
        found = self.agreement
        left = "" if found.kappa >= least else f": below {least:g}, left out"
        return f"{self.name}: kappa {found.kappa:.2f} [{found.low:.2f}, {found.high:.2f}] of {found.cases} marks{left}"


def judged(
    own: OwnTaxonomy, asker: ConceptAsker | None, least: float, say: Callable[[str], None]
) -> tuple[OwnTaxonomy, ConceptAsker | None]:
    """The taxonomy and the asker with those concepts whose agreement with held-out marks is no less than `least`; what
    each has is said. Concepts with a rule and without marks stay.

    InputError for concepts that must be asked for without a model, or with too few marks.
    """
    if own.asked and asker is None:
        raise InputError(f"the concept {own.asked[0].name!r} has no rule: give it one, or a chat model by --ask")
    found = dict[str, JudgedConcept]()
    for one in own.concepts:
        marks = [*dict.fromkeys(mark for mark in own.marks if mark.concept == one.name)]
        if one in own.asked:
            assert asker is not None
            found[one.name] = judge(one, marks, asker)
        elif marks and not one.labeled:
            _check_kinds(one.name, marks)
            says = [own.numbers[one.name] in own.label(mark.text).spans[:, 0] for mark in marks]
            found[one.name] = _compared(one.name, np.array(says), marks)
    for each in found.values():
        say(each.line(least))
    kept = [one.name for one in own.concepts if one.name not in found or found[one.name].agreement.kappa >= least]
    own = own.only(kept)
    if asker is not None:
        asker.concepts = own.asked
    return own, asker if own.asked else None


def judge(one: OwnConcept, marks: Sequence[Mark], asker: ConceptAsker) -> JudgedConcept:
    """Calibrate a concept on half of its marks; how the model agrees with the others. InputError for too few."""
    halves = _halves(one.name, [mark for mark in marks if asker.can_ask(mark.text)])
    scores = [np.stack([asker.scores(mark.text, [one])[0] for mark in half]) for half in halves]
    truth = np.array([LABELS.index("yes" if mark.has else "no") for mark in halves[0]])
    asker.calibrations[one.name] = calibrated(scores[0], truth)
    return _compared(one.name, asker.says(one.name, scores[1]), halves[1])


def calibrated(scores: np.ndarray, truth: np.ndarray) -> Calibration:
    """The calibration of scores (E, 2) with these truths (E,), places in LABELS. Its bias is held to that which parts
    the means of both kinds in the middle: a model that mostly says no is not held to say so.
    """
    margin = scores[:, 0] - scores[:, 1]
    middle = float(np.mean([margin[truth == kind].mean() for kind in (0, 1)]))
    found = fit(scores - np.array([middle, 0.0]), truth, LABELS)
    bias = {"yes": found.bias["yes"] - middle / found.temperature, "no": found.bias["no"]}
    return Calibration(temperature=found.temperature, bias=bias)


def _halves(name: str, marks: Sequence[Mark]) -> tuple[list[Mark], list[Mark]]:
    """Marks to calibrate on, and others to hold out, in a fixed order; both have some of either kind."""
    kinds = [sorted((mark for mark in marks if mark.has == has), key=_order) for has in (True, False)]
    if min(map(len, kinds)) < FEWEST:
        raise InputError(
            f"the concept {name!r} has {len(kinds[0])} marks that say it is there and {len(kinds[1])} that it is not, "
            f"and needs {FEWEST} or more of either: mark more texts"
        )
    _check_kinds(name, marks)
    return [mark for kind in kinds for mark in kind[::2]], [mark for kind in kinds for mark in kind[1::2]]


def _check_kinds(name: str, marks: Sequence[Mark]) -> None:
    """InputError for marks of one kind alone, and for a text that is marked both ways."""
    yes, no = ({mark.text for mark in marks if mark.has == has} for has in (True, False))
    if yes & no:
        raise InputError(f"the concept {name!r} has a text that is marked both ways: {shown(min(yes & no))}")
    if not (yes and no):
        raise InputError(f"the concept {name!r} has marks of one kind: mark texts that have it and texts that do not")


def _order(mark: Mark) -> bytes:
    return sha256(mark.text.encode("utf-8", "replace")).digest()


def _compared(name: str, says: np.ndarray, marks: Sequence[Mark]) -> JudgedConcept:
    table = np.zeros((2, 2))
    np.add.at(table, (says.astype(int), np.array([int(mark.has) for mark in marks])), 1)
    return JudgedConcept(name, agreement(table))


def spans_an_hour(own: OwnTaxonomy, asker: ConceptAsker) -> float:
    """How many spans are asked about in an hour, by the time that some marked texts take."""
    texts = [mark.text for mark in own.marks if asker.can_ask(mark.text)][:TIMED]
    began = time.monotonic()
    for text in texts:
        asker.scores(text, asker.concepts)
    return 3600 * len(texts) / max(1e-9, time.monotonic() - began)
