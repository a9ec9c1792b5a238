"""What a body must be before it is read as JSON: few enough parts, not nested too deep, and all of it text that can be
written back. Its parts are counted before they are made, since to make millions of them would hold up everybody.

Plain ASGI, so that nothing has been parsed yet.
"""

from __future__ import annotations

import json
import re

from starlette.types import ASGIApp, Receive, Scope, Send

from daguerre.http.errors import ApiError, answer
from daguerre.http.sites import under

MOST_LISTS = 50_000
"""Objects and lists of a body."""
MOST_ITEMS = 500_000
"""Items of all its lists and objects together."""
DEEPEST = 200
"""Objects and lists inside one another; what answers are written with has a limit of 254."""
AS_JSON = ("/api",)
"""Paths whose bodies are read as JSON whatever type is said, as in the examples of Ollama's API; what a browser's page
sends has been looked at before (`http.sites`).
"""
STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
LONE = re.compile(
    rb"(?:[^\\]++|\\[^u]|\\u(?![dD][89a-fA-F])|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F])*+\\u[dD]", re.DOTALL
)
"""From the start to half of a pair of surrogates; behind a whole pair are two more digits."""


class Bodies:
    """The middleware, behind the gate, which has read the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        try:
            check_body(scope.get("state", {}).get("body", b""))
        except ApiError as error:
            await answer(error)(scope, receive, send)
            return
        if under(scope.get("path", ""), AS_JSON):
            headers = [one for one in scope["headers"] if one[0] != b"content-type"]
            scope = {**scope, "headers": [*headers, (b"content-type", b"application/json")]}
        await self._app(scope, receive, send)


def check_body(body: bytes) -> None:
    """ApiError for a body that has too much of something, or a lone surrogate; what is no JSON is refused elsewhere."""
    lists, items = body.count(b"[") + body.count(b"{"), body.count(b",")
    if lists > DEEPEST or items > MOST_ITEMS:
        outside = STRING.sub(b"", body)
        lists, items = outside.count(b"[") + outside.count(b"{"), outside.count(b",")
        if _depth(outside) > DEEPEST:
            raise ApiError(f"the body is nested deeper than {DEEPEST} lists and objects: flatten it")
        for number, most, what in ((lists, MOST_LISTS, "objects and lists"), (items, MOST_ITEMS, "items")):
            if number > most:
                raise ApiError(f"the body has {number:,} {what}, of at most {most:,}: send less", 413)
    if b"\\ud" in body or b"\\uD" in body:
        _check_surrogates(body)


def check_depth(text: str, place: str) -> None:
    """ApiError, naming the field, for JSON in a text of a body that is nested too deep."""
    if _depth(STRING.sub(b"", text.encode("utf-8", "replace"))) > DEEPEST:
        raise ApiError(f"{place} is nested deeper than {DEEPEST} lists and objects: flatten it", param=place)


def _depth(outside: bytes) -> int:
    """How deep the brackets of a JSON text without its strings are nested, as far as it may have any."""
    depth = deepest = 0
    for bracket in outside.translate(None, NOT_BRACKETS)[: 2 * MOST_LISTS]:
        depth += 1 if bracket in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _check_surrogates(body: bytes) -> None:
    if LONE.match(body) is None:
        return
    try:
        held = json.loads(body)
    except (ValueError, RecursionError):
        return
    fields = held.items() if isinstance(held, dict) else [(None, held)]
    name = next((name for name, value in fields if not is_writable([name, value])), None)
    if name is not None or not is_writable(held):
        shown = name if name is not None and is_writable(name) else None
        where = f"{shown[:60]} has" if shown else "the body has"
        raise ApiError(f"{where} half of a pair of surrogates, which is no text: remove it", param=shown and shown[:60])


def is_writable(value: object) -> bool:
    """Whether a value can be written as JSON in UTF-8: it has no lone surrogate."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True
