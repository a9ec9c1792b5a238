"""Backends over HTTP: requests to them, what they answer, and how they are doing."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    aclosing,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from daguerre.errors import InputError
from daguerre.router.choose import BackendState, Features, State
from daguerre.router.circuit import Circuit
from daguerre.router.config import Backend, Config, key_in
from daguerre.router.latency import RECENT, Latencies
from daguerre.router.replies import BackendError

if TYPE_CHECKING:
    from daguerre.router.litellm_api import LitellmUpstream

LOG = logging.getLogger("daguerre.router")
PASSED_ON = ("accept", "content-type", "user-agent", "openai-beta", "idempotency-key", "traceparent", "tracestate")
"""Headers of a client that a backend sees. A client's key is not among them."""
CONNECT_SECONDS = 5.0
TRANSIENT = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
"""Statuses after which another backend may do better."""
OURS = frozenset({401, 402, 403, 404, 405})
"""Statuses that say that a backend is not set up as the configuration says."""


@dataclass(frozen=True)
class Reply:
    """A backend's answer as it begins. text_came: to be called when the first text of a stream is there."""

    status: int
    headers: Mapping[str, str]
    chunks: AsyncIterator[bytes]
    text_came: Callable[[], None] = lambda: None

    @property
    def streamed(self) -> bool:
        """Whether it is a stream of events."""
        return self.headers.get("content-type", "").startswith("text/event-stream")


class PassedOn(StreamingResponse):
    """What a backend sends, as it comes, so that none of it is kept here. `stack` ends the request to the backend, also
    where the client was gone before the first chunk: then nobody begins to read `chunks`, and what they would close
    stays open.
    """

    def __init__(
        self, chunks: AsyncIterator[bytes], status: int, headers: Mapping[str, str], stack: AsyncExitStack
    ) -> None:
        super().__init__(chunks, status, headers)
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        async with self._stack:
            await super().__call__(scope, receive, send)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request without a text: since when (seconds of the monotonic clock), its size, and whether it is a stream."""

    since: float
    size: tuple[int, int]
    stream: bool


@dataclass
class Upstream:
    """A backend and how it is doing. key: its API key, which appears in no log, error or `repr`."""

    backend: Backend
    key: str | None = field(default=None, repr=False)
    circuit: Circuit = field(default_factory=Circuit)
    in_flight: int = 0
    beside: int = 0
    """Requests that no client waits for; `in_flight` does not count them."""
    waiting: dict[object, Waiting] = field(default_factory=dict)
    """Requests that have no text yet, the oldest first."""
    alive: float | None = None
    """When it last sent something."""

    def cold(self, now: float) -> bool:
        """Whether it has to start first."""
        after = self.backend.latency.cold_after
        return after is not None and (self.alive is None or now - self.alive > after)

    def waited(self, now: float) -> float:
        """Milliseconds that the second oldest request has no text; 0: there is none."""
        oldest = list(islice(self.waiting.values(), 2))
        return 1000 * (now - oldest[1].since) if len(oldest) > 1 else 0.0

    def text_came(self, key: object) -> None:
        """A request waits no longer."""
        self.waiting.pop(key, None)

    async def alive_with(self, key: object, reply: Reply) -> AsyncGenerator[bytes]:
        """The chunks of an answer, noted as they come. One that is not streamed is waited for no longer."""
        async for chunk in reply.chunks:
            self.alive = time.monotonic()
            if not reply.streamed:
                self.text_came(key)
            yield chunk

    def headers(self, given: Mapping[str, str]) -> dict[str, str]:
        """Headers of a request to it, from those of a client."""
        out = {name: _text(given[name]) for name in PASSED_ON if name in given}
        out |= {"content-type": "application/json", "accept-encoding": "identity"}
        return out if self.key is None else out | {"authorization": f"Bearer {self.key}"}

    def body(self, given: Mapping[str, Any]) -> bytes:
        """The body of a request to it: the client's, with the backend's model and fields."""
        return orjson.dumps(merged({**given, "model": self.backend.model}, self.backend.body))


def _text(value: str) -> str:
    """A header whose bytes were read as Latin-1, as text that is sent in UTF-8: the same bytes where they are UTF-8."""
    try:
        return value if value.isascii() else value.encode("latin-1").decode()
    except UnicodeDecodeError:
        return value


def merged(given: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with the fields of another one in place of its own, objects in objects alike."""
    out = dict(given)
    for name, value in over.items():
        old = out.get(name)
        out[name] = merged(old, value) if isinstance(old, dict) and isinstance(value, Mapping) else value
    return out


