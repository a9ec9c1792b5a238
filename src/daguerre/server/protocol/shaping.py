"""Constraints by the names that clients of other servers give them, as fields of the object `daguerre`.

A field that asks for a constraint holds, or is refused: text that only looks constrained breaks the program that reads
it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from daguerre.http.errors import ApiError

MAX_STOPS = 4
MOST_STOPS = 64
"""Stop strings, each of which is looked for at every step, on surfaces that have more than OpenAI's, with those of the
server.
"""
LONGEST_STOP = 1_000
"""Characters."""


def check_stops(stops: object, param: str, most: int = MAX_STOPS) -> None:
    """ApiError, naming the field, for more stop strings than a request may have, or one that is too long."""
    given = stops if isinstance(stops, list | tuple) else [stops]
    if len(given) > most:
        raise ApiError(f"{param} may be at most {most} strings, not {len(given)}", param=param)
    if any(isinstance(one, str) and len(one) > LONGEST_STOP for one in given):
        raise ApiError(f"{param} has a string of more than {LONGEST_STOP:,} characters: shorten it", param=param)


NAMES: Mapping[str, str] = {
    "guided_json": "schema",
    "guided_regex": "regex",
    "guided_choice": "choices",
    "json_schema": "schema",
    "schema": "schema",
    "regex": "regex",
    "choices": "choices",
}
"""Fields at the top of a body: vLLM's until 0.12, llama.cpp's and SGLang's, and our own without their object."""
STRUCTURED: Mapping[str, str] = {"json": "schema", "regex": "regex", "choice": "choices"}
"""The fields of vLLM's `structured_outputs`."""
NO_GRAMMAR = "grammars are not read: give a JSON schema or a regular expression"
OWN = 'put it into the object daguerre: {"daguerre": {...}}'
REFUSED: Mapping[str, str] = {
    "grammar": NO_GRAMMAR,
    "guided_grammar": NO_GRAMMAR,
    "ebnf": NO_GRAMMAR,
    "structural_tag": "tags are not read: give tools, or a JSON schema",
    "guided_whitespace_pattern": "white space between values is the schema's own: leave it out",
    **dict.fromkeys(("keywords", "forbidden", "ending", "pins"), OWN),
}
"""Fields that are not supported under this name, and what to use instead."""
EMPTY: tuple[Any, ...] = (None, "", False, [], {})
"""Values that ask for nothing."""


def shaped(value: Any, fields: Mapping[str, Any]) -> Any:
    """A body with its constraints moved into the object `daguerre`; the body's own `fields` stay where they are.

    ApiError, naming the field, for one that cannot be honored, and for two that ask for the same thing.
    """
    if not isinstance(value, dict):
        return value
    for name, instead in REFUSED.items():
        if name not in fields and value.get(name) not in EMPTY:
            raise ApiError(f"{name} cannot be honored: {instead}", param=name, code="unsupported")
    found = [(name, NAMES[name], value[name]) for name in NAMES if name not in fields and value.get(name) not in EMPTY]
    found += _structured(value.get("structured_outputs"))
    if "response_format" not in fields:
        found += _format(value.get("response_format"))
    if "tools" not in fields and value.get("tools") not in EMPTY:
        raise ApiError("tools are for conversations: use /v1/chat/completions", param="tools", code="unsupported")
    return _joined(value, found) if found else value


Found = tuple[str, str, Any]
"""A field of the body, the field of `daguerre` that it stands for, and its value."""


def _structured(given: Any) -> list[Found]:
    if given in EMPTY:
        return []
    if not isinstance(given, dict):
        raise ApiError("structured_outputs must be an object", param="structured_outputs")
    out: list[Found] = []
    for name, held in given.items():
        where = f"structured_outputs.{name}"
        if held in EMPTY and not (name == "json" and held is not None):
            continue
        if name in STRUCTURED:
            out.append((where, STRUCTURED[name], held))
        elif name == "json_object":
            out.append((where, "schema", {"type": "object"}))
        else:
            raise ApiError(f"{where} cannot be honored: {REFUSED.get(name, 'leave it out')}", param=where)
    return out


def _format(given: Any) -> list[Found]:
    """OpenAI's format of a chat's answer, where a completion asks for it."""
    if given in EMPTY or (isinstance(given, dict) and given.get("type") == "text"):
        return []
    kind = given.get("type") if isinstance(given, dict) else given
    if kind not in ("json_object", "json_schema"):
        message = f"response_format cannot be {kind!r:.40}: use text, json_object or json_schema"
        raise ApiError(message, param="response_format", code="unsupported")
    return [("response_format", "schema", schema_of(given))]


def schema_of(given: Mapping[str, Any]) -> Any:
    """The schema of a `response_format`, wherever servers have it: any object where there is none."""
    inner = given.get("json_schema")
    held = inner.get("schema", True) if isinstance(inner, dict) else given.get("schema", given.get("value"))
    if held is None and given.get("type") == "json_schema":
        raise ApiError('type "json_schema" needs a json_schema', param="response_format")
    return {"type": "object"} if held is None else held


def _joined(value: dict[str, Any], found: list[Found]) -> dict[str, Any]:
    own = value.get("daguerre") or {}
    if not isinstance(own, dict):  # a body of a body, whose constraints are in place
        return value
    given = dict(own)
    for where, name, held in found:
        if name in given:
            raise ApiError(f"{where} and daguerre.{name} are two constraints: leave out one of the two", param=where)
        if name == "schema" and isinstance(held, str):
            held = _parsed(where, held)
        given[name] = held
    left = {name: held for name, held in value.items() if name not in {where.split(".")[0] for where, *_ in found}}
    return {**left, "daguerre": given}


def _parsed(where: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ApiError(f"{where} must be a JSON schema, an object or its text", param=where) from None
