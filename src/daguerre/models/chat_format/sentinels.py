"""Calls and texts that no template writes by itself, to be found again in what it renders."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from daguerre.models.chat_format.description import Slot

TEXT, THOUGHT = "Qzsaid", "qzthought"
NAMES = ("qznamea", "qznameb", "qznamec")
IDS = ("qzidaaaa1", "qzidbbbb2", "qzidcccc3")  # nine letters and digits, as Mistral's templates demand
KEYS = ("qzkey0a", "qzkey0b")
"""Of the first call; those of the others have their number."""


def call(number: int = 0, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The call of a number, with two arguments unless others are given."""
    own = {f"qzkey{number}{letter}": f"qzval{number}{letter}" for letter in "ab"}
    given = own if arguments is None else dict(arguments)
    return {"id": IDS[number], "type": "function", "function": {"name": NAMES[number], "arguments": given}}


def message(num: int, text: str = "", **more: Any) -> dict[str, Any]:
    """An assistant's message with so many calls."""
    return {"role": "assistant", "content": text, "tool_calls": [call(number) for number in range(num)], **more}


@dataclass(frozen=True)
class Found:
    """A slot of a call in a rendered text: text[start:end]."""

    slot: Slot
    start: int
    end: int


def found_calls(text: str, calls: Sequence[Mapping[str, Any]]) -> list[list[Found]] | None:
    """The slots of calls, in their order in a text; None where a call is not in it as a whole."""
    out = [_found(text, one) for one in calls]
    if not all(out):
        return None
    bounds = [(slots[0].start, slots[-1].end) for slots in out if slots]
    inside = all(end <= start for (_, end), (start, _) in zip(bounds, bounds[1:], strict=False))
    return [slots for slots in out if slots] if inside else None


def _found(text: str, one: Mapping[str, Any]) -> list[Found] | None:
    function = one["function"]
    region = arguments_in(text, function["arguments"])
    names = _every(text, function["name"], Slot.NAME)
    if region is None or not names:
        return None
    slots = [*names, *_every(text, one["id"], Slot.ID), Found(Slot.ARGUMENTS, *region)]
    return sorted(slots, key=lambda slot: slot.start)


def _every(text: str, what: str, slot: Slot) -> list[Found]:
    return [Found(slot, found.start(), found.end()) for found in re.finditer(re.escape(what), text)]


def arguments_in(text: str, arguments: Mapping[str, Any]) -> tuple[int, int] | None:
    """Where arguments stand: a JSON object, a string of one, or else from the first name to the last value."""
    keys = list(arguments)
    places = [text.find(key) for key in keys]
    if not keys or min(places) < 0:
        return None
    for sign in "{", '"{':
        place = text.rfind(sign, 0, places[0])
        if place >= 0 and (end := _json_end(text, place, arguments)) is not None:
            return place, end
    last = text.find(str(arguments[keys[-1]]), places[-1] + len(keys[-1]))
    if last < 0:
        return None
    end = last + len(str(arguments[keys[-1]]))
    closing = f"</{keys[-1]}>"  # a name that stands behind its value, too, belongs to the arguments
    place = text.find(closing, end, end + 40)
    return min(places), end if place < 0 else place + len(closing)


def _json_end(text: str, place: int, arguments: Mapping[str, Any]) -> int | None:
    try:
        value, end = json.JSONDecoder().raw_decode(text, place)
        value = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return None
    return end if value == arguments else None
