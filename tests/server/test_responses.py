"""/v1/responses, over HTTP."""

from __future__ import annotations

import json

import httpx2
import pytest

from daguerre.http.errors import ApiError
from daguerre.server.stored import ResponseStore
from served import Json, asked, refused, streamed

PATH = "/v1/responses"
ASK: Json = {"model": "tiny", "input": "Say hello", "max_output_tokens": 12, "temperature": 1.0, "seed": 3}
SCHEMA: Json = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["a"],
    "additionalProperties": False,
}
TOOL: Json = {"type": "function", "name": "count", "parameters": SCHEMA, "strict": True}
CALLED: Json = {**ASK, "tools": [TOOL], "tool_choice": "required", "max_output_tokens": 60}
FIELDS = {
    *("id", "object", "created_at", "completed_at", "status", "incomplete_details", "model", "previous_response_id"),
    *("instructions", "output", "error", "tools", "tool_choice", "truncation", "parallel_tool_calls", "text", "top_p"),
    *("presence_penalty", "frequency_penalty", "top_logprobs", "temperature", "reasoning", "usage", "service_tier"),
    *("max_output_tokens", "max_tool_calls", "store", "background", "metadata", "safety_identifier"),
    "prompt_cache_key",
}
"""What a response of Open Responses has."""


def text_of(response: Json) -> str:
    return "".join(part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"])


def test_a_response_has_all_its_fields(client: httpx2.Client) -> None:
    response = asked(client, PATH, {**ASK, "instructions": "Be brief.", "metadata": {"a": "b"}})
    assert set(response) >= FIELDS and response["object"] == "response"
    (item,) = response["output"]
    assert (item["type"], item["role"], item["content"][0]["type"]) == ("message", "assistant", "output_text")
    assert response["status"] == "incomplete" and response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["usage"]["output_tokens"] == 12 and response["metadata"] == {"a": "b"}
    whole = asked(client, PATH, {**ASK, "daguerre": {"choices": ["yes"]}})
    assert (whole["status"], whole["incomplete_details"], text_of(whole)) == ("completed", None, "yes")


def test_the_events_of_a_text_come_in_order(client: httpx2.Client) -> None:
    body = {**ASK, "max_output_tokens": 200}
    response, events = asked(client, PATH, body), streamed(client, PATH, body)
    kinds = [event["type"].removeprefix("response.") for event in events]
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert kinds == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *["output_text.delta"] * len(deltas),
        *("output_text.done", "content_part.done", "output_item.done", "incomplete"),
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    last = events[-1]["response"]
    assert "".join(deltas) == text_of(response) == text_of(last) and len(deltas) > 1
    assert len({event["item_id"] for event in events if "item_id" in event}) == 1
    assert last["usage"]["output_tokens"] == response["usage"]["output_tokens"]


def test_the_events_of_a_call_come_in_order(client: httpx2.Client) -> None:
    body = {**CALLED, "parallel_tool_calls": False}
    (call,), events = asked(client, PATH, body)["output"], streamed(client, PATH, body)
    assert call["type"] == "function_call" and 0 <= json.loads(call["arguments"])["a"] <= 99
    kinds = [event["type"].removeprefix("response.") for event in events]
    deltas = [event["delta"] for event in events if event["type"].endswith("arguments.delta")]
    assert kinds == [
        *("created", "in_progress", "output_item.added"),
        *["function_call_arguments.delta"] * len(deltas),
        *("function_call_arguments.done", "output_item.done", "completed"),
    ]
    (item,) = events[-1]["response"]["output"]
    assert "".join(deltas) == item["arguments"] == call["arguments"] and item["call_id"] != item["id"]


def test_several_calls_are_items_one_after_the_other(client: httpx2.Client) -> None:
    body = {**CALLED, "tools": [{"type": "function", "name": "now"}], "max_output_tokens": 100}
    for seed in range(10):
        events = streamed(client, PATH, {**body, "seed": seed})
        items = events[-1]["response"]["output"]
        places = [(event["type"][-5:], event["output_index"]) for event in events if ".output_item." in event["type"]]
        assert places == [(kind, number) for number in range(len(items)) for kind in ("added", ".done")]
        assert all(item["arguments"] == "{}" and item["status"] == "completed" for item in items)
        if len(items) > 1:
            return
    pytest.fail("no answer had several calls")


def test_a_conversation_goes_on_by_id(client: httpx2.Client) -> None:
    first = asked(client, PATH, {**CALLED, "instructions": "Be brief.", "parallel_tool_calls": False})
    (call,) = first["output"]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "7"}
    again = {**ASK, "tools": [TOOL], "tool_choice": "none"}
    second = asked(client, PATH, {**again, "input": [output], "previous_response_id": first["id"]})
    call_item = {name: call[name] for name in ("type", "call_id", "name", "arguments")}
    whole = asked(client, PATH, {**again, "input": [{"role": "user", "content": "Say hello"}, call_item, output]})
    assert text_of(second) == text_of(whole) and second["usage"]["input_tokens"] == whole["usage"]["input_tokens"]
    items = client.get(f"{PATH}/{second['id']}/input_items").json()["data"]
    assert [item["type"] for item in items] == ["message", "function_call", "function_call_output"]


