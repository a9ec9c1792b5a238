"""Reads calls, from where the first one begins."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from typing import Any

from daguerre.models.chat_format.arguments import BareReader, ElementReader, Sink, TagReader, read_json
from daguerre.models.chat_format.description import BareObject, Calls, Envelope, JsonArguments, NestedTags, Slot, Tags
from daguerre.models.chat_format.marks import MARK
from daguerre.models.chat_format.news import Failed, Report
from daguerre.models.chat_format.source import MARKED, Fit, IncomingText, Steps
from daguerre.models.chat_format.values import Schemas

NAMED = re.compile(rf"[^\s\"'<>(){{}}\[\],=|{MARKED}]+")
DIGITS = re.compile(r"\d*")


def openings(calls: Calls) -> list[str]:
    """What calls may begin with: all of it, or from one of its marks on, since models leave out the first ones."""
    whole = calls.opening.strip()
    whole = whole.rstrip("[{ \n") if calls.envelope is not None else whole
    starts = [found.start() - whole[: found.start()].endswith(MARKED) for found in MARK.finditer(whole)]
    tail = [whole[start:] for start in starts if start]
    unclosed = re.search(r"<[^<>\s]+$", whole)  # such as <function=, before a name
    more = [unclosed[0]] if unclosed is not None and unclosed.start() else []
    return list(dict.fromkeys(one for one in (whole, *tail, *more) if one))


class CallsReader:
    """Reads calls of a format."""

    def __init__(self, source: IncomingText, calls: Calls, schemas: Schemas, report: Report) -> None:
        self._source, self._calls, self._schemas, self._report = source, calls, schemas, report

    def section(self, opened: bool) -> Steps[None]:
        """Calls up to their end; opened: a mark has shown that they begin. Failed where the first one is none."""
        if self._calls.envelope is not None:
            yield from self._objects(self._calls.envelope, opened)
        else:
            yield from self._written(opened)

    # calls that are JSON objects

    def _objects(self, envelope: Envelope, opened: bool) -> Steps[None]:
        source = self._source
        yield from source.blank()
        listed = (yield from source.choose(["["])) >= 0
        first, end = True, source.at
        while True:
            yield from source.blank()
            if not (yield from source.need()) or source.text[source.at] != "{":
                if first:
                    raise Failed
                break
            try:
                yield from self._told(self._object(envelope, hard=opened or not first))
            except Failed:
                if first:
                    raise
                source.at = end
                break
            first = False
            end = source.at
            yield from source.blank()
            if (yield from source.choose([",", ";"])) < 0 and not (yield from self._another()):
                source.at = end
                break
        if listed:
            yield from source.blank()
            yield from source.choose(["]"])
        yield from self._closed(re.sub(r"^[\s\]]+", "", self._calls.suffix + self._calls.end))

    def _told(self, call: Steps[None]) -> Steps[None]:
        """Read one call. Failed where it is none, which is told once its arguments begin: what is told stays so."""
        num = self._report.num_calls
        self._report.hold()
        try:
            yield from call
        except Failed:
            if self._report.num_calls == num:
                self._report.drop()
                raise
        self._report.release()

    def _another(self) -> Steps[bool]:
        """Whether one more object follows the last one without a comma."""
        return (yield from self._source.need()) and self._source.text[self._source.at] == "{"

    def _object(self, envelope: Envelope, hard: bool) -> Steps[None]:
        call = _ObjectCall(envelope, self._schemas, self._report, hard)
        yield from _members(self._source, call)
        call.end()

    # calls of literals and slots

    def _written(self, opened: bool) -> Steps[None]:
        calls, source = self._calls, self._source
        lead = calls.parts[0] if isinstance(calls.parts[0], str) else ""
        yield from self._told(self._one(calls.parts[1:] if lead else calls.parts))
        while True:
            start = source.at
            more = " " + (calls.separator + lead).strip()
            again = [text for text in ([] if _follows(calls) else [more]) + [" " + calls.end.strip()] if text != " "]
            which = yield from source.choose(again)
            if which < 0 or again[which] != more:
                break
            try:
                yield from self._told(self._one(calls.parts[1:] if lead else calls.parts))
            except Failed:
                source.at = start
                break

    def _one(self, parts: Sequence[Any]) -> Steps[None]:
        name, key, counted = "", "", ""
        for place, part in enumerate(parts):
            if isinstance(part, str):
                if place != len(parts) - 1 or Slot.ARGUMENTS not in parts[:place]:
                    yield from self._literal(parts, place)
                else:
                    yield from self._closed(part.strip())
            elif part is Slot.NAME:
                name = (yield from self._name(parts, place)) or name
            elif part is Slot.ID:
                key = yield from self._until(parts[place + 1] if place + 1 < len(parts) else "")
            elif part is Slot.INDEX:
                counted = yield from self._number()
            else:
                yield from self._arguments(name, self._key(parts, name, key, counted), parts, place)

    def _number(self) -> Steps[str]:
        found = yield from self._source.match(DIGITS)
        return "" if found is None else found[0]

    def _key(self, parts: Sequence[Any], name: str, key: str, counted: str) -> str | None:
        """The id of a call: what is written for one, or the name with its number."""
        if key or not counted or Slot.NAME not in parts or parts.index(Slot.NAME) > parts.index(Slot.INDEX):
            return key or None
        lead = self._calls.parts[0]
        word = re.search(r"[\w.]*$", lead) if isinstance(lead, str) else None
        between = parts[parts.index(Slot.NAME) + 1]
        joined = isinstance(between, str) and re.fullmatch(r"\S", between) is not None
        return f"{word[0] if word else ''}{name}{between}{counted}" if joined else None

    def _literal(self, parts: Sequence[Any], place: int) -> Steps[None]:
        """Read a literal. Where the model leaves out an id, read the literal behind the id."""
        if not parts[place].strip():
            yield from self._source.blank()
            return
        if (yield from self._source.choose([" " + parts[place].strip()])) >= 0:
            return
        follows = parts[place + 1] if place + 1 < len(parts) else None
        if follows not in (Slot.ID, Slot.INDEX) and not (place and parts[place - 1] in (Slot.ID, Slot.INDEX)):
            raise Failed

    def _name(self, parts: Sequence[Any], place: int) -> Steps[str]:
        source = self._source
        yield from source.blank()
        following = parts[place + 1] if place + 1 < len(parts) else ""
        stop = following.strip()[:1] if isinstance(following, str) else ""
        end = source.at
        while True:
            while end < len(source.text) and NAMED.match(source.text[end]) and source.text[end] != stop:
                end += 1
            if end < len(source.text) or source.closed:
                break
            yield
        name = source.take(end)
        if not name or (not self._calls.opening and self._schemas.names and name not in self._schemas.names):
            raise Failed
        return name

    def _until(self, literal: Any) -> Steps[str]:
        """A text up to a literal, or to a mark or white space."""
        source, stop = self._source, literal.strip() if isinstance(literal, str) else ""
        end = source.at
        while True:
            while (
                end < len(source.text)
                and source.text[end] not in f' \n\t"{{<{MARKED}'
                and (not stop or source.fits(stop, end)[0] is Fit.NO)
            ):
                end += 1
            if (end < len(source.text) and not (stop and source.fits(stop, end)[0] is Fit.OPEN)) or source.closed:
                return source.take(end)
            yield

    def _arguments(self, name: str, key: str | None, parts: Sequence[Any], place: int) -> Steps[None]:
        written, report, source = self._calls.arguments, self._report, self._source
        tail = parts[place + 1] if place + 1 < len(parts) and isinstance(parts[place + 1], str) else ""
        if isinstance(written, JsonArguments):
            yield from source.blank()
            if (yield from source.need()) and source.text[source.at] not in '{["n':
                raise Failed
            report.begin(name, key)
            if source.rest:
                yield from read_json(source, report.tell)
            return
        if isinstance(written, Tags):
            yield from self._begins_tags(written, tail)
        report.begin(name, key)
        report.release()
        sink = Sink(report.arguments, self._schemas, name)
        yield from _reader(source, written, tail or self._calls.end, sink)

    def _begins_tags(self, tags: Tags, tail: str) -> Steps[None]:
        """Failed where neither an argument nor the end of the call follows."""
        wanted = [text.strip() for text in (tags.before, tail) if text.strip()]
        if tags.before.strip():
            start = self._source.at
            yield from self._source.blank()
            more = yield from self._source.need()
            if more and (yield from self._source.choose(wanted)) < 0:
                raise Failed
            self._source.at = start
            return
        start = self._source.at
        ended = bool(tail.strip()) and (yield from self._source.choose([" " + tail.strip()])) >= 0
        self._source.at = start
        if not ended:
            yield from self._named_first({tag.between.strip()[:1] for tag in tags.tags.values()})
            self._source.at = start

    def _named_first(self, between: Collection[str]) -> Steps[None]:
        """Failed unless a name stands before one of these characters: otherwise it is other code of the language."""
        source = self._source
        yield from source.blank()
        end = source.at
        while True:
            while end < len(source.text) and source.text[end] not in between and source.text[end] != "\n":
                end += 1
            if end < len(source.text) or source.closed:
                break
            yield
        name = source.text[source.at : end].strip()
        if not NAMED.fullmatch(name) and (name or end < len(source.text)):
            raise Failed

    def _closed(self, literal: str) -> Steps[None]:
        """Read what closes a call or a section, as far as it is there."""
        source = self._source
        start = source.at
        marks = literal.split()
        yield from source.blank()
        for number, word in enumerate(marks):
            if (yield from source.choose([word])) < 0:
                if number == 0:
                    source.at = start
                return
            start = source.at
            if number + 1 < len(marks):
                yield from source.blank()


def _follows(calls: Calls) -> bool:
    """Whether another call begins as the first one does, so that whoever looks for calls finds it."""
    return not calls.begin.strip() and not calls.separator.strip() and isinstance(calls.parts[0], str)


def _reader(source: IncomingText, written: Any, tail: str, sink: Sink) -> Steps[None]:
    if isinstance(written, Tags):
        return TagReader(source, written, tail, sink).read()
    if isinstance(written, NestedTags):
        return ElementReader(source, written, sink).read()
    assert isinstance(written, BareObject)
    return BareReader(source, written, sink).read()


class _ObjectCall:
    """A call that is a JSON object, whose members come in any order."""

    def __init__(self, envelope: Envelope, schemas: Schemas, report: Report, hard: bool) -> None:
        self.envelope, self.schemas, self.report, self.hard = envelope, schemas, report, hard
        self.name: str | None = None
        self.id: str | None = None
        self._before = ""
        self._begun = self._given = False

    def begin(self) -> None:
        """Report the call, once its name and its arguments are known to be there."""
        if self._begun or self.name is None:
            return
        if not self.hard and self.schemas.names and self.name not in self.schemas.names:
            raise Failed
        self._begun = True
        self.report.begin(self.name, self.id)
        if self._before:
            self._more(self._before)

    def arguments(self, text: str) -> None:
        """More of the arguments, which may come before the name."""
        self._given = True
        if self._begun:
            self._more(text)
        else:
            self._before += text

    def _more(self, text: str) -> None:
        (self.report.tell if self.hard else self.report.arguments)(text)

    def end(self) -> None:
        """The object is whole. Failed where it is no call."""
        if self.name is None or not (self._begun or self.hard):
            raise Failed
        self.begin()
        if not self._given:
            self.report.arguments("{}")


def _members(source: IncomingText, call: _ObjectCall, within: bool = False) -> Steps[None]:
    """The members of an object that is a call, or that one has within. Failed where they are not. Its braces may be
    doubled, as in `server.calls`.
    """
    source.at += 1
    doubled = (yield from source.choose(["{"])) >= 0
    while True:
        yield from source.blank()
        yield from source.choose([","])
        yield from source.blank()
        if (yield from source.choose(["}"])) >= 0:
            if doubled:
                yield from source.choose(["}"])
            return
        if not (yield from source.need()):
            if call.hard or call.report.num_calls:
                return
            raise Failed
        key = yield from _text(source)
        yield from source.blank()
        if (yield from source.choose([":"])) < 0:
            raise Failed
        yield from source.blank()
        yield from _member(source, call, key, within)


def _member(source: IncomingText, call: _ObjectCall, key: str, within: bool) -> Steps[None]:
    envelope = call.envelope
    if key == envelope.within and not within and (yield from source.need()) and source.text[source.at] == "{":
        yield from _members(source, call, within=True)
    elif envelope.name is None:
        call.name = key
        call.begin()
        yield from read_json(source, call.arguments)
    elif key == envelope.name or (key in ("name", "function") and call.name is None and _is_text(source)):
        call.name = yield from _text(source)
    elif key == envelope.arguments or key in ("arguments", "parameters"):
        call.begin()
        yield from read_json(source, call.arguments)
        if call.name is not None:
            call.begin()
    elif key == envelope.id or key == "id":
        call.id = str((yield from _value(source)))
    else:
        yield from _value(source)


def _is_text(source: IncomingText) -> bool:
    return source.text[source.at : source.at + 1] == '"'


def _text(source: IncomingText) -> Steps[str]:
    value = yield from _value(source)
    if not isinstance(value, str):
        raise Failed
    return value


def _value(source: IncomingText) -> Steps[Any]:
    """Any JSON value. Failed where there is none."""
    decoder = json.JSONDecoder(strict=False)
    place = source.at
    while True:
        try:
            value, end = decoder.raw_decode(source.text, place)
        except (ValueError, RecursionError):
            if source.closed or not _may_be_json(source.text, place):
                raise Failed from None
        else:
            if end < len(source.text) or source.closed or isinstance(value, str | dict | list):
                source.at = end
                return value
        yield


def _may_be_json(text: str, place: int) -> bool:
    return text[place : place + 1] in ("", '"', "{", "[", "-", "t", "f", "n") or text[place : place + 1].isdigit()
