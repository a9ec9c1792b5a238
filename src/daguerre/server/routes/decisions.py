"""Decisions: probabilities of labels, all questions of a request in few forwards and no text written."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request

from daguerre.cancellation import current_cancellation
from daguerre.errors import InputError
from daguerre.http.errors import ApiError
from daguerre.scoring.decisions import Choice, Question, QuestionAnswer, YesNo
from daguerre.server.models import Served
from daguerre.server.protocol.common import validated
from daguerre.server.protocol.decisions import (
    ChoiceOf,
    InputBody,
    Json,
    Noul,
    Options,
    Predicate,
    ScoreOf,
    StateBody,
    as_text,
    criteria_of,
    template,
)

router = APIRouter()
ROWS = 2048
"""Rows of a forward beside those of the state, about. The memory of a forward grows with their square."""


@dataclass(frozen=True)
class LabeledQuestion:
    """A question with its labels' texts, in the order of its labels.

    name   for errors
    truth  whether the labels are true and false
    """

    name: str
    truth: bool
    before: str
    texts: tuple[str, ...]
    after: str
    calibration: str | None

    def question(self) -> Question:
        """As the library takes it. ApiError, naming the question."""
        around: dict[str, Any] = {"before": self.before, "after": self.after, "calibration": self.calibration}
        try:
            if self.truth:
                return YesNo(yes=self.texts[0], no=self.texts[1], **around)
            return Choice(labels=self.texts, **around)
        except InputError as error:
            raise ApiError(f"question {self.name!r}: {error}", param=f"questions.{self.name}") from None


@router.post("/v1/decisions", response_model=None)
async def decisions(request: Request, body: dict[str, Any]) -> dict[str, Any]:
    """Answer questions about a text. The body is Inception's (state, questions) or OpenAI's (input, questions)."""
    if ("state" in body) == ("input" in body):
        raise ApiError("a decision is about a `state` or an `input`: give one of the two", param="state")
    return await (_by_state(request, body) if "state" in body else _by_input(request, body))


@router.post("/v1/systemone", response_model=None)
async def systemone(request: Request, body: dict[str, Any]) -> dict[str, Any]:
    """Answer questions about a text. The path is llama.cpp's, the body Inception's."""
    for name in ("files", "images"):
        if body.get(name):
            raise ApiError(f"{name} are not read, only text: leave it out", param=name, code="unsupported")
    return await _by_state(request, body)


async def _by_state(request: Request, raw: dict[str, Any]) -> dict[str, Any]:
    body = validated(StateBody, raw)
    served = await asyncio.to_thread(request.app.state.pool.get, body.model)
    asked = [_asked(name, as_text(one.instructions or name), one) for name, one in body.questions.items()]
    answers, num = await asyncio.to_thread(_decide, served, as_text(body.state), asked)
    out = {
        name: _state_answer(one, answer) for (name, one), answer in zip(body.questions.items(), answers, strict=True)
    }
    return {"model": served.name, "answers": out, "usage": {"input_tokens": num, "output_tokens": 0}}


async def _by_input(request: Request, raw: dict[str, Any]) -> dict[str, Any]:
    body = validated(InputBody, raw)
    served = await asyncio.to_thread(request.app.state.pool.get, body.model)
    asked = [
        _asked(one.name or str(number), _parts(one.instructions, f"questions.{number}"), one)
        for number, one in enumerate(body.questions)
    ]
    state = body.input if isinstance(body.input, str) else "\n\n".join(map(_item, body.input))
    answers, num = await asyncio.to_thread(_decide, served, state, asked)
    usage = {
        "input_tokens": num,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 0,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": num,
    }
    out = [_input_answer(one, answer) for one, answer in zip(body.questions, answers, strict=True)]
    return {"model": served.name, "answers": out, "usage": usage}


AnyOf = Noul | ChoiceOf | ScoreOf | Predicate | Options | Any


def _lines(one: AnyOf) -> list[tuple[str, Json | None]]:
    """The labels of a question and their descriptions; of criteria for true and false those that there are."""
    if isinstance(one, Noul):
        return criteria_of(one.criteria)
    if isinstance(one, ChoiceOf):
        return list(one.criteria.items())
    if isinstance(one, ScoreOf):
        return [(str(number), level) for number, level in enumerate(one.criteria)]
    if isinstance(one, Predicate):
        return []
    if isinstance(one, Options):
        texts = [each.value if isinstance(each.value, str) else str(each.value).lower() for each in one.choices]
        return [(text, each.description) for text, each in zip(texts, one.choices, strict=True)]
    texts = [level.label + (f", {level.description}" if level.description else "") for level in one.levels]
    return [(str(number), text) for number, text in enumerate(texts)]


def _asked(name: str, instructions: str, one: AnyOf) -> LabeledQuestion:
    """A question by the template, or by its own."""
    own, lines, truth = one.daguerre, _lines(one), isinstance(one, Noul | Predicate)
    labels = ["true", "false"] if truth else [label for label, _ in lines]
    where = f"questions.{name}.daguerre"
    if own.before is None:
        if own.labels is not None or own.after:
            message = f"question {name!r}: labels and after belong to a template of its own: give `before`, too"
            raise ApiError(message, param=f"{where}.before")
        texts = tuple(f" {label}" for label in labels)
        return LabeledQuestion(name, truth, template(instructions, lines), texts, "\n", own.calibration)
    if own.labels is not None and len(own.labels) != len(labels):
        message = f"question {name!r} has {len(labels)} labels and {len(own.labels)} texts of labels: give one for each"
        raise ApiError(message, param=f"{where}.labels")
    return LabeledQuestion(name, truth, own.before, tuple(own.labels or labels), own.after, own.calibration)


def _decide(served: Served, state: str, asked: Sequence[LabeledQuestion]) -> tuple[list[dict[str, float]], int]:
    """(the probabilities of each question's texts, tokens read). Questions with one label are not asked."""
    with served.engine.beside.taken(current_cancellation().owner):
        return _decided(served, state, asked)


def _decided(served: Served, state: str, asked: Sequence[LabeledQuestion]) -> tuple[list[dict[str, float]], int]:
    encode = served.model.tokenizer.encode
    sizes = [len(encode(one.before)) for one in asked]
    several = [one for one in asked if len(one.texts) > 1]
    found: dict[int, dict[str, float]] = {}
    for group in _groups(several, encode):
        answers: list[QuestionAnswer] = served.engine.model.decide(
            state, [one.question() for one in group], context="whole"
        )
        found |= {id(one): answer.probabilities for one, answer in zip(group, answers, strict=True)}
    certain = (dict.fromkeys(one.texts, 1.0) for one in asked)
    return [found.get(id(one), sure) for one, sure in zip(asked, certain, strict=True)], len(encode(state)) + sum(sizes)


def _groups(asked: Sequence[LabeledQuestion], encode: Any) -> Iterator[list[LabeledQuestion]]:
    """Questions that are answered in one forward."""
    group, rows = list[LabeledQuestion](), 0
    for one in asked:
        size = len(encode(one.before)) + sum(len(encode(text + one.after)) for text in one.texts)
        if group and rows + size > ROWS:
            yield group
            group, rows = [], 0
        group.append(one)
        rows += size
    if group:
        yield group


def _state_answer(one: Noul | ChoiceOf | ScoreOf, probabilities: dict[str, float]) -> dict[str, Any]:
    values = list(probabilities.values())
    if isinstance(one, Noul):
        return {"type": "noul", "noul": values[0]}
    best = max(range(len(values)), key=values.__getitem__)
    labels = list(one.criteria) if isinstance(one, ChoiceOf) else [str(number) for number in range(len(values))]
    facts = {"confidence": values[best], "probabilities": dict(zip(labels, values, strict=True))}
    if isinstance(one, ChoiceOf):
        return {"type": "choice", "choice": labels[best], **facts}
    legend = dict(zip(labels, one.criteria, strict=True))
    return {"type": "score", "score": _mean(values), **facts, "legend": legend}


def _input_answer(one: Any, probabilities: dict[str, float]) -> dict[str, Any]:
    values = list(probabilities.values())
    head = {"type": one.type, "name": one.name}
    if isinstance(one, Predicate):
        return {**head, "probability": values[0]}
    best = max(range(len(values)), key=values.__getitem__)
    if isinstance(one, Options):
        pairs = zip(one.choices, values, strict=True)
        each = [{"value": choice.value, "probability": value} for choice, value in pairs]
        choice = one.choices[best].value
        return {**head, "choice": choice, "confidence": values[best], "probabilities": each}
    levels = [
        {"label": level.label, "value": number, "probability": value}
        for number, (level, value) in enumerate(zip(one.levels, values, strict=True))
    ]
    return {**head, "score": _mean(values), "confidence": values[best], "probabilities": levels}


def _mean(values: Sequence[float]) -> float:
    return sum(number * value for number, value in enumerate(values))


def _parts(content: Any, where: str) -> str:
    """The text of OpenAI's content: a text, or parts. ApiError for parts that are no text."""
    if isinstance(content, str):
        return content
    texts = []
    for part in content if isinstance(content, list) else [None]:
        part = part if isinstance(part, dict) else {}
        kind = part.get("type")
        if kind == "input_json" and "data" in part:
            texts.append(as_text(part["data"]))
        elif kind in ("input_text", "output_text", "text") and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            raise ApiError(f"{where} has a part that is no text ({kind}): only text is read", param=where)
    return "".join(texts)


def _item(item: dict[str, Any]) -> str:
    """An item of an input as text: a message with its role, a call of a function, or its output."""
    kind = item.get("type", "message")
    if kind == "message" and isinstance(item.get("role"), str):
        return f"{item['role'].capitalize()}: {_parts(item.get('content'), 'input')}"
    if kind in ("function_call", "custom_tool_call") and isinstance(item.get("name"), str):
        return f"Call: {item['name']}({item.get('arguments', item.get('input', ''))})"
    if kind in ("function_call_output", "custom_tool_call_output"):
        return f"Output: {_parts(item.get('output'), 'input')}"
    raise ApiError(
        f"input has an item that is not known ({kind!r:.40}): send messages, calls and outputs", param="input"
    )
