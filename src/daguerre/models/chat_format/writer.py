"""Writes answers as a model would, by its chat template, and checks that what was found reads them back."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from daguerre.errors import InputError
from daguerre.models.chat_format.deriving import Derived
from daguerre.models.chat_format.named import ASSUMED, assumed
from daguerre.models.chat_format.news import message_of
from daguerre.models.chat_format.probe import tools_of
from daguerre.models.chat_format.readers import reader_of
from daguerre.models.chat_format.sentinels import THOUGHT
from daguerre.models.chat_format.sentinels import message as sentinel
from daguerre.models.chat_format.thoughts import unthought
from daguerre.models.chat_messages import parsed

Message = Mapping[str, Any]


class AnswerWriter:
    """Writes assistant's messages as what a model writes after the prompt of an answer."""

    def __init__(self, derived: Derived) -> None:
        self._derived, self._probe, self.form = derived, derived.probe, derived.form

    def write(self, message: Message, tools: Sequence[Message] | None = None) -> str:
        """What the model would write, up to its end. InputError where the template refuses the message."""
        around, probe = self._derived.around, self._probe
        tools = list(tools) if tools else tools_of(message)
        if self.form.source == ASSUMED and message.get("tool_calls"):
            return self._assumed(message, tools)
        body = self._cut(probe.turn(message, tools)[len(around.header) :])
        prompted, thought = probe.prompt(tools)[len(around.header) :], message.get("reasoning_content")
        thinking = self.form.thinking
        if thinking is not None and thinking.key is None and thought:
            body = body.removeprefix(thinking.open).lstrip() if thinking.close not in body else body
            return self._thought(thought, prompted) + unthought(body, thinking)
        return self._continued(body, prompted, message, tools)

    def _assumed(self, message: Message, tools: Sequence[Message]) -> str:
        """A message with calls that the template would leave out."""
        written = self.write({key: value for key, value in message.items() if key != "tool_calls"}, tools)
        end = self._derived.around.end.strip()
        text = written.removesuffix(end).rstrip()
        calls = [call["function"] for call in message["tool_calls"]]
        values = [{"name": one["name"], "arguments": parsed(one.get("arguments"))} for one in calls]
        lines = [f"<tool_call>\n{json.dumps(value, ensure_ascii=False)}\n</tool_call>" for value in values]
        return "\n".join([text] * bool(text) + lines) + end

    def _thought(self, thought: str, prompted: str) -> str:
        """A thought that the template would leave out."""
        assert self.form.thinking is not None
        opened, close = self.form.thinking.open, self.form.thinking.close
        return ("" if prompted.rstrip().endswith(opened) else f"{opened}\n") + f"{thought}\n{close}\n\n"

    def _cut(self, body: str) -> str:
        """A turn's text up to its end."""
        ends = [end.strip() for end in self.form.ends if end.strip()]
        places = [(body.rfind(end), end) for end in ends if not body[body.rfind(end) + len(end) :].strip()]
        place, end = max(((place, end) for place, end in places if place >= 0), default=(-1, ""))
        return body[: place + len(end)] if place >= 0 else body.rstrip("\n") if self._derived.around.end else body

    def _continued(self, body: str, prompted: str, message: Message, tools: Sequence[Message]) -> str:
        """A turn's text without the thinking that a prompt has opened, or has closed."""
        thinking = self.form.thinking
        if thinking is None or not prompted.strip():
            return body
        opened, close = re.escape(thinking.open), re.escape(thinking.close)
        found = re.match(rf"\s*(?:{opened})?\s*" if opened else r"\s*", body)
        rest = body[found.end() :] if found else body
        if prompted.rstrip().endswith(thinking.close):
            closed = re.match(rf"\s*{close}", rest)
            return body.removeprefix(prompted) if closed is None else rest[closed.end() :]
        if not prompted.rstrip().endswith(thinking.open) or not thinking.open:
            return body.removeprefix(prompted)
        if thinking.close in rest:
            return body.removeprefix(prompted) if body.startswith(prompted) else rest
        return self._closed(message, tools) or thinking.close + thinking.after + rest

    def _closed(self, message: Message, tools: Sequence[Message]) -> str:
        """A turn's text behind a thought, for a message that has none; "": the template writes no thoughts there."""
        body = self._probe.turn({**message, "reasoning_content": THOUGHT}, tools)
        return self._cut(body.split(THOUGHT, 1)[1]) if THOUGHT in body else ""


def checked(derived: Derived) -> Derived:
    """What was derived, if it reads its own writing back; else what is assumed."""
    calls = derived.form.calls
    if derived.form.source == "derived" and calls is not None:
        numbers = (1, 2) if calls.several else (1,)
        if not all(_reads_back(derived, sentinel(number)) for number in numbers):
            return replace(derived, form=assumed(derived.form))
    return derived


def _reads_back(derived: Derived, message: Message) -> bool:
    try:
        text = AnswerWriter(derived).write(message)
    except InputError:
        return False
    thinking = derived.form.thinking
    prompt = derived.probe.prompt(tools_of(message)).rstrip()
    opened = thinking is not None and bool(thinking.open) and prompt.endswith(thinking.open)
    reader = reader_of(derived.form, None, "does" if opened else "may")
    return _called(message_of(reader.feed(text, last=True))) == _called(message)


def _called(message: Message) -> list[tuple[str, Any]]:
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return [(call["name"], parsed(call["arguments"])) for call in calls]
