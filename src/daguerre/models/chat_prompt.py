"""The token ids of a conversation, in which only the template's own marks become special tokens.

A message may have the text of a special token in it, such as "<|im_end|>": a page that was fetched, a file, or an
attack that forges a turn. It is the user's text, and is encoded as such. The template is rendered twice: with the
messages as they are, and with each character of such texts replaced by a private one. Both renderings are equally long,
and where they differ stands the user's text. So the template sees what it would see anyway: nothing is rewritten.

A mark that comes about only where a template joins two texts is not found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from daguerre.errors import InputError, UnsupportedError, shown
from daguerre.models.chat_messages import fitted
from daguerre.models.hidden_text import HIDDEN, hidden

if TYPE_CHECKING:  # which would bring Jinja to models that have no template
    from daguerre.models.chat_template import ChatTemplate

Message = Mapping[str, Any]


class ChatTokenizer(Protocol):
    """What a tokenizer has that conversations need; `daguerre.models.tokenizer`, whose `chat` they are, is above."""

    def find_special(self, text: str) -> list[tuple[int, int]]: ...

    def encode(self, text: str) -> list[int]: ...

    def encode_around(self, text: str, plain: Sequence[tuple[int, int]]) -> list[int]: ...


def continues(
    messages: Sequence[Message], continue_final_message: bool | None = None, add_generation_prompt: bool | None = None
) -> bool:
    """Whether an answer goes on with the last message, which has no end then. The two switches mean what vLLM's mean;
    where neither is given, a last message of the assistant with a text is continued, as in Anthropic's API.

    InputError for both, and for a last message that cannot be continued.
    """
    last = messages[-1]
    able = last.get("role") == "assistant" and not last.get("tool_calls") and bool(_text_of(last).strip())
    if continue_final_message and add_generation_prompt:
        raise InputError("continue_final_message and add_generation_prompt are opposites: leave out one of the two")
    if continue_final_message and not able:
        raise InputError("continue_final_message needs a last message of the assistant that has a text: send one")
    return able and add_generation_prompt is None if continue_final_message is None else continue_final_message


def _is_nothing(message: Message) -> bool:
    """Whether it is a message of the assistant without a text or calls."""
    return message.get("role") == "assistant" and not message.get("tool_calls") and not message.get("content")


def _text_of(message: Message) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else ""


def encode_chat(
    tokenizer: ChatTokenizer,
    template: ChatTemplate,
    messages: Sequence[Message],
    *,
    continue_final_message: bool | None = None,
    add_generation_prompt: bool | None = None,
    special_tokens: bool | None = None,
    **values: Any,
) -> list[int]:
    """The ids of what a chat template makes of `messages`; values: what else it takes, such as tools. The switches are
    those of `continues`; without an end of the last message the ids end with its text. special_tokens: names of special
    tokens in messages stand for them, too.

    InputError where the template itself reads a special token in a message, so that whose it is cannot be told, and
    where it does not keep the text that is to be continued.
    """
    continued = continues(messages, continue_final_message, add_generation_prompt)
    if _is_nothing(messages[-1]) and add_generation_prompt is not False and len(messages) > 1:
        messages = messages[:-1]  # a beginning of nothing
    begun = _text_of(messages[-1])
    messages = fitted(messages, template.wants(bool(values.get("tools")), values.get("name")))
    values["add_generation_prompt"] = not continued and add_generation_prompt is not False
    text, found = template.render(messages, **values), list[str]()
    end = _end_of(text, begun) if continued else len(text)

    def hide(written: str) -> str:
        """A text of a message in which the texts of special tokens, which are `found`, are hidden."""
        spans = tokenizer.find_special(written)
        found.extend(written[start:end] for start, end in spans)
        return hidden(written, spans) if spans else written

    all_hidden, tools = _mapped(messages, hide), _mapped(values.get("tools"), hide)
    if special_tokens or not found:
        return tokenizer.encode(text[:end])
    # A template may take the model's own messages apart at its marks; then those are read as they are.
    own_shown = [old if old.get("role") == "assistant" else new for old, new in zip(messages, all_hidden, strict=True)]
    for conversation in (all_hidden, own_shown):
        plain = _differences(text, _rendered(template, conversation, {**values, "tools": tools}))
        if plain is not None:
            return tokenizer.encode_around(text[:end], [span for span in plain if span[1] <= end])
    raise InputError(f"the chat template reads {shown(found[0])} in a message as its own: take it out of the message")


def check_messages(messages: object) -> None:
    """InputError for what is no conversation: a template would write nonsense, or nothing."""
    each = messages if isinstance(messages, list | tuple) else ()
    if not each or not all(isinstance(one, Mapping) and isinstance(one.get("role"), str) for one in each):
        raise InputError(
            'messages must be a list of one or more, each like {"role": "user", "content": "..."}, not '
            f"{shown(messages)}"
        )


def chat_ids(tokenizer: ChatTokenizer, messages: Sequence[Message], first: Sequence[int], **template: Any) -> list[int]:
    """`encode_chat` by the tokenizer's own template, without what every canvas begins with, `first`.

    UnsupportedError for a tokenizer without a chat template; InputError for what is no list of messages.
    """
    check_messages(messages)
    chat_template = getattr(tokenizer, "chat_template", None)
    if chat_template is None:
        raise UnsupportedError(
            "this model has no chat template: it continues texts and does not converse; use generate"
        )
    ids = encode_chat(tokenizer, chat_template, messages, **template)
    return ids[len(first) :] if ids[: len(first)] == [*first] else ids


def _end_of(text: str, content: str) -> int:
    """Where the last message, of this content, ends in what a template made of a conversation. Many templates leave out
    the white space around it.
    """
    place = text.rfind(content.strip())
    if place < 0:
        raise InputError("the chat template changes the last message, so it cannot be continued: end with another one")
    kept = content.lstrip()
    return place + (len(kept) if text.startswith(kept, place) else len(content.strip()))


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
