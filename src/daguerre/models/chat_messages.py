"""The messages of a conversation as a chat template wants them.

Templates differ in what they can read: arguments of calls as an object or as a string of JSON, contents as parts, a
role of the system anywhere, at the beginning or nowhere, results of tools, several calls in a message, ids of a certain
form, two turns of one role in a row. None of them says so. `Wants` finds it by rendering small conversations whose
texts it knows: what a template leaves out, or refuses, it does not know. Each question is asked once a template, and
only once a conversation needs the answer; what a template can read is left as it was given.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

from daguerre.errors import DaguerreError

Message = Mapping[str, Any]
REASONING = ("reasoning_content", "thinking", "reasoning")
"""The names under which templates look for what was thought, as in `transformers`."""
OPENING, CLOSING = "<tool_call>", "</tool_call>"
RESULT_OPENING, RESULT_CLOSING = "<tool_response>", "</tool_response>"
"""Around calls and results where a template has no place for them."""
BETWEEN = "\n\n"
"""Between two texts that become one message."""
SYSTEM, USER, OTHER, RESULT, NAME = "qzsystem", "qzuser", "qzother", "qzresult", "qzname"
CALL_IDS, NINES = ("qzid", "qzie"), ("qzid00123", "qzie00124")
KEY, VALUE = "qzkey", "qzvalue"
ARGUMENTS = {KEY: VALUE}
VALUES, RESULTS = (VALUE, "qzlater"), (RESULT, "qzfollowing")
"""Of two calls."""
BESIDE = {"text": OTHER, "empty": "", "null": None}
IDS = ("any", "nine")
NINE_CHARACTERS = re.compile("[A-Za-z0-9]{9}")
TOOL = {
    "type": "function",
    "function": {
        "name": "qztool",
        "description": "A tool.",
        "parameters": {"type": "object", "properties": {KEY: {"type": "string", "description": "A key."}}},
    },
}


@dataclass(frozen=True)
class CallStyle:
    """How a template wants a call of a tool.

    arguments  "object", or "string": of JSON
    beside     the content of the message of a call: "text", or if one would hide the call, "empty" or "null"
    ids        "any"; "nine": letters and digits (Mistral); "named": they have the name in them (Kimi)
    """

    arguments: str = "object"
    beside: str = "text"
    ids: str = "any"


class Wants:
    """What a template makes of the parts of a conversation. render: `ChatTemplate.render`; tools: whether there are
    some, without which certain templates render nothing.
    """

    def __init__(self, render: Callable[..., str], tools: bool = False) -> None:
        self._render, self._tools = render, [TOOL] if tools else None

    def _written(self, *messages: Message) -> str:
        """The text of a conversation; empty where it is refused."""
        try:
            return self._render(list(messages), self._tools)
        except DaguerreError:
            return ""

    @cached_property
    def system(self) -> bool:
        """Whether a message of the system may begin a conversation."""
        return SYSTEM in self._written(_said("system", SYSTEM), _said("user", USER))

    @cached_property
    def system_alone(self) -> bool:
        """Whether one may be all there is."""
        return SYSTEM in self._written(_said("system", SYSTEM))

    @cached_property
    def system_before_answers(self) -> bool:
        """Whether a turn of the assistant may follow it."""
        text = self._written(_said("system", SYSTEM), _said("assistant", OTHER), _said("user", USER))
        return SYSTEM in text and OTHER in text

    def leads(self, role: object) -> bool:
        """Whether one may stand before a message of a role; None: before none."""
        if role is None:
            return self.system and self.system_alone
        return self.system and (role != "assistant" or self.system_before_answers)

    @cached_property
    def late_system(self) -> bool:
        """Whether one may stand anywhere."""
        turns = _said("user", USER), _said("assistant", USER), _said("system", OTHER), _said("user", USER)
        text = self._written(_said("system", SYSTEM), *turns)
        return SYSTEM in text and OTHER in text

    @cached_property
    def neighbors(self) -> bool:
        """Whether two turns of one role may follow each other."""
        return OTHER in self._written(_said("user", USER), _said("user", OTHER))

    @cached_property
    def text(self) -> bool:
        """Whether a content may be a text."""
        return USER in self._written(_said("user", USER))

    @cached_property
    def parts(self) -> bool:
        """Whether a content may be a list of parts: a part is written in the same way as a text, if texts are."""
        text = self._written(_said("user", [_part(USER)]))
        return USER in text and (not self.text or text == self._written(_said("user", USER)))

    @cached_property
    def calls(self) -> CallStyle | None:
        """How calls are written; None: they are not."""
        forms = [CallStyle(form, beside, ids) for ids in IDS for beside in BESIDE for form in ("object", "string")]
        written = [(form, self._called(form)) for form in forms]
        known = [(form, text) for form, text in written if VALUE in text and (NAME in text or _probe_id(form) in text)]
        clean = [one for one in known if _is_clean(*one)]
        for form, text in clean or known:
            named = NAME not in text or _named_id(NAME, 0) in text
            return replace(form, ids="named") if named else form
        return None

    def _called(self, form: CallStyle) -> str:
        """A call, with its result where results are known at all."""
        turns = (_said("user", USER), _probe(form), {**_said("tool", RESULT), "tool_call_id": _probe_id(form)})
        return self._written(*turns) or self._written(*turns[:2])

    @cached_property
    def results(self) -> bool:
        """Whether results of tools are written."""
        called = "" if self.calls is None else self._called(self.calls)
        return RESULT in called or RESULT in self._unasked

    @cached_property
    def several(self) -> bool:
        """Whether one message may have several calls; also where a message for each would lose as much."""
        form = self.calls
        if form is None:
            return True
        one, two = (_probe(form, number) for number in (0, 1))
        results = [{**_said("tool", text), "tool_call_id": _probe_id(form, n)} for n, text in enumerate(RESULTS)]
        if not self.results:
            results = [_said("user", text) for text in RESULTS]
        both = {**one, "tool_calls": [*one["tool_calls"], *two["tool_calls"]]}
        together = self._written(_said("user", USER), both, *results)
        apart = self._written(_said("user", USER), one, results[0], two, results[1])
        said = (VALUE, VALUES[1], *RESULTS)
        return all(text in together for text in said) or not all(text in apart for text in said)

    @cached_property
    def _unasked(self) -> str:
        """A result after a call that is written in an answer's text."""
        return self._written(_said("user", USER), _said("assistant", OTHER), _said("tool", RESULT))


