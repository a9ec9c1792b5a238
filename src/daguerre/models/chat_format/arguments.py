"""Reads the arguments of a call, whatever they are written as, and reports them as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from daguerre.models.chat_format.description import BareObject, NestedTags, Tag, Tags
from daguerre.models.chat_format.news import Failed
from daguerre.models.chat_format.source import MARKED, Fit, IncomingText, Steps
from daguerre.models.chat_format.values import Schemas, value_of

NAME_END = re.compile(r"[<>/]")
DEEPEST = 100
"""Values within one another, which Python calls itself for; more are no arguments."""


def written(value: Any) -> str:
    """JSON of a value. Half of a surrogate pair, which no client could be sent, is escaped."""
    text = json.dumps(value, ensure_ascii=False).replace(MARKED, "")
    return text if text.isascii() or _is_writable(text) else json.dumps(json.loads(text))


def _is_writable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@dataclass
class Sink:
    """Where the arguments of a call go: `write` gets JSON, piece by piece."""

    write: Callable[[str], None]
    schemas: Schemas
    name: str
    count: int = 0

    def kinds(self, key: str) -> frozenset[str]:
        """The types that an argument may have."""
        return self.schemas.kinds(self.name, self.schemas.of(self.name, key))

    def key(self, key: str) -> None:
        """An argument begins."""
        self.write(("{" if not self.count else ", ") + written(key) + ": ")
        self.count += 1

    def add(self, key: str, value: Any) -> None:
        """An argument."""
        self.key(key)
        self.write(written(value))

    def end(self) -> None:
        """There are no more arguments."""
        self.write("}" if self.count else "{}")


def read_json(source: IncomingText, write: Callable[[str], None]) -> Steps[None]:
    """A JSON object, as it is written; a string of JSON, decoded. Failed for anything else."""
    yield from source.blank()
    if not (yield from source.need()):
        raise Failed
    sign = source.text[source.at]
    if sign == '"':
        write((yield from _string(source)))
    elif sign in "{[":
        yield from _container(source, write)
    else:
        word = yield from _word(source)
        if word != "null":
            raise Failed
        write("{}")


def _string(source: IncomingText) -> Steps[str]:
    start, place = source.at, source.at + 1
    while True:
        while place < len(source.text) and source.text[place] != '"':
            place += 1 + (source.text[place] == "\\")
        if place < len(source.text):
            break
        if source.closed:
            raise Failed
        yield
    source.at = place + 1
    try:
        text: str = json.loads(source.text[start : place + 1], strict=False)
    except ValueError:
        raise Failed from None
    return text


def _container(source: IncomingText, write: Callable[[str], None]) -> Steps[None]:
    depth, quoted, escaped, place = 0, False, False, source.at
    while True:
        while place < len(source.text):
            char = source.text[place]
            place += 1
            if quoted:
                quoted = escaped or char != '"'
                escaped = char == "\\" and not escaped
            elif char == '"':
                quoted = True
            elif char in "{[":
                depth += 1
            elif char in "}]":
                depth -= 1
                if not depth:
                    write(source.take(place))
                    return
        write(source.take(place))
        if source.closed:
            return
        yield


def _word(source: IncomingText) -> Steps[str]:
    found = yield from source.match(re.compile(r"[a-zA-Z]*"))
    return found[0] if found else ""


class TagReader:
    """Reads arguments between tags, up to `tail`, the literal that follows them all."""

    def __init__(self, source: IncomingText, tags: Tags, tail: str, sink: Sink) -> None:
        self._source, self._tags, self._tail, self._sink = source, tags, tail.strip(), sink
        self._kinds: dict[Tag, list[str]] = {}
        for kind, tag in tags.tags.items():
            self._kinds.setdefault(tag, []).append(kind)

    def read(self) -> Steps[None]:
        """All arguments; what follows them is not read."""
        source, tags = self._source, self._tags
        while True:
            literals = [literal for literal in (tags.separator.strip(), tags.before.strip()) if literal]
            yield from source.blank()
            if tags.separator.strip() and self._sink.count:
                yield from source.choose(literals[:1])
                yield from source.blank()
            if not (yield from source.need()) or (self._tail and (yield from self._at_tail())):
                break
            if tags.before.strip() and (yield from source.choose([tags.before.strip()])) < 0:
                break
            if not (yield from self._argument()):
                break
        self._sink.end()

    def _at_tail(self) -> Steps[bool]:
        while (fit := self._source.fits(self._tail, self._source.at)[0]) is Fit.OPEN:
            yield
        return fit is Fit.YES

    def _argument(self) -> Steps[bool]:
        source = self._source
        start = source.at
        yield from source.blank()
        key = yield from self._key()
        order = sorted(self._kinds, key=lambda tag: -len(tag.between.strip()))
        which = yield from source.choose([tag.between.rstrip() for tag in order])
        if not key or which < 0:
            source.at = start
            return False
        tag, kinds = order[which], self._kinds[order[which]]
        if not self._tags.before and not tag.after:
            yield from self._literal(key)
        else:
            yield from self._between(key, tag, kinds)
        return True

    def _key(self) -> Steps[str]:
        """An argument's name, up to what stands between it and its value."""
        first = {tag.between.strip()[:1] or " " for tag in self._kinds}
        end = self._source.at
        while True:
            while end < len(self._source.text) and self._source.text[end] not in first | {"\n"}:
                end += 1
            if end < len(self._source.text) or self._source.closed:
                return self._source.take(end).strip()
            yield

    def _allowed(self, key: str, kinds: list[str]) -> frozenset[str]:
        known = self._sink.kinds(key)
        if not self._tags.typed:
            return known
        return frozenset({"string"}) if kinds == ["string"] else known - {"string"}

    def _between(self, key: str, tag: Tag, written: list[str]) -> Steps[None]:
        """A value up to its closing tag, of which strings are reported as they come."""
        source, sink = self._source, self._sink
        kinds = self._allowed(key, written)
        lead, trail = (_blank_of(tag.between, -1), _blank_of(tag.after, 0))
        while not (source.closed or len(source.rest) > len(lead)):
            yield
        if source.text.startswith(lead, source.at):
            source.at += len(lead)
        wrapping = self._tags.wrapping
        if wrapping is not None and (not kinds or "string" in kinds):
            while wrapping[0].startswith(source.text[source.at : source.at + len(wrapping[0])]):
                if len(source.rest) >= len(wrapping[0]) or source.closed:
                    break
                yield
            if source.text.startswith(wrapping[0], source.at):
                source.at += len(wrapping[0])
                tag, trail, kinds = Tag(tag.between, wrapping[1] + tag.after), "", frozenset({"string"})
        if kinds != {"string"}:
            text, _ = yield from self._value(tag, trail, None)
            sink.add(key, value_of(text, kinds, self._tags.literals))
            return
        sink.key(key)
        sink.write('"')
        yield from self._value(tag, trail, lambda text: sink.write(json.dumps(text, ensure_ascii=False)[1:-1]))
        sink.write('"')

    def _value(self, tag: Tag, trail: str, write: Callable[[str], None] | None) -> Steps[tuple[str, bool]]:
        """(a value's text, whether it was closed); `write` gets it as it comes, and then there is no text."""
        source, core = self._source, tag.after.strip()
        place = source.at
        while True:
            place = source.text.find(core, place)
            if place < 0:
                place = len(source.text) - _begun(source.text, core)
                fit = Fit.NO if source.closed else Fit.OPEN
            else:
                fit = self._closes(place + len(core))
            if fit is Fit.NO and not (source.closed and place >= len(source.text)):
                place += 1
                continue
            end = max(source.at, place - (len(trail) if source.text[:place].endswith(trail) else 0))
            if fit is Fit.YES or source.closed:
                text = source.take(end)
                source.at = place + len(core) if fit is Fit.YES else len(source.text)
                if write is not None:
                    write(text)
                return text, fit is Fit.YES
            if write is not None:
                write(source.take(min(end, max(source.at, len(source.text) - len(trail) - len(core)))))
            yield

    def _closes(self, at: int) -> Fit:
        """Whether another argument, or the end of the call, follows a closing tag."""
        literals = [self._tags.separator + self._tags.before, self._tail]
        wanted = [literal.strip() for literal in literals if literal.strip()]
        source = self._source
        while at < len(source.text) and source.text[at].isspace():
            at += 1
        fit = source.choice(wanted, at)[0]
        return Fit.YES if source.closed and not source.text[at:] else fit

    def _literal(self, key: str) -> Steps[None]:
        """A literal of Python's or JSON's, up to a comma or the end of the call."""
        source, sink = self._source, self._sink
        place, depth, quote = source.at, 0, ""
        while True:
            while place < len(source.text):
                char = source.text[place]
                if quote:
                    place += char == "\\"
                    quote = "" if char == quote else quote
                elif not depth and (char == "," or char == (self._tail[:1] or "\n")):
                    break
                elif char in "\"'":
                    quote = char
                else:
                    depth += (char in "{[(") - (char in "}])")
                place += 1
            if place < len(source.text) or source.closed:
                sink.add(key, _python(source.take(min(place, len(source.text))), sink.kinds(key)))
                return
            yield


