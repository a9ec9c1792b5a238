"""Reads an answer as it comes: what is thought, what is said, which functions are called, where it ends."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from daguerre.models.chat_format import Thinks
from daguerre.models.chat_format.calls_reader import CallsReader, openings
from daguerre.models.chat_format.description import Calls, Format, Slot
from daguerre.models.chat_format.marks import MARK
from daguerre.models.chat_format.news import Failed, News, Report
from daguerre.models.chat_format.source import MARKED, Fit, IncomingText, Steps
from daguerre.models.chat_format.values import Schemas

CALL, THINK, SKIP, AGAIN, END, STOP = range(6)
"""What a mark means: a call begins; a thought does; nothing; a message does anew; the answer ends; its text does."""
SIGNS = f"<[|]{MARKED}"
"""What begins a mark that counts wherever it stands."""


TAG = re.compile(r"</?\w+>")
"""What begins a mark of a thought that texts may quote: no special token, and a plain tag."""


class PlainCalls(Protocol):
    """Reads calls that are written without marks around them (`server.calls.JsonCalls`)."""

    def may_be(self, text: str) -> bool: ...

    def read(self, text: str) -> list[tuple[str, str]]: ...


class FormatReader:
    """Reads an answer of a format.

    tools   functions that may be called, whose schemas tell the types of arguments; None: any
    thinks  "may": the answer may begin with a thought; "does": it begins within one
    stops   strings that end the text
    calls   whether there are calls at all
    alone   calls come before any text, in which marks may be anything
    plain   reads a text that is, as a whole, calls without marks; None: such a text is text

    stop_end     the end of the stop string that ended the text, None: none did
    thought_end  the end of what was thought, its marks included
    """

    def __init__(
        self,
        form: Format,
        tools: Collection[Mapping[str, Any]] | None = None,
        thinks: Thinks = "may",
        stops: Sequence[str] = (),
        calls: bool = True,
        alone: bool = False,
        plain: PlainCalls | None = None,
    ) -> None:
        self.stop_end: int | None = None
        self.thought_end = 0
        self._form, self._stops = form, tuple(stops)
        self._calls: Calls | None = form.calls if calls else None
        self._source, self._report = IncomingText(), Report()
        self._schemas = Schemas(tools)
        self._marks = _Marks(form, self._calls, self._stops)
        self._start, self._alone, self._plain = True, alone, plain
        self._said = False
        self._steps = self._answer(thinks == "does" and form.thinking is not None)
        self._done = False

    def feed(self, text: str, last: bool = False) -> list[News]:
        """The news that a further piece of the answer brings; last: nothing follows it."""
        self._source.text += text
        self._source.closed |= last
        if not self._done:
            self._done = next(self._steps, True) is True
        return self._report.taken()

    @property
    def num_calls(self) -> int:
        """How many calls have begun."""
        return self._report.num_calls

    @property
    def stopped(self) -> bool:
        """Whether a stop string has ended the text."""
        return self.stop_end is not None

    def _answer(self, within: bool) -> Steps[None]:
        if within:
            yield from self._thought(begun=True)
        if (yield from self._plain_calls()):
            return
        while (yield from self._part()):
            pass
        self._source.at = len(self._source.text)

    def _plain_calls(self) -> Steps[bool]:
        """Read a text that is calls without marks, as a whole."""
        source = self._source
        while self._plain is not None and self._plain.may_be(source.rest.replace(MARKED, "")) and not source.closed:
            yield
        found = self._plain.read(source.rest.replace(MARKED, "")) if self._plain is not None and source.closed else []
        for name, arguments in found:
            self._report.begin(name)
            self._report.arguments(arguments)
        return bool(found)

    def _part(self) -> Steps[bool]:
        """Text, and the mark after it; False: the answer is read."""
        source = self._source
        yield from self._blank_start()
        place, refused = source.at, -1
        if self._start and self._marks.named_first:
            yield from source.blank()
            place = source.at
            if (yield from source.need()) and (yield from self._is_call(place, place, "")):
                return True
        while True:
            place, meaning, literal, end = self._mark(place, refused)
            blank = _blank_before(source.text, source.at, place)
            if meaning is None:
                if source.closed:
                    self._last(source.take(self._begun_end()))
                    return False
                self._say(source.take(source.at if self._start and not source.text[source.at : blank] else blank))
                yield
                continue
            if meaning == CALL and not (yield from self._is_call(place, end, literal)):
                refused = place
                continue
            return (yield from self._after(meaning, place, end))

    def _after(self, meaning: int, place: int, end: int) -> Steps[bool]:
        source = self._source
        if meaning == CALL:
            self._start = True
            return True
        kept = place if meaning == STOP else self._kept(place, self._form.ends if meaning == END else ())
        text = source.take(max(source.at, kept))
        self._say("" if self._start and not text.strip() else text)
        source.at = end
        if meaning == THINK:
            yield from self._thought()
        self._start |= meaning in (AGAIN, SKIP)
        self.stop_end = end if meaning == STOP else None
        return meaning not in (END, STOP) or (meaning == END and (yield from self._more_calls()))

    def _more_calls(self) -> Steps[bool]:
        """Whether a call follows an end, as some templates write several."""
        start = self._source.at
        which = yield from self._source.choose([" " + mark for meaning, mark in self._marks.all if meaning == CALL])
        self._source.at = start
        return which >= 0 and not self._marks.bare

    def _blank_start(self) -> Steps[None]:
        """White space that a template writes before a text is none of it."""
        lead = self._form.text[0]
        if self._start and lead.isspace():
            while len(self._source.rest) < len(lead) and not self._source.closed:
                yield
            if self._source.text.startswith(lead, self._source.at):
                self._source.at += len(lead)

    def _begun_end(self) -> int:
        """Where a text ends of whose end the first marks were written."""
        source = self._source
        for end in self._form.ends:
            cuts = [found.end() for found in MARK.finditer(end.strip())][:-1]
            for cut in reversed(cuts):
                if source.text.endswith(end.strip()[:cut], source.at):
                    return len(source.text) - cut
        return len(source.text)

    def _last(self, text: str) -> None:
        """The rest of the text; white space behind a call or a thought is none."""
        if text.strip() or not (self._start and (self.num_calls or self.thought_end)):
            self._say(text)

    def _say(self, text: str) -> None:
        if text:
            self._report.add(News(text=text))
            self._start &= not text.strip()
            self._said |= bool(text.strip())

    def _kept(self, place: int, literals: Sequence[str]) -> int:
        """Where a text ends: before the first of some literals, and the white space that this literal begins with."""
        for literal in literals:
            lead = literal[: len(literal) - len(literal.lstrip())]
            if lead and self._source.text.endswith(lead, self._source.at, place):
                return place - len(lead)
        return place

    def _mark(self, place: int, refused: int) -> tuple[int, int | None, str, int]:
        """The next mark from a place on: (where, what it means, the mark, its end); no meaning: there is none so far,
        and from that place on one may begin. At the place that is refused no call does.
        """
        source, firsts = self._source, self._marks.firsts
        while place < len(source.text):
            if source.text[place] in firsts:
                for meaning, literal in self._marks.of(source.text[place]):
                    if (place == refused and meaning == CALL) or not self._counts(meaning, literal, place):
                        continue
                    fit, end = source.fits(literal, place)
                    if fit is Fit.OPEN:
                        return place, None, "", place
                    if fit is Fit.YES:
                        return place, meaning, literal, end
            place += 1
        return place, None, "", place

    def _counts(self, meaning: int, literal: str, place: int) -> bool:
        """Whether a mark counts where it stands: what is no mark by its looks, only where a message begins."""
        if meaning != STOP and self._alone and self._said:
            return False
        if literal in self._marks.tags:  # which answers quote
            return self._start and not self._source.text[self._source.at : place].strip()
        if meaning in (STOP, END) or MARK.match(literal) or literal[0] in SIGNS:
            return True
        source = self._source
        if meaning == CALL and self._marks.on_lines and source.text[place - 1 : place] == "\n":
            return True
        return self._start and not source.text[source.at : place].strip()

    def _is_call(self, place: int, end: int, opening: str) -> Steps[bool]:
        """Read calls, if they begin at a place; the text before is reported then."""
        source, report = self._source, self._report
        calls, tagged = self._calls, self._form.tagged
        assert calls is not None
        if tagged is not None and opening == tagged.begin:
            calls = tagged
        kept, start = self._before_call(place), source.at
        report.hold()
        self._say(source.text[start : max(start, kept)])
        source.at = end if opening.strip("{[") else place
        try:
            yield from CallsReader(source, calls, self._schemas, report).section(bool(opening.strip("{[")))
        except Failed:
            report.drop()
            source.at = start
            return False
        report.release()
        return True

    def _before_call(self, place: int) -> int:
        """Where the text before a call ends."""
        assert self._calls is not None
        between = self._form.glue + self._calls.opening
        blank = _blank_before(self._source.text, self._source.at, place)
        nothing = self._start and blank <= self._source.at
        return blank if between[:1].isspace() or nothing else place

    def _thought(self, begun: bool = False) -> Steps[None]:
        """A thought, up to its closing mark or the end of the answer; a call ends one that the prompt has begun."""
        source, thinking = self._source, self._form.thinking
        assert thinking is not None
        yield from source.blank()
        place = source.at
        while True:
            place, meaning, literal, end = self._thought_mark(place, begun)
            blank = _blank_before(source.text, source.at, place)
            if meaning is None:
                self._think(source.take(len(source.text.rstrip()) if source.closed else blank))
                if source.closed:
                    break
                yield
                continue
            if meaning == CALL:
                start = source.at
                self._report.hold()
                self._think(source.text[start:blank])
                self.thought_end, source.at = place, place
                if (yield from self._is_call(place, end, literal)):
                    return
                source.at, place = start, place + 1
                continue
            self._think(source.take(max(source.at, blank)))
            source.at = end if meaning == THINK else place
            break
        self.thought_end = source.at
        while source.text.startswith("\n", source.at) or (source.at == len(source.text) and not source.closed):
            if source.at == len(source.text):
                yield
            else:
                source.at += 1
        self._start = True

    def _think(self, text: str) -> None:
        if text:
            self._report.add(News(thought=text))

    def _thought_mark(self, place: int, begun: bool) -> tuple[int, int | None, str, int]:
        assert self._form.thinking is not None
        source, close = self._source, self._form.thinking.close
        known = (CALL, END) if begun else (END,)
        marks = [(THINK, close), *((what, mark) for what, mark in self._marks.all if what in known)]
        while place < len(source.text):
            for meaning, literal in marks:
                if source.text[place] == literal[0] and (meaning == THINK or literal[0] in SIGNS):
                    fit, end = source.fits(literal, place)
                    if fit is not Fit.NO:
                        return place, meaning if fit is Fit.YES else None, literal, end
            place += 1
        return place, None, "", place


class _Marks:
    """The marks of a format, by their first characters."""

    def __init__(self, form: Format, calls: Calls | None, stops: Sequence[str]) -> None:
        self.bare = False
        every: list[tuple[int, str]] = [(STOP, stop) for stop in stops if stop]
        if calls is not None:
            opening = openings(calls)
            every += [(CALL, one) for one in opening]
            self.bare = calls.bare or form.source == "assumed"
            every += [(CALL, sign) for sign in ("{", "[") if self.bare]
            if form.tagged is not None:
                every += [(CALL, form.tagged.begin), (SKIP, form.tagged.begin)]
        self.tags: tuple[str, ...] = ()
        if form.thinking is not None and form.thinking.open:
            self.tags = tuple(one for one in (form.thinking.open, form.thinking.close) if TAG.match(one))
            every.append((THINK, form.thinking.open))
            if form.thinking.close:
                every.append((SKIP, form.thinking.close))
        every += [(SKIP, one.lstrip()) for one in form.text if one.strip()]
        again = form.glue.strip() or (calls.separator.strip() if calls is not None else "")
        if again and (MARK.search(again) or (calls is not None and calls.parts[0] is Slot.NAME)):
            every.append((AGAIN, again))
        every += [(AGAIN, end.strip() + form.header) for end in form.ends if end.strip() and form.header.strip()]
        every += [(END, end.strip()) for end in form.ends if end.strip()]
        begun = form.glue + calls.opening if calls is not None else ""
        self.on_lines = begun.startswith("\n")
        self.named_first = calls is not None and not begun and calls.parts[0] is Slot.NAME
        self.all = list(dict.fromkeys(every))
        self.firsts = frozenset(mark[0] for _, mark in self.all)

    def of(self, first: str) -> list[tuple[int, str]]:
        """The marks that begin with a character."""
        return [one for one in self.all if one[1][0] == first]


def _blank_before(text: str, start: int, end: int) -> int:
    """Where white space before a place begins."""
    return start + len(text[start:end].rstrip())
