"""Rows of fine-tuning files, whatever their format, as prompts with completions, templates or conversations.

    {"prompt", "completion"}                     texts; or lists of messages, of which the completion's are answers
    {"messages", "tools"}                        OpenAI's; an assistant's message with "weight": 0 is no answer
    {"conversations": [{"from", "value"}, ...], "system", "tools"}    ShareGPT's
    {"template", "fills"}                        a text with a <gap> for each of a list of texts, as `Model.fill` has it
    {"instruction", "input", "output", "system"}                      Alpaca's
    {"text"}                                     a text without a prompt, all of it learned
    {"prompt", "new"}                            token ids, as `daguerre data self` writes a model's own answers

Only these keys are read. InputError, in a few words, for a row that none of them fits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from daguerre.decoding.text_spans import MARK
from daguerre.errors import InputError

Row = Mapping[str, Any]
Message = dict[str, Any]
ANSWERS = "assistant"
ROLES = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "gpt", "chatgpt", "bot", "model", "function_call"), ANSWERS),
    **dict.fromkeys(("tool", "function", "observation", "function_response"), "tool"),
}


@dataclass(frozen=True)
class PromptAndAnswer:
    """A text that is given, and the one that follows it."""

    prompt: str
    completion: str


@dataclass(frozen=True)
class Encoded:
    """Token ids that are given, and those that follow them."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass(frozen=True)
class Template:
    """The texts around gaps, one more than there are gaps, and what is in each gap."""

    around: tuple[str, ...]
    fills: tuple[str, ...]


@dataclass(frozen=True)
class ChatRow:
    """Messages as chat templates know them, which of them are answers to learn, and the tools that they may call."""

    messages: tuple[Message, ...]
    answers: tuple[bool, ...]
    tools: tuple[Row, ...] = ()


def fields_of(row: object) -> dict[str, Any]:
    """What a row has, but nulls. InputError for one that has no keys."""
    if not isinstance(row, Mapping):
        raise InputError("it is no object with keys")
    return {key: value for key, value in row.items() if value is not None}


def read_row(row: object) -> PromptAndAnswer | Encoded | Template | ChatRow:
    """What a row of a file says."""
    row = fields_of(row)
    for keys, read in FORMATS.items():
        if row.keys() >= set(keys):
            return read(row)
    has = ", ".join(map(str, list(row)[:6])) or "none"
    raise InputError(
        f"its keys ({has}) are none of prompt and completion, template and fills, messages, conversations, "
        "instruction and output, text"
    )


def _pair(row: Row) -> PromptAndAnswer | ChatRow:
    prompt, completion = row["prompt"], row["completion"]
    if isinstance(prompt, str) and isinstance(completion, str):
        if not completion:
            raise InputError("its completion is empty")
        return PromptAndAnswer(prompt, completion)
    if isinstance(prompt, list) and isinstance(completion, list):
        given, said = map(_messages, (prompt, completion))
        return _conversation([*given, *said], row, [False] * len(given) + [True] * len(said))
    raise InputError("its prompt and completion are neither two texts nor two lists of messages")


def _encoded(row: Row) -> Encoded:
    prompt, new = row["prompt"], row["new"]
    if not all(isinstance(ids, list) and ids and all(type(one) is int for one in ids) for ids in (prompt, new)):
        raise InputError("its prompt and new are no lists of token ids")
    return Encoded(tuple(prompt), tuple(new))


def _template(row: Row) -> Template:
    template, fills = row["template"], row["fills"]
    if not isinstance(template, str) or not isinstance(fills, list) or not all(isinstance(one, str) for one in fills):
        raise InputError("its template is no text, or its fills are no list of texts")
    around = tuple(template.split(MARK))
    if not fills or len(around) != len(fills) + 1:
        raise InputError(f"its template has {len(around) - 1} gaps ({MARK}), and its fills are {len(fills)}")
    if not all(fills):
        raise InputError("one of its fills is empty")
    return Template(around, tuple(fills))


def _openai(row: Row) -> ChatRow:
    given = row["messages"]
    messages = _messages(given)
    weights = [one.get("weight") for one in given]
    return _conversation(messages, row, [weight is None or bool(weight) for weight in weights])


