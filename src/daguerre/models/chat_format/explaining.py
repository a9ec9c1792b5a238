"""What was found of a chat format, in plain values for people and programs."""

from __future__ import annotations

from typing import Any

from daguerre.models.chat_format.description import (
    Arguments,
    BareObject,
    Calls,
    Format,
    JsonArguments,
    NestedTags,
    Slot,
    Tags,
)


def facts_of_format(form: Format) -> dict[str, Any]:
    """A format as JSON."""
    thinking = form.thinking
    return {
        "found": form.source,
        "thinking": None if thinking is None else {"open": thinking.open, "close": thinking.close},
        "text": None if not any(form.text) else {"open": form.text[0], "close": form.text[1]},
        "calls": None if form.calls is None else _calls(form.calls),
        "ends": list(form.ends),
        "losses": list(form.losses),
    }


def _calls(calls: Calls) -> dict[str, Any]:
    shown = "".join(f"{{{part.value}}}" if isinstance(part, Slot) else part for part in calls.parts)
    return {
        "begin": calls.begin,
        "call": shown,
        "separator": calls.separator,
        "end": calls.end,
        "arguments": _arguments(calls.arguments),
        "several": calls.several,
    }


def _arguments(arguments: Arguments) -> str:
    if isinstance(arguments, JsonArguments):
        return "a string of JSON" if arguments.quoted else "a JSON object"
    if isinstance(arguments, Tags):
        tags = {f"{arguments.before}NAME{tag.between}VALUE{tag.after}" for tag in arguments.tags.values()}
        return "one by one: " + "; or ".join(sorted(tags))
    if isinstance(arguments, NestedTags):
        return f"elements: {arguments.mark}<NAME>VALUE{arguments.mark}</NAME>"
    assert isinstance(arguments, BareObject)
    return f"an object without quotes, strings between {arguments.quote}"


def lines_of_format(form: Format) -> str:
    """A format in lines of text."""
    facts = facts_of_format(form)
    calls = facts.pop("calls")
    rows = [(name, value) for name, value in facts.items() if value]
    rows[1:1] = [
        (f"calls: {name}", value) for name, value in (calls or {"none": "the template writes no calls"}).items()
    ]
    return "\n".join(f"{name:18}{_line(value)}" for name, value in rows)


def _line(value: Any) -> str:
    if isinstance(value, dict):
        return "  ".join(f"{key} {held!r}" for key, held in value.items())
    if isinstance(value, list):
        return ", ".join(one.strip() or repr(one) for one in value)
    return value if isinstance(value, str) and "\n" not in value and value else repr(value)