def _python(text: str, kinds: frozenset[str]) -> Any:
    text = text.strip()
    if text[:1] in ("'", '"') and text[-1:] == text[:1]:
        import ast

        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError):
            return text[1:-1]
    return value_of(text, kinds, ("json", "python"))


def _blank_of(literal: str, side: int) -> str:
    """The white space that a literal begins (0) or ends (-1) with."""
    return literal[: len(literal) - len(literal.lstrip())] if side == 0 else literal[len(literal.rstrip()) :]


def _begun(text: str, word: str) -> int:
    """How much of a word a text ends with."""
    return max((n for n in range(1, len(word)) if text.endswith(word[:n])), default=0)


class ElementReader:
    """Reads arguments as elements, `NestedTags`."""

    def __init__(self, source: IncomingText, tags: NestedTags, sink: Sink) -> None:
        self._source, self._mark, self._sink = source, tags.mark, sink

    def read(self) -> Steps[None]:
        """All arguments."""
        while (key := (yield from self._opens())) is not None:
            schema = self._sink.schemas.of(self._sink.name, key)
            self._sink.add(key, (yield from self._value(key, schema)))
        self._sink.end()

    def _opens(self) -> Steps[str | None]:
        """The name of the element that begins here."""
        source, start = self._source, self._source.at
        yield from source.blank()
        if (yield from source.choose([f"{self._mark}<"])) < 0 or not (yield from source.need()):
            source.at = start
            return None
        while (found := NAME_END.search(source.text, source.at)) is None and not source.closed:
            yield
        if found is None or found[0] != ">":
            source.at = start
            return None
        return source.take(found.end())[:-1]

    def _value(self, key: str, schema: Any) -> Steps[Any]:
        sink, source = self._sink, self._source
        kinds = sink.schemas.kinds(sink.name, schema)
        closing = f"{self._mark}</{key}>"
        if kinds != {"string"} and (first := (yield from self._opens())) is not None:
            value = yield from self._members(first, schema)
            yield from source.blank()
            yield from source.choose([closing])
            return value
        while (place := source.text.find(closing, source.at)) < 0 and not source.closed:
            yield
        text = source.take(place if place >= 0 else len(source.text))
        source.at += len(closing) if place >= 0 else 0
        return (
            []
            if kinds == {"array"} and not text
            else {}
            if kinds == {"object"} and not text
            else value_of(text, kinds, ("json",))
        )

    def _members(self, first: str, schema: Any) -> Steps[Any]:
        schema = schema if isinstance(schema, dict) else {}
        found: list[tuple[str, Any]] = []
        key: str | None = first
        while key is not None:
            known = schema.get("properties", {})
            inner = schema.get("items") if key == "item" and key not in known else known.get(key)
            found.append((key, (yield from self._value(key, inner))))
            key = yield from self._opens()
        listed = all(key == "item" for key, _ in found) and schema.get("type", "array") == "array"
        return [value for _, value in found] if listed else dict(found)