def _sharegpt(row: Row) -> ChatRow:
    given = row["conversations"]
    if isinstance(given, list) and all(isinstance(one, Mapping) and "role" in one for one in given):
        return _openai({**row, "messages": given})
    if not isinstance(given, list) or not all(
        isinstance(one, Mapping) and {"from", "value"} <= one.keys() for one in given
    ):
        raise InputError('its conversations are no list of {"from", "value"}')
    messages = [_turn(one) for one in given]
    return _conversation(_with_system(row, messages), row)


def _turn(one: Row) -> Message:
    kind, value = one["from"], one["value"]
    if kind == "function_call":
        call = _parsed(value)
        calls = call if isinstance(call, list) else [call]
        if not all(isinstance(each, Mapping) and isinstance(each.get("name"), str) for each in calls):
            raise InputError("a function_call is no JSON object with a name")
        called = [{"type": "function", "function": {"arguments": {}, **each}} for each in calls]
        return _message({"role": ANSWERS, "content": "", "tool_calls": called})
    return _message({"role": kind, "content": value})


def _alpaca(row: Row) -> ChatRow:
    given = {key: row.get(key, "") for key in ("instruction", "input", "output")}
    if not all(isinstance(value, str) for value in given.values()):
        raise InputError("its instruction, input and output are not all texts")
    asked = "\n".join(filter(None, (given["instruction"], given["input"])))
    turns = [{"role": "user", "content": asked}, {"role": ANSWERS, "content": given["output"]}]
    return _conversation(_with_system(row, turns), row)


def _text(row: Row) -> PromptAndAnswer:
    if not isinstance(row["text"], str) or not row["text"]:
        raise InputError("its text is empty, or none")
    return PromptAndAnswer("", row["text"])


def _with_system(row: Row, messages: list[Message]) -> list[Message]:
    system = row.get("system")
    return [{"role": "system", "content": system}, *messages] if isinstance(system, str) and system else messages


FORMATS = {
    ("messages",): _openai,
    ("conversations",): _sharegpt,
    ("prompt", "completion"): _pair,
    ("template", "fills"): _template,
    ("instruction", "output"): _alpaca,
    ("text",): _text,
    ("prompt", "new"): _encoded,
}
"""The keys by which a format is known, and what reads it."""


def _messages(given: object) -> list[Message]:
    if not isinstance(given, list) or not all(isinstance(one, Mapping) for one in given):
        raise InputError("its messages are no list of objects")
    return [_message(one) for one in given]


def _message(one: Row) -> Message:
    """A message as chat templates know it: text in place of null and of parts, arguments of calls as objects."""
    if (role := one.get("role")) not in ROLES:
        raise InputError(f"a message has the role {role!r:.40}: use system, user, assistant or tool")
    out = {key: value for key, value in one.items() if value is not None and key != "weight"}
    calls = out.get("tool_calls")
    if calls is not None:
        if not isinstance(calls, list) or not all(map(_is_call, calls)):
            raise InputError("a message has tool_calls that are no list of functions with a name")
        out["tool_calls"] = [_call(call) for call in calls]
    return out | {"role": ROLES[role], "content": _content(out.get("content"))}


def _content(content: object) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list) and all(
        isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in content
    ):
        return "".join(part["text"] for part in content)
    raise InputError("a message has a content that is no text")


def _is_call(call: object) -> bool:
    function = call.get("function") if isinstance(call, Mapping) else None
    return isinstance(function, Mapping) and isinstance(function.get("name"), str)


def _call(call: Row) -> Message:
    function = call["function"]
    return {**call, "function": {**function, "arguments": _parsed(function.get("arguments") or "{}")}}


def _parsed(value: object) -> Any:
    """What a text holds as JSON; any other value, and a text that is no JSON, as it is."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _conversation(messages: Sequence[Message], row: Row, taught: Sequence[bool] | None = None) -> ChatRow:
    taught = [True] * len(messages) if taught is None else taught
    answers = [
        one["role"] == ANSWERS and learn and bool(one["content"] or one.get("tool_calls"))
        for one, learn in zip(messages, taught, strict=True)
    ]
    if not any(answers):
        raise InputError("no message of the assistant is there to learn")
    tools = _parsed(row.get("tools")) or ()
    if not isinstance(tools, list | tuple) or not all(isinstance(tool, Mapping) for tool in tools):
        raise InputError("its tools are no list of objects")
    return ChatRow(tuple(messages), tuple(answers), tuple(tools))
