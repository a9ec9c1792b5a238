"""A turn of a conversation: from a body of chat completions to a job, and from the job to news and answers.

Other surfaces that converse make a `ChatBody` of theirs, and write what comes of it in their own words.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import Any

from daguerre.cancellation import current_cancellation
from daguerre.decoding.defaults import with_sampling
from daguerre.decoding.result import Result, StreamEvent
from daguerre.engine.job import Job
from daguerre.errors import QueueFullError
from daguerre.http.errors import ApiError
from daguerre.http.settings import Settings
from daguerre.model import CHAT_TOKENS
from daguerre.models.chat_format import Thinks
from daguerre.models.chat_format.tokens import TokenFormat, format_of
from daguerre.sampling.constrained import automaton_of
from daguerre.sampling.constraints import TokenAutomaton
from daguerre.sampling.constraints.tools import OPENING, REQUIRED
from daguerre.server.answers import effort_of, finish_of, naming, refuse_fields, usage_of
from daguerre.server.calls import CallReader, FunctionCall, JsonCalls, Said, joined
from daguerre.server.logprobs import LogprobRecorder, Scored, TokenLog, scored
from daguerre.server.models import Served
from daguerre.server.prompts import checked, content_text, make_prompt
from daguerre.server.protocol.chat import ChatBody, ToolChoice, tool_json, tool_option
from daguerre.server.protocol.common import decode_options
from daguerre.server.streams import deltas

SHAPING = ("schema", "tools", "regex", "choices", "keywords", "forbidden", "forbid_exactly", "ending", "pins")
"""Options that decide where a text ends. `Decode` takes no stop strings beside them, so the server cuts at these."""
WHOLE = ("schema", "regex", "choices")
"""Options that a text fulfills as a whole, so that nothing may follow it."""


@dataclass(eq=False)
class Turn:
    """A turn under way. tools: whether calls are read out of its text; stops: strings that the server cuts at; strip:
    spaces before the answer do not belong to it; ignored: the parts of schemas that do not hold; thinks: whether it
    begins with what the model thinks (see `calls.CallReader`); form: the format that it is written in, None: that of
    `calls.CallReader`.
    """

    served: Served
    job: Job
    body: ChatBody
    tools: bool
    stops: tuple[str, ...]
    strip: bool
    ignored: tuple[str, ...]
    recorder: LogprobRecorder | None
    thinks: Thinks | None = None
    form: TokenFormat | None = None

    @property
    def effort(self) -> str | None:
        """The effort that was chosen, in Daguerre's words."""
        return effort_of(self.body)

    def usage(self, results: Mapping[int, Result], thought: int) -> dict[str, Any]:
        """OpenAI's usage, of the results of all choices."""
        return usage_of([results[index] for index in range(self.body.n)], self.job, self.effort, thought)

    def reader(self) -> CallReader:
        """What reads the text of a choice."""
        wanted = self.body.response_format
        alone = wanted is not None and wanted.type != "text"
        plain = self._plain_calls() if self.tools and not alone else None
        form = None if self.form is None else self.form.marked
        tools = [tool_json(tool) for tool in self.body.usable_tools]
        return CallReader(self.stops, self.tools, self.strip, alone, plain, self.thinks, form, tools)

    def _plain_calls(self) -> JsonCalls:
        """What reads calls without marks."""
        tokenizer = self.served.model.tokenizer

        def accepts(call: str) -> bool:
            automaton = self._automaton()
            return automaton is not None and automaton.accepts(tokenizer.encode_plain(call, begins=False))

        tools = {tool.function.name: tool.function.parameters for tool in self.body.usable_tools}
        return JsonCalls(tools, accepts, self.body.parallel_tool_calls)

    def _automaton(self) -> TokenAutomaton | None:
        """The language of calls as `calls.written` writes them. May compile: not for the event loop."""
        if self.job.plan.constraint is None:
            return None
        if self.form is None:
            return next(iter(self.job.plan.constraint.automata.values()))
        calls = {"tools": [tool_option(tool) for tool in self.body.usable_tools], "choice": REQUIRED}
        try:
            with self.served.engine.planning(current_cancellation().owner):
                return automaton_of("tools", calls, self.served.model.tokenizer, lenient=True)
        except QueueFullError:  # the answer is written: it stays a text
            return None


