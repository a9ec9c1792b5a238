"""Backends of other shapes, asked by the router through litellm: Anthropic's and Gemini's, on a real socket."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / "src"), str(ROOT / "tests")]
for needed in ("fastapi", "httpx2", "litellm", "mcp", "orjson"):
    pytest.importorskip(needed)

import httpx2  # noqa: E402

from daguerre.router.config import Backend  # noqa: E402
from daguerre.router.litellm_api import LitellmUpstream  # noqa: E402
from scripted_backends import Reply, Scripted, scripted  # noqa: E402

KEY = "sk-ant-secret-of-the-backend"
USER = {"role": "user", "content": "Weather in Zürich?"}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    },
}
USAGE = {"input_tokens": 7, "output_tokens": 3}


def anthropic(body: dict[str, Any]) -> Reply:
    """Anthropic's answer: a call where there are tools, else a text."""
    calls = bool(body.get("tools"))
    text = {"type": "text", "text": "Sunny in Zürich"}
    call = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"place": "Zürich"}}
    reason = "tool_use" if calls else "end_turn"
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": body["model"]}
    if not body.get("stream"):
        whole = head | {"content": [call if calls else text], "stop_reason": reason, "usage": USAGE}
        return Reply(body=json.dumps(whole).encode())
    block = call | {"input": {}} if calls else text | {"text": ""}
    kind, field = ("input_json_delta", "partial_json") if calls else ("text_delta", "text")
    pieces = ['{"place": ', '"Zürich"}'] if calls else ["Sunny ", "in Zürich"]
    events = [
        {"type": "message_start", "message": head | {"content": [], "stop_reason": None, "usage": USAGE}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        *({"type": "content_block_delta", "index": 0, "delta": {"type": kind, field: one}} for one in pieces),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": USAGE},
        {"type": "message_stop"},
    ]
    lines = [f"event: {one['type']}\ndata: {json.dumps(one, ensure_ascii=False)}\n\n".encode() for one in events]
    return Reply(stream=lines, pause=0.01)


class Gemini(Scripted):
    """Gemini's answer: whether it is a stream stands in the address."""

    def answer(self, body: dict[str, Any]) -> Reply:
        """A call where there are tools, else a text."""
        call = {"functionCall": {"name": "weather", "args": {"place": "Zürich"}}}
        streams = "streamGenerateContent" in self.paths[-1]
        texts = ["Sunny ", "in Zürich"] if streams else ["Sunny in Zürich"]
        parts = [call] if body.get("tools") else [{"text": one} for one in texts]
        usage = {"promptTokenCount": 7, "candidatesTokenCount": 3, "totalTokenCount": 10}
        values = [
            {"candidates": [{"index": 0, "content": {"role": "model", "parts": [part]}}], "usageMetadata": usage}
            for part in parts
        ]
        values[-1]["candidates"][0]["finishReason"] = "STOP"  # type: ignore[index]
        if not streams:
            return Reply(body=json.dumps(values[0]).encode())
        return Reply(stream=[f"data: {json.dumps(one)}\r\n\r\n".encode() for one in values], pause=0.01)


MODELS = {"anthropic": "anthropic/claude-3-5-haiku-20241022", "gemini": "gemini/gemini-2.0-flash"}


@pytest.fixture(scope="session")
def upstream() -> LitellmUpstream:
    one = Backend(name="hosted", api="litellm", model=MODELS["anthropic"], operations=("responses",))
    return LitellmUpstream([one])


@pytest.fixture(params=list(MODELS))
def provider(request: pytest.FixtureRequest) -> Iterator[tuple[str, Scripted]]:
    """A provider's name, and its server."""
    one: Scripted = Gemini() if request.param == "gemini" else Scripted(reply=anthropic)
    if isinstance(one, Gemini):
        one.reply = one.answer
    with scripted(one):
        yield request.param, one


@pytest.fixture
def claude() -> Iterator[Scripted]:
    one = Scripted(reply=anthropic)
    with scripted(one):
        yield one


def backend(server: Scripted, name: str = "anthropic", **more: Any) -> Backend:
    base = f"http://127.0.0.1:{server.port}"
    url = f"{base}/v1beta/models/gemini-2.0-flash" if name == "gemini" else base
    operations = ("chat", "completions", "responses", "embeddings")
    return Backend.model_validate(
        {"name": "hosted", "api": "litellm", "model": MODELS[name], "url": url, "operations": operations} | more
    )


async def ask(
    upstream: LitellmUpstream, one: Backend, given: dict[str, Any], path: str = "/chat/completions"
) -> tuple[int, bytes]:
    async with upstream.ask(one, path, {"model": "auto", **given}, KEY) as response:
        return response.status_code, b"".join([chunk async for chunk in response.aiter_raw()])


def events(body: bytes) -> list[Any]:
    lines = [line[6:] for line in body.decode().split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


async def test_a_chat_is_answered_whole(upstream: LitellmUpstream, provider: tuple[str, Scripted]) -> None:
    name, server = provider
    status, body = await ask(upstream, backend(server, name), {"messages": [USER], "max_tokens": 9})
    value = json.loads(body)
    assert status == 200 and value["object"] == "chat.completion"
    assert value["choices"][0]["message"]["content"] == "Sunny in Zürich"
    assert value["choices"][0]["finish_reason"] == "stop"
    assert (value["usage"]["prompt_tokens"], value["usage"]["completion_tokens"]) == (7, 3)
    assert len(server.asked) == 1 and KEY in (*server.headers[0].values(), server.paths[0].partition("key=")[2])


async def test_a_stream_is_chunks_and_an_end(upstream: LitellmUpstream, provider: tuple[str, Scripted]) -> None:
    name, server = provider
    asked = {"messages": [USER], "stream": True, "stream_options": {"include_usage": True}}
    status, body = await ask(upstream, backend(server, name), asked)
    chunks = events(body)
    assert status == 200 and body.endswith(b"data: [DONE]\n\n")
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    texts = [choice["delta"]["content"] for choice in choices if choice["delta"].get("content")]
    assert texts == ["Sunny ", "in Zürich"]
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["stop"]
    assert (chunks[-1]["usage"]["prompt_tokens"], chunks[-1]["usage"]["completion_tokens"]) == (7, 3)


async def test_tools_are_called_whole_and_streamed(upstream: LitellmUpstream, provider: tuple[str, Scripted]) -> None:
    name, server = provider
    asked = {"messages": [USER], "tools": [TOOL], "tool_choice": "required"}
    _, body = await ask(upstream, backend(server, name), asked)
    choice = json.loads(body)["choices"][0]
    [call] = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls" and call["id"] and call["function"]["name"] == "weather"
    assert json.loads(call["function"]["arguments"]) == {"place": "Zürich"}
    _, body = await ask(upstream, backend(server, name), {**asked, "stream": True})
    deltas = [choice["delta"] for chunk in events(body) for choice in chunk["choices"]]
    calls = [one["function"] for delta in deltas for one in delta.get("tool_calls") or ()]
    assert "".join(one.get("name") or "" for one in calls) == "weather"
    assert json.loads("".join(one.get("arguments") or "" for one in calls)) == {"place": "Zürich"}


async def test_texts_are_completed(upstream: LitellmUpstream, provider: tuple[str, Scripted]) -> None:
    name, server = provider
    _, body = await ask(upstream, backend(server, name), {"prompt": "Weather?", "max_tokens": 9}, "/completions")
    value = json.loads(body)
    assert value["object"] == "text_completion" and value["choices"][0]["text"] == "Sunny in Zürich"
    _, body = await ask(upstream, backend(server, name), {"prompt": "Weather?", "stream": True}, "/completions")
    assert "".join(one["choices"][0]["text"] for one in events(body)) == "Sunny in Zürich"
    assert all("usage" not in one or one["usage"] is None for one in events(body))


async def test_responses_are_answered(upstream: LitellmUpstream, provider: tuple[str, Scripted]) -> None:
    name, server = provider
    _, body = await ask(upstream, backend(server, name), {"input": "Weather?"}, "/responses")
    value = json.loads(body)
    assert value["object"] == "response" and value["status"] == "completed"
    assert value["output"][0]["content"][0]["text"] == "Sunny in Zürich"
    _, body = await ask(upstream, backend(server, name), {"input": "Weather?", "stream": True}, "/responses")
    found = events(body)
    assert found[0]["type"] == "response.created" and found[-1]["type"] == "response.completed"
    assert "".join(one["delta"] for one in found if one["type"] == "response.output_text.delta") == "Sunny in Zürich"
    tool = {"type": "function", **TOOL["function"]}  # type: ignore[dict-item]
    _, body = await ask(upstream, backend(server, name), {"input": "Weather?", "tools": [tool]}, "/responses")
    [call] = [one for one in json.loads(body)["output"] if one["type"] == "function_call"]
    assert call["name"] == "weather" and json.loads(call["arguments"]) == {"place": "Zürich"}


async def test_texts_are_embedded(upstream: LitellmUpstream, claude: Scripted) -> None:
    vectors = {"float": [[0.5, -1.0]]}
    claude.reply = lambda body: Reply(body=json.dumps({"id": "1", "embeddings": vectors, "texts": ["a"]}).encode())
    one = backend(claude, model="cohere/embed-english-v3.0")
    for encoding, found in (("float", [0.5, -1.0]), ("base64", "AAAAPwAAgL8=")):
        status, body = await ask(upstream, one, {"input": ["a"], "encoding_format": encoding}, "/embeddings")
        assert status == 200 and json.loads(body)["data"][0]["embedding"] == found


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [400, 401, 403, 404, 429, 500, 503])
async def test_a_status_passes_without_the_key(
    upstream: LitellmUpstream, claude: Scripted, status: int, stream: bool
) -> None:
    error = {"type": "error", "error": {"type": "x", "message": f"max_tokens: no, {KEY}"}}
    claude.reply = lambda body: Reply(status, json.dumps(error).encode(), headers={"retry-after": "7"})
    one = backend(claude)
    async with upstream.ask(one, "/chat/completions", {"messages": [USER], "stream": stream}, KEY) as response:
        body = b"".join([chunk async for chunk in response.aiter_raw()])
    assert response.status_code == status and KEY not in body.decode()
    assert ("max_tokens: no" in body.decode()) == (status == 400)
    assert status == 400 or response.headers["retry-after"] == "7"
    assert len(claude.asked) == 1


async def test_fields_that_a_provider_lacks_are_refused_or_dropped(upstream: LitellmUpstream, claude: Scripted) -> None:
    asked = {"messages": [USER], "n": 2, "seed": 1}
    status, body = await ask(upstream, backend(claude), asked)
    assert status == 400 and "does not support n, seed" in body.decode() and claude.asked == []
    status, _ = await ask(upstream, backend(claude, body={"drop_params": True}), {**asked, "api_base": "http://a.b"})
    assert status == 200 and not {"n", "seed", "api_base"} & set(claude.asked[0])


@pytest.mark.parametrize(
    ("ends", "error"),
    [("well", httpx2.RemoteProtocolError), ("reset", httpx2.RemoteProtocolError), ("stall", httpx2.ReadTimeout)],
)
async def test_a_stream_that_breaks_off_is_an_error(
    upstream: LitellmUpstream, claude: Scripted, ends: str, error: type[Exception]
) -> None:
    def broken(body: dict[str, Any]) -> Reply:
        whole = anthropic(body).stream
        assert whole is not None
        return Reply(stream=whole[:3], pause=0.01, ends=ends)

    claude.reply = broken
    for path, asked in (("/chat/completions", {"messages": [USER]}), ("/responses", {"input": "Weather?"})):
        got = b""
        with pytest.raises(error):  # noqa: PT012
            async with upstream.ask(backend(claude, timeout=1.0), path, {**asked, "stream": True}, KEY) as response:
                async for chunk in response.aiter_raw():
                    got += chunk
        assert b"Sunny " in got and b"[DONE]" not in got and b"response.completed" not in got


async def test_a_provider_that_cannot_be_reached_or_sends_rubbish_is_an_error(
    upstream: LitellmUpstream, claude: Scripted
) -> None:
    claude.reply = lambda body: Reply(body=b"{rubbish")
    with pytest.raises(httpx2.RemoteProtocolError):
        await ask(upstream, backend(claude), {"messages": [USER]})
    claude.reply = lambda body: Reply(stream=[b""], ends="stall")
    with pytest.raises(httpx2.ReadTimeout):
        await ask(upstream, backend(claude, timeout=0.3), {"messages": [USER]})
    with pytest.raises(httpx2.ConnectError):
        await ask(upstream, backend(claude, url="http://127.0.0.1:1"), {"messages": [USER]})
    assert len(claude.asked) == 2


@pytest.mark.parametrize(
    ("path", "asked"), [("/chat/completions", {"messages": [USER]}), ("/responses", {"input": "Weather?"})]
)
async def test_a_client_that_leaves_ends_the_request_to_the_provider(
    upstream: LitellmUpstream, provider: tuple[str, Scripted], path: str, asked: dict[str, Any]
) -> None:
    name, server = provider
    usual = server.reply

    def endless(body: dict[str, Any]) -> Reply:
        whole = usual(body).stream
        assert whole is not None
        begin = 2 if name == "anthropic" else 0
        return Reply(stream=[*whole[:begin], *([whole[begin]] * 500)], pause=0.02)

    server.reply = endless
    async with upstream.ask(backend(server, name), path, {**asked, "stream": True}, KEY) as response:
        stream = aiter(response.aiter_raw())
        await anext(stream)
    for _ in range(250):
        if server.num_left:
            break
        await asyncio.sleep(0.02)
    assert server.num_left == 1


def test_litellm_fetches_and_says_nothing_by_itself() -> None:
    program = (
        "import socket, sys\n"
        "asked = []\n"
        "socket.getaddrinfo = lambda host, *rest, **more: asked.append(host) or []\n"
        "socket.socket.connect = lambda self, address: asked.append(address)\n"
        "from daguerre.router.config import Backend\n"
        "from daguerre.router.litellm_api import LitellmUpstream\n"
        "one = Backend(name='b', api='litellm', model='anthropic/claude', operations=('chat', 'responses'))\n"
        "LitellmUpstream([one])\n"
        "assert asked == [], asked"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LITELLM")}
    environment["PYTHONPATH"] = os.pathsep.join(str(ROOT / name) for name in ("src", "tests"))
    done = subprocess.run([sys.executable, "-c", program], check=False, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
