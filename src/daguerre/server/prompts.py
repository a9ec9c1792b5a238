"""From the messages of a conversation to a prompt.

A model with a chat template gets what its template makes of them. A base model, which has none, continues a plain
transcript, and its answer ends where it begins the line of another turn:

    System: Be brief.
    User: What is 2 + 2?
    Assistant: 4
    User: And 3 + 3?
    Assistant:

Functions that it may call come first, as JSON, one a line, after a line "Tools:". A call is written as
`sampling.constraints.tools` defines it, in the assistant's turn, and its result is a turn of "Tool". The space before
an answer does not belong to it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from daguerre.decoding.request import Text
from daguerre.http.errors import ApiError
from daguerre.model import Model
from daguerre.models.chat_format import Thinks
from daguerre.models.chat_messages import as_json
from daguerre.models.chat_prompt import continues
from daguerre.server.bodies import check_depth
from daguerre.server.calls import THINK, THOUGHT, written

ROLES = {
    "system": "System",
    "developer": "System",
    "user": "User",
    "assistant": "Assistant",
    "tool": "Tool",
    "function": "Tool",
}
STOPS = tuple(f"\n{name}:" for name in dict.fromkeys(ROLES.values()))
"""What ends an answer of a base model."""
TEXT_PARTS = ("text", "input_text", "output_text")


@dataclass(frozen=True)
class Prompt:
    """A prompt, and the strings that end the answer beside those of the request.

    plain   it is a transcript, and spaces before the answer do not belong to it
    thinks  whether the answer begins with what the model thinks (see `calls.CallReader`)
    """

    text: Text
    stops: tuple[str, ...] = ()
    plain: bool = False
    thinks: Thinks | None = None


@dataclass(frozen=True)
class Templating:
    """How a request wants its conversation written (names and meaning as in vLLM; efforts are what the request says).

    values    more that the template sees: chat_template_kwargs
    special_tokens   names of special tokens in messages stand for them
    effort    reasoning_effort, which a template that knows it sees
    thinking  whether the model thinks; None: as its template has it
    continue_final, add_prompt   continue_final_message and add_generation_prompt; None: the request does not say
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    effort: str | None = None
    thinking: bool | None = None
    continue_final: bool | None = None
    add_prompt: bool | None = None
    special_tokens: bool | None = None


def make_prompt(
    model: Model,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    how: Templating = Templating(),
) -> Prompt:
    """The prompt of a conversation. messages: those of `checked`; tools: as in OpenAI's API.

    InputError for messages that the model's template refuses; ApiError for a template's values without a template.
    """
    template = getattr(model.tokenizer, "chat_template", None)
    continued = continues(messages, how.continue_final, how.add_prompt)
    if template is None:
        if how.values:
            message = "this model has no chat template, whose values these are: leave out chat_template_kwargs"
            raise ApiError(message, param="chat_template_kwargs", code="unsupported")
        return Prompt(transcript(messages, tools, continued), STOPS, plain=True)
    values = {"tools": tools} if tools else {}
    own = _own_values(template.sources.values(), how)
    ids = model.chat_prompt(
        [_for_template(one) for one in messages],
        continue_final_message=continued,
        add_generation_prompt=how.add_prompt,
        special_tokens=how.special_tokens,
        **values,
        **own,
        **how.values,
    )
    return Prompt(ids, thinks=_thinks(model, ids))


def _own_values(sources: Iterable[str], how: Templating) -> dict[str, Any]:
    """What a template is told of effort and thinking, as far as it knows the names."""
    known = {name for name in ("reasoning_effort", "enable_thinking") if any(name in source for source in sources)}
    thinking = how.thinking if how.thinking is not None or how.effort != "none" else False
    out = {"reasoning_effort": how.effort, "enable_thinking": thinking}
    return {name: value for name, value in out.items() if name in known - how.values.keys() and value is not None}


