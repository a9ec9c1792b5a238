"""/v1/chat/completions, over HTTP."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from daguerre.model import Model
from daguerre.models.chat_template import ChatTemplate
from daguerre.sampling.constraints.tools import CLOSING, OPENING
from daguerre.server.app import make_app
from daguerre.server.models import ModelPool
from daguerre.server.prompts import transcript
from daguerre.server.protocol.chat import ChatBody
from daguerre.server.turns import _constraint
from served import Json, asked, refused, streamed
from server.conftest import running
from torchless import needs_torch

CHAT = "/v1/chat/completions"
ASK: Json = {"model": "tiny", "messages": [{"role": "user", "content": "Say hello"}], "max_tokens": 16}
WARM: Json = {**ASK, "temperature": 1.0, "seed": 5}
SCHEMA: Json = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 6}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS: list[Json] = [
    {"type": "function", "function": {"name": "weather", "parameters": SCHEMA, "strict": True}},
    {"type": "function", "function": {"name": "now"}},
]


def text_of(chunks: list[Json], index: int = 0) -> str:
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def test_an_answer_and_its_stream_are_the_same(client: httpx2.Client) -> None:
    body = {**WARM, "n": 2}
    whole, chunks = asked(client, CHAT, body), streamed(client, CHAT, body)
    assert whole["object"] == "chat.completion" and {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1 and "usage" not in chunks[0]
    texts = [choice["message"]["content"] for choice in whole["choices"]]
    assert texts == [text_of(chunks, 0), text_of(chunks, 1)] and texts[0] != texts[1]
    assert [chunk["choices"][0]["delta"]["role"] for chunk in chunks[:2]] == ["assistant", "assistant"]
    ends = {choice["index"]: choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]}
    assert ends == {choice["index"]: choice["finish_reason"] for choice in whole["choices"]}
    assert all("░" not in text for text in texts)


def test_a_seed_gives_the_same_answer_and_none_another_one(client: httpx2.Client) -> None:
    body = {name: value for name, value in WARM.items() if name != "seed"}
    answers = [asked(client, CHAT, {**body, **more}) for more in ({"seed": -3}, {"seed": -3}, {}, {})]
    texts = [one["choices"][0]["message"]["content"] for one in answers]
    assert texts[0] == texts[1] and texts[2] != texts[3]
    again = asked(client, CHAT, {**body, "seed": answers[2]["usage"]["daguerre"]["seed"]})
    assert again["choices"][0]["message"]["content"] == texts[2]


def test_usage_is_in_the_last_chunk_and_running_usage_in_every_one(client: httpx2.Client) -> None:
    body = {**WARM, "max_tokens": 200}
    usage = asked(client, CHAT, body)["usage"]
    chunks = streamed(client, CHAT, {**body, "stream_options": {"include_usage": True}})
    assert chunks[-1]["choices"] == [] and [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert chunks[-1]["usage"][name] == usage[name]
    both = {"include_usage": True, "continuous_usage_stats": True}
    counts = [chunk["usage"]["completion_tokens"] for chunk in streamed(client, CHAT, {**body, "stream_options": both})]
    assert counts[0] == 0 and counts == sorted(counts) and counts[-2] == counts[-1] == usage["completion_tokens"]
    assert len(set(counts)) > 2


def test_logprobs_are_the_same_in_a_stream(client: httpx2.Client) -> None:
    body = {**WARM, "logprobs": True, "top_logprobs": 3, "frequency_penalty": 0.5}
    choice = asked(client, CHAT, body)["choices"][0]
    entries = choice["logprobs"]["content"]
    said = b"".join(bytes(one["bytes"]) for one in entries).decode("utf-8", "replace")
    assert said.lstrip(" ") == choice["message"]["content"]
    assert all(len(one["top_logprobs"]) == 3 and one["commit_step"] >= 0 for one in entries)
    for one in entries:
        best = one["top_logprobs"][0]["logprob"]
        assert one["logprob"] <= best + 1e-3
        if one["token"] == one["top_logprobs"][0]["token"]:
            assert one["logprob"] == pytest.approx(best, abs=1e-3)
    parts = [part["choices"][0]["logprobs"] for part in streamed(client, CHAT, body)]
    assert [one for part in parts if part for one in part["content"]] == entries


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_calls_of_functions_are_valid_and_nothing_of_their_marks_is_seen(client: httpx2.Client, choice: Any) -> None:
    body = {**WARM, "max_tokens": 60, "tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False}
    whole = asked(client, CHAT, body)["choices"][0]
    assert whole["finish_reason"] == "tool_calls" and whole["message"]["content"] is None
    (call,) = whole["message"]["tool_calls"]
    assert call["type"] == "function" and call["id"].startswith("call_")
    arguments = json.loads(call["function"]["arguments"])
    if call["function"]["name"] == "weather":
        assert set(arguments) == {"city", "days"} and 1 <= arguments["days"] <= 9
    else:
        assert choice == "required" and arguments == {}
    chunks = streamed(client, CHAT, body)
    deltas = [one for chunk in chunks for one in chunk["choices"][0]["delta"].get("tool_calls", [])]
    assert deltas[0]["id"] and deltas[0]["function"] == {"name": call["function"]["name"], "arguments": ""}
    assert all("id" not in one and set(one["function"]) == {"arguments"} for one in deltas[1:])
    assert "".join(one["function"]["arguments"] for one in deltas) == call["function"]["arguments"]
    assert text_of(chunks) == "" and chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


@needs_torch  # from whose random numbers the model is that writes several
def test_several_calls_are_numbered_and_one_is_one(client: httpx2.Client) -> None:
    body = {**WARM, "max_tokens": 100, "tools": TOOLS[1:], "tool_choice": "required", "n": 4}
    numbers = [len(one["message"]["tool_calls"]) for one in asked(client, CHAT, body)["choices"]]
    assert max(numbers) > 1
    indices = [
        one["index"]
        for chunk in streamed(client, CHAT, {**body, "n": 1})
        for one in chunk["choices"][0]["delta"].get("tool_calls", [])
        if "id" in one
    ]
    assert indices == list(range(numbers[0]))
    single = asked(client, CHAT, {**body, "parallel_tool_calls": False})
    assert [len(one["message"]["tool_calls"]) for one in single["choices"]] == [1] * 4


def test_without_a_choice_there_is_text_or_a_call_and_with_none_no_call(client: httpx2.Client) -> None:
    history = [*ASK["messages"], {"role": "assistant", "content": None, "tool_calls": [_call("now", "{}")]}]
    history.append({"role": "tool", "tool_call_id": "call_1", "content": "noon"})
    for more in ({}, {"tool_choice": "none"}, {"tool_choice": "auto"}):
        answer = asked(client, CHAT, {**WARM, "messages": history, "max_tokens": 40, "tools": TOOLS, "n": 4, **more})
        for choice in answer["choices"]:
            calls, text = choice["message"].get("tool_calls"), choice["message"]["content"]
            assert (calls is None) == (choice["finish_reason"] != "tool_calls") and not (calls and text)
            assert OPENING not in (text or "") and CLOSING not in (text or "")
            assert not (calls and more.get("tool_choice") == "none")


def test_a_conversation_with_calls_and_no_tools_to_call_has_no_more_calls() -> None:
    called = [{"role": "assistant", "tool_calls": [_call("now", "{}")]}]
    for more, wanted in (
        ({}, {}),
        ({"tools": TOOLS, "tool_choice": "none"}, {"forbidden": [OPENING]}),
        ({"messages": called, "daguerre": {"forbidden": ["x"]}}, {"forbidden": ["x", OPENING]}),
    ):
        assert _constraint(ChatBody.model_validate({**ASK, **more})) == wanted


def _call(name: str, arguments: str) -> Json:
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}


def test_the_format_of_an_answer_holds_or_what_does_not_is_said(client: httpx2.Client) -> None:
    strict = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
    body = {**WARM, "max_tokens": 60}
    for wanted, keys in ((strict, {"city", "days"}), ({"type": "json_object"}, None)):
        text = asked(client, CHAT, {**body, "response_format": wanted})["choices"][0]["message"]["content"]
        value = json.loads(text)
        assert isinstance(value, dict) and (keys is None or set(value) == keys)
    odd = {"name": "x", "schema": {**SCHEMA, "faker": 1}}
    loose = asked(client, CHAT, {**body, "response_format": {"type": "json_schema", "json_schema": odd}})
    assert json.loads(loose["choices"][0]["message"]["content"])
    assert loose["daguerre"]["ignored"] == ["keyword 'faker' at #"]
    wanted = {"type": "json_schema", "json_schema": {**odd, "strict": True}}
    assert refused(client, CHAT, {**body, "response_format": wanted})["param"] == "response_format"
    function = {"name": "f", "parameters": odd["schema"]}
    tools = [{"type": "function", "function": function}, TOOLS[1]]
    assert asked(client, CHAT, {**body, "tools": tools})["daguerre"]["ignored"] == ["keyword 'faker' at # of f"]
    tools[0] = {"type": "function", "function": {**function, "strict": True}}
    assert refused(client, CHAT, {**body, "tools": tools})["param"] == "tools"


def test_beside_tools_the_text_may_have_a_format(client: httpx2.Client, tiny: Model) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
    body = {**WARM, "max_tokens": 60, "tools": TOOLS[1:], "response_format": wanted}
    text = asked(client, CHAT, body)["choices"][0]["message"]["content"]
    assert set(json.loads(text)) == {"city", "days"}
    words = [tiny.tokenizer.token_bytes(token) for token in range(tiny.tokenizer.vocab_size)]
    bans = {str(token): -100 for token, word in enumerate(words) if set(word) & set(b"0123456789")}
    message = asked(client, CHAT, {**body, "logit_bias": bans})["choices"][0]["message"]  # no text is left
    assert message["content"] is None and message["tool_calls"][0]["function"]["name"] == "now"
    assert asked(client, CHAT, {**body, "tool_choice": "required"})["choices"][0]["finish_reason"] == "tool_calls"
    odd = {"type": "json_schema", "json_schema": {"name": "x", "schema": {**SCHEMA, "faker": 1}, "strict": True}}
    assert refused(client, CHAT, {**body, "response_format": odd})["param"] == "response_format"


def test_stop_strings_end_the_text_with_or_without_a_constraint(client: httpx2.Client) -> None:
    for more in ({}, {"forbidden": ["zzzz"]}):
        body = {**WARM, "daguerre": {"mode": "ar", **more}, "max_tokens": 24}
        text = asked(client, CHAT, body)["choices"][0]["message"]["content"]
        stop = next(text[at : at + 3] for at in range(6, len(text)) if text[at : at + 3].isascii())
        cut = {**body, "stop": [stop]}
        choice = asked(client, CHAT, cut)["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == (text[: text.find(stop)], "stop")
        assert text_of(streamed(client, CHAT, cut)) == choice["message"]["content"]
        usage = asked(client, CHAT, {**cut, "max_tokens": 200})["usage"]
        assert usage["completion_tokens"] <= asked(client, CHAT, body)["usage"]["completion_tokens"]
        options = {"include_usage": True}
        assert (
            streamed(client, CHAT, {**cut, "stream_options": options})[-1]["usage"]["completion_tokens"]
            == (usage["completion_tokens"])
        )
    regex = {**ASK, "daguerre": {"regex": "one two three"}, "stop": "wo t"}
    assert asked(client, CHAT, regex)["choices"][0]["message"]["content"] == "one t"


def test_a_stop_string_beside_tools_ends_the_job(client: httpx2.Client) -> None:
    """Where the server cuts, the model writes no further: far fewer forwards than the limit, and no more are billed
    than there are up to the stop string.
    """
    body = {**WARM, "tools": TOOLS[1:], "max_tokens": 220, "daguerre": {"mode": "ar"}, "logprobs": True}
    text = asked(client, CHAT, {**body, "max_tokens": 24})["choices"][0]["message"]["content"]
    stop = next(text[at : at + 3] for at in range(6, len(text)) if text[at : at + 3].isascii())
    answer = asked(client, CHAT, {**body, "stop": [stop]})
    choice, usage = answer["choices"][0], answer["usage"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (text[: text.find(stop)], "stop")
    assert len(choice["logprobs"]["content"]) == usage["completion_tokens"] <= 24
    assert usage["daguerre"]["forwards"] < 150


def test_characters_of_many_bytes_are_never_split(client: httpx2.Client) -> None:
    text = "日本語 ✓ 🙂 naïve"
    body = {**ASK, "max_tokens": 60, "daguerre": {"choices": [text], "mode": "block", "block_size": 2}}
    chunks = streamed(client, CHAT, body)
    assert text_of(chunks) == text and len(chunks) > 2
    assert all("�" not in json.dumps(chunk, ensure_ascii=False) for chunk in chunks)


def test_a_prediction_is_counted(client: httpx2.Client) -> None:
    body = {**ASK, "daguerre": {"mode": "ar", "min_tokens": 12}, "max_tokens": 12}
    first = asked(client, CHAT, body)
    content = [{"type": "text", "text": first["choices"][0]["message"]["content"]}]
    body = {**body, "daguerre": {"min_tokens": 12}, "prediction": {"type": "content", "content": content}}
    details = asked(client, CHAT, body)["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] > 0
    wrong = {**body, "prediction": {"type": "content", "content": "zzz qqq zzz"}}
    details = asked(client, CHAT, wrong)["usage"]["completion_tokens_details"]
    assert details["rejected_prediction_tokens"] > 0


def test_effort_sets_the_forwards_and_is_said(client: httpx2.Client) -> None:
    body = {**ASK, "max_tokens": 48, "daguerre": {"min_tokens": 48}}
    found = {}
    words = {"none": "instant", "instant": "instant", "low": "low", "medium": "medium", "max": "high"}
    for word, effort in words.items():
        usage = asked(client, CHAT, {**body, "reasoning_effort": word})["usage"]["daguerre"]
        assert usage["effort"] == effort
        found[effort] = usage["forwards"]
    assert found["instant"] < found["low"] <= 48
    assert "effort" not in asked(client, CHAT, body)["usage"]["daguerre"]
    assert refused(client, CHAT, {**body, "reasoning_effort": "low", "daguerre": {"mode": "ar"}})["param"] == (
        "reasoning_effort"
    )


def test_frames_come_only_to_those_who_ask_and_beside_the_text(client: httpx2.Client) -> None:
    body = {**WARM, "daguerre": {"mode": "block", "block_size": 4, "min_tokens": 16}}
    plain = streamed(client, CHAT, body)
    assert not any("type" in chunk for chunk in plain)
    own = {**body["daguerre"], "frames": True, "trace": True}
    chunks = streamed(client, CHAT, {**body, "daguerre": own})
    frames = [chunk for chunk in chunks if chunk.get("type") == "diffusion_frame"]
    assert text_of(chunks) == text_of(plain) and any("░" in frame["text"] for frame in frames)
    assert all(frame["choices"][0]["delta"] == {} for frame in frames)
    blocks = [frame["block"] for frame in frames]
    assert blocks == sorted(blocks) and blocks[-1] >= 3
    assert all(len(frame["text"]) >= frame["committed"] for frame in frames)
    assert chunks[-1]["choices"][0]["daguerre"]["trace"]["version"] == 3


def test_snapshots_replace_one_another(client: httpx2.Client) -> None:
    body = {**WARM, "daguerre": {"mode": "block", "block_size": 8}}
    text = asked(client, CHAT, body)["choices"][0]["message"]["content"]
    with client.stream("POST", CHAT, json={**body, "diffusing": True, "reasoning_summary": True}) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines.pop() == "[DONE]"
    *frames, closing = map(json.loads, lines)
    assert all(frame["diffusion_meta"]["diffusion_content"] for frame in frames) and "diffusion_meta" not in closing
    assert [frame["diffusion_meta"]["diffusion_progress"] for frame in frames] == [0.0] * (len(frames) - 1) + [1.0]
    assert frames[-1]["choices"][0]["delta"]["content"] == text and closing["choices"][0]["delta"] == {}
    assert any("░" in frame["choices"][0]["delta"]["content"] for frame in frames)
    summaries = [frame["reasoning_summary"] for frame in frames]
    assert not any(summaries[:-1]) and summaries[-1]["status"] == "unavailable"


def test_snapshots_of_a_call_append_its_arguments(client: httpx2.Client) -> None:
    body = {**WARM, "max_tokens": 60, "tools": TOOLS[:1], "tool_choice": "required", "parallel_tool_calls": False}
    (call,) = asked(client, CHAT, body)["choices"][0]["message"]["tool_calls"]
    chunks = streamed(client, CHAT, {**body, "diffusing": True})
    deltas = [one for chunk in chunks for one in chunk["choices"][0]["delta"].get("tool_calls", [])]
    assert "".join(one["function"]["arguments"] for one in deltas) == call["function"]["arguments"]
    assert all(not chunk["choices"][0]["delta"].get("content") for chunk in chunks)
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"


def test_a_summary_of_reasoning_is_unavailable(client: httpx2.Client) -> None:
    body = {**ASK, "reasoning_summary": True, "reasoning_summary_wait": True, "realtime": True}
    assert asked(client, CHAT, body)["reasoning_summary"]["status"] == "unavailable"
    assert streamed(client, CHAT, body)[-1]["reasoning_summary"]["status"] == "unavailable"
    assert "reasoning_summary" not in asked(client, CHAT, ASK)


REFUSED: list[tuple[Json, str]] = [
    ({"diffusing": True, "logprobs": True}, "diffusing"),
    ({"diffusing": True, "stream_options": {"continuous_usage_stats": True}}, "diffusing"),
    ({"diffusing": True, "stream": True, "daguerre": {"changeable": True}}, "diffusing"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "boss", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "moon"}}}, "tool_choice"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"70": 101}}, "logit_bias"),
    ({"functions": []}, "functions"),
    ({"modalities": ["audio"]}, "modalities"),
    ({"store": True}, "store"),
    ({"verbosity": "low"}, "verbosity"),
    ({"service_tier": "flex"}, "service_tier"),
    ({"response_format": {"type": "json_schema"}}, "response_format"),
    ({"daguerre": {"pins": [{"text": "x"}]}}, "daguerre.pins"),
    ({"daguerre": {"mode": "ar", "policy": "confidence"}}, "daguerre.policy"),
    ({"daguerre": {"changeable": True}}, "daguerre.changeable"),
    ({"daguerre": {"draft": "a"}, "prediction": {"content": "b"}}, "prediction"),
    ({"max_completion_tokens": 4000}, "messages"),
]
"""What is asked for, and the field that is named."""


def test_what_cannot_be_honored_is_refused_with_its_field(client: httpx2.Client, subtests: pytest.Subtests) -> None:
    for more, param in REFUSED:
        with subtests.test(str(param), more=more):
            assert refused(client, CHAT, {**ASK, **more})["param"] == param


def test_what_is_harmless_or_null_is_let_through(client: httpx2.Client) -> None:
    harmless = {"user": "u", "metadata": {"a": "b"}, "store": False, "safety_identifier": "s", "service_tier": "auto"}
    nulls = {"temperature": None, "tools": None, "stop": None, "response_format": None, "n": None, "daguerre": None}
    body = {**ASK, **harmless, **nulls, "some_extension": 1, "modalities": ["text"], "verbosity": "medium"}
    assert asked(client, CHAT, body)["choices"][0]["message"]["role"] == "assistant"


def test_max_completion_tokens_wins_and_a_pin_is_in_the_text(client: httpx2.Client) -> None:
    body = {**WARM, "max_completion_tokens": 5, "daguerre": {"pins": [{"text": "pin", "at": 2}], "mode": "block"}}
    answer = asked(client, CHAT, body)
    assert answer["usage"]["completion_tokens"] <= 5 and "pin" in answer["choices"][0]["message"]["content"]


def test_a_request_can_be_changed_by_the_id_that_its_stream_says(client: httpx2.Client) -> None:
    body = {**WARM, "daguerre": {"changeable": True, "mode": "block"}}
    first = streamed(client, CHAT, body)[0]
    assert first["daguerre"]["request"].startswith("dreq_")


def test_the_transcript_of_a_base_model() -> None:
    messages: list[Json] = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Time?"},
        {"role": "assistant", "content": None, "tool_calls": [_call("now", '{"zone": "é"}')]},
        {"role": "tool", "content": "noon"},
    ]
    tools = [{"type": "function", "function": {"name": "now", "description": "é"}}]
    assert transcript(messages, tools) == (
        'Tools:\n{"name": "now", "description": "é"}\nSystem: Be brief.\nUser: Time?\n'
        'Assistant: <tool_call>{"name":"now","arguments":{"zone":"é"}}</tool_call>\nTool: noon\nAssistant:'
    )
    begun = transcript([*messages[:2], {"role": "assistant", "content": "It is"}])
    assert begun.endswith("User: Time?\nAssistant: It is")


TEMPLATE = (
    "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name ~ c.function.arguments.items() | list }}{% endfor %}"
    "{% endfor %}<answer>"
)


@pytest.fixture
def templated(tiny: Model) -> Iterator[httpx2.Client]:
    """A client of a server whose model has a chat template."""
    model = copy.copy(tiny)
    model.tokenizer = copy.copy(tiny.tokenizer)
    model.tokenizer.chat_template = ChatTemplate.of(TEMPLATE)  # type: ignore[attr-defined]
    with running(make_app(ModelPool({"tiny": lambda: model}))) as url, httpx2.Client(base_url=url, timeout=60) as one:
        yield one


def test_a_model_with_a_chat_template_gets_its_template(templated: httpx2.Client, tiny: Model) -> None:
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]},
        {"role": "assistant", "tool_calls": [_call("now", '{"zone": "Z"}')]},
        {"role": "tool", "content": "noon"},
    ]
    body = {**ASK, "messages": messages, "tools": TOOLS[1:], "tool_choice": "auto"}
    tokens = asked(templated, "/tokenize", {"messages": messages, "tools": TOOLS[1:]})["tokens"]
    expected = "[now]<system>Be brief.<assistant>now[('zone', 'Z')]<tool>noon<answer>"
    assert tiny.tokenizer.decode(tokens) == expected
    usage = asked(templated, CHAT, body)["usage"]
    assert usage["prompt_tokens"] == len(tiny.tokenizer.encode(expected))


def test_a_last_message_is_continued_and_thinking_is_told_apart(tiny: Model, subtests: pytest.Subtests) -> None:
    """On each route, streamed and whole; what the model writes is pinned."""
    model = copy.copy(tiny)
    model.tokenizer = copy.copy(tiny.tokenizer)
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<answer>"
    template += "{% if enable_thinking is defined and not enable_thinking %}</think>{% endif %}{% endif %}{{ style }}"
    model.tokenizer.chat_template = ChatTemplate.of(template)  # type: ignore[attr-defined]
    turns = [{"role": "user", "content": "x"}]
    ask: Json = {"model": "tiny", "messages": turns}
    text = "<think>\nab</think>\n\nok"
    pinned = {"max_tokens": len(tiny.tokenizer.encode_plain(text)), "daguerre": {"pins": [{"text": text, "at": 0}]}}
    with running(make_app(ModelPool({"tiny": lambda: model}))) as url, httpx2.Client(base_url=url, timeout=60) as one:

        def prompt(**more: Any) -> str:
            return tiny.tokenizer.decode(asked(one, "/tokenize", {**ask, **more})["tokens"])

        last = [*turns, {"role": "assistant", "content": "The"}]
        assert prompt() == "<user>x<answer>" and prompt(messages=last) == "<user>x<assistant>The"
        assert prompt(messages=last, add_generation_prompt=True) == "<user>x<assistant>The<answer>"
        assert prompt(chat_template_kwargs={"style": "!"}) == "<user>x<answer>!"
        wrong = refused(one, "/tokenize", {**ask, "chat_template_kwargs": {"tools": 1}})
        assert "tools is no value of a template" in wrong["message"]
        for name in ("self", "tokenizer", "template"):
            refused(one, CHAT, {**ask, "chat_template_kwargs": {name: 1}})
        for more in ({"reasoning_effort": "none"}, {"chat_template_kwargs": {"enable_thinking": False}}):
            usage = asked(one, CHAT, {**ask, "max_tokens": 1, **more})["usage"]
            assert usage["prompt_tokens"] == len(tiny.tokenizer.encode("<user>x<answer></think>"))
        with subtests.test("chat"):
            message = asked(one, CHAT, {**ask, **pinned})["choices"][0]["message"]
            assert (message["reasoning_content"], message["content"]) == ("ab", "ok")
            chunks = streamed(one, CHAT, {**ask, **pinned})
            deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
            assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "ab" and text_of(chunks) == "ok"
        with subtests.test("messages"):
            thinking = {**ask, **pinned, "thinking": {"type": "enabled", "budget_tokens": 1024}}
            blocks = asked(one, "/v1/messages", thinking)["content"]
            assert [(block["type"], block[block["type"]]) for block in blocks] == [("thinking", "ab"), ("text", "ok")]
            sent = one.post("/v1/messages", json={**ask, **pinned, "stream": True}).text.splitlines()
            events = [json.loads(line.removeprefix("data: ")) for line in sent if line.startswith("data: ")]
            kinds = [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"]
            assert kinds == ["thinking", "text"]
        with subtests.test("responses"):
            answer: Json = {"model": "tiny", "input": "x", "store": False, "daguerre": pinned["daguerre"]}
            answer["max_output_tokens"] = pinned["max_tokens"]
            first, second = asked(one, "/v1/responses", answer)["output"]
            assert (first["type"], first["content"][0]["text"]) == ("reasoning", "ab")
            assert (second["type"], second["content"][0]["text"]) == ("message", "ok")
            *_, done = streamed(one, "/v1/responses", answer)
            assert [item["type"] for item in done["response"]["output"]] == ["reasoning", "message"]


def test_a_whole_answer_of_json_calls_is_calls(client: httpx2.Client, tiny: Model) -> None:
    call = '{"name": "weather", "arguments": {"days": 2, "city": "Oslo"}}'
    for text, num in ((call, 1), (f"```json\n{call}\n```", 1), (call.replace("2", "0"), 0)):
        body = {**ASK, "tools": TOOLS, "tool_choice": "auto", "daguerre": {"pins": [{"text": text, "at": 0}]}}
        body["max_tokens"] = len(tiny.tokenizer.encode_plain(text))
        choice = asked(client, CHAT, body)["choices"][0]
        chunks = streamed(client, CHAT, body)
        calls = choice["message"].get("tool_calls") or []
        assert [one["function"]["arguments"] for one in calls] == ['{"city":"Oslo","days":2}'] * num
        deltas = [delta for chunk in chunks for one in chunk["choices"] for delta in one["delta"].get("tool_calls", [])]
        assert "".join(delta["function"]["arguments"] for delta in deltas) == '{"city":"Oslo","days":2}' * num
        assert all(delta["type"] == "function" and delta["index"] == 0 for delta in deltas)
        assert choice["finish_reason"] == ("tool_calls" if num else "length")
        assert (choice["message"]["content"] or "") == text_of(chunks) == ("" if num else text)


def test_the_first_text_arrives_before_the_second_span_is_computed(tiny: Model) -> None:
    go, model = threading.Event(), copy.copy(tiny)
    model.denoiser = copy.copy(tiny.denoiser)
    inner, num = tiny.denoiser.backend, 0

    class Gated:
        """A backend that waits after eight forwards."""

        config = inner.config

        def forward(self, batch: Any) -> Any:
            nonlocal num
            num += 1
            assert num < 8 or go.wait(60)
            return inner.forward(batch)

        def __getattr__(self, name: str) -> Any:
            return getattr(inner, name)

    model.denoiser._fixed = Gated()  # type: ignore[assignment]
    body = {**ASK, "max_tokens": 64, "stream": True}
    body["daguerre"] = {"mode": "block", "block_size": 4, "policy": "confidence", "min_tokens": 64}
    with (
        running(make_app(ModelPool({"tiny": lambda: model}))) as url,
        httpx2.Client(base_url=url, timeout=60) as one,
        one.stream("POST", CHAT, json=body) as response,
    ):
        lines = (json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: {"))
        text = ""
        while not text:
            text = next(lines)["choices"][0]["delta"].get("content") or ""
        assert not go.is_set() and num <= 8
        go.set()
        assert [*lines][-1]["choices"][0]["finish_reason"]
