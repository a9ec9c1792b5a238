"""Calls of functions in a text that is being written: what a client sees of it, without the marks around calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from daguerre.models.chat_format.description import Thinks
from daguerre.models.chat_format.reader import PlainCalls
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


class CallReader:
    """Reads a text of the language of `sampling.constraints.tools` as it comes. What may be the beginning of a mark, or
    of one of the `stops` that end its text, is held back.

    calls   whether there are calls at all
    strip   leave out the spaces that the text begins with
    alone   calls come before any text, in which marks may be anything
    plain   reads an answer that is, as a whole, calls without marks; None: such an answer is text
    thinks  "may": the text may begin with what the model thinks, between THINK and THOUGHT; "does": it begins within

    stop_end     how many characters there are up to the end of the stop string that ended the text; None: none did
    thought_end  the same of what the model thought, its marks included
    """

    def __init__(
        self,
        stops: Sequence[str] = (),
        calls: bool = True,
        strip: bool = False,
        alone: bool = False,
        plain: PlainCalls | None = None,
        thinks: Thinks | None = None,
    ) -> None:
        self.num_calls, self._strip, self._num_fed = 0, strip, 0
        self.stop_end: int | None = None
        self.thought_end = 0
        self._alone, self._begun = alone, False
        self._stops, self._marks = tuple(stops), (OPENING, *stops) if calls else tuple(stops)
        self._left = ""
        self._plain = plain
        self._read: Callable[[], Said | None] = self._answer
        if thinks is not None:
            self._read = self._before_thought if thinks == "may" else self._thought_begins
        self._depth, self._quoted, self._escaped = 0, False, False

    def feed(self, text: str, last: bool = False) -> list[Said]:
        """The news that a further piece of the text brings; last: nothing follows it."""
        self._left += text
        self._num_fed += len(text)
        if self._strip:
            self._left = self._left.lstrip(" ")
            self._strip = not self._left
        out = self._news()
        if last and self._read in (self._answer, self._before_thought):
            out += self._plain_calls()
            self._read = self._text
            out += self._news()
        if last and self._left and self._read == self._text:
            out.append(Said(self._left))
        elif last and self._read == self._thought:
            self.thought_end = self._num_fed
            out += [Said(thought=self._left.rstrip())] if self._left.strip() else []
        self._left = "" if last else self._left
        return out

    @property
    def stopped(self) -> bool:
        """Whether a stop string has ended the text."""
        return self.stop_end is not None

    @property
    def _num_read(self) -> int:
        return self._num_fed - len(self._left)

    def _news(self) -> list[Said]:
        out: list[Said] = []
        while (said := self._read()) is not None:
            out += [said] if said != Said() else []
        return out

    def _plain_calls(self) -> list[Said]:
        """The calls that a whole answer is."""
        found = self._plain.read(self._left) if self._plain is not None else []
        if not found:
            return []
        self._left, self.num_calls = "", len(found)
        out: list[Said] = []
        for number, (name, arguments) in enumerate(found):
            out += [Said(call=FunctionCall(number, new_id("call_"), name)), Said(arguments=arguments)]
        return out

    def _before_thought(self) -> Said | None:
        left = self._left.lstrip()
        if left.startswith(THINK):
            self._left, self._read = left[len(THINK) :], self._thought_begins
        elif not THINK.startswith(left):
            self._read = self._answer
        else:
            return None
        return Said()

    def _thought_begins(self) -> Said | None:
        self._left = self._left.lstrip("\n")
        if not self._left:
            return None
        self._read = self._thought
        return Said()

    def _thought(self) -> Said | None:
        """Up to the mark that ends it. White space before that is held back, and is left out there."""
        place = self._left.find(THOUGHT)
        if place >= 0:
            thought, self._left = self._left[:place].rstrip(), self._left[place + len(THOUGHT) :]
            self.thought_end = self._num_read
            self._left, self._read = self._left.lstrip("\n"), self._after_thought
            return Said(thought=thought)
        held = max((n for n in range(1, len(THOUGHT)) if self._left.endswith(THOUGHT[:n])), default=0)
        end = len(self._left[: len(self._left) - held].rstrip())
        thought, self._left = self._left[:end], self._left[end:]
        return Said(thought=thought) if thought else None

    def _after_thought(self) -> Said | None:
        """The line breaks between a thought and the answer belong to neither."""
        self._left = self._left.lstrip("\n")
        if not self._left:
            return None
        self._read = self._answer
        return Said()

    def _answer(self) -> Said | None:
        """The beginning of the answer, as long as it may be calls without marks."""
        if self._plain is not None and self._plain.may_be(self._left):
            return None
        self._read = self._text
        return Said()

    def _text(self) -> Said | None:
        found = [(place, mark) for mark in self._marks if (place := self._left.find(mark)) >= 0]
        if self._alone:
            found = [(place, mark) for place, mark in found if mark != OPENING or not (place or self._begun)]
        if found:
            place, mark = min(found)
            text, self._left = self._left[:place], self._left[place + len(mark) :]
            self.stop_end = self._num_read if mark in self._stops else None
            self._read = self._nothing if self.stopped else self._head
            return Said(text)
        begun = (n for mark in self._marks for n in range(1, len(mark)) if self._left.endswith(mark[:n]))
        held = max(begun, default=0)
        self._begun |= held < len(self._left)
        text, self._left = self._left[: len(self._left) - held], self._left[len(self._left) - held :]
        return Said(text) if text else None

    def _nothing(self) -> Said | None:
        self._left = ""
        return None

    def _head(self) -> Said | None:
        try:
            name, end = json.JSONDecoder().raw_decode(self._left, len(HEAD))
        except ValueError:
            return None
        if not self._left.startswith(MIDDLE, end):
            return None
        self._left = self._left[end + len(MIDDLE) :]
        self._read, self._depth, self._quoted, self._escaped = self._arguments, 0, False, False
        self.num_calls += 1
        return Said(call=FunctionCall(self.num_calls - 1, new_id("call_"), name))

    def _arguments(self) -> Said | None:
        """Up to the brace that ends the call."""
        for place, char in enumerate(self._left):
            if self._quoted:
                self._quoted = self._escaped or char != '"'
                self._escaped = char == "\\" and not self._escaped
            elif char == '"':
                self._quoted = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                if self._depth == 0:
                    text, self._left = self._left[:place], self._left[place + 1 :]
                    self._read = self._close
                    return Said(arguments=text)
                self._depth -= 1
        text, self._left = self._left, ""
        return Said(arguments=text) if text else None

    def _close(self) -> Said | None:
        if len(self._left) < len(CLOSING):
            return None
        self._left = self._left[len(CLOSING) :]
        self._read = self._text
        return Said()


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
