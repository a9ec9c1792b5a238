"""Calls of functions in a text that is being written: what a client sees of it, without the marks around calls."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from daguerre.errors import InputError
from daguerre.models.chat_format import Thinks
from daguerre.models.chat_format.description import Format, Thinking
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


ARGUMENTS = ("arguments", "parameters")
OTHERS = ("type", "id", "function", *ARGUMENTS)
"""Keys that a call may begin with besides its name."""
FENCE = re.compile(r"\s*```[a-z_]*[ \t]*\n(.*?)\n?```\s*", re.DOTALL)
FENCED = ("", "json", "tool_call", "tool_code", "xml")
MOST_BLANKS = 256
"""An answer that begins with more white space is no call."""
BEGUN = re.compile(
    r"\s*(?:```([a-z_]*)[ \t]*\n)?[\s\[]{0,64}"
    r'(?:\{{1,2}\s*(?:"([^"\\]*)("\s*(?::\s*(?:"([^"\\]*)("?))?)?)?)?)?'
)
"""The beginning of such an answer: a fence, brackets, and the first key with its value, either of which may be cut."""


@dataclass(frozen=True)
class JsonCalls:
    """Reads the calls of answers that have them as plain JSON, bare or in a fence, in place of the marks around calls.

    Many models that were trained on calls write {"name": ..., "arguments": {...}} so, or several of them, in a list or
    one after the other. It is a call only if the whole answer is nothing else, each names a given function, and its
    arguments are in the language of calls (`sampling.constraints.tools`). Any other answer stays a text, byte for byte.

    tools    the parameters of each function, by its name
    accepts  whether a call as it is written is in the language of calls
    several  whether an answer may have more than one
    """

    tools: Mapping[str, Any]
    accepts: Callable[[str], bool]
    several: bool

    def may_be(self, text: str) -> bool:
        """Whether an answer that begins with this text may yet be calls."""
        left = text.lstrip()
        if not left:
            return len(text) < MOST_BLANKS
        if left[0] not in "`[{" or (left[0] == "`" and not left.startswith("```"[: len(left)])):
            return False
        found = BEGUN.match(text)
        assert found is not None
        fence, key, known, value, whole = found.groups()
        if fence is not None and fence not in FENCED:
            return False
        if key is None:
            return found.end() == len(text) or text[found.end()] == "`"
        if known is None:  # the key is cut
            return any(name.startswith(key) for name in ("name", *OTHERS))
        if key != "name":
            return key in OTHERS
        return (
            value is None or value in self.tools or (not whole and any(name.startswith(value) for name in self.tools))
        )

    def read(self, text: str) -> list[tuple[str, str]]:
        """The names and arguments, as compact JSON, of the calls that a whole answer is; empty where it is none."""
        try:
            return self._read(text)
        except (ValueError, RecursionError, InputError):  # no JSON, too deep, or with a text that no token writes
            return []

    def _read(self, text: str) -> list[tuple[str, str]]:
        fenced = FENCE.fullmatch(text)
        values = _values((fenced[1] if fenced else text).strip())
        if len(values) == 1 and isinstance(values[0], list):
            values = values[0]
        found = [self._call(value) for value in values]
        calls = [call for call in found if call is not None]
        return calls if len(calls) == len(values) and (self.several or len(calls) == 1) else []

    def _call(self, value: Any) -> tuple[str, str] | None:
        """The call that a JSON value is."""
        if isinstance(value, Mapping) and isinstance(value.get("function"), Mapping):
            value = value["function"]
        name = value.get("name") if isinstance(value, Mapping) else None
        if not isinstance(name, str) or name not in self.tools:
            return None
        given = [value[key] for key in ARGUMENTS if key in value]
        if len(given) != 1 or not isinstance(given[0], Mapping) or set(value) - {"name", "type", "id", *ARGUMENTS}:
            return None
        arguments = json.dumps(ordered(given[0], self.tools[name]), ensure_ascii=False, separators=(",", ":"))
        arguments.encode()  # of half a character there is a name in JSON, and no text
        return (name, arguments) if self.accepts(written(name, arguments)) else None


def _values(text: str) -> list[Any]:
    """JSON values, one after the other. ValueError for anything else.

    An object's outer braces may be doubled, both or only the first: the chat template of Qwen2.5-Coder shows a call as
    {{"name": ...}}, and the model copies that.
    """
    decoder, out, at = json.JSONDecoder(), list[Any](), 0
    while at < len(text):
        doubled = text.startswith("{{", at)
        value, at = decoder.raw_decode(text, at + doubled)
        at += doubled and text.startswith("}", at)
        out.append(value)
        while at < len(text) and text[at] in " \t\r\n,;":
            at += 1
    return out


def ordered(value: Any, schema: Any) -> Any:
    """A JSON value whose members are in the order of a schema's properties, all others last."""
    if isinstance(value, list):
        inner = schema.get("items") if isinstance(schema, Mapping) else None
        return [ordered(one, inner) for one in value]
    if not isinstance(value, Mapping):
        return value
    known = schema.get("properties") if isinstance(schema, Mapping) else None
    known = known if isinstance(known, Mapping) else {}
    names: Sequence[str] = [*(name for name in known if name in value), *(name for name in value if name not in known)]
    return {name: ordered(value[name], known.get(name)) for name in names}
