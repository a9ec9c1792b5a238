"""Requests from a file, answered by the server's own routes without a socket: OpenAI's batch format.

A line of requests is {"custom_id", "method", "url", "body"}; a line of answers is {"id", "custom_id", "response":
{"status_code", "request_id", "body"}, "error"}. Answers are written as they come. A run that was killed goes on with
the requests that have no whole line of an answer.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import orjson
from fastapi import FastAPI

from daguerre.errors import DataError, EngineError
from daguerre.http.errors import error_body
from daguerre.http.settings import Settings
from daguerre.server.app import make_app, request_threads
from daguerre.server.bodies import is_writable
from daguerre.server.models import ModelPool

Progress = Callable[[int, int], None]
LOG = logging.getLogger("daguerre.server")
MAX_BODY = 1 << 30
SYNC = 1.0
"""Seconds between two times that the disk is told to have everything."""
STOPPED = 503
BEGINNING = b'{"id":"batch_'
"""Of every line of an answer."""


def answer_file(pool: ModelPool, requests: Path, answers: Path, together: int, progress: Progress) -> tuple[int, int]:
    """Answer the requests of a file that `answers` does not have yet, at most `together` at once.

    progress: called with the number of answers that are there, and that of all requests. Returns how many answers this
    run wrote, and how many of them are errors. The pool stays open. DataError, before any is answered, for a line that
    is no request, and where another run writes these answers. EngineError where a model stops: what is not answered
    then is left for the next run.
    """
    asked = read_requests(requests)
    if answers.exists() and answers.samefile(requests):
        raise DataError(f"{answers} is the file of requests: name another one for the answers")
    try:
        with answers.open("a+b") as file:
            _lock(file, answers)
            done = read_answers(answers)
            left = [one for one in asked if one["custom_id"] not in done]
            app = make_app(pool, Settings(playground=False, max_body=MAX_BODY))
            writer = BatchWriter(file, len(asked) - len(left), len(asked), progress)
            asyncio.run(_answer_all(app, pool, left, together, writer))
            return len(left), writer.failed
    except OSError as error:
        raise DataError(f"cannot write {answers}: {error.strerror}; run again once there is room") from None


class BatchWriter:
    """Appends answers to a file and counts them."""

    def __init__(self, file: BinaryIO, done: int, total: int, progress: Progress) -> None:
        self._file, self._done, self._total, self._progress = file, done, total, progress
        self.failed = 0
        progress(done, total)

    def write(self, line: dict[str, Any]) -> None:
        """Append an answer, which a kill of this process leaves whole or cut off."""
        self._file.write(orjson.dumps(line) + b"\n")
        self._file.flush()
        self._done, self.failed = self._done + 1, self.failed + (line["response"]["status_code"] >= 400)
        self._progress(self._done, self._total)

    def sync(self) -> None:
        """Wait until the disk has them, so that a loss of power leaves them too."""
        os.fsync(self._file.fileno())


async def _answer_all(
    app: FastAPI, pool: ModelPool, left: list[dict[str, Any]], together: int, writer: BatchWriter
) -> None:
    asyncio.get_running_loop().set_default_executor(request_threads(pool))
    waiting = iter(left)

    async def work() -> None:
        for request in waiting:
            line = await answered(app, request)
            if line["response"]["status_code"] == STOPPED:
                raise EngineError(f"the batch stopped: {line['response']['body']['error']['message']}; run it again")
            writer.write(line)

    async def sync() -> None:
        while True:
            await asyncio.sleep(SYNC)
            await asyncio.to_thread(writer.sync)

    syncing = asyncio.create_task(sync())
    try:
        async with asyncio.TaskGroup() as workers:
            for _ in range(min(together, len(left))):
                workers.create_task(work())
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
    finally:
        syncing.cancel()
        writer.sync()


def _lock(file: BinaryIO, path: Path) -> None:
    """DataError unless this process is the only one that writes the file."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DataError(f"another batch writes {path} now: wait for it, or name another file") from None


def read_requests(path: Path) -> list[dict[str, Any]]:
    """The requests of a file. DataError, with the line, for what is no request, and for a repeated custom_id."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    out, seen = list[dict[str, Any]](), set[str]()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        one = _object(line)
        wrong = one is None or not isinstance(one.get("custom_id"), str) or not isinstance(one.get("body"), dict)
        if one is None or wrong or not isinstance(one.get("url"), str) or one.get("method", "POST") != "POST":
            raise DataError(f"line {number} of {path} is no request: it needs custom_id, method POST, url and body")
        if not is_writable([one["custom_id"], one["url"]]):
            raise DataError(f"line {number} of {path} has half of a pair of surrogates in custom_id or url: remove it")
        if one["custom_id"] in seen:
            raise DataError(f"line {number} of {path}: the custom_id {one['custom_id']!r} came before; give another")
        if one["body"].get("stream"):
            raise DataError(f"line {number} of {path} asks for a stream, which a file cannot hold: leave out stream")
        seen.add(one["custom_id"])
        out.append(one)
    return out


def read_answers(path: Path) -> set[str]:
    """The custom_ids that a file of answers has; a cut-off last line is removed. DataError for another file."""
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    torn, found = data[len(whole) :], set[str]()
    for number, line in enumerate(whole.splitlines(), 1):
        one = _object(line)
        if one is None or not isinstance(one.get("custom_id"), str) or "response" not in one:
            raise DataError(f"line {number} of {path} is no answer of a batch: name another file")
        found.add(one["custom_id"])
    if torn[: len(BEGINNING)] != BEGINNING[: len(torn)]:
        raise DataError(f"the last line of {path} is no answer of a batch: name another file")
    if torn:
        with path.open("r+b") as file:
            file.truncate(len(whole))
    return found


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


async def answered(app: FastAPI, request: dict[str, Any]) -> dict[str, Any]:
    """The line of the answer to a request."""
    try:
        status, headers, body = await call(app, request["url"], json.dumps(request["body"]).encode())
    except Exception:
        LOG.exception("a request of a batch failed")
        status, headers, body = 500, {}, error_body("this request failed; the log says why", 500)
    request_id = headers.get("x-request-id", "")
    response = {"status_code": status, "request_id": request_id, "body": body}
    return {"id": f"batch_{request_id}", "custom_id": request["custom_id"], "response": response, "error": None}


async def call(app: FastAPI, path: str, body: bytes) -> tuple[int, dict[str, str], Any]:
    """Status, headers and JSON of a POST to an application, without a socket."""
    sent = list[dict[str, Any]]()
    asked = [{"type": "http.request", "body": body, "more_body": False}]
    gone = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if asked:
            return asked.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())],
        "client": None,
        "server": None,
    }
    await app(scope, receive, send)
    gone.set()
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    if not headers.get("content-type", "").startswith("application/json"):
        message = "the answer is a stream, or no JSON, which a file cannot hold: give stream false"
        return 400, headers, error_body(message, 400, "stream", "no_json")
    return sent[0]["status"], headers, orjson.loads(b"".join(message.get("body", b"") for message in sent[1:]))
