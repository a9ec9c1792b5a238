"""Which checks an answer passed, for the log: what its request alone says of a right answer.

They are made once the client has the answer, where requests are served, so they read it once and no more: whether it is
valid by a schema is for a grader of shadows, in a process of its own (`graders.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import orjson

from daguerre.router.answers import answer_of
from daguerre.router.graders import text_schema, tool_schemas

LOG = logging.getLogger("daguerre.router")
MOST_CHECKED = 128 << 10
"""Bytes of an answer."""
NO_JSON = object()


def has_checks(request: Mapping[str, Any]) -> bool:
    """Whether a request's body says anything of its answer that can be checked."""
    return bool(tool_schemas(request)) or text_schema(request) is not None


def checks_of(request: Mapping[str, Any], operation: str, answer: bytes, streamed: bool) -> dict[str, bool]:
    """By the name of each check that was made, whether the first choice of an answer passed it.

    json    the text is JSON, where the request gives it a schema or asks for an object
    tools   every call is of a function of the request, and its arguments are a JSON object
    """
    try:
        return _checks(request, operation, answer, streamed) if len(answer) <= MOST_CHECKED else {}
    except Exception:
        LOG.exception("an answer could not be checked")
        return {}


def _checks(request: Mapping[str, Any], operation: str, answer: bytes, streamed: bool) -> dict[str, bool]:
    found = answer_of(operation, answer, streamed)
    if found is None:
        return {}
    if found.tool_calls:
        functions = tool_schemas(request)
        calls = [(name, _json_of(text if text.strip() else "{}")) for name, text in found.tool_calls]
        right = all(name in functions and isinstance(value, dict) for name, value in calls)
        return {"tools": right} if functions else {}
    return {} if text_schema(request) is None else {"json": _json_of(found.text) is not NO_JSON}


def _json_of(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return NO_JSON
