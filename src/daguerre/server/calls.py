"""Calls of functions in a text that is being written: what a client sees of it, without the marks around calls."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from daguerre.models.chat_format.description import Format, Thinking, Thinks
from daguerre.models.chat_format.news import News
from daguerre.models.chat_format.reader import FormatReader, PlainCalls
from daguerre.models.chat_format.readers import reader_of
from daguerre.models.chat_format.source import Steps
from daguerre.models.chat_format.written import Marks
from daguerre.sampling.constraints.tools import CLOSING, OPENING
from daguerre.server.answers import new_id

HEAD, MIDDLE = '{"name":', ',"arguments":'


@dataclass(frozen=True)
class FunctionCall:
    """A call of a function: its number in the answer, an id, the function's name, and its arguments as JSON."""

    index: int
    id: str
    name: str
    arguments: str = ""


@dataclass(frozen=True)
class Said:
    """News of an answer: text, the beginning of a call, or what follows of the arguments of the last call; or of what
    the model thinks before its answer.
    """

    text: str = ""
    call: FunctionCall | None = None
    arguments: str = ""
    thought: str = ""


THINK, THOUGHT = "<think>", "</think>"


class OwnReader(FormatReader):
    """Reads a text of the language of `sampling.constraints.tools`.

    thinks  "may": the text may begin with what the model thinks, between THINK and THOUGHT; "does": it begins within
    strip   leave out the spaces that the text begins with
    """

    def __init__(
        self,
        thinks: Thinks | None,
        stops: Sequence[str],
        calls: bool,
        alone: bool,
        plain: PlainCalls | None,
        strip: bool,
    ) -> None:
        form = Format("own", thinking=None if thinks is None else Thinking(THINK, THOUGHT))
        super().__init__(form, (), thinks or "may", stops, False, alone, plain)
        self._strip, self._opening = strip, (OPENING,) if calls else ()

    def _answer(self, within: bool) -> Steps[None]:
        source = self._source
        while self._strip and (yield from source.need()) and source.text[source.at] == " ":
            source.at += 1
        start = source.at
        if self._form.thinking is not None and not within:
            yield from source.blank()
            within = (yield from source.choose([THINK])) >= 0
            source.at = source.at if within else start
        if within:
            yield from self._thought()
        if (yield from self._plain_calls()):
            return
        while (yield from self._text()) == OPENING:
            yield from self._call()

    def _text(self) -> Steps[str]:
        """Report a text; the mark that ends it, which is read; "": the answer ends."""
        source, marks = self._source, (*self._opening, *self._stops)
        while True:
            found = [(place, mark) for mark in marks if (place := source.text.find(mark, source.at)) >= 0]
            if self._alone:
                found = [one for one in found if one[1] != OPENING or (one[0] == source.at and not self._said)]
            place, mark = min(found, default=(len(source.text), ""))
            if not mark and not source.closed:
                begun = (n for one in marks for n in range(1, len(one)) if source.text.endswith(one[:n], source.at))
                place -= max(begun, default=0)
            if text := source.take(place):
                self._report.add(News(text))
                self._said = True
            if mark or source.closed:
                source.at += len(mark)
                self.stop_end = source.at if mark in self._stops else None
                return mark
            yield

    def _call(self) -> Steps[None]:
        source, decoder = self._source, json.JSONDecoder()
        while True:
            with suppress(ValueError):
                name, end = decoder.raw_decode(source.text, source.at + len(HEAD))
                if source.text.startswith(MIDDLE, end):
                    break
            if source.closed:
                source.take(len(source.text))
                return
            yield
        source.at = end + len(MIDDLE)
        self._report.begin(name)
        yield from self._arguments()
        yield from source.need(1 + len(CLOSING))
        source.at += 1 + len(CLOSING)

    def _arguments(self) -> Steps[None]:
        """JSON as it is written, up to the brace that ends the call."""
        source, depth, quoted, escaped, place = self._source, 0, False, False, self._source.at
        while True:
            for at, char in enumerate(source.text[place:], place):
                if quoted:
                    quoted = escaped or char != '"'
                    escaped = char == "\\" and not escaped
                elif char == '"':
                    quoted = True
                elif char in "{[":
                    depth += 1
                elif char in "}]":
                    depth -= 1
                    if depth < 0:
                        self._report.arguments(source.take(at))
                        return
            place = len(source.text)
            self._report.arguments(source.take(place))
            if source.closed:
                return
            yield


