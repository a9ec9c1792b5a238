"""Memory is bounded before it is taken: texts are measured before they are encoded, steps are kept as what they change,
and what is computed beside the queue waits, ends and is given up as requests are.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from server.processes import Serving

Ask = Callable[..., httpx2.Response]
TEXT = "import os\n" * 350_000
OVER_IDLE = 300 << 20


def test_a_text_of_megabytes_is_refused_before_it_is_encoded(ask: Ask, subtests: pytest.Subtests) -> None:
    says = [{"role": "user", "content": TEXT}]
    for path, body in (
        ("/v1/completions", {"prompt": TEXT}),
        ("/v1/completions", {"prompt": "x", "suffix": TEXT}),
        ("/v1/completions", {"prompt": TEXT, "echo": True, "logprobs": 1, "max_tokens": 0}),
        ("/v1/chat/completions", {"messages": says}),
        ("/v1/messages", {"messages": says, "max_tokens": 4}),
        ("/v1/messages/count_tokens", {"messages": says}),
        ("/v1/responses", {"input": TEXT}),
        ("/v1/embeddings", {"input": TEXT}),
        ("/tokenize", {"prompt": TEXT}),
        ("/v1/decisions", {"state": TEXT, "questions": {"q": {"type": "noul"}}}),
        ("/v1/daguerre/requests", {"prompt": TEXT, "context": "whole", "stream": False}),
    ):
        with subtests.test(path=path):
            answer = ask(path, body)
            assert answer.status_code == 400, answer.text[:300]
            assert "tokens or more" in answer.text, answer.text[:300]


def test_a_long_text_is_still_shown_in_part(ask: Ask) -> None:
    body = {"prompt": "x = 1\n" * 30_000, "max_tokens": 2, "stream": False, "kind": "generate"}
    answer = ask("/v1/daguerre/requests", body)
    assert answer.status_code == 200 and answer.json()["result"]["context"]["complete"] is False


def status_of(serving: Serving, name: str) -> int:
    """Bytes, by the kernel's count."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{serving.process.pid}/status").read_text())
    assert found
    return int(found[1]) << 10


def test_hostile_requests_together_take_little_memory(attacked: Serving, ask: Ask) -> None:
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/v1/completions", {"prompt": TEXT, "max_tokens": 4}),
        ("/v1/daguerre/requests", {"prompt": "x = ", "max_tokens": 400, "options": {"mode": "ar", "min_tokens": 400}}),
        ("/v1/completions", {"prompt": "x", "max_tokens": 4, "daguerre": {"schema": {"enum": ["y", "x" * 200_000]}}}),
        ("/v1/daguerre/requests", {"kind": "edit", "text": "a" * 200_000 + "!", "pattern": "(a+)+$"}),
        ("/v1/completions", {"prompt": [20] * 900, "echo": True, "logprobs": 5, "max_tokens": 1}),
        ("/v1/embeddings", {"input": ["x = 1\n" * 200] * 8}),
    ]
    ask("/v1/completions", {"prompt": "x", "max_tokens": 4})
    idle = status_of(attacked, "VmRSS")
    Path(f"/proc/{attacked.process.pid}/clear_refs").write_text("5")  # the peak begins here
    with ThreadPoolExecutor(18) as threads:
        answers = list(threads.map(lambda one: ask(*one, timeout=240), bodies * 3))
    assert all(one.status_code in (200, 400, 413, 429) for one in answers)
    assert status_of(attacked, "VmHWM") - idle < OVER_IDLE


def test_embeddings_end_once_their_client_has_left(leave: Callable[..., int]) -> None:
    """While their texts are encoded, and while they are computed."""
    for path, body in (
        ("/v1/embeddings", {"input": ["x = 1\n" * 200] * 2_000}),
        ("/v1/embeddings", {"input": [[20] * 1_000] * 400}),
        ("/v1/completions", {"prompt": [[20] * 1_000] * 200, "echo": True, "logprobs": 5, "max_tokens": 0}),
    ):
        assert leave(path, body, 0.5) == 499
