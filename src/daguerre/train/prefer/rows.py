"""Rows of preference files, whatever their format, as two texts with the same prompt.

    {"prompt", "chosen", "rejected"}       texts; or lists of messages; an answer to messages may be a text
    {"chosen", "rejected"}                 whole conversations, or whole texts, which begin alike (TRL's)
    {"input": {"messages", "tools"}, "preferred_output", "non_preferred_output"}     OpenAI's

"tools" may stand beside lists of messages. InputError, in a few words, for a row that none of them fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from daguerre.errors import InputError
from daguerre.train.sft.formats import ANSWERS, Row, fields_of, read_row
from daguerre.train.sft.rendering import Renderer
from daguerre.train.sft.texts import Text

SIDES = ("chosen", "rejected")
OPENAI = ("input", "preferred_output", "non_preferred_output")


@dataclass(frozen=True)
class PairReader:
    """Makes the two texts of a row, the chosen one first. `ends`: plain texts get an end of text."""

    ends: bool

    def __call__(self, renderer: Renderer, row: object, longest: int) -> list[Text]:
        prompt, answers, tools = read_preference(row)
        texts = [self._text(renderer, prompt, answer, tools, side) for answer, side in zip(answers, SIDES, strict=True)]
        first, second = (int(np.flatnonzero(text.answer)[0]) for text in texts)
        if first != second or not np.array_equal(texts[0].tokens[:first], texts[1].tokens[:first]):
            raise InputError("its two answers do not follow the same prompt")
        if np.array_equal(texts[0].tokens, texts[1].tokens):
            raise InputError("its two answers are the same")
        if max(len(text.tokens) for text in texts) > longest:
            raise InputError(f"one of its texts is longer than {longest} tokens")
        return texts

    def _text(self, renderer: Renderer, prompt: Any, answer: Any, tools: Any, side: str) -> Text:
        if not answer:
            raise InputError(f"its {side} answer is empty")
        texts = renderer.texts(read_row({"prompt": prompt, "completion": answer, "tools": tools}))
        if len(texts) > 1:
            raise InputError(f"its {side} answer has several turns that the chat template writes apart: give the last")
        (text,) = texts
        if self.ends or not isinstance(answer, str) or renderer.ends_itself(answer):
            return text
        return Text(text.tokens[:-1], text.answer[:-1])


def read_preference(row: object) -> tuple[Any, tuple[Any, Any], Any]:
    """The prompt, the chosen and the rejected answer, all texts or all lists of messages; and the tools, or None."""
    row = fields_of(row)
    if row.keys() >= set(OPENAI):
        return _openai(row)
    if not row.keys() >= set(SIDES):
        has = ", ".join(map(str, list(row)[:6])) or "none"
        raise InputError(
            f"its keys ({has}) are none of prompt, chosen and rejected; input, preferred_output and "
            "non_preferred_output"
        )
    answers = row["chosen"], row["rejected"]
    prompt, tools = row.get("prompt"), row.get("tools")
    if isinstance(prompt, list):
        return prompt, _messages(answers), tools
    if prompt is None and all(isinstance(answer, list) for answer in answers):
        return *_without_common_turns(*answers), tools
    if not all(isinstance(answer, str) for answer in answers) or not isinstance(prompt, str | None):
        raise InputError("its prompt and its answers are neither texts nor lists of messages")
    return (prompt, answers, None) if prompt is not None else (*_without_common_words(*answers), None)


def _openai(row: Row) -> tuple[Any, tuple[Any, Any], Any]:
    given = row["input"]
    if not isinstance(given, Mapping) or not isinstance(given.get("messages"), list):
        raise InputError("its input is no object with messages")
    return given["messages"], _messages((row[OPENAI[1]], row[OPENAI[2]])), given.get("tools")


def _messages(answers: tuple[Any, Any]) -> tuple[Any, Any]:
    """Answers to messages as lists of messages: a text is one, and so is a message alone."""
    made = []
    for answer in answers:
        if isinstance(answer, str):
            answer = [{"role": ANSWERS, "content": answer}] if answer else []
        made.append([answer] if isinstance(answer, Mapping) else answer)
    if not all(isinstance(answer, list) for answer in made):
        raise InputError("its answers are neither texts nor lists of messages")
    return made[0], made[1]


def _without_common_turns(chosen: list[Any], rejected: list[Any]) -> tuple[Any, tuple[Any, Any]]:
    """The turns that both begin with, and what each goes on with."""
    num = 0
    while num < min(len(chosen), len(rejected)) and chosen[num] == rejected[num]:
        num += 1
    return chosen[:num], (chosen[num:], rejected[num:])


def _without_common_words(chosen: str, rejected: str) -> tuple[str, tuple[str, str]]:
    """The text that both begin with, up to a blank or a line break, and what each goes on with."""
    num = next((place for place, both in enumerate(zip(chosen, rejected, strict=False)) if both[0] != both[1]), None)
    common = chosen[: min(len(chosen), len(rejected)) if num is None else num]
    num = max(common.rfind(" "), common.rfind("\n")) + 1
    return chosen[:num], (chosen[num:], rejected[num:])