class CallReader:
    """Reads an answer as it comes, of the format of the model's chat template or, without one, of `OwnReader`'s. What
    may be the beginning of a mark, or of one of the `stops` that end its text, is held back.

    calls   whether there are calls at all
    alone   calls come before any text, in which marks may be anything
    plain   reads an answer that is, as a whole, calls without marks; None: such an answer is text
    form    the format of texts in which special tokens are written out; `tools` are those that it may call
    """

    def __init__(
        self,
        stops: Sequence[str] = (),
        calls: bool = True,
        strip: bool = False,
        alone: bool = False,
        plain: PlainCalls | None = None,
        thinks: Thinks | None = None,
        form: Format | None = None,
        tools: Collection[Mapping[str, Any]] = (),
    ) -> None:
        self._marks, self._ids, self.num_calls = None if form is None else Marks(), set[str](), 0
        self._reader: FormatReader
        if form is None:
            self._reader = OwnReader(thinks, stops, calls, alone, plain, strip)
        else:
            self._reader = reader_of(form, tools, thinks or "may", stops, calls, alone, plain)

    def feed(self, text: str, last: bool = False) -> list[Said]:
        """The news that a further piece of the text brings; last: nothing follows it."""
        text = text if self._marks is None else self._marks.feed(text, last)
        return [self._news(one) for one in self._reader.feed(text, last)]

    @property
    def stopped(self) -> bool:
        """Whether a stop string has ended the text."""
        return self._reader.stopped

    @property
    def stop_end(self) -> int | None:
        """How many characters there are up to the end of the stop string that ended the text; None: none did."""
        return None if self._reader.stop_end is None else self._place(self._reader.stop_end)

    @property
    def thought_end(self) -> int:
        """The same of what the model thought, its marks included."""
        return self._place(self._reader.thought_end)

    def _place(self, end: int) -> int:
        return end if self._marks is None else self._marks.place(end)

    def _news(self, news: News) -> Said:
        if news.name is None:
            return Said(news.text, None, news.arguments, news.thought)
        self.num_calls += 1
        return Said(call=FunctionCall(self.num_calls - 1, self._id(news.id), news.name))

    def _id(self, written: str | None) -> str:
        """A call's id: the one that was written, unless it is a mere number or another call has it."""
        key = written if written and not written.isdigit() and written not in self._ids else new_id("call_")
        self._ids.add(key)
        return key


def joined(said: Sequence[Said]) -> tuple[str, list[FunctionCall]]:
    """The text of an answer, and the calls in it, from all its news."""
    calls: list[FunctionCall] = []
    for one in said:
        if one.call is not None:
            calls.append(one.call)
        elif one.arguments:
            last = calls.pop()
            calls.append(FunctionCall(last.index, last.id, last.name, last.arguments + one.arguments))
    return "".join(one.text for one in said), calls


def written(name: str, arguments: str) -> str:
    """A call as the model writes it. The arguments are JSON; what is none is written as a string."""
    try:
        value = json.loads(arguments or "{}")
    except ValueError:
        value = arguments
    compact = {"ensure_ascii": False, "separators": (",", ":")}
    both = [json.dumps(each, **compact) for each in (name, value)]  # type: ignore[arg-type]
    return f"{OPENING}{HEAD}{both[0]}{MIDDLE}{both[1]}}}{CLOSING}"


def call_json(call: FunctionCall) -> dict[str, Any]:
    """A call as OpenAI's messages have it."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def delta_of(said: Said, number: int) -> dict[str, Any]:
    """OpenAI's delta: text; the id and name of a call; or more of the arguments of call `number`. What is thought has
    the field that vLLM and DeepSeek gave it.
    """
    if said.call is not None:
        return {"tool_calls": [{"index": number, **call_json(said.call)}]}
    if said.arguments:
        return {"tool_calls": [{"index": number, "type": "function", "function": {"arguments": said.arguments}}]}
    if said.thought:
        return {"reasoning_content": said.thought}
    return {"content": said.text}
