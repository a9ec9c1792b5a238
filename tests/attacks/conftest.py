"""One server process of the default model, which all files of this folder attack. Each attack is a request or a few;
what is asserted is what came of it, and that the server answers others meanwhile: never a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest

from server.processes import Serving


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
