"""Backends whose API has another shape than OpenAI's, asked through the library litellm.

An answer comes as an `httpx2.Response`, and a failure as an error of httpx2 or a status, so that what is said and done
about them is the same as for any other backend. litellm's own texts of errors may hold keys and requests: of them only
the provider's message passes, without keys, and only to the client whose request was wrong.

A client chooses what OpenAI's API lets it choose and no more. litellm's functions take addresses, keys, files to read
and callbacks as they take a temperature. So fields that are not in `FIELDS`, tools that are no functions, and anything
in a message that litellm would fetch are refused.
"""

from __future__ import annotations

import asyncio
import base64
import importlib
import json
import logging
import os
import re
import struct
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx2
import orjson

from daguerre.errors import InputError, MissingExtra
from daguerre.http.errors import error_body
from daguerre.router.config import Backend
from daguerre.router.reading import strings
from daguerre.router.requests import NAMES

OFFLINE = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
    "LITELLM_LOCAL_BLOG_POSTS": "True",
    "LITELLM_MODE": "PRODUCTION",
    "MAX_IMAGE_URL_DOWNLOAD_SIZE_MB": "0",
}
"""What litellm reads when it is imported: fetch no lists of models or headers, read no file .env, fetch no images."""
OWN = ("provider_specific_fields", "citations", "reasoning_content", "thinking_blocks")
LOGGERS = ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy")
SAMPLING = frozenset({"temperature", "top_p", "user", "stream"})
PENALTIES = frozenset({"presence_penalty", "frequency_penalty", "logit_bias"})
SHAPING = PENALTIES | {"n", "stop", "stream_options", "max_tokens", "seed"}
TOOLS = frozenset({"tools", "tool_choice", "parallel_tool_calls"})
FIELDS = {
    "acompletion": SAMPLING
    | SHAPING
    | TOOLS
    | {"messages", "max_completion_tokens", "functions", "function_call", "response_format", "logprobs", "top_logprobs"}
    | {"reasoning_effort", "prediction", "verbosity"},
    "atext_completion": SAMPLING | SHAPING | {"prompt"},
    "aresponses": SAMPLING | TOOLS | {"input", "instructions", "max_output_tokens", "reasoning", "text"},
    "aembedding": frozenset({"input", "dimensions", "encoding_format", "user"}),
}
"""What a client may name, by litellm's function."""
FUNCTIONS = {
    "/chat/completions": "acompletion",
    "/completions": "atext_completion",
    "/responses": "aresponses",
    "/embeddings": "aembedding",
}
SPOKEN = frozenset({"text", "content", "arguments", "output", "refusal", "name", "id", "call_id", "tool_call_id"})
"""Fields of messages whose strings are read by a model alone."""
LINKS = frozenset({"url", "image_url", "file_url", "uri"})
"""Fields of messages whose strings have to be data: URLs."""
ADDRESS = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]*:/")
SECRET = re.compile(r"(?i)\b(?:bearer\s+\S+|(?:sk|pk|key|api)[-_][\w-]{8,}|AIza[\w-]{10,}|(?:api_?)?key=[^\s&\"']+)")
WRAPPED = (
    *("completion_stream", "litellm_custom_stream_wrapper", "response", "http_response"),
    *("streaming_response", "response_iterator", "async_response_iterator"),
)
"""Fields in which litellm's streams hold others, down to the connection."""
LATER = 5.0
"""Seconds by which litellm's own timeout is later than ours, which counts."""
MOST_SAID = 500
"""Characters of a provider's message that are passed on."""


