"""Reading server-sent events in tests."""

from __future__ import annotations

import json
from typing import Any

import httpx2

Json = dict[str, Any]


def streamed(client: httpx2.Client, path: str, body: Json) -> list[Json]:
    """The chunks of a stream, which ends with [DONE]."""
    with client.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def asked(client: httpx2.Client, path: str, body: Json) -> Json:
    """The answer to a request, whose status is 200."""
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    answer: Json = response.json()
    return answer


def refused(client: httpx2.Client, path: str, body: Json) -> Json:
    """The error of a request, whose status is 400."""
    response = client.post(path, json=body)
    assert response.status_code == 400, response.text
    error: Json = response.json()["error"]
    return error
