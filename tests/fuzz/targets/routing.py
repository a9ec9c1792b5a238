"""What a router reads: its configuration, bodies of clients, answers of backends, its own log."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path

import orjson

from daguerre.router.answers import answer_of
from daguerre.router.app import ROUTES, make_app, make_router
from daguerre.router.cache import may_keep
from daguerre.router.choose import choose
from daguerre.router.config import parse_config
from daguerre.router.log import config_line, decision_line, read_log, read_shadows
from daguerre.router.reading import read
from daguerre.router.steps import classify
from daguerre.router.store import Store
from fuzz.target import Run, Target
from fuzz.targets.checkpoints import scratch
from fuzz.targets.serving import BODIES, asked
from routing import backend, request
from routing import config as routed

PATHS = sorted(ROUTES)
OPERATIONS = [ROUTES[path][0] for path in PATHS]
CONFIG = """\
cost_within = 0.05
overrides = ["slo_ms", "backend"]

[server]
port = 9000

[[backends]]
name = "local"
url = "http://127.0.0.1:8000/v1"
model = "default"
body = { daguerre = { mode = "ar" } }

  [backends.price]
  input = 0.1

[[backends]]
name = "large"
url = "https://example.com/v1"
model = "large-1"
key_env = "LARGE_KEY"
quality = { plan = 0.9, default = 0.7 }

[backends.latency]
first = 400

[steps.plan]
quality = 0.8
slo_ms = 20000

[shadow]
share = 0.1
"""
CHAT = [
    {
        "id": "c",
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": {"role": "assistant", "content": "a"}}],
    },
    {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{}"}}]}}]},
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 1}},
]
RESPONSE = [
    {"type": "response.created", "response": {"status": "in_progress"}},
    {"type": "response.output_text.delta", "delta": "a"},
    {
        "type": "response.completed",
        "response": {"status": "completed", "output": [{"type": "message", "content": [{"text": "a"}]}]},
    },
]
DECISION = {"answers": {"x": {"choice": "c", "probability": 0.7}, "y": {"score": 2.5}}}


def config() -> Run:
    def run(data: bytes) -> None:
        found = parse_config(data.decode("utf-8", "surrogateescape"), "route.toml")
        assert found.sha256

    return run


def configs() -> list[bytes]:
    folder = Path(__file__).parents[3] / "examples/routing"
    return [CONFIG.encode(), *(path.read_bytes() for path in sorted(folder.glob("**/*.toml")))]


def body() -> Run:
    """What a client sends is read, sorted into a kind of step, and routed; no backend can be reached."""
    held = routed(backend("a"), server={"most_body": 200_000})
    app = make_app(make_router(held, Store(None), classify, lambda line: None), Store(None), lambda line: None)
    loop = asyncio.new_event_loop()

    def run(data: bytes) -> None:
        for operation, path in zip(OPERATIONS, PATHS, strict=True):
            with suppress(orjson.JSONDecodeError):
                shares = classify(read(operation, value := orjson.loads(data)), value)
                assert abs(sum(shares.values()) - 1) < 1e-4
            status, content = loop.run_until_complete(asked(app, path, data))
            assert status in (400, 413, 502, 503), f"status {status}: {content[:300]!r}"

    return run


def answer() -> Run:
    """What a backend sends, whole or as a stream of server-sent events."""

    def run(data: bytes) -> None:
        for operation in OPERATIONS:
            for streamed in (False, True):
                answer_of(operation, data, streamed)
        for kind in ("application/json", "text/event-stream"):
            may_keep(200, kind, data)

    return run


def streamed(values: list[dict[str, object]], end: bytes = b"data: [DONE]\n\n") -> bytes:
    return b"".join(b"event: x\ndata: " + json.dumps(one).encode() + b"\n\n" for one in values) + end


def answers() -> list[bytes]:
    whole = {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"content": "a"}, "finish_reason": "stop"}],
    }
    several = [whole, RESPONSE[-1]["response"], DECISION, {"error": {"message": "no"}}]
    return [
        streamed(CHAT),
        streamed(RESPONSE, b""),
        streamed(CHAT)[:-20],
        *(json.dumps(one).encode() for one in several),
    ]  # type: ignore[arg-type]


def log() -> Run:
    path = scratch() / "log.jsonl"

    def run(data: bytes) -> None:
        path.write_bytes(data)
        for entry in read_log(path):
            entry.features  # noqa: B018
            entry.state  # noqa: B018
        read_shadows(path)

    return run


def logs() -> list[bytes]:
    held = routed(backend("a"), backend("b", price={"input": 1.0}))
    lines = [config_line(held), {"id": "r1", **decision_line(request(), {}, choose(request(), {}, held))}]
    lines += [{"shadow_of": "r1", "backend": "b", "grader": "exact", "score": 1.0}]
    return [b"".join(orjson.dumps(line) + b"\n" for line in lines)]


TARGETS = (
    Target(name="route_config", make=config, seeds=configs, cases=200),
    Target(name="route_body", make=body, seeds=lambda: [json.dumps(one).encode() for _, one in BODIES], cases=200),
    Target(name="route_answer", make=answer, seeds=answers, cases=400),
    Target(name="route_log", make=log, seeds=logs, cases=150),
)
