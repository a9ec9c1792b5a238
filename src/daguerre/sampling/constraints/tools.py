"""Functions that may be called: how one is given, and what may be chosen among calls and text.

A function is given as {"name": ..., "parameters": schema}, or as OpenAI's clients do, {"type": "function", "function":
{...}}.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from daguerre.errors import InputError

OPENING, CLOSING = "<tool_call>", "</tool_call>"
AUTO, NONE, REQUIRED = "auto", "none", "required"
NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "additionalProperties": False}


def function_of(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a tool says of its function, in either shape. InputError for a tool of another type."""
    if "function" not in tool and tool.get("type", "function") == "function":
        return tool
    function = tool.get("function")
    if tool.get("type", "function") != "function" or not isinstance(function, Mapping):
        raise InputError(f'a tool must be {{"type": "function", "function": {{"name": ...}}}}, not {dict(tool)!r:.60}')
    return function


def tool_name(tool: Mapping[str, Any], others: Container[str]) -> str:
    """A function's name. InputError if another function has it, or if it is a word of `tool_choice`."""
    name = tool.get("name")
    if not isinstance(name, str) or name in others or name in (AUTO, NONE, REQUIRED):
        raise InputError(f"each function needs a different name, other than auto, none and required, not {name!r:.40}")
    return name