def test_responses_are_kept_until_they_are_deleted(client: httpx2.Client) -> None:
    response = asked(client, PATH, ASK)
    assert client.get(f"{PATH}/{response['id']}").json() == response
    streamed_id = streamed(client, PATH, ASK)[-1]["response"]["id"]
    assert client.get(f"{PATH}/{streamed_id}").json()["status"] == "incomplete"
    assert client.delete(f"{PATH}/{response['id']}").json()["deleted"] is True
    assert client.get(f"{PATH}/{response['id']}").status_code == 404
    assert client.delete(f"{PATH}/{response['id']}").status_code == 404
    hidden = asked(client, PATH, {**ASK, "store": False})
    assert client.get(f"{PATH}/{hidden['id']}").status_code == 404
    gone = client.post(PATH, json={**ASK, "previous_response_id": hidden["id"]})
    assert gone.status_code == 404 and gone.json()["error"]["param"] == "previous_response_id"


def test_what_is_kept_is_bounded_and_belongs_to_its_owner() -> None:
    store = ResponseStore(most=2)
    for name in ("a", "b", "c"):
        store.add({"id": name, "output": [{"x": name}]}, "ana", [{"y": name}])
        store.get("a" if name == "b" else name, "ana")
    assert store.get("a", "ana").history == [{"y": "a"}, {"x": "a"}]
    for name, owner in (("b", "ana"), ("a", "bob")):
        with pytest.raises(ApiError, match="there is no response"):
            store.get(name, owner)
    small = ResponseStore(most_bytes=300)
    small.add({"id": "a", "output": []}, "", [{"text": "x" * 100}])
    small.add({"id": "b", "output": []}, "", [{"text": "x" * 200}])
    assert small.get("b", "").owner == ""
    with pytest.raises(ApiError, match="there is no response"):
        small.get("a", "")


def test_a_format_holds(client: httpx2.Client) -> None:
    wanted = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}}
    response = asked(client, PATH, {**ASK, "text": wanted, "max_output_tokens": 40})
    assert set(json.loads(text_of(response))) == {"a"} and response["text"]["format"]["schema"] == SCHEMA


def test_logprobs_are_included_if_they_are_asked_for(client: httpx2.Client) -> None:
    body = {**ASK, "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    part = asked(client, PATH, body)["output"][0]["content"][0]
    assert "".join(one["token"] for one in part["logprobs"]).lstrip(" ") == part["text"]
    assert all(len(one["top_logprobs"]) == 2 for one in part["logprobs"])
    events = streamed(client, PATH, body)
    deltas = [one for event in events if event["type"].endswith("text.delta") for one in event["logprobs"]]
    assert deltas == part["logprobs"] == events[-1]["response"]["output"][0]["content"][0]["logprobs"]


def test_tokens_of_the_input_are_counted(client: httpx2.Client) -> None:
    counted = asked(client, f"{PATH}/input_tokens", ASK)["input_tokens"]
    assert counted == asked(client, PATH, ASK)["usage"]["input_tokens"]


REFUSED: list[tuple[Json, str]] = [
    ({"background": True}, "background"),
    ({"truncation": "auto"}, "truncation"),
    ({"conversation": "c"}, "conversation"),
    ({"include": ["file_search_call.results"]}, "include"),
    ({"tools": [{"type": "web_search"}]}, "tools[0]"),
    ({"tools": [{**TOOL, "parameters": {"faker": 1}}]}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "mcp"}}, "tool_choice"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
    ({"input": []}, "input"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
    ({"text": {"verbosity": "low"}}, "text.verbosity"),
    ({"max_output_tokens": 5000}, "input"),
    ({"reasoning": {"effort": "low"}, "daguerre": {"mode": "ar"}}, "reasoning.effort"),
    ({"daguerre": {"changeable": True}}, "daguerre.changeable"),
]
"""What is asked for, and the field that is named."""


def test_what_cannot_be_honored_is_refused(client: httpx2.Client, subtests: pytest.Subtests) -> None:
    for more, param in REFUSED:
        with subtests.test(str(param), more=more):
            assert refused(client, PATH, {**ASK, **more})["param"] == param
