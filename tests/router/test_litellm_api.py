"""Backends asked through litellm, with a module in its place: what is passed to it, and what its answers become. What
the library itself does is in tests/clients/test_litellm_backend.py.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import httpx2
import pytest

from daguerre.errors import InputError, MissingExtra
from daguerre.router import litellm_api
from daguerre.router.app import make_app, make_router
from daguerre.router.config import Backend, Config
from daguerre.router.litellm_api import OFFLINE, LitellmUpstream, fetches
from daguerre.router.store import Store
from server.conftest import running

KEY = "sk-very-secret-key"
SAID = f"key {KEY}, prompt: hi"
FORBIDDEN = (
    *("api_base", "base_url", "api_key", "mock_response", "extra_headers", "fallbacks", "custom_llm_provider"),
    *("model_list", "aws_access_key_id", "vertex_credentials", "num_retries", "litellm_params", "metadata", "suffix"),
    "timeout",
)
BODIES: dict[str, dict[str, Any]] = {
    "/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5},
    "/completions": {"prompt": "a", "max_tokens": 5},
    "/embeddings": {"input": ["a", "b"]},
    "/responses": {"input": "a", "max_output_tokens": 5},
}
HI = {"model": "auto", "messages": [{"role": "user", "content": "hi"}]}
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {}}}


class Failure(Exception):
    """An error as litellm has them."""

    def __init__(
        self, status: int | None = None, text: str = f"key {KEY}, prompt: hi", after: str | None = None
    ) -> None:
        super().__init__(text)
        if status is not None:
            self.status_code = status
        self.litellm_response_headers = {} if after is None else {"retry-after": after}


class Timeout(Failure): ...


class APIConnectionError(Failure): ...


class BadRequestError(Failure): ...


class UnsupportedParamsError(BadRequestError): ...


class ContextWindowExceededError(BadRequestError): ...


class RateLimitError(Failure): ...


class Said:
    """An answer, or a chunk."""

    def __init__(self, **fields: Any) -> None:
        self._fields = fields

    def model_dump(self, **how: Any) -> dict[str, Any]:
        return json.loads(json.dumps(self._fields))


class Wrapper:
    """A stream; an exception among its chunks is raised, and None waits forever."""

    def __init__(self, *chunks: Any, finish: str | None = "stop") -> None:
        self._chunks, self.closed = iter(chunks), False
        self.received_finish_reason = finish

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        for chunk in self._chunks:
            if isinstance(chunk, Exception):
                raise chunk
            if chunk is None:
                await asyncio.sleep(600)
            return chunk
        raise StopAsyncIteration

    async def aclose(self) -> None:
        self.closed = True


class Fake(ModuleType):
    """litellm: what it was asked, and what it does."""

    def __init__(self) -> None:
        super().__init__("litellm")
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.reply: Any = Said(object="chat.completion", choices=[])
        kinds = (Timeout, APIConnectionError, ContextWindowExceededError)
        self.exceptions = SimpleNamespace(**{one.__name__: one for one in kinds})
        for name in litellm_api.FIELDS:
            setattr(self, name, self._function(name))

    def _function(self, name: str) -> Callable[..., Any]:
        async def called(**asked: Any) -> Any:
            self.asked.append((name, asked))
            if isinstance(self.reply, Exception):
                raise self.reply
            return self.reply

        return called

    def get_llm_provider(self, model: str, custom_llm_provider: str | None) -> None:
        if "/" not in model and custom_llm_provider is None:
            raise BadRequestError(400)

    async def close_litellm_async_clients(self) -> None:
        self.reply = "closed"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    for name in OFFLINE:
        monkeypatch.setenv(name, "as it was")
    module = Fake()
    monkeypatch.setitem(sys.modules, "litellm", module)
    return module


def a_backend(**more: Any) -> Backend:
    given = {"name": "hosted", "api": "litellm", "model": "anthropic/claude", "url": "http://127.0.0.1:1/v1/"}
    return Backend.model_validate(given | {"operations": ["chat", "completions", "embeddings"]} | more)


def ask(given: dict[str, Any], path: str = "/chat/completions", key: str | None = KEY, **more: Any) -> Any:
    """The status, the headers and the bytes of an answer."""

    async def whole() -> tuple[int, dict[str, str], bytes]:
        one = a_backend(**more)
        async with LitellmUpstream([one]).ask(one, path, given, key) as response:
            chunks = [chunk async for chunk in response.aiter_raw()]
            return response.status_code, dict(response.headers), b"".join(chunks)

    return asyncio.run(whole())


def message(body: bytes) -> str:
    said: str = json.loads(body)["error"]["message"]
    assert KEY not in body.decode() and "prompt: hi" not in said
    return said


def chunk(finish: str | None = None, **delta: Any) -> Said:
    return Said(choices=[{"index": 0, "delta": delta, "finish_reason": finish}])


def test_litellm_is_asked_once_with_the_backends_model_key_and_address(fake: Fake) -> None:
    status, headers, body = ask({**HI, "temperature": 0.5, "tools": [FUNCTION], "top_p": None, "store": False})
    assert (status, headers) == (200, {"content-type": "application/json"})
    assert json.loads(body) == {"object": "chat.completion", "choices": []}
    [(name, asked)] = fake.asked
    timeout = asked.pop("timeout")
    assert timeout > 60
    assert (name, asked) == (
        "acompletion",
        {
            "model": "anthropic/claude",
            "messages": HI["messages"],
            "temperature": 0.5,
            "tools": [FUNCTION],
            "api_key": KEY,
            "api_base": "http://127.0.0.1:1/v1",
            "num_retries": 0,
            "max_retries": 0,
            "_skip_mcp_handler": True,
        },
    )


def test_fields_of_the_configuration_take_the_place_of_a_clients(fake: Fake) -> None:
    ask({**HI, "temperature": 0.5}, body={"temperature": 0, "api_version": "2"}, url=None, key=None)
    [(_, asked)] = fake.asked
    assert (asked["temperature"], asked["api_version"]) == (0, "2")
    assert "api_key" not in asked and "api_base" not in asked


def test_each_operation_has_a_function_of_its_own(fake: Fake) -> None:
    for path, body in BODIES.items():
        assert ask(body, path)[0] == 200
        name, asked = fake.asked.pop()
        assert name == litellm_api.FUNCTIONS[path] and body.items() <= asked.items(), path


def test_no_client_chooses_what_is_not_of_openais_api(fake: Fake, subtests: pytest.Subtests) -> None:
    for path, body in BODIES.items():
        for field in FORBIDDEN:
            with subtests.test(field, path=path):
                status, _, answer = ask({**body, field: {"a": "b"}}, path)
                assert status == 400 and field in message(answer) and fake.asked == []
                assert ask({**body, field: {"a": "b"}}, path, body={"drop_params": True})[0] == 200
                ((_, asked),) = fake.asked
                assert {"a": "b"} not in asked.values()
            fake.asked.clear()


def test_embeddings_are_given_in_the_encoding_that_is_asked_for(fake: Fake) -> None:
    fake.reply = Said(data=[{"embedding": [1.0, -2.5]}])
    for encoding, found in (("float", [1.0, -2.5]), ("base64", "AACAPwAAIMA="), (None, [1.0, -2.5])):
        _, _, body = ask({"input": "a", "encoding_format": encoding}, "/embeddings")
        assert json.loads(body)["data"] == [{"embedding": found}]
        assert "encoding_format" not in fake.asked.pop()[1]
    assert "float or base64" in message(ask({"input": "a", "encoding_format": "int8"}, "/embeddings")[2])


def test_wishes_in_metadata_are_the_routers(fake: Fake) -> None:
    assert ask({**HI, "metadata": {"x-slo-ms": "5", "X-Route-Tags": "eu"}})[0] == 200
    assert "metadata" not in fake.asked[0][1]


def test_nothing_is_fetched_for_a_client() -> None:
    def holding(**part: Any) -> list[dict[str, Any]]:
        return [{"role": "user", "content": [{"type": "text", "text": "see http://a.b/c"}, part]}]

    fetched = ["http://127.0.0.1/x", " HTTPS://a.b", "gs://bucket/x", "file:///etc/passwd", "/etc/passwd", "x.png"]
    for link in fetched:
        assert fetches(holding(type="image_url", image_url={"url": link}))
        assert fetches(holding(type="input_image", image_url=link))
    assert fetches(holding(type="file", file={"file_id": "gs://bucket/x"}))
    assert fetches(holding(type="file", file={"file_data": "https://a.b"}))
    assert fetches([{"type": "computer_call_output", "output": {"image_url": "http://a.b"}}])
    assert not fetches(holding(type="image_url", image_url={"url": "data:image/png;base64,/9j/4AAQ"}))
    assert not fetches(holding(type="input_audio", input_audio={"data": "/9j/4AAQ", "format": "wav"}))
    assert not fetches("see http://a.b/c")
    called = {"function": {"name": "get", "arguments": '{"url": "http://a.b"}'}, "id": "1"}
    assert not fetches([{"role": "assistant", "tool_calls": [called]}, {"role": "tool", "content": "http://a.b"}])


def test_requests_that_would_fetch_or_name_other_tools_are_refused(fake: Fake) -> None:
    linked = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1"}}]}]
    assert "data: URLs" in message(ask({"messages": linked})[2])
    for tool in ({"type": "mcp", "server_url": "litellm_proxy"}, {"type": "web_search"}, "x"):
        assert "functions as tools" in message(ask({**HI, "tools": [tool]})[2])
    assert "one text" in message(ask({"prompt": [[1, 2]]}, "/completions")[2])
    assert "/edit/completions" in message(ask({"messages": []}, "/edit/completions")[2])
    assert fake.asked == []


def test_a_stream_is_events_as_they_come_and_an_end(fake: Fake) -> None:
    empty = {"index": 0, "text": None, "finish_reason": None, "provider_specific_fields": None}
    usage = Said(choices=[empty], usage={"total_tokens": 0})
    fake.reply = wrapper = Wrapper(chunk(content="ü", reasoning_content=None), usage, chunk("stop"))
    status, headers, body = ask({**HI, "stream": True})
    assert (status, headers) == (200, {"content-type": "text/event-stream"})
    *lines, end = body.decode().split("\n\n")[:-1]
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert events[0] == {"choices": [{"index": 0, "delta": {"content": "ü"}, "finish_reason": None}]}
    assert events[1] == {"choices": [{"index": 0, "text": "", "finish_reason": None}]}
    assert events[2]["choices"][0]["finish_reason"] == "stop"
    assert end == "data: [DONE]" and wrapper.closed


def test_a_stream_of_a_response_names_its_events(fake: Fake) -> None:
    fake.reply = Wrapper(Said(type="response.created"), Said(type="response.completed", response={}))
    body = ask({"input": "a", "stream": True}, "/responses")[2]
    assert body == (
        b'event: response.created\ndata: {"type":"response.created"}\n\n'
        b'event: response.completed\ndata: {"type":"response.completed","response":{}}\n\n'
    )


@pytest.mark.parametrize("end", [chunk("stop"), Said(type="response.completed")])
def test_an_end_that_the_provider_did_not_send_is_a_broken_stream(fake: Fake, end: Said) -> None:
    inner = Wrapper(finish=None)
    outer = Wrapper(Said(type="x", choices=[]), end)
    del outer.received_finish_reason
    outer.litellm_custom_stream_wrapper = inner  # type: ignore[attr-defined]
    fake.reply = outer
    with pytest.raises(httpx2.RemoteProtocolError, match="before its end"):
        ask({"input": "a", "stream": True}, "/responses")
    assert inner.closed


def test_a_stream_that_fails_or_stalls_is_an_error_after_what_it_had(fake: Fake) -> None:
    for failure in (RateLimitError(429), APIConnectionError(500), ValueError(KEY)):
        fake.reply = wrapper = Wrapper(chunk(content="a"), failure)
        with pytest.raises(httpx2.RemoteProtocolError) as error:
            ask({**HI, "stream": True})
        assert str(error.value) == type(failure).__name__ and wrapper.closed
    fake.reply = Wrapper(chunk(content="a"), None)
    with pytest.raises(httpx2.ReadTimeout):
        ask({**HI, "stream": True}, timeout=0.05)


def test_a_router_asks_litellm(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSTED_KEY", KEY)
    given = {"name": "hosted", "api": "litellm", "model": "anthropic/claude", "key_env": "HOSTED_KEY"}
    store, log = Store(None), list[dict[str, Any]]()
    router = make_router(Config.model_validate({"backends": [given]}), store, lambda *_: {"plan": 1.0}, log.append)
    with running(make_app(router, store, log.append)) as url:
        found = httpx2.post(f"{url}/v1/chat/completions", json=HI, timeout=60)
    assert (found.status_code, found.headers["x-route-backend"]) == (200, "hosted")
    assert found.json() == {"object": "chat.completion", "choices": []}
    ((name, asked),) = fake.asked
    assert (name, asked["model"], asked["api_key"]) == ("acompletion", "anthropic/claude", KEY)


def test_a_stream_is_closed_where_nobody_reads_it(fake: Fake) -> None:
    fake.reply = wrapper = Wrapper(chunk(content="a"), None)

    async def leave(chunks: int) -> None:
        one = a_backend()
        async with LitellmUpstream([one]).ask(one, "/chat/completions", {**HI, "stream": True}, KEY) as response:
            stream = aiter(response.aiter_raw())
            for _ in range(chunks):
                await anext(stream)

    for chunks in (0, 1):
        wrapper.closed = False
        asyncio.run(leave(chunks))
        assert wrapper.closed


def test_a_providers_status_is_the_responses_without_its_words(fake: Fake) -> None:
    for status in (401, 403, 404, 429, 500, 503):
        fake.reply = RateLimitError(status, after="7")
        found, headers, body = ask(HI)
        assert (found, headers["retry-after"]) == (status, "7")
        assert "'hosted'" in message(body) and "RateLimitError" in message(body)


def test_failures_without_an_answer_are_errors_of_the_client(fake: Fake) -> None:
    failures: list[tuple[Exception, type[Exception]]] = [
        (Timeout(408), httpx2.ReadTimeout),
        (TimeoutError(), httpx2.ReadTimeout),
        (APIConnectionError(500), httpx2.RemoteProtocolError),
        (KeyError(KEY), httpx2.RemoteProtocolError),
        (Failure(200), httpx2.RemoteProtocolError),
    ]
    for failure, kind in failures:
        fake.reply = failure
        with pytest.raises(kind) as error:
            ask(HI)
        assert str(error.value) == type(failure).__name__


def test_a_missing_connection_is_found_behind_any_error(fake: Fake) -> None:
    failure = Failure(500)
    failure.__cause__ = ValueError()
    failure.__cause__.__context__ = ConnectionRefusedError()
    fake.reply = failure
    with pytest.raises(httpx2.ConnectError):
        ask(HI)


def test_a_provider_that_does_not_answer_in_time_is_a_timeout(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(**asked: Any) -> None:
        await asyncio.sleep(600)

    monkeypatch.setattr(fake, "acompletion", never)
    with pytest.raises(httpx2.ReadTimeout):
        ask(HI, timeout=0.05)


def test_what_is_wrong_with_a_request_is_said_without_keys(fake: Fake) -> None:
    secret = f"{KEY} sk-abcdefghij Bearer abc.def AIzaSyA1234567890 api_key=xyz region-secret"
    quoted = json.dumps({"error": {"message": f"max_tokens: too many, {secret}"}})
    text = f"litellm.BadRequestError: Exception - {quoted} Traceback"
    fake.reply = BadRequestError(400, text)
    status, _, body = ask(HI, body={"aws_secret": "region-secret"})
    said = message(body)
    assert status == 400 and "max_tokens: too many, *** *** *** *** *** ***" in said and "Traceback" not in said
    fake.reply = BadRequestError(400, f"no JSON {KEY}")
    assert "BadRequestError" in message(ask(HI)[2])
    fake.reply = ContextWindowExceededError(400, '{"message": "too long"}')
    assert json.loads(ask(HI)[2])["error"]["code"] == "context_length_exceeded"


def test_fields_that_a_model_does_not_support_are_named(fake: Fake) -> None:
    fake.reply = UnsupportedParamsError(400, f"{KEY} does not support parameters: ['n', 'seed'], for model=x")
    status, _, body = ask({**HI, "n": 2, "seed": 1, "stop": ["a"]})
    assert status == 400 and "does not support n, seed: leave it out" in message(body)


def test_backends_that_litellm_cannot_ask_are_refused_at_the_start(fake: Fake) -> None:
    with pytest.raises(InputError, match="litellm has no edit, fim"):
        LitellmUpstream([a_backend(operations=["chat", "fim", "edit"])])
    with pytest.raises(InputError, match="as in anthropic/claude"):
        LitellmUpstream([a_backend(model="claude")])
    LitellmUpstream([a_backend(model="claude", body={"custom_llm_provider": "anthropic"})])
    with pytest.raises(MissingExtra, match="mcp"):
        LitellmUpstream([a_backend(operations=["responses"])])


def test_litellm_is_silenced_before_it_is_used(fake: Fake) -> None:
    fake.callbacks = fake.success_callback = fake.failure_callback = ["somewhere"]  # type: ignore[attr-defined]
    LitellmUpstream([])
    assert fake.callbacks == fake.success_callback == fake.failure_callback == []  # type: ignore[attr-defined]
    assert fake.suppress_debug_info is fake.turn_off_message_logging is True  # type: ignore[attr-defined]
    assert {name: litellm_api.os.environ[name] for name in OFFLINE} == OFFLINE


def test_connections_are_closed(fake: Fake) -> None:
    asyncio.run(LitellmUpstream([]).close())
    assert fake.reply == "closed"


def test_without_litellm_the_error_says_what_to_install(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "litellm", None)
    with pytest.raises(MissingExtra, match=r"pip install 'daguerre\[litellm\]'"):
        LitellmUpstream([])