class LitellmUpstream:
    """Asks backends of `api = "litellm"`. MissingExtra where litellm is not installed, or what it needs for responses;
    InputError for a backend that it cannot ask.
    """

    def __init__(self, backends: Iterable[Backend]) -> None:
        self._litellm = loaded()
        for one in backends:
            self._check(one)

    def _check(self, one: Backend) -> None:
        if others := sorted(set(one.operations) - {"chat", "completions", "responses", "embeddings"}):
            raise InputError(f"backend {one.name!r}: litellm has no {', '.join(others)}: take it out of operations")
        try:
            provider = one.body.get("custom_llm_provider")
            self._litellm.get_llm_provider(model=one.model, custom_llm_provider=provider)
        except Exception:
            raise InputError(
                f"backend {one.name!r}: litellm knows no provider of the model {one.model!r}: "
                f"name it with its model, as in anthropic/{one.model}"
            ) from None
        if "responses" in one.operations:
            try:
                importlib.import_module("litellm.responses.mcp.litellm_proxy_mcp_handler")
            except ImportError:
                raise MissingExtra("mcp", "litellm") from None

    @asynccontextmanager
    async def ask(
        self, backend: Backend, path: str, body: Mapping[str, Any], key: str | None
    ) -> AsyncIterator[httpx2.Response]:
        """A backend's answer to a client's body at a path below the base URL: a whole one, or a stream as it comes.
        Statuses are the provider's; 400 also where litellm or this module refuses the request.

        httpx2.ConnectError, ReadTimeout where nothing came for the backend's timeout, RemoteProtocolError else.
        """
        name = FUNCTIONS.get(path)
        if name is None:
            yield _refused(400, f"backend {backend.name!r} does not serve {path}: take it out of its operations")
            return
        try:
            asked = asked_of(name, body, backend)
        except InputError as error:
            yield _refused(400, str(error))
            return
        answer: Any = None
        try:
            try:
                async with asyncio.timeout(backend.timeout):
                    answer = await getattr(self._litellm, name)(**asked, **_how(backend, name, key))
            except Exception as error:
                yield self._failure(error, asked, backend, key)
                return
            if asked.get("stream") is True:
                events = self._events(answer, name != "aresponses", backend, key)
                yield httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=_Chunks(events))
            else:
                value = dumped(answer)
                yield _json(200, in_base64(value) if body.get("encoding_format") == "base64" else value)
        finally:
            await _close(answer)

    async def close(self) -> None:
        """Close litellm's connections."""
        await self._litellm.close_litellm_async_clients()

    async def _events(self, answer: Any, ends: bool, backend: Backend, key: str | None) -> AsyncIterator[bytes]:
        chunks = aiter(answer)
        while True:
            try:
                async with asyncio.timeout(backend.timeout):
                    chunk = dumped(await anext(chunks))
            except StopAsyncIteration:
                break
            except Exception as error:
                self._failure(error, {}, backend, key)
                raise httpx2.RemoteProtocolError(type(error).__name__) from None
            if _invented(answer, chunk):
                raise httpx2.RemoteProtocolError("the stream ended before its end")
            kind = f"event: {chunk['type']}\n".encode() if not ends else b""
            yield kind + b"data: " + orjson.dumps(chunk) + b"\n\n"
        if ends:
            yield b"data: [DONE]\n\n"

    def _failure(
        self, error: Exception, asked: Mapping[str, Any], backend: Backend, key: str | None
    ) -> httpx2.Response:
        """The response that a failure stands for. An error of httpx2 where it is none of the provider's."""
        kinds, name = self._litellm.exceptions, type(error).__name__
        if isinstance(error, TimeoutError | kinds.Timeout):
            raise httpx2.ReadTimeout(name) from None
        status = getattr(error, "status_code", None)
        if isinstance(error, kinds.APIConnectionError) or not isinstance(status, int) or not 400 <= status < 600:
            raise (httpx2.ConnectError if _unconnected(error) else httpx2.RemoteProtocolError)(name) from None
        if _unconnected(error):
            raise httpx2.ConnectError(name) from None
        if status not in (400, 413, 422):
            return _refused(status, f"backend {backend.name!r} refused the request ({name})", retry_after(error))
        code = "context_length_exceeded" if isinstance(error, kinds.ContextWindowExceededError) else None
        return _refused(status, _said(error, asked, backend, key), code=code)


