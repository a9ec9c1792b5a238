"""Calls and thoughts in the format of the model's chat template, as `server.calls` has its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from daguerre.models.chat_format.description import Format, Thinks
from daguerre.models.chat_format.news import News
from daguerre.models.chat_format.reader import PlainCalls
from daguerre.models.chat_format.readers import reader_of
from daguerre.models.chat_format.written import Marks
from daguerre.server.answers import new_id
from daguerre.server.calls import FunctionCall, Said


class FormatCallReader:
    """`calls.CallReader` for a format, of texts in which special tokens are written out. A call has the id that
    the model writes, if no other call has it.
    """

    def __init__(
        self,
        form: Format,
        tools: Sequence[dict[str, Any]],
        thinks: Thinks,
        stops: Sequence[str],
        calls: bool,
        alone: bool,
        plain: PlainCalls | None,
    ) -> None:
        self._reader, self._marks = reader_of(form, tools, thinks, stops, calls, alone, plain), Marks()
        self._ids: set[str] = set()
        self.num_calls = 0

    def feed(self, text: str, last: bool = False) -> list[Said]:
        """The news that a further piece of the text brings; last: nothing follows it."""
        return [self._said(one) for one in self._reader.feed(self._marks.feed(text, last), last)]

    @property
    def stopped(self) -> bool:
        """Whether a stop string has ended the text."""
        return self._reader.stopped

    @property
    def stop_end(self) -> int | None:
        """The end of that string in the text."""
        end = self._reader.stop_end
        return None if end is None else self._marks.place(end)

    @property
    def thought_end(self) -> int:
        """The end of what the model thought."""
        return self._marks.place(self._reader.thought_end)

    def _said(self, news: News) -> Said:
        if news.name is None:
            return Said(news.text, None, news.arguments, news.thought)
        self.num_calls += 1
        return Said(call=FunctionCall(self.num_calls - 1, self._id(news.id), news.name))

    def _id(self, written: str | None) -> str:
        """A call's id: the one that was written, unless it is a mere number or another call has it."""
        key = written if written and not written.isdigit() and written not in self._ids else new_id("call_")
        self._ids.add(key)
        return key
