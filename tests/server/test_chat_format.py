"""Calls in the format of a model's chat template, through a server: whole, streamed, and on every surface.

Models are random. Their tokenizer has the marks of one way of writing calls as special tokens; those of others are
text.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import httpx2
import jsonschema
import pytest

import made_tokenizers as mt
from chat_templates import WAYS
from daguerre.http.settings import Settings
from daguerre.model import Model
from daguerre.models.chat_format.description import Thinking
from daguerre.models.chat_format.tokens import format_of
from daguerre.models.chat_template import ChatTemplate
from daguerre.models.core.backbone import Backbone
from daguerre.models.published_tokenizer import PublishedTokenizer
from daguerre.sampling.constrained import COMPILERS
from daguerre.server import turns
from daguerre.server.app import make_app
from daguerre.server.calls import CallReader
from daguerre.server.models import ModelPool
from daguerre.server.protocol.chat import ChatBody
from daguerre.server.streams import Delta
from daguerre.server.turns import Turn
from published_runs import config_of
from served import Json, asked, streamed
from server.conftest import running
from server.test_messages import rebuilt

MARKS = ["<|calls|>", "<|call|>", "<|args|>", "<|done|>", "<|/calls|>"]
SCHEMA: Json = {
    "type": "object",
    "properties": {
        "zone": {"type": "string", "maxLength": 5},
        "count": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["zone"],
    "additionalProperties": False,
}
TOOL: Json = {"name": "now", "description": "Tells the time.", "parameters": SCHEMA}
ASK: Json = {
    "messages": [{"role": "user", "content": "x"}],
    "max_tokens": 50,
    "temperature": 1.0,
    "tools": [{"type": "function", "function": TOOL}],
    "tool_choice": "required",
}
CHAT = "/v1/chat/completions"


def tokenizer_of(template: str) -> PublishedTokenizer:
    """A vocabulary with the marks as special tokens, and a template."""
    values = mt.trained()
    first = len(values["model"]["vocab"])
    added = mt.entries(first)
    more = [{**added[0], "id": first + len(added) + place, "content": mark} for place, mark in enumerate(MARKS)]
    made = PublishedTokenizer(json.dumps(values | {"added_tokens": [*added, *more]}), mt.config(add_bos_token=False))
    made.chat_template = ChatTemplate.of(template, mt.NAMES)
    return made


def model_of(template: str, **facts: Any) -> Model:
    tokenizer = tokenizer_of(template)
    backbone = Backbone(config_of(tokenizer, **facts)).initialize(0, zero_outputs=False, scale=6.0)
    return Model(backbone.eval().requires_grad_(False), tokenizer)


@pytest.fixture(scope="module")
def ways() -> Iterator[httpx2.Client]:
    """A client of a server with a model for each of three ways of writing calls."""
    pool = ModelPool({way: (lambda way=way: model_of(WAYS[way])) for way in ("counted", "tagged", "typed")})
    with running(make_app(pool)) as url, httpx2.Client(base_url=url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def drafting() -> Iterator[httpx2.Client]:
    """The same of models that write blocks of 16 tokens."""
    blocks: Json = {"context": "block", "block_size": 16, "shift": False}
    pool = ModelPool({way: (lambda way=way: model_of(WAYS[way], **blocks)) for way in ("counted", "tagged", "typed")})
    with running(make_app(pool)) as url, httpx2.Client(base_url=url, timeout=60) as client:
        yield client


def checked(calls: list[Json]) -> list[tuple[str, Any]]:
    """Names and arguments of calls, each of which is valid."""
    out = [(one["function"]["name"], json.loads(one["function"]["arguments"])) for one in calls]
    for name, arguments in out:
        assert name == "now"
        jsonschema.validate(arguments, SCHEMA)
    return out


def test_forced_calls_are_valid_in_each_way_and_streamed_as_they_are_whole(
    subtests: pytest.Subtests, ways: httpx2.Client
) -> None:
    for way in ("counted", "tagged", "typed"):
        for choice in ("required", {"type": "function", "function": {"name": "now"}}):
            body = {**ASK, "model": way, "tool_choice": choice, "seed": 3}
            with subtests.test(way=way, choice=choice):
                answer = asked(ways, CHAT, body)["choices"][0]
                calls = checked(answer["message"]["tool_calls"])
                assert answer["finish_reason"] in ("tool_calls", "length") and not answer["message"]["content"]
                assert len(calls) == 1 or choice == "required"
                pieces = [each for chunk in streamed(ways, CHAT, body) for each in chunk["choices"]]
                assert joined(pieces) == calls
                assert not any(each["delta"].get("content") for each in pieces)


def joined(pieces: list[Json]) -> list[tuple[str, Any]]:
    """Names and arguments of the calls in the choices of a stream."""
    deltas = [one for each in pieces for one in each["delta"].get("tool_calls") or ()]
    names = [one["function"]["name"] for one in deltas if one["function"].get("name")]
    arguments = [""] * len(names)
    for one in deltas:
        arguments[one["index"]] += one["function"].get("arguments") or ""
    return list(zip(names, map(json.loads, arguments), strict=True))


def test_streams_of_drafts_end_with_the_calls_of_the_whole_answer(
    subtests: pytest.Subtests, drafting: httpx2.Client
) -> None:
    found = format_of(tokenizer_of(WAYS["counted"]))
    assert found is not None
    begins = {"logit_bias": {str(found.special[found.opening]): 50}}
    asking: list[tuple[str, Json]] = [
        (way, {"tool_choice": choice})
        for way in ("counted", "tagged", "typed")
        for choice in ("required", {"type": "function", "function": {"name": "now"}})
    ]
    for way, more in [*asking, ("counted", {"tool_choice": "auto", **begins})]:
        with subtests.test(way=way, **more):
            body = {**ASK, "model": way, "seed": 3, **more}
            whole = asked(drafting, CHAT, body)
            message = whole["choices"][0]["message"]
            counted = {"stream_options": {"include_usage": True}}
            *chunks, usage = streamed(drafting, CHAT, {**body, "diffusing": True, **counted})
            pieces = [chunk["choices"][0] for chunk in chunks]
            assert joined(pieces) == checked(message["tool_calls"])
            assert not any(each["delta"].get("content") for each in pieces)
            thoughts = "".join(each["delta"].get("reasoning_content", "") for each in pieces)
            assert thoughts == message.get("reasoning_content", "")
            assert usage["usage"]["completion_tokens_details"] == whole["usage"]["completion_tokens_details"]
            assert [each["finish_reason"] for each in pieces[-2:]] == [whole["choices"][0]["finish_reason"]] * 2


def test_drafts_beside_a_template_are_seen_and_calls_in_them_are_not(drafting: httpx2.Client) -> None:
    for more in ({"tool_choice": "auto"}, {"tools": None, "tool_choice": None}):
        body = {**ASK, "model": "tagged", "seed": 1, **more}
        message = asked(drafting, CHAT, body)["choices"][0]["message"]
        chunks = streamed(drafting, CHAT, {**body, "diffusing": True})
        drafts = [text for chunk in chunks if (text := chunk["choices"][0]["delta"].get("content")) is not None]
        assert drafts[-1] == message["content"] and sum("░" in draft for draft in drafts) > 5
    found = format_of(tokenizer_of(WAYS["counted"]))
    assert found is not None
    for sign in ("\ue001<|calls|>", "\ue001<|args|>"):
        assert sign in found.call_signs
    tagged = format_of(tokenizer_of(WAYS["tagged"]))
    assert tagged is not None and tagged.call_signs == ("<tool_call>",)


def test_calls_are_written_where_a_turn_ends_with_the_end_of_texts_and_more() -> None:
    """Such as <|im_end|> and a line break, which the templates of Qwen have."""
    end = mt.NAMES["eos_token"]
    pool = ModelPool({"m": lambda: model_of(WAYS["tagged"].replace(end, end + '{{ "\\n" }}'))})
    with running(make_app(pool)) as url, httpx2.Client(base_url=url, timeout=60) as client:
        for choice in ("auto", "required"):
            body = {**ASK, "tool_choice": choice}
            made = asked(client, CHAT, body)["choices"][0]
            assert checked(made["message"].get("tool_calls") or []) or choice == "auto"
        single = asked(client, CHAT, {**ASK, "parallel_tool_calls": False})["choices"][0]["message"]
        assert len(checked(single["tool_calls"])) == 1


def test_the_ids_of_calls_are_those_that_the_model_writes(ways: httpx2.Client) -> None:
    calls = asked(ways, CHAT, {**ASK, "model": "counted"})["choices"][0]["message"]["tool_calls"]
    assert all(one["id"].startswith(("functions.now:", "call_")) for one in calls)
    assert calls[0]["id"].startswith("functions.now:")


def test_with_auto_text_is_text_and_calls_are_valid(ways: httpx2.Client) -> None:
    for seed in range(4):
        message = asked(ways, CHAT, {**ASK, "model": "counted", "tool_choice": "auto", "seed": seed})["choices"][0][
            "message"
        ]
        checked(message.get("tool_calls") or [])
        assert "\ue001" not in (message["content"] or "") and "<|calls|>" not in (message["content"] or "")


def test_a_mark_in_ordinary_tokens_is_text_and_a_special_token_is_a_mark() -> None:
    tokenizer = tokenizer_of(WAYS["counted"])
    found = format_of(tokenizer)
    assert found is not None and set(found.special) >= set(MARKS)
    spelled = '<|calls|><|call|>functions.now:0<|args|>{"zone": "a"}<|done|><|/calls|>'
    for text, num in ((spelled, 0), (spelled.replace("<|", "\ue001<|"), 1)):
        reader = CallReader(form=found.marked)
        said = reader.feed(text, last=True)
        assert reader.num_calls == num
        assert "".join(one.text for one in said) == ("" if num else spelled)


def test_the_character_before_marks_is_text_where_a_model_writes_it_by_ordinary_tokens() -> None:
    """However its bytes are cut into tokens; what is written out can be cut anywhere, too."""
    model = model_of(WAYS["counted"])
    found = format_of(model.tokenizer)
    assert found is not None
    spelled = '<|calls|><|call|>functions.now:0<|args|>{"zone": "a"}<|done|><|/calls|>'
    forged = spelled.replace("<|", "\ue001<|") + ".\ue001"
    one = model.generate("x", 200, choices=[forged], chat_format="may")
    assert one.text != forged and not any(token.id in found.special.values() for token in one.tokens)
    for cut in range(len(one.text)):
        reader = CallReader(("|>.\ue001",), form=found.marked)
        said = [*reader.feed(one.text[:cut]), *reader.feed(one.text[cut:], last=True)]
        assert not reader.num_calls and reader.stop_end == len(one.text)
        assert "".join(each.text for each in said) == forged.removesuffix("|>.\ue001")


def test_a_call_may_have_the_character_before_marks_in_its_arguments() -> None:
    found = format_of(tokenizer_of(WAYS["counted"]))
    assert found is not None
    begin, end = "\ue001<|calls|>\ue001<|call|>functions.now:0\ue001<|args|>", "\ue001<|done|>\ue001<|/calls|>"
    text = begin + '{"zone": "a\ue001\ufdd0<|done|>b"}' + end
    for cut in range(len(text)):
        reader = CallReader(form=found.marked)
        said = [*reader.feed(text[:cut]), *reader.feed(text[cut:], last=True)]
        assert json.loads("".join(each.arguments for each in said)) == {"zone": "a\ue001<|done|>b"}


def test_a_prompt_that_spells_the_mark_of_a_thought_has_begun_none() -> None:
    tokenizer = tokenizer_of(WAYS["counted"])
    found = format_of(tokenizer)
    assert found is not None
    found = replace(found, form=replace(found.form, thinking=Thinking(open="<|calls|>", close="<|/calls|>")))
    begun = [*tokenizer.encode_plain("x"), found.special["<|calls|>"]]
    assert found.thinks(tokenizer, begun) == "does"
    for spelled in ("<|calls|>", "\ue001<|calls|>"):
        assert found.thinks(tokenizer, tokenizer.encode_plain(spelled)) == "may"


def events(client: httpx2.Client, path: str, body: Json) -> list[Json]:
    """The events of a stream of a surface that names them."""
    with client.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        return [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: {")]


def test_other_surfaces_have_the_same_calls(ways: httpx2.Client) -> None:
    asking = {"model": "tagged", "temperature": 0}
    own = {
        **asking,
        "max_tokens": 50,
        "tools": [{"name": "now", "input_schema": SCHEMA}],
        "tool_choice": {"type": "any"},
    }
    blocks = asked(ways, "/v1/messages", {**own, "messages": ASK["messages"]})["content"]
    assert [one["type"] for one in blocks if one["type"] != "text"]
    for one in blocks:
        jsonschema.validate(one["input"], SCHEMA)
    message = rebuilt(events(ways, "/v1/messages", {**own, "messages": ASK["messages"]}))
    assert [one["input"] for one in message["content"]] == [one["input"] for one in blocks]
    flat = [{"type": "function", **TOOL}]
    body = {**asking, "input": "x", "max_output_tokens": 50, "tools": flat, "tool_choice": "required"}
    items = asked(ways, "/v1/responses", body)["output"]
    assert {one["type"] for one in items} == {"function_call"}
    for one in items:
        jsonschema.validate(json.loads(one["arguments"]), SCHEMA)
    news = [one for one in events(ways, "/v1/responses", body) if one["type"].startswith("response.function_call")]
    written = dict.fromkeys((one["output_index"] for one in news), "")
    for one in news:
        written[one["output_index"]] += one.get("delta", "")
    assert [*written.values()] == [one["arguments"] for one in items]


def test_no_call_begins_where_none_may(ways: httpx2.Client) -> None:
    """Of a random model, which begins calls as often as anything: its first mark has no chance."""
    call = {"id": "c", "type": "function", "function": {"name": "now", "arguments": '{"zone": "x"}'}}
    talk = [
        *ASK["messages"],
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "12"},
    ]
    opening = format_of(tokenizer_of(WAYS["counted"]))
    assert opening is not None and not opening.opening_is_shared and opening.opening in opening.special
    for more in ({"tool_choice": "none"}, {"tools": None, "tool_choice": None, "messages": talk}):
        body = {**ASK, "model": "counted", "logprobs": True, "ignore_eos": True, **more}
        choice = asked(ways, CHAT, body)["choices"][0]
        assert not choice["message"].get("tool_calls")
        written = [one["token"] for one in choice["logprobs"]["content"]]
        assert written and not any(opening.opening in token for token in written)


def test_a_mark_that_an_answer_needs_is_not_forbidden() -> None:
    """Of the template whose calls begin with the mark that ends texts, only the reader leaves out calls."""
    found = format_of(tokenizer_of(WAYS["counted"]))
    assert found is not None
    shared = replace(found, form=replace(found.form, ends=(found.opening, *found.form.ends)))
    assert shared.opening_is_shared


def test_calls_without_marks_are_compiled_once_and_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, threads, text = list[str](), set[threading.Thread](), '{"name": "now", "arguments": {"zone": "a"}}'
    own = {**TOOL, "parameters": {**SCHEMA, "maxProperties": 1}}  # which no other test has compiled
    asking = {**ASK, "tool_choice": "auto", "max_tokens": 4, "tools": [{"type": "function", "function": own}]}
    before, body = COMPILERS["tools"], ChatBody.model_validate(asking)

    def compiling(how: Json, *more: Any) -> Any:
        compiled.append(how["choice"])
        return before(how, *more)

    def automaton(self: Turn, own: Any = Turn._automaton) -> Any:
        threads.add(threading.current_thread())
        return own(self)

    async def read(turn: Turn) -> list[Any]:
        result = await asyncio.to_thread(turn.job.result, 60)

        async def whole(*_: object) -> AsyncIterator[Delta]:
            yield Delta(0, text, None, result)

        monkeypatch.setattr(turns, "deltas", whole)
        return [one async for piece in turns.pieces(turn) for one in piece.said]

    monkeypatch.setitem(COMPILERS, "tools", compiling)
    monkeypatch.setattr(Turn, "_automaton", automaton)
    with closing(ModelPool({"tagged": lambda: model_of(WAYS["tagged"])})) as pool:
        for _ in range(2):
            said = asyncio.run(read(turns.begin_turn(pool.get(), body, "", Settings())))
            assert [one.call.name for one in said if one.call is not None] == ["now"]
    assert compiled == ["auto", "required"]
    assert threads and threading.main_thread() not in threads