def fitted(messages: Sequence[Message], wants: Wants) -> list[dict[str, Any]]:
    """The messages as a template wants them: a role, a call or a result for which it has no place is written in a place
    that it has. A text beside a call is left out where the template leaves it out.
    """
    out = [_with_content(one, wants) for one in map(_with_reasoning, _named(messages))]
    if any(len(_calls(one)) > 1 for one in out) and not wants.several:
        out = [one for _, one in apart(out)]
    if any(map(_calls, out)):
        out = [new for one in _with_ids(out, wants.calls) for new in _with_calls(one, wants.calls)]
    if any(one.get("role") == "tool" for one in out) and not wants.results:
        out = [_as_user(one) if one.get("role") == "tool" else one for one in out]
    if any(one.get("role") == "system" for one in out):
        out = _with_system(out, wants)
    return out if _alternate(out) or wants.neighbors else _merged(out)


def apart(messages: Sequence[Message]) -> list[tuple[int, dict[str, Any]]]:
    """Messages with one call each, every one before its own result, and the number of the message that each was or was
    a part of. What was said and thought beside calls stands with the first.
    """
    out, place = list[tuple[int, dict[str, Any]]](), 0
    while place < len(messages):
        calls, end = _calls(messages[place]), place + 1
        if len(calls) < 2:
            out.append((place, dict(messages[place])))
            place = end
            continue
        while end < len(messages) and messages[end].get("role") == "tool":
            end += 1
        left, keys = list(range(place + 1, end)), [call.get("id") for call in calls]
        bare = {name: held for name, held in messages[place].items() if name not in REASONING} | {"content": ""}
        for number, call in enumerate(calls):
            out.append((place, {**(bare if number else messages[place]), "tool_calls": [call]}))
            key, named = keys[number], {key for key in keys if key is not None}
            own = [one for one in left if messages[one].get("tool_call_id") == key is not None]
            own = own[:1] if key in keys[number + 1 :] else own
            own = own or [one for one in left if messages[one].get("tool_call_id") not in named][:1]
            out += [(one, dict(messages[one])) for one in own]
            left = [one for one in left if one not in own]
        out += [(one, dict(messages[one])) for one in left]
        place = end
    return out


