"""Bodies of requests to the server, in process; and files of requests and answers of a batch."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

from daguerre.errors import DaguerreError
from daguerre.http.settings import Settings
from daguerre.server.app import make_app
from daguerre.server.batch import read_answers, read_requests
from daguerre.server.models import ModelPool
from fuzz.models import model
from fuzz.target import Run, Target
from fuzz.targets.checkpoints import scratch
from fuzz.targets.constraints import SCHEMAS

Body = dict[str, Any]
SAY: Body = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 4}
TOOL: Body = {"type": "function", "function": {"name": "f", "parameters": SCHEMAS[0]}}
SHORT: Body = {"model": "tiny", "max_tokens": 4}
BODIES: tuple[tuple[str, Body], ...] = (
    (
        "/v1/completions",
        {**SHORT, "prompt": "a = ", "temperature": 0.5, "seed": 1, "stop": ["\n"], "logprobs": 2, "n": 2},
    ),
    ("/v1/completions", {**SHORT, "prompt": [1, 20, 300], "suffix": "b", "stream": True, "echo": False}),
    (
        "/v1/completions",
        {**SHORT, "prompt": "a", "daguerre": {"mode": "block", "block_size": 4, "policy": "entropy", "steps": 2}},
    ),
    (
        "/v1/completions",
        {**SHORT, "prompt": "a", "logit_bias": {"20": -100}, "stream_options": {"include_usage": True}},
    ),
    ("/v1/completions", {**SHORT, "prompt": "", "daguerre": {"regex": "[a-c]{2}", "pins": [{"text": "a", "at": 0}]}}),
    ("/v1/chat/completions", {**SAY, "tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}),
    (
        "/v1/chat/completions",
        {**SAY, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMAS[1]}}},
    ),
    ("/v1/chat/completions", {**SAY, "stream": True, "logprobs": True, "top_logprobs": 3, "top_p": 0.9}),
    (
        "/v1/responses",
        {
            "model": "tiny",
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}],
            "max_output_tokens": 16,
        },
    ),
    (
        "/v1/responses",
        {
            "model": "tiny",
            "input": "a",
            "instructions": "b",
            "stream": True,
            "store": False,
            "text": {"format": {"type": "text"}},
        },
    ),
    (
        "/v1/messages",
        {
            "model": "tiny",
            "max_tokens": 4,
            "system": "s",
            "messages": [{"role": "user", "content": "a"}],
            "stream": False,
        },
    ),
    (
        "/v1/messages",
        {
            "model": "tiny",
            "max_tokens": 4,
            "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
            "tools": [{"name": "f", "input_schema": SCHEMAS[0]}],
        },
    ),
    ("/v1/messages/count_tokens", {"model": "tiny", "messages": [{"role": "user", "content": "a"}]}),
    ("/v1/fim/completions", {**SHORT, "prompt": "def f(", "suffix": "\n", "min_tokens": 1}),
    ("/v1/edit/completions", {**SAY, "stream": False}),
    ("/v1/apply/completions", {**SAY}),
    ("/v1/embeddings", {"model": "tiny", "input": ["a", "b"], "encoding_format": "base64", "dimensions": None}),
    (
        "/v1/decisions",
        {
            "model": "tiny",
            "state": "a",
            "questions": {"x": {"type": "choice", "question": "b?", "choices": ["c", "d"]}},
        },
    ),
    (
        "/v1/decisions",
        {
            "model": "tiny",
            "state": "a",
            "questions": [
                {"type": "yes_no", "question": "b?"},
                {"type": "score", "low": 1, "high": 3, "question": "c"},
            ],
        },
    ),
    (
        "/infill",
        {"input_prefix": "a", "input_suffix": "b", "input_extra": [{"text": "c", "filename": "d"}], "n_predict": 4},
    ),
    (
        "/completion",
        {
            "prompt": "a",
            "n_predict": 4,
            "n_probs": 2,
            "stream": True,
            "samplers": ["top_k"],
            "json_schema": {"type": "integer"},
        },
    ),
    ("/tokenize", {"content": "a b", "add_special": True, "with_pieces": True}),
    ("/detokenize", {"tokens": [20, 21]}),
    (
        "/api/chat",
        {
            "model": "tiny:latest",
            "messages": [{"role": "user", "content": "a"}, {"role": "tool", "tool_name": "f", "content": "b"}],
            "options": {"num_predict": 4, "num_ctx": 64, "stop": ["\n"], "repeat_penalty": 1.1, "top_k": 4, "seed": 1},
            "tools": [TOOL],
            "keep_alive": "5m",
        },
    ),
    ("/api/chat", {"messages": [], "stream": False, "think": False}),
    (
        "/api/generate",
        {"prompt": "a", "raw": True, "format": SCHEMAS[1], "options": {"num_predict": 4}, "stream": False},
    ),
    ("/api/generate", {"prompt": "a", "suffix": "b", "options": {"num_predict": 4, "temperature": 0.5}}),
    ("/api/embed", {"input": ["a", "b"], "truncate": True, "dimensions": 8}),
    ("/api/embeddings", {"prompt": "a"}),
    ("/api/show", {"model": "tiny", "verbose": True}),
    ("/api/pull", {"model": "tiny", "stream": True}),
    ("/v1/daguerre/requests", {"model": "tiny", "prompt": "a", "max_tokens": 4}),
    ("/v1/daguerre/candidates", {"model": "tiny", "prompt": "a", "max_tokens": 4}),
)
QUICK: Body = {
    "max_tokens": 12,
    "max_output_tokens": 16,
    "n_predict": 12,
    "max_completion_tokens": 12,
    "num_predict": 12,
}
"""The most that a mutant may ask for: how long a long text takes is not what is looked for."""


def bodies() -> Run:
    pool = ModelPool({"tiny": model})
    app = make_app(pool, Settings(timeout=4.0, max_schema=4_000, max_tokens=64, max_body=200_000))
    loop = asyncio.new_event_loop()

    def run(data: bytes) -> None:
        path, body = placed(data)
        status, content = loop.run_until_complete(asked(app, path, body))
        assert status < 500 or status == 503, f"status {status}: {content[:300]!r}"
        error = None if status < 400 else json.loads(content)["error"]
        assert error is None or "\\n" not in (error if isinstance(error, str) else error["message"])

    return run


def placed(data: bytes) -> tuple[str, bytes]:
    """The route and the body that bytes stand for: {"path", "body"}, or a body alone."""
    try:
        value = json.loads(data)
        path, body = value["path"], value["body"]
    except (ValueError, RecursionError, TypeError, KeyError):
        return "/v1/completions", data
    known = {known for known, _ in BODIES}
    if isinstance(body, dict):
        body = _quick(body)
        if isinstance(body.get("options"), dict):
            body["options"] = _quick(body["options"])
    content = json.dumps(body).encode("utf-8", "surrogatepass")
    return path if isinstance(path, str) and path in known else BODIES[len(content) % len(BODIES)][0], content


def _quick(body: Body) -> Body:
    return {**body, **{name: most for name, most in QUICK.items() if _large(body.get(name), most)}}


def _large(value: object, most: int) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > most


async def asked(app: Any, path: str, body: bytes) -> tuple[int, bytes]:
    """Status and content of a POST. What the application raises is raised here."""
    sent, given, gone = list[Any](), [{"type": "http.request", "body": body, "more_body": False}], asyncio.Event()

    async def receive() -> Any:
        if given:
            return given.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await app(
        {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": headers,
            "client": None,
            "server": None,
        },
        receive,
        send,
    )
    gone.set()
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


def batch() -> Run:
    folder = scratch()

    def run(data: bytes) -> None:
        (folder / "answers").write_bytes(data)
        with suppress(DaguerreError):
            read_requests(folder / "answers")
        read_answers(folder / "answers")

    return run


def batches() -> list[bytes]:
    asked = [
        {"custom_id": f"r{i}", "method": "POST", "url": path, "body": body} for i, (path, body) in enumerate(BODIES)
    ]
    done = [{"id": f"batch_{i}", "custom_id": f"r{i}", "response": {"status_code": 200, "body": {}}} for i in range(3)]
    lines = [b"".join(json.dumps(one).encode() + b"\n" for one in several) for several in (asked[:3], asked[3:5], done)]
    return [*lines, lines[2][:-20]]


TARGETS = (
    Target(
        name="server",
        make=bodies,
        seeds=lambda: [json.dumps({"path": path, "body": body}).encode() for path, body in BODIES],
        seconds=8.0,
        cases=150,
    ),
    Target(name="batch", make=batch, seeds=batches, cases=200),
)
