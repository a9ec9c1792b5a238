"""The description of the interface is what the server does."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

BODIES = {
    "/v1/completions": {"prompt": "x = ", "max_tokens": 4},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4},
    "/v1/fim/completions": {"prompt": "x = ", "suffix": "\n", "max_tokens": 4},
    "/v1/embeddings": {"input": ["x"]},
    "/v1/responses": {"input": "x", "max_output_tokens": 4},
    "/v1/messages": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4, "model": "default"},
    "/api/chat": {"messages": [{"role": "user", "content": "x"}], "options": {"num_predict": 4}, "stream": False},
    "/api/generate": {"prompt": "x", "options": {"num_predict": 4}, "stream": False},
    "/api/embed": {"input": ["x"]},
    "/api/show": {},
}


@pytest.fixture(scope="module")
def described(server: str) -> dict[str, Any]:
    """The description."""
    return httpx2.get(f"{server}/openapi.json", timeout=60).json()


def test_answers_and_errors_are_valid_under_what_is_described(
    client: httpx2.Client, described: dict[str, Any], subtests: pytest.Subtests
) -> None:
    import jsonschema

    for path, body in BODIES.items():
        with subtests.test(path):
            responses = described["paths"][path]["post"]["responses"]
            answer = client.post(path, json={"model": "default", **body})
            error = client.post(path, json={**body, "model": "nobody"})

            assert (answer.status_code, error.status_code) == (200, 404)
            for one in (answer, error):
                schema = responses[str(one.status_code)]["content"]["application/json"]["schema"]
                jsonschema.validate(one.json(), schema)
                with pytest.raises(jsonschema.ValidationError):
                    jsonschema.validate({}, schema)


def test_only_routes_that_stream_are_described_as_streams(described: dict[str, Any]) -> None:
    streams = {
        path
        for path, methods in described["paths"].items()
        for operation in methods.values()
        if "text/event-stream" in operation["responses"]["200"].get("content", {})
    }

    assert {"/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses", "/infill"} <= streams
    assert not streams & {"/v1/embeddings", "/v1/models", "/health", "/metrics", "/v1/messages/count_tokens"}


def test_streams_of_lines_are_described_as_such(described: dict[str, Any]) -> None:
    content = described["paths"]["/api/chat"]["post"]["responses"]["200"]["content"]

    assert set(content) == {"application/json", "application/x-ndjson"}


def test_statuses_that_are_never_sent_are_not_described(described: dict[str, Any]) -> None:
    assert "HTTPValidationError" not in described["components"]["schemas"]
    for path in ("/v1/edit/completions", "/v1/apply/completions", "/v1/completions"):
        assert "501" not in described["paths"][path]["post"]["responses"]
