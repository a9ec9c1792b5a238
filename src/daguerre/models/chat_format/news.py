"""What a reader finds in an answer, piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

from daguerre.models.chat_format.source import MARKED


@dataclass(frozen=True)
class News:
    """One of: text; a thought; the beginning of a call, its name and, where it was written, its id; more of the last
    call's arguments, which are JSON.
    """

    text: str = ""
    thought: str = ""
    name: str | None = None
    id: str | None = None
    arguments: str = ""


class Failed(Exception):
    """What was begun to be read as a call is none."""


class Report:
    """News so far. While it is held, what is added may be dropped again."""

    def __init__(self) -> None:
        self._out: list[News] = []
        self._held: list[News] | None = None
        self.num_calls = 0

    def add(self, news: News) -> None:
        """Add news; what stands before special tokens is none of it."""
        news = News(*(held.replace(MARKED, "") if held else held for held in astuple(news)))
        (self._out if self._held is None else self._held).append(news)

    def hold(self) -> None:
        """Keep back what is added from now on."""
        self._held = [] if self._held is None else self._held

    def release(self) -> None:
        """Report what was kept back."""
        held, self._held = self._held or [], None
        self._out += held
        self.num_calls += sum(one.name is not None for one in held)

    def drop(self) -> None:
        """Forget what was kept back."""
        self._held = None

    def begin(self, name: str, key: str | None = None) -> None:
        """A call begins."""
        self.num_calls += self._held is None
        self.add(News(name=name, id=key))

    def arguments(self, text: str) -> None:
        """More arguments."""
        if text:
            self.add(News(arguments=text))

    def tell(self, text: str) -> None:
        """More arguments. From here on the call cannot be dropped."""
        self.arguments(text)
        self.release()

    def taken(self) -> list[News]:
        """The news that nobody took yet."""
        out, self._out = self._out, []
        return out


def message_of(news: Sequence[News]) -> dict[str, Any]:
    """An assistant's message, as OpenAI's API has it."""
    calls: list[dict[str, Any]] = []
    for one in news:
        if one.name is not None:
            key = one.id or f"call_{len(calls)}"
            calls.append({"id": key, "type": "function", "function": {"name": one.name, "arguments": ""}})
        if one.arguments:
            calls[-1]["function"]["arguments"] += one.arguments
    out: dict[str, Any] = {"role": "assistant", "content": "".join(one.text for one in news)}
    if thought := "".join(one.thought for one in news):
        out["reasoning_content"] = thought
    return out | ({"tool_calls": calls} if calls else {})
