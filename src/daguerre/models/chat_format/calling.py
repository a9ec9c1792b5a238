"""How a template writes calls, found by what it writes around the names and arguments of one, and of two."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from daguerre.models.chat_format.description import Calls, Envelope, JsonArguments, Part, Slot, Spacing
from daguerre.models.chat_format.marks import MARK, common_end, common_start
from daguerre.models.chat_format.probe import Probe, renders
from daguerre.models.chat_format.sentinels import IDS, KEYS, NAMES, Found, call, found_calls, message
from daguerre.models.chat_format.tagging import Around, arguments_of, around
from daguerre.models.chat_format.thoughts import Surroundings, unthought

Row = list[Part]
"""Literals and slots, in turn; it begins and ends with a literal."""


def derive_calls(probe: Probe, given: Surroundings) -> Calls | None:
    """How calls are written; None where that is not found."""
    bodies = [body_of(probe, given, num) for num in (1, 2)]
    rows = [None if body is None else _row(body, num) for num, body in zip((1, 2), bodies, strict=True)]
    one, two = rows
    if one is None:
        return None
    if two is None:
        shape = _single(one)
    else:
        shape = _several(*_numbered(*_split(two, 2)))
    return None if shape is None else _with_arguments(shape, probe, one)


def body_of(probe: Probe, given: Surroundings, num: int) -> str | None:
    """The text of a turn with so many calls, without header, empty thought, empty text and end."""
    turn = renders(probe, message(num))
    if turn is None or not turn.startswith(given.header):
        return None
    body = unthought(turn[len(given.header) :], given.thinking)
    if given.text[0].strip():
        body = body.removeprefix("".join(given.text))
    mark = given.end.strip()
    start, found, rest = body.rpartition(mark) if mark else (body, "", "")
    return start if found and not rest.strip() else body


def _row(body: str, num: int) -> tuple[str, list[list[Found]]] | None:
    found = found_calls(body, [call(number) for number in range(num)])
    return None if found is None else (body, found)


def _split(row: tuple[str, list[list[Found]]], num: int) -> tuple[str, list[Row], list[str]]:
    """(what is before the first call, the parts of each, what is behind each)."""
    body, calls = row
    parts, gaps = list[Row](), list[str]()
    for number, slots in enumerate(calls):
        one = list[Part]()
        for slot, following in zip(slots, [*slots[1:], None], strict=True):
            one.append(slot.slot)
            if following is not None:
                one.append(body[slot.end : following.start])
        parts.append(one)
        end = calls[number + 1][0].start if number + 1 < num else len(body)
        gaps.append(body[slots[-1].end : end])
    return body[: calls[0][0].start], parts, gaps


def _numbered(before: str, calls: list[Row], gaps: list[str]) -> tuple[str, list[Row], list[str]]:
    """The text before the calls, the calls and the gaps, with a slot for a number that counts the calls."""
    first, second = calls
    for place, (one, two) in enumerate(zip(first, second, strict=True)):
        if isinstance(one, str) and isinstance(two, str) and (cut := _count(one, two)):
            first[place : place + 1] = [one[: cut[0]], Slot.INDEX, one[cut[1] :]]
            second[place : place + 1] = first[place : place + 3]
            break
    if cut := _count(before, gaps[0], from_end=True):
        tail = before[cut[1] :]
        for row in calls:
            row[:0] = [Slot.INDEX, tail]
        gaps = [re.sub(r"\d+$", "", gaps[0].removesuffix(tail)), *gaps[1:]]
        before = before[: cut[0]]
    return before, calls, gaps


def _count(one: str, two: str, from_end: bool = False) -> tuple[int, int] | None:
    """Where two texts differ in a number alone, which is larger by one in the second: its place in the first."""
    for found in re.finditer(r"\d+", one):
        more = str(int(found[0]) + 1)
        if from_end and two.endswith(more + one[found.end() :]) and MARK.sub("", one[found.end() :]):
            return found.span()
        if not from_end and one[: found.start()] + more + one[found.end() :] == two:
            return found.span()
    return None


def _single(row: tuple[str, list[list[Found]]]) -> Calls | None:
    before, (parts,), (after,) = _split(row, 1)
    return _calls("", before, parts, after, "", "", several=False)


def _several(before: str, calls: list[Row], gaps: list[str]) -> Calls | None:
    between, after = gaps
    if calls[0] != calls[1]:
        return None
    opening = common_end([before, between])
    rest = between[: len(between) - len(opening)]
    closing = common_start([rest, after])
    begin = before[: len(before) - len(opening)]
    return _calls(begin, opening, calls[0], closing, rest[len(closing) :], after[len(closing) :], several=True)


def _calls(
    begin: str, opening: str, parts: Sequence[Part], closing: str, separator: str, end: str, several: bool
) -> Calls:
    whole = tuple(part for part in (opening, *parts, closing) if part != "")
    return Calls(begin, whole, separator, end, JsonArguments(), several=several)


def _with_arguments(shape: Calls, probe: Probe, one: tuple[str, list[list[Found]]]) -> Calls | None:
    body, (slots,) = one
    region = next(body[slot.start : slot.end] for slot in slots if slot.slot is Slot.ARGUMENTS)
    if region[0] == "{":
        return _with_envelope(replace(shape, arguments=JsonArguments(_spacing(region))))
    if region[0] == '"' and region[1] == "{":
        return _with_envelope(replace(shape, arguments=JsonArguments(quoted=True)))
    place = shape.parts.index(Slot.ARGUMENTS)
    lead, tail = (shape.parts[near] if 0 <= near < len(shape.parts) else "" for near in (place - 1, place + 1))
    if not isinstance(lead, str) or not isinstance(tail, str):
        return None
    literals: Around | None = around(region, lead, tail)
    found = None if literals is None else arguments_of(literals, probe)
    if found is None:
        return None
    arguments, lead, tail = found
    parts = (*shape.parts[: place - 1], lead, Slot.ARGUMENTS, tail, *shape.parts[place + 2 :])
    return replace(shape, parts=tuple(part for part in parts if part != ""), arguments=arguments)


def _spacing(region: str) -> Spacing:
    colon = re.search(rf'"{KEYS[0]}":(\s*)', region)
    comma = re.search(rf',(\s*)"{KEYS[1]}"', region)
    found = [each[1] if each else "" for each in (comma, colon)]
    return Spacing(*(" " if "\n" in each else each for each in found))


def _with_envelope(shape: Calls) -> Calls:
    """The shape with the JSON object around a call, if a call is one."""
    written = "".join(part if isinstance(part, str) else _sample(part, shape) for part in shape.parts)
    decoder = json.JSONDecoder()
    for place in (found.start() for found in re.finditer(r"\{", written)):
        try:
            value, end = decoder.raw_decode(written, place)
        except ValueError:
            continue
        envelope = _envelope(value)
        if envelope is not None:
            return replace(shape, envelope=envelope, prefix=written[:place], suffix=written[end:])
        return shape
    return shape


def _sample(part: Part, shape: Calls) -> str:
    given = json.dumps(call()["function"]["arguments"])
    quoted = isinstance(shape.arguments, JsonArguments) and shape.arguments.quoted
    given = json.dumps(given) if quoted else given
    texts = {Slot.NAME: NAMES[0], Slot.ID: IDS[0], Slot.INDEX: "0", Slot.ARGUMENTS: given}
    return texts[part] if isinstance(part, Slot) else part


def _envelope(value: Any, within: str | None = None) -> Envelope | None:
    if not isinstance(value, dict):
        return None
    if NAMES[0] in value:
        return Envelope(None)
    keys = {kind: _key_of(value, kind) for kind in ("name", "arguments", "id")}
    if keys["name"] is None:
        inner = ((key, _envelope(held, key)) for key, held in value.items() if within is None)
        return next((found for _, found in inner if found is not None), None)
    return Envelope(keys["name"], keys["arguments"], keys["id"], within)


def _key_of(value: dict[str, Any], kind: str) -> str | None:
    given = call()["function"]["arguments"]
    wanted = {"name": [NAMES[0]], "arguments": [given, json.dumps(given)], "id": [IDS[0], "0", 0]}[kind]
    return next((key for key, held in value.items() if held in wanted), None)
