"""What a template loses: two messages for which it writes one text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from daguerre.models.chat_format.probe import Probe, renders
from daguerre.models.chat_format.sentinels import KEYS, TEXT, THOUGHT, call, message

Pair = tuple[Mapping[str, Any], Mapping[str, Any]]


def _called(**arguments: Any) -> dict[str, Any]:
    return {"content": "", "tool_calls": [call(0, {KEYS[1]: "qz", **arguments})]}


def pairs() -> Iterator[tuple[str, Pair]]:
    """Two messages that differ, and what is lost where a template writes both alike."""
    key = KEYS[0]
    yield "2 and '2'", (_called(**{key: 2}), _called(**{key: "2"}))
    yield "true and 'true'", (_called(**{key: True}), _called(**{key: "true"}))
    yield "true and 'True'", (_called(**{key: True}), _called(**{key: "True"}))
    yield "null and no argument", (_called(**{key: None}), _called())
    yield "null and ''", (_called(**{key: None}), _called(**{key: ""}))
    yield "null and 'null'", (_called(**{key: None}), _called(**{key: "null"}))
    yield "null and 'None'", (_called(**{key: None}), _called(**{key: "None"}))
    yield "null and '' in a list", (_called(**{key: [None]}), _called(**{key: [""]}))
    yield "calls after the first", (message(2), message(1))
    yield "text beside calls", (message(1, TEXT), message(1))
    yield "thoughts before calls", (message(1, reasoning_content=THOUGHT), message(1))
    yield "thoughts before text", ({"content": TEXT, "reasoning_content": THOUGHT}, {"content": TEXT})


def losses_of(probe: Probe) -> tuple[str, ...]:
    """The losses of a template that renders calls, as words. What it refuses is not told from what it leaves out."""
    lost = []
    for what, (one, other) in pairs():
        texts = [renders(probe, each) for each in (one, other)]
        if texts[0] == texts[1] or texts[0] is None:
            lost.append(what)
    return tuple(lost)