def loaded() -> Any:
    """litellm, which then neither fetches, nor logs, nor reports. MissingExtra where it is not installed."""
    os.environ.update(OFFLINE)
    try:
        module: Any = importlib.import_module("litellm")
    except ImportError:
        raise MissingExtra("litellm", "litellm") from None
    module.suppress_debug_info = True
    module.turn_off_message_logging = True
    module.callbacks, module.success_callback, module.failure_callback = [], [], []
    for name in LOGGERS:
        logging.getLogger(name).disabled = True
    return module


def asked_of(function: str, body: Mapping[str, Any], backend: Backend) -> dict[str, Any]:
    """What litellm's function is asked for: a client's fields, with those of the configuration in place of them.
    InputError for a field that cannot be passed on, unless the backend's body says drop_params.
    """
    given = {name: value for name, value in body.items() if name in FIELDS[function]}
    unknown = sorted(name for name, value in body.items() if _asks(name, value) and name not in FIELDS[function])
    drops = backend.body.get("drop_params") is True
    if unknown and not drops:
        raise InputError(
            f"backend {backend.name!r} takes no {', '.join(unknown)[:200]}: leave it out, or let the configuration "
            "drop what is not supported (body.drop_params = true)"
        )
    tools = given.get("tools")
    if any(not isinstance(one, dict) or one.get("type") != "function" for one in tools or ()):
        raise InputError(f"backend {backend.name!r} takes functions as tools, and no others")
    if function == "atext_completion" and not isinstance(given.get("prompt"), str):
        raise InputError(f"backend {backend.name!r} takes a prompt that is one text")
    if given.pop("encoding_format", None) not in (None, "float", "base64"):
        raise InputError(f"backend {backend.name!r} takes float or base64 as encoding_format")
    if function in ("acompletion", "aresponses") and fetches(given.get("messages", given.get("input"))):
        raise InputError(f"backend {backend.name!r} takes images and files as data: URLs, and fetches no others")
    return {name: value for name, value in given.items() if value is not None} | backend.body


def _asks(name: str, value: object) -> bool:
    """Whether a field asks for anything that a backend does: not the model's name, and no wishes of the router's."""
    if name == "metadata" and isinstance(value, dict):
        return any(str(one).lower() not in NAMES for one in value)
    return name != "model" and value not in (None, False, [], {}, "")


def fetches(messages: object) -> bool:
    """Whether messages have an address that litellm would fetch, or a path of a file."""
    left: list[object] = [messages]
    while left:
        one = left.pop()
        if isinstance(one, str) and ADDRESS.match(one):
            return True
        if isinstance(one, dict):
            texts = {name: held for name, held in one.items() if isinstance(held, str)}
            if any(name in LINKS and not held.startswith("data:") for name, held in texts.items()):
                return True
            left += [held for name, held in one.items() if name not in texts or name not in SPOKEN]
        elif isinstance(one, list):
            left += one
    return False


def _how(backend: Backend, function: str, key: str | None) -> dict[str, Any]:
    out = {"model": backend.model, "timeout": backend.timeout + LATER, "num_retries": 0, "max_retries": 0}
    if function in ("acompletion", "aresponses"):
        out["_skip_mcp_handler"] = True  # litellm's own gateway for tools, which needs its proxy
    return out | ({"api_key": key} if key else {}) | ({"api_base": str(backend.url).rstrip("/")} if backend.url else {})


def dumped(value: Any) -> dict[str, Any]:
    """An answer, or an event, of litellm's as JSON values, without the empty fields that only litellm has."""
    out: dict[str, Any] = value.model_dump(mode="json", warnings=False)
    if not (out.get("usage") or {"total_tokens": 1}).get("total_tokens", 1):
        del out["usage"]  # zeros where the provider said nothing
    for held in _places(out):
        for name in [name for name in OWN if held.get(name) is None]:
            held.pop(name, None)
        if "text" in held and held["text"] is None:  # clients append it
            held["text"] = ""
    return out


def in_base64(answer: dict[str, Any]) -> dict[str, Any]:
    """Embeddings as OpenAI's own client asks for them: 32-bit floats in base64. Few providers have that."""
    for one in answer.get("data") or ():
        if isinstance(vector := one.get("embedding"), list):
            one["embedding"] = base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
    return answer