class Upstreams:
    """All backends of a configuration. InputError where a key is missing."""

    def __init__(self, config: Config) -> None:
        self._all = {one.name: Upstream(one, key_of(one), Circuit(config.circuit)) for one in config.backends}
        hosted = [one for one in config.backends if one.api == "litellm"]
        self._litellm = _litellm(hosted)
        self.latencies = Latencies(config.measuring.half_life)
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
        if self._litellm is not None:
            await self._litellm.close()

    def __getitem__(self, name: str) -> Upstream:
        return self._all[name]

    def state(self, features: Features, tokens: int, owner: str = "") -> State:
        """What a decision about a request of an owner needs to know of the backends now."""
        now, size = time.monotonic(), (features.input_tokens, tokens)
        out = State()
        for name, one in self._all.items():
            latency = one.backend.latency
            declared = latency.first_p95, latency.first_p95 + tokens * latency.token_p95
            first, first_p95, whole, whole_p95 = self.latencies.of(name, size, declared, now, self._overdue(one, now))
            out[name] = BackendState(
                open=one.circuit.allows(now, owner),
                cold=one.cold(now),
                in_flight=one.in_flight,
                waiting=one.waited(now),
                first=first,
                first_p95=first_p95,
                whole=whole,
                whole_p95=whole_p95,
            )
        return out

    def _overdue(self, one: Upstream, now: float) -> list[float]:
        """How many times as long as is usual its requests have waited."""
        return [
            self.latencies.over(one.backend.name, each.size, each.stream, 1000 * (now - each.since))
            for each in islice(one.waiting.values(), RECENT)
        ]

    @asynccontextmanager
    async def ask(
        self,
        name: str,
        path: str,
        body: Mapping[str, Any],
        headers: Mapping[str, str],
        size: tuple[int, int] = (0, 0),
        owner: str = "",
    ) -> AsyncIterator[Reply]:
        """A backend's answer to a request of an owner, whose body is not read yet. BackendError where there is none, or
        one that another backend may do better; the circuit knows of it. size: as latencies are kept.
        """
        one, key = self._all[name], object()
        one.circuit.begin(time.monotonic(), owner)
        one.in_flight += 1
        one.waiting[key] = Waiting(time.monotonic(), size, body.get("stream") is True)
        self.latencies.asked(name, time.monotonic())
        try:
            async with self._request(one, path, body, headers) as response:
                if response.status in TRANSIENT | OURS and not _is_of_client(response.status, body):
                    raise _refused(name, response)
                async with aclosing(one.alive_with(key, response)) as chunks:
                    yield Reply(response.status, response.headers, chunks, partial(one.text_came, key))
        except BackendError as error:
            request = None if error.kind == "connect" else hashlib.sha256(orjson.dumps(body)).digest()
            one.circuit.failed(time.monotonic(), error.retry_after, owner, request)
            raise
        except BaseException:
            one.circuit.left(owner)
            raise
        else:
            one.circuit.succeeded(owner)
        finally:
            one.in_flight -= 1
            one.waiting.pop(key, None)

    @asynccontextmanager
    async def ask_beside(
        self, name: str, path: str, body: Mapping[str, Any], headers: Mapping[str, str]
    ) -> AsyncIterator[Reply]:
        """`ask` where no client waits for the answer: clients' requests are not refused, and no circuit is opened, for
        what happens here. BackendError also where the backend has as many requests as it takes, or is left alone.
        """
        one = self._all[name]
        if not one.circuit.allows(time.monotonic()):
            raise BackendError("circuit", f"the circuit of {name} is open")
        if one.in_flight + one.beside >= one.backend.most_in_flight:
            raise BackendError("busy", f"{name} has as many requests as it takes")
        one.beside += 1
        try:
            async with self._request(one, path, body, headers) as response:
                if response.status in TRANSIENT | OURS:
                    raise _refused(name, response)
                yield response
        finally:
            one.beside -= 1

    @asynccontextmanager
    async def fetch(self, name: str, method: str, path: str, query: str) -> AsyncIterator[Reply]:
        """What a backend says of something that it keeps. BackendError where it says nothing."""
        one = self._all[name]
        if one.backend.url is None:
            raise BackendError("status", f"{name} keeps nothing")
        url = str(one.backend.url).rstrip("/") + path + (f"?{query}" if query else "")
        async with self._sent(one, method, url, None, {}) as reply:
            yield reply

    def _request(
        self, one: Upstream, path: str, body: Mapping[str, Any], headers: Mapping[str, str]
    ) -> AbstractAsyncContextManager[Reply]:
        if self._litellm is not None and one.backend.api == "litellm":
            return self._hosted(self._litellm, one, path, body)
        url = str(one.backend.url).rstrip("/") + path
        return self._sent(one, "POST", url, one.body(body), headers)

    @asynccontextmanager
    async def _hosted(
        self, litellm: LitellmUpstream, one: Upstream, path: str, body: Mapping[str, Any]
    ) -> AsyncIterator[Reply]:
        """The reply of a hosted API, which litellm asks. BackendError where there is none, or it breaks off."""
        blamed = partial(_hosted_blamed, one.backend)
        async with AsyncExitStack() as stack:
            with blamed():
                response = await stack.enter_async_context(litellm.ask(one.backend, path, body, one.key))
            yield Reply(response.status_code, response.headers, _chunks(response.aiter_raw(), blamed))

    @asynccontextmanager
    async def _sent(
        self, one: Upstream, method: str, url: str, body: bytes | None, headers: Mapping[str, str]
    ) -> AsyncIterator[Reply]:
        """The reply to a request. BackendError where there is none, or it breaks off."""
        wait, blamed = one.backend.timeout, partial(_blamed, one.backend)
        times = aiohttp.ClientTimeout(sock_connect=min(CONNECT_SECONDS, wait), sock_read=wait)
        async with AsyncExitStack() as stack:
            with blamed():
                asked = self._client().request(
                    method, url, data=body, headers=one.headers(headers), timeout=times, allow_redirects=False
                )
                response = await stack.enter_async_context(asked)
            yield Reply(response.status, response.headers, _chunks(response.content.iter_any(), blamed))

    def _client(self) -> aiohttp.ClientSession:
        """The session, which is made in the running loop."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30.0),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                skip_auto_headers=("User-Agent",),
            )
        return self._session


async def _chunks(
    chunks: AsyncIterator[bytes], blamed: Callable[[], AbstractContextManager[None]]
) -> AsyncGenerator[bytes]:
    """The chunks of an answer. What fails in reading them, and not in what is done with them, is the backend's."""
    while True:
        with blamed():
            try:
                chunk = await anext(chunks)
            except StopAsyncIteration:
                return
        yield chunk


