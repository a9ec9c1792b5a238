"""Bodies of decisions, as two vendors published them, and the questions that they become.

Inception's (and llama.cpp's /v1/systemone) has a `state` and a dict of `questions`; OpenAI's has an `input` and a list.

The template. A base model continues a text, so a question becomes one, after the state:

    STATE

    INSTRUCTIONS
    LABEL: DESCRIPTION
    ...
    Answer: LABEL

Parts that are missing are left out; without instructions the question's id or name stands there. A line has a label
alone where it has no description. Labels are those of a choice; "true" and "false"; and the levels' numbers from 0. The
line break after the answer ends it, so a label may begin with another one. Values that are no strings are written as
JSON. A question's own `daguerre` object replaces the template.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictStr

from daguerre.http.errors import ApiError
from daguerre.server.protocol.common import Body

Json = str | dict[str, Any] | list[Any]
MAX_CHOICES = 255
MAX_QUESTIONS = 400


class OwnTemplate(BaseModel):
    """A question in the caller's words: the text between the state and each label, and after it.

    labels       the texts that the labels write, in their order (true before false); None: the labels as they are
    calibration  of these labels: one that the model has
    """

    model_config = ConfigDict(extra="forbid")

    before: str | None = None
    after: str = ""
    labels: list[str] | None = None
    calibration: str | None = None


class AnyQuestion(Body):
    """What all questions may have."""

    instructions: Json | None = None
    daguerre: OwnTemplate = Field(default_factory=OwnTemplate)


class TrueFalse(Body):
    """When a statement is true, and when it is false."""

    true: Json | None = None
    false: Json | None = None


class Noul(AnyQuestion):
    """Whether a statement is true."""

    type: Literal["noul"]
    criteria: TrueFalse | None = None


class ChoiceOf(AnyQuestion):
    """One of labels, each with a description or None."""

    type: Literal["choice"]
    criteria: dict[str, Json | None] = Field(min_length=1, max_length=MAX_CHOICES)


class ScoreOf(AnyQuestion):
    """One of levels in order, the lowest first."""

    type: Literal["score"]
    criteria: list[Json] = Field(min_length=1, max_length=MAX_CHOICES)


class StateBody(Body):
    """Inception's body."""

    model: str | None = None
    state: Json
    questions: dict[str, Annotated[Noul | ChoiceOf | ScoreOf, Field(discriminator="type")]] = Field(
        min_length=1, max_length=MAX_QUESTIONS
    )


class OpenAIQuestion(AnyQuestion):
    """A question of OpenAI's."""

    instructions: str | list[dict[str, Any]]
    name: str | None = None


class Predicate(OpenAIQuestion):
    """Whether a statement is true."""

    type: Literal["predicate"]


class Option(Body):
    """A choice. A string and a boolean of the same text are two choices."""

    value: StrictStr | StrictBool
    description: str | None = None


class Options(OpenAIQuestion):
    """One of several choices."""

    type: Literal["choice"]
    choices: list[Option] = Field(min_length=2, max_length=MAX_CHOICES)


class Level(Body):
    """A level of a score."""

    label: str
    description: str | None = None


class Levels(OpenAIQuestion):
    """One of levels in order, the lowest first."""

    type: Literal["score"]
    levels: list[Level] = Field(min_length=2, max_length=MAX_CHOICES)


class InputBody(Body):
    """OpenAI's body."""

    model: str | None = None
    input: str | list[dict[str, Any]]
    questions: list[Annotated[Predicate | Options | Levels, Field(discriminator="type")]] = Field(
        min_length=1, max_length=MAX_QUESTIONS
    )


def as_text(value: Json) -> str:
    """A text as it is; anything else as JSON. ApiError for what JSON cannot hold, or for deep nesting."""
    try:
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        raise ApiError("a value is no JSON, such as NaN, or is nested too deeply: correct it") from None


def template(instructions: str, lines: Sequence[tuple[str, Json | None]]) -> str:
    """The text between a state and the label: all but the state and the answer of the template above."""
    rows = [label if text is None else f"{label}: {as_text(text)}" for label, text in lines]
    return "\n".join(["\n", instructions, *rows, "Answer:"]) if instructions else "\n".join(["\n", *rows, "Answer:"])


def criteria_of(question: TrueFalse | None) -> list[tuple[str, Json | None]]:
    """The lines of the criteria that there are."""
    pairs: Mapping[str, Json | None] = {} if question is None else {"true": question.true, "false": question.false}
    return [(label, text) for label, text in pairs.items() if text is not None]
