"""Decisions in a ledger: what a record of kind "decision" holds, and what the model says of it again.

In the clear are the hashes of the request and of the answers, how many questions there were, and the forwards. Sealed
are the state, the questions with the calibrations that were applied, and of each answer the probabilities and scores.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from daguerre.audit.canonical import plain, salted
from daguerre.model import Model
from daguerre.scoring.calibration import Calibration
from daguerre.scoring.decisions import Choice, Question, QuestionAnswer, Score, YesNo

KINDS: dict[str, type[Question]] = {"yes_no": YesNo, "choice": Choice, "score": Score}
NAMES = {kind: name for name, kind in KINDS.items()}


def decision(
    state: str, questions: Sequence[Question], context: str, answers: Sequence[QuestionAnswer]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a record of a decision has beside its head: in the clear, and sealed."""
    asked = [_facts(question, answer) for question, answer in zip(questions, answers, strict=True)]
    request = {"operation": "decide", "arguments": {"state": state, "questions": asked, "context": context}}
    output = [
        {"answer": one.answer, "probabilities": plain(one.probabilities), "scores": plain(one.scores)}
        for one in answers
    ]
    salt, forwards = secrets.token_hex(32), answers[0].usage.forwards if answers else 0
    clear = {
        "input": {"sha256": salted(salt, request)},
        "output": {"sha256": salted(salt, output), "questions": len(asked), "forwards": forwards},
    }
    return clear, {"salt": salt, "request": request, "output": output}


def _facts(question: Question, answer: QuestionAnswer) -> dict[str, Any]:
    own = {one.name: plain(getattr(question, one.name)) for one in fields(question)}
    return {"kind": NAMES[type(question)], **own, "calibration": plain(answer.calibration)}


def _question(facts: Mapping[str, Any]) -> Question:
    own = {name: value for name, value in facts.items() if name != "kind"}
    return KINDS[facts["kind"]](**own | {"calibration": Calibration(**facts["calibration"])})


def decided_again(model: Model, content: Mapping[str, Any], relative: float, rounding: float) -> Iterator[str]:
    """Where the model's answers are others than those of a record. relative: by what share of a score, and `rounding`
    nats more, two computations may differ.
    """
    arguments = content["request"]["arguments"]
    questions = [_question(facts) for facts in arguments["questions"]]
    found = model.decide(arguments["state"], questions, arguments["context"])
    for number, (question, said, again) in enumerate(zip(questions, content["output"], found, strict=True)):
        labels, nats = said["scores"], rounding + 2 * relative * max(1.0, *map(abs, again.scores.values()))
        if labels.keys() != again.scores.keys() or said["probabilities"].keys() != labels.keys():
            yield f"question {number} has other labels than its answer"
            continue
        for label, score in again.scores.items():
            if abs(labels[label] - score) > nats:
                yield f"question {number}: the score of a label is {labels[label]:.6g}, in the replay {score:.6g}"
        if max(abs(said["probabilities"][label] - again.probabilities[label]) for label in labels) > nats:
            yield f"question {number}: its probabilities differ from those of the replay"
        if said["answer"] != question.value(max(said["probabilities"], key=said["probabilities"].__getitem__)):
            yield f"question {number}: its answer is not the likeliest label"
