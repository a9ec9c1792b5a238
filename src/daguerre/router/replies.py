"""What backends send, read into checked types: whole bodies, the events of streams, usage, and headers.

Nothing in a reply is believed: what has another type than it should counts as absent, what is too large is refused, and
an answer that is only an error, or no answer at all, is a failure of its backend.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import orjson

from daguerre.router.answers import has_text
from daguerre.router.reading import dicts

MOST_ANSWER = 64 << 20
"""Bytes of an answer that is not streamed."""
MOST_EVENT = 8 << 20
"""Bytes of an event of a stream."""
MOST_CALLS = 256
"""Tool calls of an answer whose ids are kept."""
LONGEST = 256
"""Characters of an id, and of a header."""
PASSED_BACK = ("content-type", "retry-after", "openai-processing-ms", "x-ratelimit-remaining-requests")
"""Headers of a backend's answer that a client sees."""
BLANK_LINE = re.compile(rb"\n\r?\n")
CONTENT = ("choices", "output", "data", "answers")
"""Fields that an answer has its content in."""
DONE = b"[DONE]"
"""The data of an event after which nothing comes."""
ENDS = ("response.completed", "response.failed", "response.incomplete")


class BackendError(Exception):
    """A backend did not answer.

    kind         connect, timeout, status, body, or broken (after it had begun)
    status       of its answer; 0: none
    retry_after  seconds that it asks for
    """

    def __init__(self, kind: str, message: str, status: int = 0, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.kind, self.status, self.retry_after = kind, status, retry_after


def passed_back(headers: Mapping[str, str], streamed: bool) -> dict[str, str]:
    """Headers of a backend's answer for the client: those that can be written in any answer."""
    given = {name: headers.get(name, "") for name in PASSED_BACK}
    plain = {name: value for name, value in given.items() if value and _is_plain(value)}
    return {"content-type": "text/event-stream" if streamed else "application/json"} | plain


def _is_plain(value: str) -> bool:
    return value.isascii() and value.isprintable() and len(value) <= LONGEST


async def whole_body(name: str, chunks: AsyncIterator[bytes]) -> tuple[bytes, Any]:
    """The body of an answer that is not streamed, and its value. BackendError for one that is no JSON."""
    out = bytearray()
    async for chunk in chunks:
        out += chunk
        if len(out) > MOST_ANSWER:
            raise BackendError("body", f"{name} sent more than {MOST_ANSWER} bytes")
    try:
        value = orjson.loads(out)
    except orjson.JSONDecodeError:
        raise BackendError("body", f"{name} sent a body that is no JSON") from None
    return bytes(out), value


class EventSplitter:
    """Cuts a stream into whole events, each with the blank line that ends it."""

    def __init__(self, name: str) -> None:
        self._name, self._rest, self._seen = name, bytearray(), 0

    def add(self, chunk: bytes) -> Iterator[bytes]:
        """The events that are whole with the next chunk. BackendError for one that is too long."""
        self._rest += chunk
        while found := BLANK_LINE.search(self._rest, max(0, self._seen - 2)):
            event = bytes(self._rest[: found.end()])
            del self._rest[: found.end()]
            self._seen = 0
            yield event
        self._seen = len(self._rest)
        if self._seen > MOST_EVENT:
            raise BackendError("body", f"{self._name} sent an event of more than {MOST_EVENT} bytes")

    def last(self) -> bytes:
        """What is left at the end of the stream, with the blank line that it lacks, where its data are whole: backends
        leave out the last line's end. Else nothing: the stream was cut off there.
        """
        data = data_of(self._rest)
        if data != DONE:
            try:
                orjson.loads(data)
            except orjson.JSONDecodeError:
                return b""
        return bytes(self._rest.rstrip(b"\r\n")) + b"\n\n"


class EventCheck:
    """Looks at an answer as it passes: that events are UTF-8 whose data are JSON objects and no errors, whether it has
    ended as it should, and what it says of usage. text_came: called at the first text; choices: how many were asked
    for.

    events  how many had data
    """

    def __init__(self, name: str, text_came: Callable[[], None] | None = None, choices: int = 1) -> None:
        self._name, self._text_came, self._asked = name, text_came, choices
        self._choices, self._ended = set[int](), set[int]()
        self._done = False
        self.usage: dict[str, Any] = {}
        self.tool_calls = list[str]()
        self.finish: str | None = None
        self.events = 0

    @property
    def whole(self) -> bool:
        """Whether the stream has ended as it should: it says so, or all choices that were asked for, and all that came,
        have a reason for their end.
        """
        return self._done or (len(self._ended) >= self._asked and self._choices <= self._ended)

    async def passed(self, chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
        """The whole events of a stream as they come, those of a chunk together. BackendError behind the last one that a
        client can read.
        """
        events = EventSplitter(self._name)
        async for chunk in chunks:
            good, error = bytearray(), None
            try:
                for event in events.add(chunk):
                    self.add(event)
                    good += event
            except BackendError as found:
                error = found
            if good:
                yield bytes(good)
            if error is not None:
                raise error
        if last := events.last():
            self.add(last)
            yield last

    def add(self, event: bytes) -> None:
        """Check the next event of a stream. BackendError if no client can read it, or if it is an error."""
        data = data_of(event)
        try:
            event.decode()
            value = orjson.loads(data) if data and data != DONE else None
        except UnicodeDecodeError:
            raise BackendError("body", f"{self._name} sent text that is no UTF-8") from None
        except orjson.JSONDecodeError:
            raise BackendError("body", f"{self._name} sent an event that is no JSON") from None
        if data == DONE:
            self._done = True
        elif data:
            self._event(value)

    def _event(self, value: object) -> None:
        kind = value.get("type") if isinstance(value, dict) else None
        if is_error(value) or kind == "error" or (kind == "response.failed" and not self.events):
            raise BackendError("body", f"{self._name} sent an error in place of an answer")
        self.events += 1
        if self._text_came is not None and has_text(value):
            self._text_came()
            self._text_came = None
        assert isinstance(value, dict)
        self._look(value)

    def answer(self, value: object) -> None:
        """An answer that is not streamed. BackendError for one that is only an error."""
        if is_error(value):
            raise BackendError("body", f"{self._name} sent an error in place of an answer")
        assert isinstance(value, dict)
        self._look(value)

    def _look(self, event: dict[str, Any]) -> None:
        response = event.get("response") if isinstance(event.get("response"), dict) else event
        assert isinstance(response, dict)
        if isinstance(response.get("usage"), dict):
            self.usage = response["usage"]
        self.tool_calls += tool_calls_of(event)[: MOST_CALLS - len(self.tool_calls)]
        self._done = self._done or event.get("type") in ENDS
        for place, choice in enumerate(dicts(event.get("choices"))):
            number = choice.get("index", place)
            self._choices.add(number if isinstance(number, int) else place)
            reason = choice.get("finish_reason")
            if isinstance(reason, str) and reason:
                self._ended.add(number if isinstance(number, int) else place)
                self.finish = reason[:LONGEST]


def data_of(event: bytes | bytearray) -> bytes:
    """The data of an event; empty where it has none."""
    lines = event.replace(b"\r\n", b"\n").split(b"\n")
    return b"\n".join(line[5:].strip() for line in lines if line.startswith(b"data:"))


def num_choices(body: Mapping[str, Any]) -> int:
    """How many choices the answer to a request has: `n` for each prompt."""
    num, prompt = body.get("n"), body.get("prompt")
    prompts = len(prompt) if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else 1
    return prompts * (num if isinstance(num, int) and num > 0 else 1)


def is_error(value: object) -> bool:
    """Whether a body, or the data of an event, is no answer: no object, or one with an error and nothing else."""
    if not isinstance(value, dict):
        return True
    return bool(value.get("error")) and not any(value.get(name) for name in CONTENT)


def tool_calls_of(value: Mapping[str, Any]) -> list[str]:
    """The ids of the tool calls that an answer, or an event, makes, and of the answer itself where later ones may name
    it.
    """
    out = list[object]()
    for choice in dicts(value.get("choices")):
        said = choice.get("message") or choice.get("delta")
        out += [one.get("id") for one in dicts(said.get("tool_calls") if isinstance(said, dict) else None)]
    response = value.get("response") if isinstance(value.get("response"), dict) else value
    assert isinstance(response, Mapping)
    if response.get("object") == "response":
        calls = [one for one in dicts(response.get("output")) if one.get("type") == "function_call"]
        out += [response.get("id"), *(one.get("call_id") for one in calls)]
    return [one for one in out if isinstance(one, str) and 0 < len(one) <= LONGEST]


def tokens_of(usage: Mapping[str, Any], most: int) -> tuple[int, int] | None:
    """Tokens of a request and of its answer, as a backend counted them; None where it did not, or where a count is none
    or more than `most`.
    """
    into = usage.get("prompt_tokens", usage.get("input_tokens"))
    out = usage.get("completion_tokens", usage.get("output_tokens"))
    counts = [into, 0 if out is None else out]
    if any(isinstance(one, bool) or not isinstance(one, int) or not 0 <= one <= most for one in counts):
        return None
    return counts[0], counts[1]