def _places(answer: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield answer
    for choice in answer.get("choices") or ():
        yield from (one for one in (choice, choice.get("message"), choice.get("delta")) if isinstance(one, dict))


def _said(error: Exception, asked: Mapping[str, Any], backend: Backend, key: str | None) -> str:
    """What is wrong with a request: the fields that litellm does not support, or the provider's own words."""
    text = str(error)
    if type(error).__name__ == "UnsupportedParamsError":
        named = sorted(name for name in asked if repr(name) in text and name not in backend.body)
        return (
            f"the model of backend {backend.name!r} does not support {', '.join(named) or 'a field'}: leave it out, or "
            "let the configuration drop what is not supported (body.drop_params = true)"
        )
    said = _provider_message(text)
    for secret in (key, *strings(backend.body)):
        if secret and len(secret) >= 4:
            said = said.replace(secret, "***")
    said = " ".join(SECRET.sub("***", said).split())[:MOST_SAID]
    return f"backend {backend.name!r} refused the request ({type(error).__name__})" + (f": {said}" if said else "")


def _provider_message(text: str) -> str:
    """The message in the JSON that a provider answered with, which litellm's text quotes. Empty where there is none."""
    begin = text.find("{")
    with suppress(ValueError, RecursionError):
        value, _ = json.JSONDecoder().raw_decode(text[begin:] if begin >= 0 else "")
        held = value.get("error", value) if isinstance(value, dict) else None
        message = held.get("message") if isinstance(held, dict) else held
        return message if isinstance(message, str) else ""
    return ""


def retry_after(error: Exception) -> str | None:
    """Seconds that a provider asks to wait, as its header says."""
    for headers in (
        getattr(error, "litellm_response_headers", None),
        getattr(getattr(error, "response", None), "headers", None),
    ):
        if isinstance(headers, Mapping) and isinstance(after := headers.get("retry-after"), str):
            return after
    return None


def _unconnected(error: BaseException | None) -> bool:
    """Whether the cause of an error is that there was no connection."""
    while error is not None:
        if type(error).__name__ in ("ConnectError", "ClientConnectorError", "ConnectionRefusedError"):
            return True
        error = error.__cause__ or error.__context__
    return False


def _invented(answer: Any, chunk: Mapping[str, Any]) -> bool:
    """Whether a chunk says why the answer ended and the provider did not: litellm ends a stream that breaks off as if
    the model had stopped.
    """
    ends = chunk.get("type") == "response.completed"
    ends = ends or any(choice.get("finish_reason") for choice in chunk.get("choices") or ())
    source = next((one for one in _parts(answer) if hasattr(one, "received_finish_reason")), None)
    if not ends or source is None:
        return False
    return source.received_finish_reason is None and getattr(source, "intermittent_finish_reason", None) is None


def _parts(answer: Any) -> list[Any]:
    """litellm's answer, with all objects that it wraps, from the outside in."""
    out = [answer]
    for one in out:
        found = [getattr(one, name, None) for name in WRAPPED]
        out += [held for held in found if held is not None and all(held is not other for other in out)]
    return out


def _json(status: int, value: object, headers: Mapping[str, str] | None = None) -> httpx2.Response:
    async def chunks() -> AsyncIterator[bytes]:
        yield orjson.dumps(value)

    held = {"content-type": "application/json", **(headers or {})}
    return httpx2.Response(status, headers=held, stream=_Chunks(chunks()))


def _refused(status: int, message: str, after: str | None = None, code: str | None = None) -> httpx2.Response:
    return _json(status, error_body(message, status, None, code), {} if after is None else {"retry-after": after})


async def _close(answer: Any) -> None:
    """End what litellm has open for a stream. Its own way does not reach the connection for all providers."""
    for one in _parts(answer):
        if callable(close := getattr(one, "aclose", None)):
            with suppress(Exception):
                await close()


class _Chunks(httpx2.AsyncByteStream):  # type: ignore[misc]
    """The bytes of an answer."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._chunks
