"""Schemathesis over a router's /openapi.json: requests made from its schemas, valid and not, are never its failure.

Backends are healthy: in front of scripted ones every 5xx would be the router's own, and in front of a real server one
of the two has failed.
"""

from __future__ import annotations

import json
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import schemathesis
import test_openapi
from routed import ROUTE, Backends, routing
from schemathesis.core.failures import FailureGroup
from test_openapi import bound, check_operation

from served import Served

ANSWERS: dict[str, Any] = {
    "/v1/completions": {"id": "c1", "object": "text_completion", "choices": [{"index": 0, "text": "x"}]},
    "/v1/responses": {"id": "r1", "object": "response", "status": "completed", "output": []},
    "/v1/embeddings": {"object": "list", "data": [{"index": 0, "embedding": [0.0, 1.0]}]},
    "/v1/decisions": {"answers": {"one": {"type": "noul", "noul": 0.5}}},
}
ANSWERS["/v1/fim/completions"] = ANSWERS["/v1/completions"]


@pytest.fixture(scope="module")
def scripted_router(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A router in front of backends that answer everything well."""
    with Backends(ANSWERS) as backends:
        config = ROUTE.format(url=backends.url, log=tmp_path_factory.mktemp("log") / "decisions.jsonl")
        with routing(request.config.getoption("--daguerre"), tmp_path_factory.mktemp("route"), config) as one:
            yield one
            assert one.alive(), "the router ended while it was asked"


def bound_and_said(body: dict[str, Any]) -> None:
    """Keep answers short, and let most requests that have messages say something: few random objects are messages."""
    bound(body)
    messages = body.get("messages")
    if isinstance(messages, list) and messages and len(str(messages)) % 4:
        body["messages"] = [{"role": "user", "content": str(messages)[:200]}]


@pytest.mark.parametrize("which", ["scripted_router", "routed"])
def test_no_request_fails_the_router_or_gets_an_answer_beside_the_schema(
    which: str,
    request: pytest.FixtureRequest,
    fact: Callable[[str, Any], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(test_openapi, "bound", bound_and_said)
    router = request.getfixturevalue(which)
    described = schemathesis.openapi.from_url(f"{router.url}/openapi.json")
    statuses: Counter[int] = Counter()
    failures: dict[str, str] = {}
    operations = [one.ok() for one in described.get_all_operations()]
    for operation in operations:
        try:
            check_operation(operation, request.config.getoption("--examples"), statuses)
        except FailureGroup as group:
            failures[operation.label] = "; ".join(map(str, group.exceptions)) + "".join(getattr(group, "__notes__", ()))
        except Exception as error:
            failures[operation.label] = f"{type(error).__name__}: {error}"

    fact(f"requests, {which}", sum(statuses.values()))
    fact(f"statuses, {which}", ", ".join(f"{status}: {num}" for status, num in sorted(statuses.items())))
    assert not failures, "\n\n".join(f"{label}: {why}" for label, why in failures.items())
    assert statuses[200] > 0


def test_every_route_of_a_router_is_described(routed: Served) -> None:
    with urllib.request.urlopen(f"{routed.url}/openapi.json") as answer:
        paths = json.load(answer)["paths"]
    posts = {path for path, methods in paths.items() if "post" in methods and "{key}" not in path}
    assert posts >= set(ANSWERS) | {"/v1/chat/completions", "/v1/edit/completions"}
    assert all("requestBody" in paths[path]["post"] for path in posts)
