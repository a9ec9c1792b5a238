"""Responses that a backend keeps, through the router."""

from __future__ import annotations

import json

import httpx2
import pytest

from router.test_proxy import ask, routed
from scripted_backends import Reply, Scripted

MADE = {"id": "resp_1", "object": "response", "output": []}


def test_a_response_is_fetched_and_deleted_where_it_is_kept() -> None:
    one, two = Scripted(), Scripted(reply=lambda body: Reply(body=json.dumps(MADE).encode()))
    with routed(one, two, overrides=["backend"]) as (url, _):
        assert ask(url, {"input": "x"}, "/v1/responses", **{"x-route-backend": "b"}).json() == MADE
        base = f"{url}/v1/responses/resp_1"
        found = httpx2.get(base)
        assert found.json() == MADE and found.headers["x-route-backend"] == "b"
        assert httpx2.get(f"{base}/input_items?limit=3&order=asc").status_code == 200
        assert httpx2.post(f"{base}/cancel").status_code == httpx2.delete(base).status_code == 200
        refused = httpx2.get(f"{base}?stream=true")
    assert two.paths == [
        "/v1/responses",
        *("/v1/responses/resp_1", "/v1/responses/resp_1/input_items?limit=3&order=asc"),
        *("/v1/responses/resp_1/cancel", "/v1/responses/resp_1"),
    ]
    assert not one.paths and refused.status_code == 400


@pytest.mark.parametrize("key", ["resp_9", "a%2F..%2Fadmin", "..", "x" * 200])
def test_what_nobody_keeps_is_not_found_and_nobody_is_asked(key: str) -> None:
    one = Scripted()
    with routed(one) as (url, _):
        assert httpx2.get(f"{url}/v1/responses/{key}").status_code in (400, 404, 405)
    assert not one.paths


def test_a_backend_that_is_gone_is_an_error_that_says_so() -> None:
    one = Scripted(reply=lambda body: Reply(body=json.dumps(MADE).encode()))
    with routed(one) as (url, _):
        ask(url, {"input": "x"}, "/v1/responses")
        one.reply = lambda body: Reply(body=b"", ends="stall")
        found = httpx2.get(f"{url}/v1/responses/resp_1")
    assert found.status_code == 502 and found.json()["error"]["code"] == "backend_failed"