def _said(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def _part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _probe(form: CallStyle, number: int = 0) -> dict[str, Any]:
    """A message with a call whose parts are known."""
    given = {KEY: VALUES[number]}
    arguments: object = given if form.arguments == "object" else json.dumps(given)
    call = {"id": _probe_id(form, number), "type": "function", "function": {"name": NAME, "arguments": arguments}}
    return {**_said("assistant", BESIDE[form.beside]), "tool_calls": [call]}


def _probe_id(form: CallStyle, number: int = 0) -> str:
    return _named_id(NAME, number) if form.ids == "named" else (NINES if form.ids == "nine" else CALL_IDS)[number]


def _is_clean(form: CallStyle, text: str) -> bool:
    """Whether arguments are not written as Python writes a dictionary, nor as a string within JSON."""
    quoted = json.dumps(json.dumps(ARGUMENTS))[1:-1]
    return quoted not in text if form.arguments == "string" else str(ARGUMENTS) not in text


def _named(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Results with the names of the functions that gave them."""
    called = [call for one in messages for call in _calls(one) if isinstance(call.get("id"), str)]
    names = {call["id"]: call["function"].get("name") for call in called}
    ids = [one.get("tool_call_id") for one in messages]
    known = [{"name": names[key]} if isinstance(key, str) and key in names else {} for key in ids]
    return [
        {**name, **one} if one.get("role") == "tool" else dict(one) for name, one in zip(known, messages, strict=True)
    ]


def _calls(message: Message) -> list[Mapping[str, Any]]:
    return [call for call in message.get("tool_calls") or () if isinstance(call.get("function"), Mapping)]


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    """A message with what was thought under each name that templates have for it, as in `transformers`."""
    thought = next((message[name] for name in REASONING if message.get(name) is not None), None)
    return message if thought is None else {"thinking": thought, **message, "reasoning_content": thought}


def _with_content(message: dict[str, Any], wants: Wants) -> dict[str, Any]:
    content = message.get("content")
    if isinstance(content, list | tuple) and all(map(_is_text, content)) and not wants.parts:
        return {**message, "content": "".join(part["text"] for part in content)}
    if isinstance(content, str) and not wants.text and wants.parts:
        return {**message, "content": [_part(content)]}
    return message


def _is_text(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _with_ids(messages: list[dict[str, Any]], form: CallStyle | None) -> list[dict[str, Any]]:
    """Messages whose calls and results have ids of the form that is wanted."""
    made, number = dict[str, str](), 0
    out = list[dict[str, Any]]()
    for one in messages:
        new = dict(one)
        if _calls(one) and form is not None:
            new["tool_calls"] = []
            for call in _calls(one):
                old = str(call.get("id") or f"call_{number}")
                made[old] = _id(form, old, str(call["function"].get("name")), number)
                new["tool_calls"].append({**call, "id": made[old]})
                number += 1
        if str(one.get("tool_call_id")) in made:
            new["tool_call_id"] = made[str(one["tool_call_id"])]
        out.append(new)
    return out


def _id(form: CallStyle, given: str, name: str, number: int) -> str:
    """The id of a call, the number of those before it."""
    if form.ids == "named":
        return _named_id(name, number)
    if form.ids == "nine" and not NINE_CHARACTERS.fullmatch(given):
        return hashlib.sha256(given.encode("utf-8", "replace")).hexdigest()[:9]
    return given


def _named_id(name: str, number: int) -> str:
    return f"functions.{name}:{number}"


def _with_calls(message: dict[str, Any], form: CallStyle | None) -> list[dict[str, Any]]:
    """A message with its calls as they are wanted; as text where there is no place for them."""
    if not _calls(message):
        return [message]
    said = {name: value for name, value in message.items() if name != "tool_calls"}
    if form is None:
        return [_with_text(said, "".join(map(call_text, _calls(message))))]
    calls = [{**call, "function": _function(call["function"], form)} for call in _calls(message)]
    if form.beside == "text":
        return [{**message, "content": message.get("content") or "", "tool_calls": calls}]
    alone = {**message, "content": BESIDE[form.beside], "tool_calls": calls}
    return [said, alone] if message.get("content") else [alone]


def _function(function: Mapping[str, Any], form: CallStyle) -> dict[str, Any]:
    given = function.get("arguments")
    return {**function, "arguments": parsed(given) if form.arguments == "object" else as_json(given)}


def parsed(arguments: Any) -> Any:
    """Arguments as a value; a text that is no JSON stays one."""
    if not isinstance(arguments, str):
        return {} if arguments is None else arguments
    try:
        return json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments


def as_json(arguments: Any) -> str:
    """Arguments as a text."""
    if isinstance(arguments, str):
        return arguments or "{}"
    return json.dumps({} if arguments is None else arguments, ensure_ascii=False)


def call_text(call: Mapping[str, Any]) -> str:
    """A call as text, as `sampling.constraints.tools` defines it."""
    function = call["function"]
    both = {"name": function.get("name"), "arguments": parsed(function.get("arguments"))}
    return f"{OPENING}{json.dumps(both, ensure_ascii=False, separators=(',', ':'))}{CLOSING}"


def _as_user(message: Message) -> dict[str, Any]:
    """A result of a tool as a turn of the user."""
    named = {name: value for name, value in message.items() if name not in ("tool_call_id", "name")}
    content = named.get("content")
    if isinstance(content, str):
        return {**named, "role": "user", "content": f"{RESULT_OPENING}\n{content}\n{RESULT_CLOSING}"}
    parts = content if isinstance(content, list | tuple) else ()
    return {**named, "role": "user", "content": [_part(f"{RESULT_OPENING}\n"), *parts, _part(f"\n{RESULT_CLOSING}")]}


def _with_system(messages: list[dict[str, Any]], wants: Wants) -> list[dict[str, Any]]:
    """Messages with the system's words where the template reads them: in one message at the beginning, or at
    the head of the next turn of the user, which is made where there is none.
    """
    first = next((number for number, one in enumerate(messages) if one.get("role") != "system"), len(messages))
    leads = wants.leads(messages[first].get("role") if first < len(messages) else None)
    if wants.late_system and leads:
        return messages
    leading = [_joined(messages[:first])] if first else []
    out, held = (leading, list[dict[str, Any]]()) if leads else ([], leading)
    for one in messages[first:]:
        if one.get("role") == "system":
            held.append(one)
            continue
        if held:
            turn = {**_joined(held), "role": "user"}
            out.append(_joined([turn, one]) if one.get("role") == "user" else turn)
            held = []
            if one.get("role") == "user":
                continue
        out.append(one)
    return [*out, *({**one, "role": "user"} for one in held)]


def _alternate(messages: Sequence[Message]) -> bool:
    return all(a.get("role") != b.get("role") for a, b in pairwise(messages))


def _merged(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages in which neighbors of one role, but for calls and results, are one."""
    out = list[dict[str, Any]]()
    for one in messages:
        alike = out and out[-1].get("role") == one.get("role") in ("user", "assistant", "system")
        if alike and not (out[-1].get("tool_calls") or one.get("tool_calls")):
            out[-1] = _joined([out[-1], one])
        else:
            out.append(one)
    return out


def _joined(messages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Messages as one, with the role of the first."""
    out = messages[0]
    for one in messages[1:]:
        out = _with_text({**one, **out}, one.get("content"))
    return out


def _with_text(message: dict[str, Any], more: Any) -> dict[str, Any]:
    """A message whose content goes on."""
    content = message.get("content")
    if not content or not more:
        return {**message, "content": content or more or ""}
    if isinstance(content, str) and isinstance(more, str):
        return {**message, "content": f"{content}{BETWEEN}{more}"}
    return {**message, "content": [*_as_parts(content), _part(BETWEEN), *_as_parts(more)]}


def _as_parts(content: Any) -> list[Any]:
    return [_part(content)] if isinstance(content, str) else list(content)
