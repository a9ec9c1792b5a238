"""What the benchmarks of the router share: backends and a client that speak HTTP and do nothing else.

A backend is a process of its own: a script runs itself again with `--backend`, and `serve` does with each request what
the script's plan says. The client notes when the first byte and the last byte came, and whether the answer was whole.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from httptools import HttpRequestParser, HttpResponseParser

from daguerre.evals.machine import memory

MOST_IDLE = 2.0
"""Seconds after which the client leaves an idle connection, before a server does."""
START_SECONDS = 120.0
Executed = Callable[[dict[str, Any], bool], None]
"""Takes the body of a request that begins to be answered (False), or was answered (True)."""
Asked = tuple[float, bytes, Mapping[str, str]]
"""A request of a load: seconds after its start at which it is due, its body and its headers."""


@dataclass
class BackendPlan:
    """What a backend does with a request.

    delay    seconds until its first byte
    pieces   of the body, with `gap` seconds between them
    size     the content-length, where it is not that of the pieces
    ends     how the answer ends: well, reset (the connection breaks), stall (nothing more comes), or silent (not even
             a status comes, and the connection stays open)
    """

    delay: float = 0.0
    pieces: list[bytes] = field(default_factory=list)
    gap: float = 0.0
    status: int = 200
    stream: bool = False
    size: int | None = None
    ends: str = "well"
    headers: dict[str, str] = field(default_factory=dict)


def answer(text: str, into: int, out: int, **message: Any) -> bytes:
    """A whole chat answer."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text, **message}, "finish_reason": "stop"}
    usage = {"prompt_tokens": into, "completion_tokens": out, "total_tokens": into + out}
    about = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "simulated"}
    return json.dumps({**about, "choices": [choice], "usage": usage}).encode()


def events(words: list[str], into: int, out: int, calls: list[dict[str, Any]] | None = None) -> list[bytes]:
    """A streamed chat answer: an event for each word, the end, and the usage."""
    about: dict[str, Any] = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "simulated"}
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "content": words[0]},
        *({"content": one} for one in words[1:]),
    ]
    if calls:
        deltas.append({"tool_calls": calls})
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": "tool_calls" if calls else "stop"})
    usage = {"prompt_tokens": into, "completion_tokens": out, "total_tokens": into + out}
    lines = [*({**about, "choices": [one]} for one in choices), {**about, "choices": [], "usage": usage}]
    return [b"data: " + json.dumps(line).encode() + b"\n\n" for line in lines] + [b"data: [DONE]\n\n"]


class Connection(asyncio.Protocol):
    """One connection of a backend: a request after the other."""

    def __init__(self, plan: Callable[[dict[str, Any]], BackendPlan], executed: Executed) -> None:
        self._plan, self._executed, self._parser = plan, executed, HttpRequestParser(self)
        self._body, self._task = bytearray(), None  # type: bytearray, asyncio.Task[None] | None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        """It is gone."""
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        """Some bytes of a request."""
        self._parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        """Some bytes of its body."""
        self._body += data

    def on_message_complete(self) -> None:
        """All of a request is there."""
        body, self._body = json.loads(self._body or b"{}"), bytearray()
        self._task = asyncio.get_running_loop().create_task(self._answer(body))

    async def _answer(self, body: dict[str, Any]) -> None:
        due, plan = time.perf_counter(), self._plan(body) if body else BackendPlan(status=404)
        send = self._transport.write  # type: ignore[attr-defined]
        due = await _until(due + plan.delay)
        if plan.ends == "silent":
            return
        kind = "text/event-stream" if plan.stream else "application/json"
        length = sum(map(len, plan.pieces)) if plan.size is None else plan.size
        size = "transfer-encoding: chunked" if plan.stream else f"content-length: {length}"
        more = "".join(f"{name}: {value}\r\n" for name, value in plan.headers.items())
        head = f"HTTP/1.1 {plan.status} X\r\ncontent-type: {kind}\r\n{size}\r\n{more}\r\n".encode()
        for place, piece in enumerate(plan.pieces):
            due = await _until(due + (plan.gap if place else 0.0))
            framed = b"%x\r\n%b\r\n" % (len(piece), piece) if plan.stream else piece
            if not place and plan.status == 200:
                self._executed(body, False)
            send(framed if place else head + framed)
        if plan.ends == "reset":
            self._transport.abort()  # type: ignore[attr-defined]
        elif plan.ends == "well":
            if plan.status == 200:
                self._executed(body, True)
            if plan.stream:
                send(b"0\r\n\r\n")


