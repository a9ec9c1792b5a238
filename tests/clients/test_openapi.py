"""Schemathesis over /openapi.json: requests made from its schemas, valid and not, break neither server nor schema."""

from __future__ import annotations

import json
import urllib.request
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import one_of
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.core.failures import FailureGroup

from served import MODEL, Served

load_all_checks()
SECONDS = 60
RUN = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
)
"""Not run: positive_data_acceptance, since options may be valid one by one and contradict each other, or name a model
that is not there; negative_data_rejection, since OpenAI's API lets unknown fields through; and what concerns logins.
"""
SMALL = {"max_tokens": 8, "max_completion_tokens": 8, "max_output_tokens": 8, "n": 1, "best_of": 1}
"""A body that asks for long answers is valid, and takes the time that it takes: these are held small."""


@pytest.fixture(scope="session")
def described(served: Served) -> Any:
    """The schema."""
    return schemathesis.openapi.from_url(f"{served.url}/openapi.json")


def test_no_request_fails_the_server_or_gets_an_answer_beside_the_schema(
    described: Any, request: pytest.FixtureRequest, fact: Callable[[str, Any], None]
) -> None:
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

    fact("operations", len(operations))
    fact("requests", sum(statuses.values()))
    fact("statuses", ", ".join(f"{status}: {num}" for status, num in sorted(statuses.items())))
    fact("operations with a failure", len(failures))
    assert not failures, "\n\n".join(f"{label}: {why}" for label, why in failures.items())


def bound(body: dict[str, Any]) -> None:
    """Keep answers short, and let most of the models that are asked for be one that is there."""
    for name, most in SMALL.items():
        if isinstance(body.get(name), int) and not isinstance(body[name], bool):
            body[name] = min(body[name], most)
    if isinstance(body.get("model"), str) and len(body["model"]) % 4:
        body["model"] = MODEL


def check_operation(operation: Any, num: int, statuses: Counter[int]) -> None:
    """Half of the requests are valid, half are not."""

    @settings(
        max_examples=num,
        deadline=None,
        database=None,
        derandomize=True,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(case=one_of(operation.as_strategy(), operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)))
    def ask(case: Any) -> None:
        if isinstance(case.body, dict):
            bound(case.body)
        response = case.call(timeout=SECONDS)
        statuses[response.status_code] += 1
        case.validate_response(response, checks=CHECKS.get_by_names(list(RUN)))

    ask()


def test_every_route_of_the_issue_is_described(served: Served) -> None:
    with urllib.request.urlopen(f"{served.url}/openapi.json") as answer:
        paths = set(json.load(answer)["paths"])
    assert {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/embeddings",
        "/v1/models",
        "/v1/fim/completions",
        "/v1/decisions",
        "/v1/messages",
        "/infill",
        "/tokenize",
        "/health",
        "/metrics",
    } <= paths
