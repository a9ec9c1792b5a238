"""The token ids of a conversation, in which only the template's own marks become special tokens.

A message may have the text of a special token in it, such as "<|im_end|>": a page that was fetched, a file, or an
attack that forges a turn. It is the user's text, and is encoded as such. The template is rendered twice: with the
messages as they are, and with each character of such texts replaced by a private one. Both renderings are equally long,
and where they differ stands the user's text. So the template sees what it would see anyway: nothing is rewritten.

A mark that comes about only where a template joins two texts is not found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from daguerre.errors import InputError, shown
from daguerre.models.published_tokenizer import HIDDEN, hidden
from daguerre.models.tokenizer import Tokenizer

if TYPE_CHECKING:  # which would bring Jinja to models that have no template
    from daguerre.models.chat_template import ChatTemplate

Message = Mapping[str, Any]


def encode_chat(tokenizer: Tokenizer, template: ChatTemplate, messages: Sequence[Message], **values: Any) -> list[int]:
    """The ids of what a chat template makes of `messages`; values: what else it takes, such as tools.

    InputError where the template itself reads a special token in a message, so that whose it is cannot be told.
    """
    text, found = template.render(messages, **values), list[str]()

    def hide(written: str) -> str:
        """A text of a message in which the texts of special tokens, which are `found`, are hidden."""
        spans = tokenizer.find_special(written)
        found.extend(written[start:end] for start, end in spans)
        return hidden(written, spans) if spans else written

    all_hidden, tools = _mapped(messages, hide), _mapped(values.get("tools"), hide)
    if not found:
        return tokenizer.encode(text)
    # A template may take the model's own messages apart at its marks; then those are read as they are.
    own_shown = [old if old.get("role") == "assistant" else new for old, new in zip(messages, all_hidden, strict=True)]
    for conversation in (all_hidden, own_shown):
        plain = _differences(text, _rendered(template, conversation, {**values, "tools": tools}))
        if plain is not None:
            return tokenizer.encode_around(text, plain)
    raise InputError(f"the chat template reads {shown(found[0])} in a message as its own: take it out of the message")


def _rendered(template: ChatTemplate, messages: Sequence[Message], values: Mapping[str, Any]) -> str | None:
    """What the template makes of hidden texts; None where it looks for one of them, and refuses."""
    try:
        return template.render(messages, **values)
    except InputError:
        return None


def _differences(text: str, other: str | None) -> list[tuple[int, int]] | None:
    """The characters of a text that are hidden in the other, as spans of one each; None where they differ otherwise."""
    if other is None or len(other) != len(text):
        return None
    places = [place for place, (a, b) in enumerate(zip(text, other, strict=True)) if a != b]
    return [(place, place + 1) for place in places] if all(other[place] == HIDDEN for place in places) else None


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """A JSON value with each of its texts changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_mapped(key, change): _mapped(held, change) for key, held in value.items()}
    return [_mapped(held, change) for held in value] if isinstance(value, list | tuple) else value