@dataclass(frozen=True)
class ChoiceDelta:
    """News of one choice.

    said    what is new of its text and its calls
    tokens  those whose texts became final, where log-probabilities are asked for
    count   how many tokens are final, where running usage is asked for
    event   the event of the step; None in the last piece
    result, finish, thought   in the last piece: the result, OpenAI's reason for the end, and how many tokens were
            thought
    """

    index: int
    said: Sequence[Said] = ()
    tokens: Sequence[Scored] = ()
    count: int = 0
    event: StreamEvent | None = None
    result: Result | None = None
    finish: str | None = None
    thought: int = 0


@dataclass(frozen=True)
class FinishedChoice:
    """A choice that is whole; num_thought: how many of its tokens were thought."""

    text: str
    calls: Sequence[FunctionCall]
    finish: str
    result: Result
    tokens: Sequence[Scored] = field(default=(), repr=False)
    thought: str = ""
    num_thought: int = 0


def begin_turn(
    served: Served, body: ChatBody, owner: str, settings: Settings, names: Mapping[str, str] | None = None
) -> Turn:
    """Begin a turn. Compiles constraints: not for the event loop. ApiError, naming the field, for what cannot be
    honored; `names`: the fields' names in the client's own body, for errors.
    """
    refuse_fields(body)
    tools = body.usable_tools
    with naming(names):
        given = make_prompt(served.model, checked(body.messages), [tool_json(tool) for tool in tools], body.template)
        asked = decode_options(body, served) | {"n": body.n}
        form = None if given.plain or any(name in asked for name in WHOLE) else format_of(served.model.tokenizer)
        asked |= _constraint(body, form, asked.get("logit_bias"))
        form = None if any(name in asked for name in WHOLE) and "tools" not in asked else form
        ids = () if isinstance(given.text, str) else given.text
        thinks = given.thinks if form is None else form.thinks(served.model.tokenizer, ids)
        asked |= {} if form is None else {"chat_format": thinks}
        options = with_sampling(asked, served.model.chat_sampling)
        shaped = any(options.get(name) for name in SHAPING)
        stops = _server_stops(options, given.stops, shaped)
        prompt = f"{given.text} " if given.plain and shaped else given.text
        most = body.most_tokens or _default_tokens(served, prompt, settings)
        recorder = _recorder(body, options)
        running = {"special_tokens": False} | body.daguerre.running() | {"draft": _draft(body), "owner": owner}
        job = _start(served, prompt, most, body, options | running)
    ignored = () if job.plan.constraint is None else job.plan.constraint.ignored
    _refuse_ignored(body, job, ignored)
    thinks = None if form is None and any(name in options for name in WHOLE) else thinks
    return Turn(served, job, body, bool(tools), stops, given.plain and not shaped, ignored, recorder, thinks, form)


def num_tokens(served: Served, body: ChatBody) -> int:
    """How many tokens the prompt of a conversation has."""
    tools = [tool_json(tool) for tool in body.usable_tools]
    prompt = make_prompt(served.model, checked(body.messages), tools, body.template).text
    return len(served.model.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt)


def _start(served: Served, prompt: Any, most: int, body: ChatBody, options: dict[str, Any]) -> Job:
    if not body.daguerre.changeable:
        return served.engine.generate(prompt, most, context="whole", **options)
    if body.n > 1 or not body.stream or body.daguerre.heal:
        message = "a request that is changed while it runs is a stream of one choice, without heal"
        raise ApiError(f"{message}: leave out the one or the other", param="daguerre.changeable")
    del options["heal"]
    return served.engine.start_request(prompt, most, context="whole", **options)


