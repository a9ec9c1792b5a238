"""One server process of the default model, which all files of this folder attack. Each attack is a request or a few;
what is asserted is what came of it, and that the server answers others meanwhile: never a time.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest

from server.processes import Serving, wait_until


@pytest.fixture(scope="session")
def attacked() -> Iterator[Serving]:
    """`daguerre serve` on a free port."""
    with Serving("--max-running", "64") as serving:
        yield serving


@pytest.fixture
def ask(attacked: Serving) -> Iterator[Callable[..., httpx2.Response]]:
    """ask(path, body): the response to a POST of JSON, or of bytes. At the end the server is asked whether it lives."""

    def post(path: str, body: Any, timeout: float = 60) -> httpx2.Response:
        sent = {"content": body} if isinstance(body, bytes) else {"json": body}
        headers = {"Content-Type": "application/json"}
        return httpx2.post(attacked.url + path, headers=headers, timeout=timeout, **sent)

    yield post
    assert attacked.client.get("/health").status_code == 200
    assert attacked.process.poll() is None


@pytest.fixture
def leave(attacked: Serving) -> Callable[[str, Any, float], int]:
    """leave(path, body, seconds): ask, and go away after so many seconds; the status that the log has of it at last. It
    is 499 where what was begun was given up, and that of the answer where it was computed to its end.
    """

    def ask(path: str, body: Any, seconds: float) -> int:
        name, statuses, before = f"leaves-{uuid.uuid4().hex}", list[int](), len(attacked.lines)
        with pytest.raises(httpx2.TimeoutException):
            httpx2.post(attacked.url + path, json=body, timeout=seconds, headers={"X-Request-Id": name})

        def is_logged() -> bool:
            lines = [json.loads(line) for line in attacked.lines[before:] if line.startswith("{") and name in line]
            statuses[:] = [line["status"] for line in lines]
            return bool(statuses)

        wait_until(is_logged, 120)
        return statuses[0]

    return ask