@contextmanager
def _blamed(backend: Backend) -> Iterator[None]:
    """BackendError for what fails in here, where only the backend can be the reason."""
    name = backend.name
    try:
        yield
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
        raise BackendError("connect", f"{name} cannot be reached") from None
    except TimeoutError:
        raise BackendError("timeout", f"{name} sent nothing for {backend.timeout:g} s") from None
    except (aiohttp.ClientError, ConnectionError) as error:
        raise BackendError("broken", f"{name} broke off: {type(error).__name__}") from None
    except Exception as error:  # whatever it is, the backend sent it
        LOG.exception("a reply of %s cannot be read", name)
        raise BackendError("body", f"{name} sent what cannot be read") from error


@contextmanager
def _hosted_blamed(backend: Backend) -> Iterator[None]:
    """`_blamed` where litellm asks."""
    import httpx2

    name = backend.name
    try:
        yield
    except httpx2.ConnectError:
        raise BackendError("connect", f"{name} cannot be reached") from None
    except httpx2.TimeoutException:
        raise BackendError("timeout", f"{name} sent nothing for {backend.timeout:g} s") from None
    except httpx2.HTTPError as error:
        raise BackendError("broken", f"{name} broke off: {type(error).__name__}") from None


def _litellm(backends: list[Backend]) -> LitellmUpstream | None:
    """What asks hosted APIs. MissingExtra where there are some and litellm is not installed."""
    if not backends:
        return None
    from daguerre.router.litellm_api import LitellmUpstream

    return LitellmUpstream(backends)


def _is_of_client(status: int, body: Mapping[str, Any]) -> bool:
    """Whether a status is about what a request names, and not about how its backend is set up."""
    return status == 404 and body.get("previous_response_id") is not None


def _refused(name: str, reply: Reply) -> BackendError:
    """The error of a status that is no answer."""
    status = reply.status
    after = seconds_of(reply.headers.get("retry-after", "").strip(), time.time())
    return BackendError("status", f"{name} answered with status {status}", status, after)


def seconds_of(retry_after: str, now: float) -> float | None:
    """Seconds from `now` (since 1970) on of a header Retry-After, which has their number or a date; None: neither."""
    if retry_after.isascii() and retry_after.isdigit():
        return float(retry_after)
    with suppress(ValueError, TypeError, OverflowError):
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - now)
    return None


def key_of(backend: Backend) -> str | None:
    """A backend's API key. InputError where the place that the configuration names has none."""
    if backend.key_env is not None:
        key = os.environ.get(backend.key_env, "").strip()
        if not key:
            raise InputError(f"backend {backend.name!r}: set its key in the environment variable {backend.key_env}")
        return key
    if backend.key_file is not None:
        return key_in(backend.key_file, backend.name)
    return None