def _constraint(
    body: ChatBody, form: TokenFormat | None = None, bias: Mapping[int, float] | None = None
) -> dict[str, Any]:
    """The options of tools and of the format of the answer."""
    tools, wanted = body.usable_tools, body.tool_choice
    choice = wanted.function.name if isinstance(wanted, ToolChoice) else wanted or "auto"
    if not tools:
        if choice not in ("auto", "none"):
            raise ApiError("tool_choice asks for a call, and there are no tools: give some", param="tool_choice")
        return _format(body) or _no_calls(body, form, bias)
    formatted = _format(body) if choice == "auto" else {}  # else there is no text
    lenient = formatted.pop("lenient", False) or not all(tool.function.strict for tool in tools)
    formatted |= {"strict": not lenient, "lenient": lenient}  # what a strict part may not leave out is refused later
    one = {} if body.parallel_tool_calls else {"parallel_calls": False}
    return {"tools": [tool_option(tool) for tool in tools], "tool_choice": choice, **one, **formatted}


def _no_calls(
    body: ChatBody, form: TokenFormat | None = None, bias: Mapping[int, float] | None = None
) -> dict[str, Any]:
    """A conversation that has calls, or tools that must not be called, would lead on to more calls."""
    has_calls = bool(body.tools) or any(message.get("tool_calls") for message in body.messages)
    if not has_calls:
        return {}
    if form is None:
        return {"forbidden": [*(body.daguerre.forbidden or ()), OPENING]}
    if not form.opening or form.opening_is_shared:  # then none are read, and that is all
        return {}
    if form.opening in form.special:
        return {"logit_bias": {**(bias or {}), form.special[form.opening]: -math.inf}}
    return {"forbidden": [*(body.daguerre.forbidden or ()), form.opening]}


def _format(body: ChatBody) -> dict[str, Any]:
    wanted = body.response_format
    if wanted is None or wanted.type == "text":
        return {}
    if wanted.json_schema is None:
        return {"schema": {"type": "object"}}
    return {"schema": wanted.json_schema.schema_, "strict" if wanted.json_schema.strict else "lenient": True}


def _server_stops(options: dict[str, Any], own: tuple[str, ...], shaped: bool) -> tuple[str, ...]:
    """Takes stop strings out of options that have no place for them. own: those of the prompt."""
    if not shaped:
        options["stop"] = [*options.get("stop", ()), *own]
        return ()
    needed = () if any(name in options for name in WHOLE) else own
    return (*options.pop("stop", ()), *needed)


def _default_tokens(served: Served, prompt: str | Sequence[int], settings: Settings) -> int:
    """How many tokens an answer may have where the request does not say."""
    config = served.model.config
    used = len(served.model.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt) + len(config.first)
    room = min(config.max_positions, settings.max_context or config.max_positions) - used
    return max(1, min(CHAT_TOKENS, room, settings.max_tokens or CHAT_TOKENS))


def _recorder(body: ChatBody, options: dict[str, Any]) -> LogprobRecorder | None:
    """What notes alternatives; it takes the place of the scorer among the options."""
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError("top_logprobs needs logprobs: set it to true", param="top_logprobs")
    if not body.top_logprobs:
        return None
    recorder = LogprobRecorder(body.top_logprobs, options.get("scorer"), options.get("logit_bias") or {})
    options["scorer"] = recorder
    return recorder


def _draft(body: ChatBody) -> str | None:
    if body.prediction is None:
        return body.daguerre.draft
    if body.daguerre.draft is not None:
        raise ApiError("prediction and daguerre.draft are the same thing: leave out one of the two", param="prediction")
    return content_text(body.prediction.content, "prediction.content")