def can_think(model: Model) -> bool:
    """Whether answers of a model may begin with what it thinks, as its template knows it."""
    template = getattr(model.tokenizer, "chat_template", None)
    return template is not None and any(THOUGHT in source for source in template.sources.values())


def _thinks(model: Model, ids: Sequence[int]) -> Thinks | None:
    """Whether an answer to a prompt begins with what the model thinks."""
    if not can_think(model):
        return None
    end = model.tokenizer.decode_bytes(ids[-2 * len(THINK) :]).rstrip()
    return "does" if end.endswith(THINK.encode()) else "may"


def transcript(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = (), continued: bool = True
) -> str:
    """The plain transcript of a conversation, up to where the answer begins: after the last message of the assistant
    where that is `continued`.
    """
    lines = [json.dumps(tool["function"], ensure_ascii=False) for tool in tools]
    turns = list[tuple[str, str]]()
    for message in messages:
        functions = [call["function"] for call in message.get("tool_calls") or ()]
        calls = [written(one["name"], one["arguments"]) for one in functions]
        turns.append((ROLES[message["role"]], (message["content"] or "") + "".join(calls)))
    if turns[-1][0] != "Assistant" or not continued:
        turns.append(("Assistant", ""))
    return "\n".join([*(["Tools:", *lines] if lines else []), *(f"{name}: {text}".rstrip(" ") for name, text in turns)])


def checked(messages: Sequence[Any], field: str = "messages") -> list[dict[str, Any]]:
    """Messages whose contents are strings or None. ApiError, naming the part, for what cannot be read."""
    return [_message(one, f"{field}[{number}]") for number, one in enumerate(messages)]


def _message(one: Any, place: str) -> dict[str, Any]:
    if not isinstance(one, Mapping) or one.get("role") not in ROLES:
        raise ApiError(f"{place} needs a role: one of {', '.join(ROLES)}", param=f"{place}.role")
    out = {**one, "content": content_text(one.get("content"), f"{place}.content")}
    calls = one.get("tool_calls")
    if calls is not None and not (isinstance(calls, list) and all(map(_is_call, calls))):
        message = 'each call is {"id", "type": "function", "function": {"name", "arguments"}}'
        raise ApiError(f"{place}.tool_calls: {message}", param=f"{place}.tool_calls")
    for number, call in enumerate(calls or ()):
        if isinstance(call["function"]["arguments"], str):  # an object is a part of the body, which has been looked at
            check_depth(call["function"]["arguments"], f"{place}.tool_calls[{number}].function.arguments")
    if calls:
        out["tool_calls"] = [_with_json(call) for call in calls]
    if out["content"] is None and not calls and one["role"] != "assistant":
        raise ApiError(f"{place} has no content: give a text", param=f"{place}.content")
    return out


def _is_call(call: Any) -> bool:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        return False
    return isinstance(function.get("arguments"), str | Mapping)


def _with_json(call: Mapping[str, Any]) -> dict[str, Any]:
    """A call whose arguments are a text of JSON, as in OpenAI's API; others' clients send an object."""
    function = call["function"]
    return {**call, "function": {**function, "arguments": as_json(function["arguments"])}}


def content_text(content: Any, place: str) -> str | None:
    """The text of a content: a string, or parts that are texts. ApiError, naming the part, for anything else."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ApiError(f"{place} must be a string, or a list of parts", param=place)
    texts = []
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == "refusal" and isinstance(part.get("refusal"), str):
            texts.append(part["refusal"])
        elif kind in TEXT_PARTS and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            where = f"{place}[{number}]"
            what = "needs a text" if kind in TEXT_PARTS else f"has the type {kind!r:.40}, and this model reads text"
            raise ApiError(f"{where} {what}: send a part of type text", 400, f"{where}.type", "unsupported_content")
    return "".join(texts)


def _for_template(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as chat templates know it: no role of a developer or a function, and text in place of null."""
    role = {"developer": "system", "function": "tool"}.get(message["role"], message["role"])
    return {**message, "role": role, "content": message["content"] or ""}
