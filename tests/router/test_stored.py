"""Responses that a backend keeps, through the router."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request

from daguerre.router import stored
from daguerre.router.app import make_app, make_router
from daguerre.router.store import Store
from router.test_proxy import ask, client, get, routed
from routing import config
from scripted_backends import Reply, Scripted, scripted

MADE = {"id": "resp_1", "object": "response", "output": []}


def test_a_response_is_fetched_and_deleted_where_it_is_kept() -> None:
    one, two = Scripted(), Scripted(reply=lambda body: Reply(body=json.dumps(MADE).encode()))
    with routed(one, two, overrides=["backend"]) as (url, _):
        assert ask(url, {"input": "x"}, "/v1/responses", **{"x-route-backend": "b"}).json() == MADE
        base = f"{url}/v1/responses/resp_1"
        found = get(base)
        assert found.json() == MADE and found.headers["x-route-backend"] == "b"
        assert get(f"{base}/input_items?limit=3&order=asc").status_code == 200
        assert client().post(f"{base}/cancel").status_code == client().delete(base).status_code == 200
        refused = get(f"{base}?stream=true")
    assert two.paths == [
        "/v1/responses",
        *("/v1/responses/resp_1", "/v1/responses/resp_1/input_items?limit=3&order=asc"),
        *("/v1/responses/resp_1/cancel", "/v1/responses/resp_1"),
    ]
    assert not one.paths and refused.status_code == 400


def test_what_nobody_keeps_is_not_found_and_nobody_is_asked(subtests: pytest.Subtests) -> None:
    one = Scripted()
    with routed(one) as (url, _):
        for key in ("resp_9", "a%2F..%2Fadmin", "..", "x" * 200):
            with subtests.test(key):
                assert get(f"{url}/v1/responses/{key}").status_code in (400, 404, 405)
    assert not one.paths


def test_a_backend_that_is_gone_is_an_error_that_says_so(tmp_path: Path) -> None:
    one, state = Scripted(reply=lambda body: Reply(body=json.dumps(MADE).encode())), tmp_path / "state.db"
    with routed(one, store=Store(state)) as (url, _):
        ask(url, {"input": "x"}, "/v1/responses")
    one.reply = lambda body: Reply(body=b"", ends="stall")
    with routed(one, store=Store(state), each={"a": {"timeout": 0.1}}) as (url, _):
        found = get(f"{url}/v1/responses/resp_1")
    assert found.status_code == 502 and found.json()["error"]["code"] == "backend_failed"


def test_a_client_that_does_not_take_what_is_kept_is_not_the_backends_failure() -> None:
    """What `send` raises where a client reads nothing is no error of the backend, whose answer it is sent."""
    one, store = Scripted(reply=lambda body: Reply(body=json.dumps(MADE).encode())), Store(None)

    async def send(message: Any) -> None:
        raise TimeoutError("the client reads nothing")

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def fetched() -> None:
        router = make_router(config({"name": "a", "url": one.url, "model": "m"}), store, lambda *_: {}, print)
        scope = {"type": "http", "method": "GET", "query_string": b"", "headers": [], "path": "/v1/responses/resp_1",
                 "asgi": {"spec_version": "2.4"}, "app": make_app(router, store, print)}  # fmt: skip
        try:
            await (await stored.fetch(Request(scope, receive), "resp_1"))(scope, receive, send)
        finally:
            await router.upstreams.close()

    store.hold("", ["resp_1"], "a")
    with scripted(one), pytest.raises((TimeoutError, ClientDisconnect)):
        asyncio.run(fetched())