class BareReader:
    """Reads arguments as a `BareObject`."""

    def __init__(self, source: IncomingText, given: BareObject, sink: Sink) -> None:
        self._source, self._quote, self._sink = source, given.quote, sink

    def read(self) -> Steps[None]:
        """All arguments. Failed where no object begins."""
        yield from self._source.blank()
        if (yield from self._source.choose(["{"])) < 0:
            raise Failed
        while (key := (yield from self._key())) is not None:
            value = yield from self._value(DEEPEST)
            kinds = self._sink.kinds(key)
            self._sink.add(key, str(value) if kinds == {"string"} and isinstance(value, bool | int | float) else value)
        self._sink.end()

    def _key(self) -> Steps[str | None]:
        """The name of the next member; None: there is none, and the object is read."""
        source = self._source
        yield from source.blank()
        yield from source.choose([","])
        yield from source.blank()
        if (yield from source.choose(["}"])) >= 0 or not (yield from source.need()):
            return None
        if (yield from source.choose([self._quote])) >= 0:
            key = yield from self._until(self._quote)
            yield from source.choose([":"])
            return key
        return (yield from self._until(":")).strip()

    def _until(self, what: str) -> Steps[str]:
        source = self._source
        while (place := source.text.find(what, source.at)) < 0 and not source.closed:
            yield
        text = source.take(place if place >= 0 else len(source.text))
        source.at += len(what) if place >= 0 else 0
        return text

    def _value(self, deepest: int) -> Steps[Any]:
        source = self._source
        yield from source.blank()
        which = yield from source.choose([self._quote, "{", "["])
        if not deepest:
            raise Failed
        if which == 0:
            return (yield from self._until(self._quote))
        if which == 1:
            out = {}
            while (key := (yield from self._key())) is not None:
                out[key] = yield from self._value(deepest - 1)
            return out
        if which == 2:
            return (yield from self._items(deepest - 1))
        place = source.at
        while True:
            while place < len(source.text) and source.text[place] not in ",}]":
                place += 1
            if place == source.at and place < len(source.text):
                raise Failed
            if place < len(source.text) or source.closed:
                return value_of(source.take(place), (), ("json", "python"))
            yield

    def _items(self, deepest: int) -> Steps[list[Any]]:
        source, out = self._source, list[Any]()
        while True:
            yield from source.blank()
            if (yield from source.choose(["]"])) >= 0 or not (yield from source.need()):
                return out
            if (yield from source.choose([","])) < 0 or not out:
                out.append((yield from self._value(deepest)))