async def _until(due: float) -> float:
    """Wait for a time, which is returned: what is late once is not late for all that follows."""
    wait = due - time.perf_counter()
    if wait > 0:
        await asyncio.sleep(wait)
    return due


def serve(plan: Callable[[dict[str, Any]], BackendPlan], port: int, record: Path | None = None) -> None:
    """A backend, until it is killed. record: a file with a line for each request that had a byte of content, and
    another one for each that ended well; each line is written before the bytes can reach anybody.
    """
    to = None if record is None else os.open(record, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def executed(body: dict[str, Any], whole: bool) -> None:
        if to is not None:
            os.write(to, f"{body.get('seed')} {'whole' if whole else 'begun'} {time.monotonic_ns()}\n".encode())

    async def run() -> None:
        make = asyncio.get_running_loop().create_server
        server = await make(lambda: Connection(plan, executed), "127.0.0.1", port, backlog=2048)
        await server.serve_forever()

    with suppress(KeyboardInterrupt):
        asyncio.run(run())


@dataclass
class HttpAnswer:
    """What the client got. sent, first, end: times of `time.perf_counter`; first is 0 where no byte of the body came.

    broken   the connection ended before the answer did
    """

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    sent: float = 0.0
    first: float = 0.0
    end: float = 0.0
    broken: bool = False


class _Exchange(asyncio.Protocol):
    """One connection of the client."""

    def __init__(self) -> None:
        self.since, self.open, self._parser = 0.0, True, HttpResponseParser(self)
        self._answer, self._done = HttpAnswer(), None  # type: HttpAnswer, asyncio.Future[HttpAnswer] | None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def ask(self, data: bytes) -> asyncio.Future[HttpAnswer]:
        """Send a request, whose answer comes."""
        self._done, self._answer = asyncio.get_running_loop().create_future(), HttpAnswer()
        self._transport.write(data)  # type: ignore[attr-defined]
        return self._done

    def close(self) -> None:
        """Leave."""
        self.open = False
        self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.open = False
        self._finish(broken=True)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._answer.headers[name.decode().lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._answer.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        self._answer.first = self._answer.first or time.perf_counter()
        self._answer.body += data

    def on_message_complete(self) -> None:
        self._finish()

    def _finish(self, broken: bool = False) -> None:
        if self._done is not None and not self._done.done():
            self._answer.end, self._answer.broken = time.perf_counter(), broken
            self._done.set_result(self._answer)


class Client:
    """A client of one server, with as many connections as it has requests."""

    def __init__(self, port: int) -> None:
        self._port, self._idle = port, list[_Exchange]()

    async def ask(self, body: bytes, headers: Mapping[str, str] | None = None) -> HttpAnswer:
        """The answer to a chat; one without a status where the connection broke before it."""
        all_ = {"host": f"127.0.0.1:{self._port}", "content-type": "application/json"} | dict(headers or {})
        lines = "".join(f"{name}: {value}\r\n" for name, value in (all_ | {"content-length": str(len(body))}).items())
        data = f"POST /v1/chat/completions HTTP/1.1\r\n{lines}\r\n".encode() + body
        sent = time.perf_counter()
        try:
            exchange = await self._connection()
        except OSError:
            return HttpAnswer(sent=sent, end=time.perf_counter(), broken=True)
        found = await exchange.ask(data)
        found.sent = sent
        if exchange.open and not found.broken:
            exchange.since = time.perf_counter()
            self._idle.append(exchange)
        return found

    async def _connection(self) -> _Exchange:
        now = time.perf_counter()
        while self._idle:
            one = self._idle.pop()
            if one.open and now - one.since < MOST_IDLE:
                return one
            one.close()
        return (await asyncio.get_running_loop().create_connection(_Exchange, "127.0.0.1", self._port))[1]

    def close(self) -> None:
        """Leave all connections."""
        for one in self._idle:
            one.close()
        self._idle.clear()


async def open_load(port: int, asked: Iterable[Asked], start: float, patience: float) -> list[tuple[float, HttpAnswer]]:
    """When each request was due, and its answer: each is sent when it is due, whatever became of those before; `start`
    is a time of `time.perf_counter`, patience the seconds in which answers come after the last was sent.
    """
    client, tasks, dues = Client(port), list[asyncio.Task[HttpAnswer]](), list[float]()
    for at, body, headers in asked:
        await asyncio.sleep(max(0.0, start + at - time.perf_counter()))
        tasks.append(asyncio.create_task(client.ask(body, headers)))
        dues.append(start + at)
    done, left = await asyncio.wait(tasks, timeout=patience)
    for task in left:
        task.cancel()
    client.close()
    found = [task.result() if task in done else HttpAnswer(end=time.perf_counter()) for task in tasks]
    return list(zip(dues, found, strict=True))


def free_port() -> int:
    """A port that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class ServerProcess:
    """A process that listens. command and environment start it again."""

    command: list[str]
    port: int
    environment: dict[str, str]
    output: Path
    health: str | None = None
    running: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it takes requests."""
        with self.output.open("ab") as to:
            self.running = subprocess.Popen(self.command, env=self.environment, stdout=to, stderr=to)
        until = time.monotonic() + START_SECONDS
        while not self._listens():
            if self.running.poll() is not None or time.monotonic() > until:
                sys.exit(f"{' '.join(self.command)} did not start:\n{self.output.read_text()[-3000:]}")
            time.sleep(0.02)

    def _listens(self) -> bool:
        try:
            if self.health is None:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return True
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{self.health}", timeout=5) as found:
                return bool(found.status == 200)
        except OSError:
            return False

    def kill(self, number: int = signal.SIGKILL) -> None:
        """End it."""
        if self.running is not None:
            with suppress(ProcessLookupError):
                self.running.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                self.running.wait(20)
            if self.running.poll() is None:
                self.running.kill()
                self.running.wait(20)

    def kilobytes(self) -> int:
        """Memory that it has."""
        assert self.running is not None
        return memory(process=self.running.pid) // 1024

    def seconds(self) -> float:
        """Time that it has computed."""
        assert self.running is not None
        fields = Path(f"/proc/{self.running.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def backend(script: str, name: str, folder: Path, **more: Any) -> ServerProcess:
    """A backend that a script plays: it is run again with `--backend` and this as JSON."""
    port = free_port()
    said = json.dumps({"name": name, "port": port, **more})
    command = [sys.executable, script, "--backend", said]
    return ServerProcess(command, port, dict(os.environ), folder / f"{name}.out")


def router(config: Path, port: int, folder: Path) -> ServerProcess:
    """The router, by its command."""
    command = [sys.executable, "-m", "daguerre", "route", "--config", str(config)]
    return ServerProcess(command, port, dict(os.environ), folder / "router.out", "/health")


def litellm(program: str, config: dict[str, Any], folder: Path) -> ServerProcess:
    """LiteLLM's proxy with one process, no database, and no look at the network."""
    port, path = free_port(), folder / "litellm.json"
    path.write_text(json.dumps(config))
    command = [program, "--config", str(path), "--port", str(port), "--host", "127.0.0.1", "--num_workers", "1"]
    more = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MODE": "PRODUCTION", "LITELLM_LOG": "ERROR"}
    more["LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY"] = "true"
    return ServerProcess(command, port, dict(os.environ) | more, folder / "litellm.out", "/health/liveliness")


def litellm_model(group: str, name: str, port: int, price: tuple[float, float], **more: Any) -> dict[str, Any]:
    """A backend in LiteLLM's file. price: dollars for a million tokens, of prompts and of answers."""
    costs = {"input_cost_per_token": price[0] / 1e6, "output_cost_per_token": price[1] / 1e6}
    place = {"model": f"openai/{name}", "api_base": f"http://127.0.0.1:{port}/v1", "api_key": "none"}
    return {"model_name": group, "litellm_params": {**place, **costs, **more}}


@contextmanager
def started(*processes: ServerProcess) -> Iterator[None]:
    """Run processes; the last one ends first."""
    try:
        for one in processes:
            one.start()
        yield
    finally:
        for one in reversed(processes):
            one.kill(signal.SIGTERM)


def quantiles(values: list[float], *shares: float) -> list[float]:
    """The values that these shares do not exceed; infinite where there are none."""
    ordered = sorted(values)
    return [ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else float("inf") for share in shares]
