"""A proxy that keeps what a program and a server said to each other, so that a test can check it."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from jsonschema import Draft202012Validator

STREAM = "text/event-stream"


@dataclass
class Exchange:
    """A request and its answer. `whole`: whether the program read the answer to its end."""

    method: str
    path: str
    asked: Any
    status: int
    kind: str
    answer: str = ""
    whole: bool = True

    @property
    def streamed(self) -> bool:
        """Whether the answer is a stream of events."""
        return self.kind == STREAM


@dataclass
class Wire:
    """What went over it. `url`: where the program asks."""

    url: str
    exchanges: list[Exchange] = field(default_factory=list)

    def asked(self, path: str) -> list[Exchange]:
        """The exchanges whose path ends so."""
        return [one for one in self.exchanges if one.path.partition("?")[0].endswith(path)]

    def faults(self, described: dict[str, Any] | None = None) -> list[str]:
        """Everything in the answers that is no success, no JSON or no proper stream, or beside the server's own
        description (`/openapi.json`), if that is given.
        """
        return [fault for one in self.exchanges for fault in _faults(one, described)]


def _faults(one: Exchange, described: dict[str, Any] | None) -> Iterator[str]:
    where = f"{one.method} {one.path}"
    if one.status != 200:
        yield f"{where}: {one.status} {one.answer[:300]}"
    elif one.streamed:
        yield from (f"{where}: {fault}" for fault in _faults_of_stream(one))
    elif described and (schema := _schema(one, described)):
        errors = Draft202012Validator({**schema, "components": described["components"]}).iter_errors
        yield from (f"{where}: {error.message[:200]}" for error in errors(json.loads(one.answer)))


def _schema(one: Exchange, described: dict[str, Any]) -> Any:
    of_path = described["paths"].get(one.path.partition("?")[0], {}).get(one.method.lower(), {})
    return of_path.get("responses", {}).get("200", {}).get("content", {}).get(one.kind, {}).get("schema")


def _faults_of_stream(one: Exchange) -> Iterator[str]:
    """Events are `data:` lines of JSON; the last of a whole stream of OpenAI's is `[DONE]`."""
    data = [line[5:].strip() for line in one.answer.splitlines() if line.startswith("data:")]
    if not one.whole:
        return
    if "/v1/" in one.path and data[-1:] != ["[DONE]"]:
        yield f"the stream ends with {data[-1:]}"
    for chunk in data:
        if chunk != "[DONE]" and "error" in json.loads(chunk):
            yield f"an error within the stream: {chunk[:300]}"


@contextmanager
def recording(server: str) -> Iterator[Wire]:
    """A proxy before the server at that address, until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.0"

        def do_GET(self) -> None:
            self.forward(None)

        def do_POST(self) -> None:
            self.forward(self.rfile.read(int(self.headers.get("Content-Length", 0))))

        def forward(self, body: bytes | None) -> None:
            kind = {"Content-Type": self.headers.get("Content-Type", "application/json")} if body else {}
            try:
                answer = urllib.request.urlopen(urllib.request.Request(server + self.path, body, kind), timeout=600)
            except urllib.error.HTTPError as error:
                answer = error
            self.pass_on(answer, json.loads(body) if body else None)

        def pass_on(self, answer: Any, asked: Any) -> None:
            kind = answer.headers.get_content_type()
            one = Exchange(self.command or "", self.path, asked, answer.status, kind)
            wire.exchanges.append(one)
            with answer:
                self.send_response(answer.status)
                self.send_header("Content-Type", answer.headers["Content-Type"])
                self.end_headers()
                for line in answer:
                    one.answer += line.decode()
                    try:
                        self.wfile.write(line)
                        self.wfile.flush()
                    except OSError:  # the program has what it wanted
                        one.whole = False
                        return

        def log_message(self, *_: Any) -> None:
            pass

    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    wire = Wire(f"http://127.0.0.1:{proxy.server_port}")
    thread = threading.Thread(target=proxy.serve_forever, daemon=True)
    thread.start()
    try:
        yield wire
    finally:
        proxy.shutdown()
        proxy.server_close()
        thread.join(10)
