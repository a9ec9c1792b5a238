"""The token ids of a conversation, in which only the template's own marks become special tokens.

A message may have the text of a special token in it, such as "<|im_end|>": a page that was fetched, a file, or an
attack that forges a turn. It is the user's text, and is encoded as such. The template is rendered twice: with the
messages as they are, and with each such text hidden behind as many private characters. Both renderings have the same
length, and where they differ stands the user's text. So a template sees what it would see anyway: nothing is rewritten.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from daguerre.errors import InputError, shown
from daguerre.models.tokenizer import Tokenizer

if TYPE_CHECKING:  # which would bring Jinja to models that have no template
    from daguerre.models.chat_template import ChatTemplate

Message = Mapping[str, Any]
HIDDEN = "\ue000"
"""A private character, which stands for one of a hidden text."""


def encode_chat(tokenizer: Tokenizer, template: ChatTemplate, messages: Sequence[Message], **values: Any) -> list[int]:
    """The ids of what a chat template makes of `messages`; values: what else it takes, such as tools.

    InputError where the template itself reads a special token in a message, so that whose it is cannot be told.
    """
    text, marks = template.render(messages, **values), tokenizer.special_pattern
    if marks is None or not _has([messages, values.get("tools")], marks):
        return tokenizer.encode(text)
    hidden = {**values, "tools": _hide(values.get("tools"), marks)}
    theirs = [one if one.get("role") == "assistant" else _hide(one, marks) for one in messages]
    for shown_ in (_hide(messages, marks), theirs):  # a template may take the model's own messages apart at its marks
        masked = _rendered(template, shown_, hidden)
        if masked is not None and _is_of(masked, text):
            return tokenizer.encode_marked(text, masked)
    found = marks.search(text)
    mark = shown(found[0] if found else "")
    raise InputError(f"the chat template reads {mark} in a message as its own: take it out of the message")


def _rendered(template: ChatTemplate, messages: Sequence[Message], values: Mapping[str, Any]) -> str | None:
    """What the template makes of hidden texts; None where it looks for one that is hidden, and refuses."""
    try:
        return template.render(messages, **values)
    except InputError:
        return None


def _is_of(masked: str, text: str) -> bool:
    """Whether two renderings differ in hidden characters alone."""
    return len(masked) == len(text) and all(a in (b, HIDDEN) for a, b in zip(masked, text, strict=True))


def _has(value: Any, marks: re.Pattern[str]) -> bool:
    if isinstance(value, str):
        return marks.search(value) is not None
    if isinstance(value, Mapping):
        return any(_has(held, marks) for pair in value.items() for held in pair)
    return isinstance(value, list | tuple) and any(_has(held, marks) for held in value)


def _hide(value: Any, marks: re.Pattern[str]) -> Any:
    """A JSON value in whose texts special tokens are hidden."""
    if isinstance(value, str):
        return marks.sub(lambda found: HIDDEN * len(found[0]), value)
    if isinstance(value, Mapping):
        return {_hide(key, marks): _hide(held, marks) for key, held in value.items()}
    return [_hide(held, marks) for held in value] if isinstance(value, list | tuple) else value