def _refuse_ignored(body: ChatBody, job: Job, ignored: Sequence[str]) -> None:
    """ApiError where a strict schema has a keyword that does not hold."""
    of_tools = tuple(f" of {tool.function.name}" for tool in body.usable_tools)
    own = [what for what in ignored if not what.endswith(of_tools)]
    wanted = None if body.response_format is None else body.response_format.json_schema
    if wanted is not None and wanted.strict and own:
        job.cancel()
        message = f"the format is strict, and {own[0]} is not supported: leave out the keyword, or strict"
        raise ApiError(message, param="response_format", code="unsupported")
    for tool in body.usable_tools:
        broken = [what for what in ignored if what.endswith(f" of {tool.function.name}")]
        if tool.function.strict and broken:
            job.cancel()
            message = f"the function {tool.function.name!r} is strict, and {broken[0]} is not supported"
            raise ApiError(f"{message}: leave out the keyword, or strict", param="tools", code="unsupported")


async def stopping(turn: Turn) -> None:
    """Follow a job to its end, as `pieces` does, so that a stop string that the server cuts at ends its sample."""
    if turn.stops:
        async for _ in pieces(turn):
            pass


async def pieces(turn: Turn) -> AsyncIterator[ChoiceDelta]:
    """The news of all choices, as they come. The job is cancelled if nobody reads on."""
    plan, num = turn.job.plan, len(turn.job.samples)
    readers, ended = [turn.reader() for _ in range(num)], set[int]()
    logs = [TokenLog(plan, turn.recorder) for _ in range(num)]
    options = turn.body.stream_options
    reads_tokens = turn.body.logprobs or (options is not None and options.continuous_usage_stats)
    every = reads_tokens or turn.body.daguerre.frames or turn.body.diffusing
    async with aclosing(deltas([turn.job], every)) as source:  # type: ignore[type-var]
        async for delta in source:
            index, reader, log = delta.index, readers[delta.index], logs[delta.index]
            last = delta.result is not None
            feed, whole = partial(reader.feed, delta.text, last), last and turn.tools
            said = await asyncio.to_thread(feed) if whole else feed()  # whole answers may be calls without marks
            tokens = log.follow(delta) if last or reads_tokens else ()
            if reader.stopped and not last and index not in ended:
                ended.add(index)
                turn.job.stop(index)
            shown = tokens if turn.body.logprobs else ()
            if delta.result is None:
                yield ChoiceDelta(index, said, shown, log.num_told, delta.event)
                continue
            result, finish = _until_stop(reader, delta.result), _finish(reader, delta.result)
            yield ChoiceDelta(index, said, shown, log.num_told, None, result, finish, _num_thought(reader, result))


def _finish(reader: CallReader, result: Result) -> str:
    return "tool_calls" if reader.num_calls else "stop" if reader.stopped else finish_of(result)


def _until_stop(reader: CallReader, result: Result) -> Result:
    """The result without the tokens after the stop string that the server cut at."""
    if reader.stop_end is None:
        return result
    num = _num_within(result, reader.stop_end)
    return replace(result, tokens=result.tokens[:num], usage=replace(result.usage, completion_tokens=num))


def _num_thought(reader: CallReader, result: Result) -> int:
    return _num_within(result, reader.thought_end)


def _num_within(result: Result, end: int) -> int:
    """How many tokens begin in the first `end` characters of a text."""
    starts = accumulate((len(token.text) for token in result.tokens), initial=0)
    return sum(start < end for start, _ in zip(starts, result.tokens, strict=False))


def answers(turn: Turn, result: Result) -> list[FinishedChoice]:
    """All choices of a turn that is done. Reads tokens: not for the event loop."""
    out = []
    for index, one in enumerate(result.choices):
        reader = turn.reader()
        said = reader.feed(one.text, last=True)
        (text, calls), thought = joined(said), "".join(one.thought for one in said)
        tokens, kept = scored(turn.job, index, turn.recorder) if turn.body.logprobs else [], _until_stop(reader, one)
        num_thought = _num_thought(reader, kept)
        out.append(
            FinishedChoice(text, calls, _finish(reader, one), kept, tokens[: len(kept.tokens)], thought, num_thought)
        )
    return out
