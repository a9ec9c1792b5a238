"""The items of a response and the events of its stream, in the order of OpenAI's API.

response.created, response.in_progress
for the text      response.output_item.added, response.content_part.added, response.output_text.delta ...,
                  response.output_text.done, response.content_part.done, response.output_item.done
for a thought     response.output_item.added, response.reasoning_text.delta ..., response.reasoning_text.done,
                  response.output_item.done
for each call     response.output_item.added, response.function_call_arguments.delta ...,
                  response.function_call_arguments.done, response.output_item.done
response.completed, response.incomplete or response.failed
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from daguerre.models.tokenizer import Tokenizer
from daguerre.server.answers import new_id
from daguerre.server.calls import FunctionCall, Said
from daguerre.server.logprobs import Scored, chat_logprobs
from daguerre.server.streams import sse

Json = dict[str, Any]


def text_part(text: str, logprobs: Sequence[Json] = ()) -> Json:
    """A part of a message that is text."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def message_item(key: str, content: list[Json], status: str) -> Json:
    """A message of the assistant."""
    return {"type": "message", "id": key, "status": status, "role": "assistant", "content": content}


def call_item(key: str, call: FunctionCall, status: str) -> Json:
    """A call of a function."""
    fields = {"call_id": call.id, "name": call.name, "arguments": call.arguments}
    return {"type": "function_call", "id": key, **fields, "status": status}


def reasoning_item(key: str, text: str) -> Json:
    """What was thought before the answer."""
    return {"type": "reasoning", "id": key, "summary": [], "content": [{"type": "reasoning_text", "text": text}]}


def logprobs_of(tokens: Sequence[Scored], tokenizer: Tokenizer) -> list[Json]:
    """The log-probabilities of tokens, as responses have them."""
    content: list[Json] = chat_logprobs(tokens, tokenizer)["content"]
    return content


class Events:
    """Writes the events of a stream, and has the items so far in `output`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.output: list[Json] = []
        self._tokenizer, self._number = tokenizer, 0
        self._text, self._logprobs, self._arguments = "", list[Json](), ""
        self._open: str | None = None
        self._call = FunctionCall(0, "", "")

    def event(self, kind: str, **fields: Any) -> bytes:
        """One event, with its number."""
        self._number += 1
        return sse({"type": kind, "sequence_number": self._number - 1, **fields}, kind)

    def said(self, said: Said, tokens: Sequence[Scored] = ()) -> Iterator[bytes]:
        """The events of a piece of news; `tokens` are those of its text."""
        if said.call is not None:
            yield from self.close("completed")
            yield from self._begin_call(said.call)
        elif said.arguments:
            self._arguments += said.arguments
            yield self._event("function_call_arguments.delta", delta=said.arguments)
        elif said.thought:
            if self._open != "thought":
                yield from self._begin_thought()
            self._text += said.thought
            yield self._event("reasoning_text.delta", content_index=0, delta=said.thought)
        elif said.text or tokens:
            if self._open != "message":
                yield from self.close("completed")
                yield from self._begin_message()
            logprobs = logprobs_of(tokens, self._tokenizer)
            self._text, self._logprobs = self._text + said.text, self._logprobs + logprobs
            yield self._event("output_text.delta", content_index=0, delta=said.text, logprobs=logprobs)

    def end(self, status: str) -> Iterator[bytes]:
        """The events that end the last item; an answer of nothing is an empty message."""
        if not self.output:
            yield from self._begin_message()
        yield from self.close(status)

    def close(self, status: str) -> Iterator[bytes]:
        """The events that end the item that is open."""
        if self._open == "message":
            part = text_part(self._text, self._logprobs)
            yield self._event("output_text.done", content_index=0, text=self._text, logprobs=self._logprobs)
            yield self._event("content_part.done", content_index=0, part=part)
            self.output[-1] = message_item(self.output[-1]["id"], [part], status)
        elif self._open == "thought":
            yield self._event("reasoning_text.done", content_index=0, text=self._text)
            self.output[-1] = reasoning_item(self.output[-1]["id"], self._text)
        elif self._open == "call":
            whole = FunctionCall(0, self._call.id, self._call.name, self._arguments)
            yield self._event("function_call_arguments.done", name=whole.name, arguments=whole.arguments)
            self.output[-1] = call_item(self.output[-1]["id"], whole, status)
        if self._open is not None:
            self._open = None
            yield self.event("response.output_item.done", output_index=len(self.output) - 1, item=self.output[-1])

    def _begin_message(self) -> Iterator[bytes]:
        self._open, self._text, self._logprobs = "message", "", []
        yield self._added(message_item(new_id("msg_"), [], "in_progress"))
        yield self._event("content_part.added", content_index=0, part=text_part(""))

    def _begin_thought(self) -> Iterator[bytes]:
        self._open, self._text = "thought", ""
        yield self._added(reasoning_item(new_id("rs_"), ""))

    def _begin_call(self, call: FunctionCall) -> Iterator[bytes]:
        self._open, self._call, self._arguments = "call", call, ""
        yield self._added(call_item(new_id("fc_"), call, "in_progress"))

    def _added(self, item: Json) -> bytes:
        self.output.append(item)
        return self.event("response.output_item.added", output_index=len(self.output) - 1, item=item)

    def _event(self, kind: str, **fields: Any) -> bytes:
        """An event of the item that is open."""
        place = {"item_id": self.output[-1]["id"], "output_index": len(self.output) - 1}
        return self.event(f"response.{kind}", **place, **fields)
