"""A backend on a real socket that does what a test says: answers, refuses, stalls, breaks off, sends rubbish."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


def _chunk(word: str, finish: str | None) -> bytes:
    choice = {"index": 0, "delta": {"content": word}, "finish_reason": finish}
    return _event({"id": "1", "object": "chat.completion.chunk", "choices": [choice]})


def _event(value: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()


def events(*words: str, done: bool = True) -> list[bytes]:
    """A stream of chat chunks."""
    usage = {"id": "1", "choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": len(words)}}
    out = [*(_chunk(word, None) for word in words), _chunk("", "stop"), _event(usage)]
    return out + ([b"data: [DONE]\n\n"] if done else [])


def answer(text: str = "hello", **message: Any) -> bytes:
    """A whole chat answer."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text, **message}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    return json.dumps({"id": "c1", "object": "chat.completion", "choices": [choice], "usage": usage}).encode()


@dataclass
class Reply:
    """What a backend does with a request.

    body    of a whole answer; stream: the chunks of a stream, with `pause` seconds between them
    delay   seconds before anything is sent
    ends    how the connection ends: "well", "reset", or "stall" (it stays open and nothing more comes)
    """

    status: int = 200
    body: bytes = field(default_factory=answer)
    stream: list[bytes] | None = None
    pause: float = 0.0
    delay: float = 0.0
    ends: str = "well"
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Scripted:
    """A backend: what it was asked, and what it does. num_left: requests whose client left before the end."""

    port: int = 0
    reply: Callable[[dict[str, Any]], Reply] = field(default=lambda body: Reply())
    asked: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    num_left: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            self.num_left += 1
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        body = json.loads(await reader.readexactly(int(headers.get("content-length", 0))) or b"{}")
        self.asked.append(body)
        self.headers.append(headers)
        self.paths.append(head[0].split()[1])
        reply = self.reply(body)
        if reply.delay:
            await asyncio.sleep(reply.delay)
        kind = "application/json" if reply.stream is None else "text/event-stream"
        sent = {"content-type": kind} | reply.headers
        chunks = [reply.body] if reply.stream is None else reply.stream
        sent |= {"content-length": str(len(reply.body))} if reply.stream is None else {"transfer-encoding": "chunked"}
        lines = [f"HTTP/1.1 {reply.status} X", *(f"{name}: {value}" for name, value in sent.items()), "", ""]
        if reply.ends == "stall" and not chunks[0]:
            await reader.read(1)
            raise ConnectionResetError
        writer.write("\r\n".join(lines).encode())
        for chunk in chunks:
            framed = chunk if reply.stream is None else b"%x\r\n%s\r\n" % (len(chunk), chunk)
            writer.write(framed)
            await writer.drain()
            if reply.pause:
                gone = asyncio.ensure_future(reader.read(1))
                done, _ = await asyncio.wait({gone}, timeout=reply.pause)
                if done:
                    raise ConnectionResetError
                gone.cancel()
                await asyncio.wait({gone})
        if reply.ends == "reset":
            writer.transport.abort()
            return False
        if reply.ends == "stall":
            await reader.read(1)
            raise ConnectionResetError
        if reply.stream is not None:
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


@contextmanager
def scripted(*backends: Scripted) -> Iterator[None]:
    """Run backends, each on a port of its own."""
    loop, ready, servers = asyncio.new_event_loop(), threading.Event(), list[asyncio.Server]()

    async def start() -> None:
        for one in backends:
            server = await asyncio.start_server(one.serve, "127.0.0.1", one.port)
            one.port = server.sockets[0].getsockname()[1]
            servers.append(server)

    def run() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(start())
        loop.call_soon(ready.set)  # a stop that came before it runs for ever would be lost
        loop.run_forever()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.gather(*asyncio.all_tasks(loop), return_exceptions=True))
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield
    finally:
        for server in servers:
            loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
