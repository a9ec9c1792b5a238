"""What a template writes for an assistant's turn, and how it wants a message's calls and thinking handed over."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from daguerre.errors import InputError
from daguerre.models.chat_format.marks import ENDING, MARK, common_end, common_start
from daguerre.models.chat_messages import parsed
from daguerre.models.chat_template import ChatTemplate

Message = Mapping[str, Any]
NOW = datetime(2026, 1, 1)
QUESTION = {"role": "user", "content": "Hi"}
THINKING_KEYS = ("reasoning_content", "reasoning", "thinking", "content")
"""Keys that templates read a thought from; "content": it is a part of the content."""


@dataclass(frozen=True)
class Shape:
    """How a template wants messages.

    strings   arguments are texts of JSON
    empty     the content of a message that has calls and no text
    thinking  the key of a thought; None: none is read
    """

    strings: bool = False
    empty: str | None = ""
    thinking: str | None = None

    def of(self, message: Message) -> dict[str, Any]:
        """A message as the template wants it."""
        out = dict(message)
        calls = out.pop("tool_calls", None)
        if calls:
            out["tool_calls"] = [self._call(call) for call in calls]
            out["content"] = out.get("content") or self.empty
        thought = out.pop("reasoning_content", None)
        if thought and self.thinking == "content":
            parts = [{"type": "thinking", "thinking": thought}, {"type": "text", "text": out.get("content") or ""}]
            out["content"] = parts if out.get("content") else parts[:1]
        elif thought and self.thinking is not None:
            out[self.thinking] = thought
        return out

    def _call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        function = call["function"]
        value = parsed(function.get("arguments"))
        given = json.dumps(value, ensure_ascii=False) if self.strings else value
        return {"type": "function", **call, "function": {**function, "arguments": given}}


def tool(name: str, names: Sequence[str] = ()) -> dict[str, Any]:
    """A function with arguments of these names."""
    properties = {each: {"type": "string", "description": "A word."} for each in names}
    parameters = {"type": "object", "properties": properties, "required": list(names)}
    return {"type": "function", "function": {"name": name, "description": "Does it.", "parameters": parameters}}


def tools_of(message: Message) -> list[dict[str, Any]]:
    """Functions such as a message calls; there is always one, since prompts with tools differ from others."""
    called = {}
    for call in message.get("tool_calls") or ():
        value = parsed(call["function"].get("arguments"))
        called[call["function"]["name"]] = list(value) if isinstance(value, Mapping) else []
    return [tool(name, names) for name, names in called.items()] or [tool("qznamea", ["qzkey0a", "qzkey0b"])]


class Probe:
    """Renders turns of an assistant with a template. InputError, as of `ChatTemplate.render`."""

    def __init__(self, template: ChatTemplate, shape: Shape = Shape(), **values: Any) -> None:
        self.template, self.shape, self._values = template, shape, values
        self._frames: dict[str, tuple[str, str, str]] = {}

    def shaped(self, **changes: Any) -> Probe:
        """A probe of the same template with another shape."""
        return Probe(self.template, replace(self.shape, **changes), **self._values)

    def render(
        self, messages: Sequence[Message], tools: Sequence[Message] | None = None, prompt: bool = True, **values: Any
    ) -> str:
        """The text of messages, each as the template wants it."""
        given = [self.shape.of(one) if one.get("role") == "assistant" else dict(one) for one in messages]
        more = {"now": NOW, **self._values, **values}
        return self.template.render(given, tools or None, add_generation_prompt=prompt, **more)

    def prompt(self, tools: Sequence[Message] | None = None) -> str:
        """What follows the question as the beginning of an answer."""
        return self._frame(tools_of({}) if tools is None else tools)[1]

    def turn(self, message: Message, tools: Sequence[Message] | None = None) -> str:
        """The text of an assistant's message, from where the prompt of an answer begins."""
        message = {"role": "assistant", **message}
        tools = tools_of(message) if tools is None else tools
        before, _, always = self._frame(tools)
        whole = self.render([QUESTION, message], tools, prompt=False)
        if not whole.startswith(before):
            before = common_start([before, whole])
        return whole[len(before) :].removesuffix(always)

    def _frame(self, tools: Sequence[Message] | None) -> tuple[str, str, str]:
        """(the text before a turn, the prompt of an answer, what is written after each turn)."""
        key = json.dumps(tools or [], sort_keys=True)
        if key not in self._frames:
            self._frames[key] = self._framed(tools)
        return self._frames[key]

    def _framed(self, tools: Sequence[Message] | None) -> tuple[str, str, str]:
        without, whole = (self.render([QUESTION], tools, prompt=prompt) for prompt in (False, True))
        answered = self.render([QUESTION, {"role": "assistant", "content": "Fine."}], tools, prompt=False)
        if answered.startswith(without):
            return without, whole.removeprefix(without), ""
        always = common_end([without, answered])  # what is written behind every conversation
        first = MARK.match(always)
        if first and ENDING.search(first[0]):
            always = always[first.end() :]
        if whole == without:  # a prompt that is written whether it is asked for or not
            return whole.removesuffix(always), always, always
        if whole.startswith(without) and always:
            return without.removesuffix(always), whole[len(without) :], always
        before = common_start([without, whole, answered])
        return before, whole[len(before) :], ""


def renders(probe: Probe, message: Message) -> str | None:
    """The turn of a message; None where the template fails on it."""
    try:
        return probe.turn(message)
    except InputError:
        return None
