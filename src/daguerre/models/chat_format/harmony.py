"""Answers in channels, as gpt-oss writes them (OpenAI's harmony format).

    [<|start|>assistant] [to=RECIPIENT] <|channel|>CHANNEL [to=RECIPIENT] [<|constrain|>json] <|message|> TEXT <|end|>

What is for functions.NAME is a call, of which TEXT has the arguments; what is for another recipient is nothing that a
client is told. Of the rest, the channel `analysis` is a thought, any other is the answer. The parts of a header come in
any order, since models write them so.
"""

from __future__ import annotations

import re
from contextlib import suppress

from daguerre.models.chat_format.arguments import read_json
from daguerre.models.chat_format.news import Failed, News
from daguerre.models.chat_format.reader import FormatReader
from daguerre.models.chat_format.source import MARKED, Steps

MESSAGE = "<|message|>"
ENDS = ("<|end|>", "<|return|>", "<|call|>", "<|start|>")
RECIPIENT = re.compile(rf"to=([^\s<{MARKED}]+)")
CHANNEL = r"<\|channel\|>\s*(\w+)"
FUNCTIONS, THOUGHT = "functions.", "analysis"


class HarmonyReader(FormatReader):
    """Reads such answers. Where a tokenizer puts a space before each text, the first one of a text is none of it."""

    def _answer(self, within: bool) -> Steps[None]:
        spaced = self._form.source.endswith("spaced)")
        mark = MARKED if MARKED in "".join(self._form.ends) else ""
        while (header := (yield from self._until(mark + MESSAGE))) is not None:
            if spaced and (yield from self._source.need()) and self._source.text[self._source.at] == " ":
                self._source.at += 1
            yield from self._message(header, mark)
            if self.stopped:
                break
        self._source.at = len(self._source.text)

    def _until(self, what: str) -> Steps[str | None]:
        """The text up to a mark, which is read as well; None: it does not come, and the rest is text."""
        source = self._source
        while (place := source.text.find(what, source.at)) < 0:
            if source.closed:
                if self._marks_nothing(source.rest):
                    self._say(source.rest)
                return None
            yield
        text = source.take(place)
        source.at += len(what)
        return text

    @staticmethod
    def _marks_nothing(text: str) -> bool:
        return not text.lstrip().startswith(("<|", "to=", MARKED))

    def _message(self, header: str, mark: str) -> Steps[None]:
        recipient, channels = RECIPIENT.findall(header), re.findall(re.escape(mark) + CHANNEL, header)
        called = [one for one in recipient if one != "assistant"]
        if called and called[-1].startswith(FUNCTIONS) and self._calls is not None:
            self._report.begin(called[-1].removeprefix(FUNCTIONS))
            with suppress(Failed):
                yield from read_json(self._source, self._report.arguments)
            yield from self._body(mark, None)
        elif called:
            yield from self._body(mark, None)
        else:
            thinks = bool(channels) and channels[-1] == THOUGHT
            yield from self._body(mark, "thought" if thinks else "text")
            self.thought_end = self._source.at if thinks else self.thought_end

    def _body(self, mark: str, kind: str | None) -> Steps[None]:
        """The text of a message, and the mark that ends it."""
        source, ends = self._source, [mark + end for end in ENDS]
        stops = self._stops if kind == "text" else ()
        while True:
            found = [(place, end) for end in (*ends, *stops) if (place := source.text.find(end, source.at)) >= 0]
            place, end = min(found, default=(len(source.text), ""))
            if not end and not source.closed:
                place -= max(
                    (n for one in (*ends, *stops) for n in range(1, len(one)) if source.text.endswith(one[:n])),
                    default=0,
                )
            text = source.take(max(source.at, place))
            if kind is not None and text:
                self._report.add(News(thought=text) if kind == "thought" else News(text=text))
            if end or source.closed:
                source.at += len(end)
                self.stop_end = source.at if end in stops else None
                return
            yield
