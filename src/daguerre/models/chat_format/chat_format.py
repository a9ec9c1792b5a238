"""The format of a model's answers, as its chat template has it: to render, to write and to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from daguerre.kinds import Instance, Words, checks
from daguerre.models.chat_format import Thinks
from daguerre.models.chat_format.deriving import Derived, derive
from daguerre.models.chat_format.description import Format
from daguerre.models.chat_format.news import message_of
from daguerre.models.chat_format.probe import Probe
from daguerre.models.chat_format.reader import FormatReader
from daguerre.models.chat_format.readers import reader_of
from daguerre.models.chat_format.writer import AnswerWriter, checked
from daguerre.models.chat_template import ChatTemplate

TEXT = Words()
Message = Mapping[str, Any]


class ChatFormat:
    """How a model with a chat template writes its answers.

    template    the text of a Jinja template
    bos_token   what the template knows as such; eos_token likewise

    DataError for a template that is none. What was found is in `form`.
    """

    @checks(
        {"template": Instance(of=(str, ChatTemplate), what="a chat template"), "bos_token": TEXT, "eos_token": TEXT}
    )
    def __init__(self, template: str | ChatTemplate, *, bos_token: str = "", eos_token: str = "") -> None:
        tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self.template = template if isinstance(template, ChatTemplate) else ChatTemplate.of(template, tokens)

    @cached_property
    def _derived(self) -> Derived:
        return checked(derive(self.template))

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
        return AnswerWriter(self._derived).write(message, tools)

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
