"""Conversations as texts with answers, by the model's own chat template.

An answer is what the template writes for an assistant's message behind what it writes as the beginning of one: with
P the text of the messages before it and of that beginning, and F the text of the messages up to it, P must be the
beginning of F, and the answer is the rest, up to its last end of text. A whole conversation is one text if each F is
the beginning of the next P, and each answer but the last has an end of its own. Else, as with templates that leave
thoughts out of earlier turns, each answer is a text of its own, with what is before it as the template writes it then.

An answer with calls is written by `daguerre.ChatFormat` where that gives another text, such as behind a prompt that
opens a thought.

Answers are encoded apart from what is before them, as a model that writes them sees it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from daguerre.errors import InputError
from daguerre.models.chat_format.chat_format import ChatFormat
from daguerre.models.chat_format.named import ASSUMED
from daguerre.models.chat_messages import apart, fitted
from daguerre.models.chat_template import ChatTemplate
from daguerre.models.core.config import ModelConfig
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.sft.formats import ChatRow, Encoded, PromptAndAnswer, Template
from daguerre.train.sft.texts import Text

TRANSCRIPT = """\
{%- set names = {"system": "System", "user": "User", "assistant": "Assistant", "tool": "Tool"} -%}
{%- if tools %}Tools:
{% for tool in tools %}{{ (tool.function or tool) | tojson }}
{% endfor %}{% endif -%}
{%- for message in messages -%}
{%- if not loop.first %}{{ "\\n" }}{% endif -%}
{{ names[message.role] }}:{% if message.content %} {{ message.content }}{% endif -%}
{%- for call in message.tool_calls or [] -%}
{%- if loop.first and not message.content %} {% endif -%}
<tool_call>{"name":{{ call.function.name | tojson }},"arguments":
{%- set arguments = call.function.arguments %}{{ arguments | tojson(separators=(",", ":")) }}}</tool_call>
{%- endfor -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ "\\n" }}Assistant:{% endif -%}
"""
"""How conversations are written for a model without a chat template: as `daguerre serve` does."""
Piece = tuple[str, bool]
"""A part of a text, and whether it is an answer."""


class Renderer:
    """Makes texts of rows, for a model. InputError, in a few words, for a row that has none."""

    def __init__(self, tokenizer: Tokenizer, config: ModelConfig) -> None:
        self.tokenizer, self.config = tokenizer, config
        self.template = getattr(tokenizer, "chat_template", None) or ChatTemplate({"default": TRANSCRIPT})
        self._ends = {config.eos_id, *config.end_ids}

    def texts(self, row: PromptAndAnswer | Encoded | Template | ChatRow) -> list[Text]:
        """A row as one text, or several."""
        if isinstance(row, Encoded):
            return [self._given(row)]
        if isinstance(row, Template):
            return [self._filled(row)]
        if isinstance(row, PromptAndAnswer):
            return [self._text([(row.prompt, False), (row.completion, True)])]
        return [self._text(pieces) for pieces in self._pieces(self._apart(row))]

    def _given(self, row: Encoded) -> Text:
        """Tokens as they are, without an end that they do not have."""
        prompt = [*self.config.first, *row.prompt]  # which a request has without what every canvas begins with
        ids = np.array([*prompt, *row.answer], dtype=np.int64)
        if ids.min() < 0 or ids.max() >= self.config.vocab_size:
            raise InputError("its token ids are of another vocabulary")
        return Text(ids, np.arange(len(ids)) >= len(prompt))

    def _apart(self, talk: ChatRow) -> ChatRow:
        """A conversation whose calls are each an answer of its own, where the template takes one call in a message."""
        parts = apart(talk.messages)
        if len(parts) == len(talk.messages) or self.template.wants(bool(talk.tools)).several:
            return talk
        answers = tuple(talk.answers[number] for number, _ in parts)
        return replace(talk, messages=tuple(one for _, one in parts), answers=answers)

    def _pieces(self, talk: ChatRow) -> Iterator[list[Piece]]:
        turns = [self._turn(talk, number) for number, answer in enumerate(talk.answers) if answer]
        whole, place = list[Piece](), ""
        for before, upto in turns:
            if not before.startswith(place):
                break
            whole += [(before[len(place) :], False), (upto[len(before) :], True)]
            place = upto
        else:
            if all(map(self.ends_itself, [text for text, answer in whole if answer][:-1])):
                yield whole
                return
        for before, upto in turns:
            yield [(before, False), (upto[len(before) :], True)]

    @cached_property
    def _format(self) -> ChatFormat | None:
        """How the model writes calls, as its template shows; None: that says nothing of calls."""
        form = ChatFormat(self.template)
        try:
            return None if form.form.source == ASSUMED else form
        except InputError:  # a template that fails on a plain question
            return None

    def _called(self, form: ChatFormat, talk: ChatRow, number: int) -> tuple[str, str]:
        """`_turn` of an answer with calls, which is what the model writes where a template has another text for it."""
        tools = list(talk.tools) or None
        before = form.render(self._fitted(talk, number), tools)
        upto = form.render(self._fitted(talk, number + 1), tools, add_generation_prompt=False)
        return before, upto if upto.startswith(before) else before + form.write(talk.messages[number], tools)

    def _fitted(self, talk: ChatRow, end: int) -> list[dict[str, Any]]:
        """The first messages as the template wants them, which is how they are written when the model is asked."""
        return fitted(talk.messages[:end], self.template.wants(bool(talk.tools)))

    def _turn(self, talk: ChatRow, number: int) -> tuple[str, str]:
        """The text before answer `number`, and up to its end."""
        if talk.messages[number].get("tool_calls") and self._format is not None:
            return self._called(self._format, talk, number)
        before, upto = (
            self.template.render(self._fitted(talk, end), list(talk.tools) or None, add_generation_prompt=begins)
            for end, begins in ((number, True), (number + 1, False))
        )
        if not upto.startswith(before) or len(upto) == len(before):
            raise InputError(
                "the chat template does not begin an answer with what it writes where one begins, so answers cannot be "
                "told from prompts"
            )
        return before, upto

    def ends_itself(self, answer: str) -> bool:
        """Whether an answer has an end of text."""
        return not self._ends.isdisjoint(self.tokenizer.encode(answer, begins=False))

    def _filled(self, row: Template) -> Text:
        """A text whose gaps are filled. Each is an answer, without an end: its length is known to the caller."""
        first = self.config.first
        pieces = [(row.around[0], False)]
        for fill, after in zip(row.fills, row.around[1:], strict=True):
            pieces += [(fill, True), (after, False)]
        ids, answers = list(first), [False] * len(first)
        for text, answer in pieces:
            new = self.tokenizer.encode(text, begins=len(ids) == len(first)) if text else []
            new = new[len(first) :] if ids == first and first and new[: len(first)] == first else new
            ids += new
            answers += [answer] * len(new)
        return Text(np.array(ids, dtype=np.int64), np.array(answers, dtype=bool))

    def _text(self, pieces: list[Piece]) -> Text:
        """Tokens of pieces; each answer up to its last end of text, and with one where it has none."""
        ids, answers, first = list[int](), list[bool](), self.config.first
        for text, answer in pieces:
            new = self.tokenizer.encode(text, begins=not ids)
            if not ids:
                new = new if new[: len(first)] == first else [*first, *new]
            learned = len(new) if answer else 0
            if answer:
                last = max((place for place, token in enumerate(new) if token in self._ends), default=None)
                new, learned = (new, last + 1) if last is not None else ([*new, self.config.eos_id], len(new) + 1)
            ids += new
            answers += [place < learned for place in range(len(new))]
        num = len(answers) - answers[::-1].index(True)
        return Text(np.array(ids[:num], dtype=np.int64), np.array(answers[:num], dtype=bool))
