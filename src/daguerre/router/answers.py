"""What a backend answered, read from the bytes of its answer: one reading for whole answers and for streams."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from daguerre.router.reading import as_object, as_text, dicts


@dataclass(frozen=True)
class FirstChoice:
    """The first choice of an answer.

    text        what it says; of decisions, the decided labels as JSON, without their probabilities
    tool_calls  the name and the arguments, as JSON text, of each call, in their order
    finish      why it ended, in the words of chat: stop, length, tool_calls; None: it broke off
    """

    text: str = ""
    tool_calls: tuple[tuple[str, str], ...] = ()
    finish: str | None = None


def answer_of(operation: str, body: bytes, streamed: bool) -> FirstChoice | None:
    """The answer in the bytes of a body, or of a stream of events; what a stream holds before it breaks off is an
    answer without a finish. None: the operation has no text (embeddings), or the bytes are an error or no answer.
    """
    if operation == "embeddings":
        return None
    values = list(events_of(body)) if streamed else [_loaded(body)]
    if not values or any(not isinstance(one, dict) or one.get("error") for one in values):
        return None
    if operation == "responses":
        return _of_response(values, streamed)
    if operation == "decisions":
        return _of_decisions(values[0])
    return _of_choices(values)


def events_of(body: bytes) -> Iterator[Any]:
    """The JSON values of a stream of server-sent events, None for one that is no JSON. A last line that is cut off, in
    the middle of a character perhaps, is left out.
    """
    lines = body.replace(b"\r\n", b"\n").split(b"\n")
    for number, line in enumerate(lines, 1):
        data = line[5:].strip() if line.startswith(b"data:") else b""
        if not data or data == b"[DONE]":
            continue
        value = _loaded(data)
        if value is not None or number < len(lines):
            yield value


def has_text(event: object) -> bool:
    """Whether an event of a stream holds text of the answer, or a part of a tool call; reasoning is no text. Of an
    event whose shape is not known: yes.
    """
    value = as_object(event)
    kind, choices = value.get("type"), value.get("choices")
    if isinstance(kind, str) and kind.startswith("response."):
        begins_call = str(as_object(value.get("item")).get("type")).endswith("_call")
        return "reasoning" not in kind and (bool(value.get("delta")) or begins_call)
    if not isinstance(choices, list):
        return True
    return any(
        any(said.get(name) for name in ("text", "content", "refusal", "tool_calls", "function_call"))
        for choice in dicts(choices)
        for said in (choice, as_object(choice.get("delta")), as_object(choice.get("message")))
    )


def _loaded(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return None


def _text(value: object) -> str:
    """A text, or the texts of a list of parts."""
    if isinstance(value, list):
        return "".join(_text(part.get("text")) for part in dicts(value))
    return as_text(value)


def _of_choices(values: Iterable[dict[str, Any]]) -> FirstChoice | None:
    """Chat, completions, fim and edit: whole answers, and streams of deltas or of snapshots of the whole text."""
    text, calls, finish, found = "", dict[int, list[str]](), None, False
    for value in values:
        choice = next((one for one in dicts(value.get("choices")) if one.get("index", 0) == 0), None)
        if choice is None:
            continue
        found = True
        said = as_object(choice.get("message")) or as_object(choice.get("delta"))
        new = _text(choice.get("text")) or _text(said.get("content")) or _text(said.get("refusal"))
        text = new if as_object(value.get("diffusion_meta")).get("diffusion_content") is True else text + new
        _join_calls(calls, said)
        finish = choice.get("finish_reason") or finish
    if not found:
        return None
    ordered = tuple((calls[number][0], calls[number][1]) for number in sorted(calls))
    return FirstChoice(text, ordered, finish if isinstance(finish, str) else None)


def _join_calls(calls: dict[int, list[str]], said: Mapping[str, Any]) -> None:
    """Add the tool calls of a message or a delta, or a function call of the older kind, to those so far."""
    given = dicts(said.get("tool_calls"))
    given += [{"function": said["function_call"]}] if isinstance(said.get("function_call"), dict) else []
    for place, call in enumerate(given):
        number = call.get("index", place)
        function = as_object(call.get("function"))
        name, arguments = calls.setdefault(number if isinstance(number, int) else place, ["", ""])
        new = function.get("arguments")
        new = new if isinstance(new, str) or new is None else json.dumps(new)
        calls[number if isinstance(number, int) else place] = [
            name + _text(function.get("name")),
            arguments + (new or ""),
        ]


def _of_response(values: list[dict[str, Any]], streamed: bool) -> FirstChoice | None:
    """A response, or the stream of one: its last event has the whole; where that is missing, its items so far."""
    if streamed:
        ends = [one for one in values if one.get("type") in ("response.completed", "response.incomplete")]
        if not ends:
            return _of_events(values)
        values = [as_object(ends[-1].get("response"))]
    response = values[0]
    if not isinstance(response.get("output"), list) or response.get("status") == "failed":
        return None
    items = dicts(response["output"])
    text = "".join(_text(one.get("content")) for one in items if one.get("type") == "message")
    calls = tuple(
        (_text(one.get("name")), _text(one.get("arguments"))) for one in items if one.get("type") == "function_call"
    )
    cut = response.get("status") == "incomplete"
    return FirstChoice(text, calls, "length" if cut else "tool_calls" if calls else "stop")


def _of_events(values: list[dict[str, Any]]) -> FirstChoice | None:
    """A stream of a response that broke off: the text so far, and the calls that were whole. None if it failed."""
    kinds = [one.get("type") for one in values]
    if "response.failed" in kinds or "response.created" not in kinds:
        return None
    text = "".join(_text(one.get("delta")) for one in values if one.get("type") == "response.output_text.delta")
    items = [as_object(one.get("item")) for one in values if one.get("type") == "response.output_item.done"]
    calls = [one for one in items if one.get("type") == "function_call"]
    return FirstChoice(text, tuple((_text(one.get("name")), _text(one.get("arguments"))) for one in calls))


def _of_decisions(value: dict[str, Any]) -> FirstChoice | None:
    """Decisions, by name or in a list: two answers are the same where the labels are."""
    answers = value.get("answers")
    if isinstance(answers, dict):
        return FirstChoice(json.dumps({name: _decided(one) for name, one in answers.items()}), finish="stop")
    if isinstance(answers, list):
        return FirstChoice(json.dumps([_decided(one) for one in answers]), finish="stop")
    return None


def _decided(answer: object) -> Any:
    """The label that a decision is for: a choice, true or false, or the nearest number of a score."""
    given = as_object(answer)
    if "choice" in given:
        return given["choice"]
    for name in ("noul", "probability"):
        if isinstance(given.get(name), int | float):
            return given[name] >= 0.5
    score = given.get("score")
    return round(score) if isinstance(score, int | float) else answer
