"""The format of a model's answers, as its chat template has it: to render, to write and to read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from daguerre.models.chat_format.deriving import Derived, derive
from daguerre.models.chat_format.description import Format
from daguerre.models.chat_format.named import ASSUMED
from daguerre.models.chat_format.news import message_of
from daguerre.models.chat_format.probe import Probe, parsed, tools_of
from daguerre.models.chat_format.reader import FormatReader, Thinks
from daguerre.models.chat_format.readers import reader_of
from daguerre.models.chat_format.sentinels import THOUGHT
from daguerre.models.chat_format.thoughts import unthought
from daguerre.models.chat_template import ChatTemplate

Message = Mapping[str, Any]


class ChatFormat:
    """How a model with a chat template writes its answers.

    template    the text of a Jinja template
    bos_token   what the template knows as such; eos_token likewise

    DataError for a template that is none. What was found is in `form`.
    """

    def __init__(self, template: str | ChatTemplate, *, bos_token: str = "", eos_token: str = "") -> None:
        tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self.template = template if isinstance(template, ChatTemplate) else ChatTemplate.of(template, tokens)

    @cached_property
    def _derived(self) -> Derived:
        return derive(self.template)

    @property
    def form(self) -> Format:
        """How answers are written."""
        return self._derived.form

    @property
    def _probe(self) -> Probe:
        return self._derived.probe

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Message] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The text of a conversation, as OpenAI's API has its messages. InputError where the template refuses it."""
        return self._probe.render(messages, tools, add_generation_prompt, now=None)

    def write(self, message: Message, tools: Sequence[Message] | None = None) -> str:
        """What the model would write for an assistant's message after the prompt of an answer, up to its end."""
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

    def thinks(self, prompt: str | None = None) -> Thinks:
        """Whether an answer begins within a thought, after a prompt; None: that of a plain question."""
        thinking = self.form.thinking
        text = (self._probe.prompt() if prompt is None else prompt).rstrip()
        return "does" if thinking is not None and thinking.open and text.endswith(thinking.open) else "may"

    def reader(self, tools: Sequence[Message] | None = None, prompt: str | None = None, **options: Any) -> FormatReader:
        """What reads an answer as it comes; `prompt`: the text that it follows."""
        return reader_of(self.form, tools, self.thinks(prompt), **options)

    def read(self, text: str, tools: Sequence[Message] | None = None) -> dict[str, Any]:
        """The assistant's message that a text is. With `tools`, their schemas decide the types of arguments."""
        return message_of(self.reader(tools).feed(text, last=True))
