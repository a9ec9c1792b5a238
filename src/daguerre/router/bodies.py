"""Bodies of requests, from bytes to JSON: those with more in them than any request needs are refused before they are
walked.
"""

from __future__ import annotations

from typing import Any

import orjson

from daguerre.http.errors import ApiError

MOST_ITEMS = 10_000
"""Messages, or items, and tools of a request."""
MOST_CONTAINERS = 100_000
"""Objects and lists in a body, at any depth."""
MOST_SIGNS = {b"{": 500_000, b"[": 500_000, b",": 1_500_000}
"""In a body, its texts included: so many values take a twentieth of a second to read."""
CONTAINERS = (dict, list)
ITEMS = ("messages", "input", "tools", "functions", "prompt")


def json_of(raw: bytes) -> dict[str, Any]:
    """The JSON object of a body. ApiError for what is none, is nested too deeply, or has too many parts."""
    if any(raw.count(sign) > most for sign, most in MOST_SIGNS.items()):
        raise _too_many("the body has more values than are read", None)
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise ApiError(f"the body is no JSON: {error}", 400, code="invalid_json") from None
    if not isinstance(value, dict):
        raise ApiError("the body must be a JSON object", 400, code="invalid_json")
    _check_items(value)
    _check_containers(value)
    try:
        orjson.dumps([[[[value]]]])  # what is made of it later may be nested a little deeper
    except orjson.JSONEncodeError:
        raise ApiError("the body is nested too deeply: 250 levels are the most", 400, code="invalid_json") from None
    return value


def _check_items(body: dict[str, Any]) -> None:
    for name in ITEMS:
        items = body.get(name)
        if isinstance(items, list) and len(items) > MOST_ITEMS and not isinstance(items[0], int):
            raise _too_many(f"{name} has {len(items)} items, of at most {MOST_ITEMS}", name)


def _check_containers(body: dict[str, Any]) -> None:
    left: list[Any] = [body]
    num = 1
    while left:
        one = left.pop()
        values = one.values() if type(one) is dict else one
        if set(map(type, values)).isdisjoint(CONTAINERS):  # as in long lists of numbers
            continue
        inner = [each for each in values if type(each) in CONTAINERS]
        num += len(inner)
        if num > MOST_CONTAINERS:
            raise _too_many(f"the body has more than {MOST_CONTAINERS} objects and lists", None)
        left += inner


def _too_many(said: str, name: str | None) -> ApiError:
    return ApiError(f"{said}: send less", 413, name, "too_many_items")
