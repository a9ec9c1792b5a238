"""The description of a router: complete, open, and true of what the router reads and says; and requests that the
description lets through never make the router fail.
"""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx2
import pytest

from daguerre.router.app import ROUTES, make_app, make_router
from daguerre.router.config import STEPS
from daguerre.router.openapi import SAID, SOMETIMES, WISHES
from daguerre.router.requests import CACHES, NAMES
from daguerre.router.store import Store
from router.test_proxy import SAY, client
from routing import backend, config
from scripted_backends import Reply, Scripted, events, scripted
from server.conftest import running

Json = dict[str, Any]
ROOT = Path(__file__).parents[2]
ALL = tuple(NAMES.values())
BODIES: dict[str, list[Json]] = {
    "/v1/chat/completions": [
        SAY,
        SAY | {"response_format": {"type": "json_object"}, "unheard_of": {"deep": [1, None]}},
        SAY | {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}, "other": 1}}]},
        SAY | {"daguerre": {"mode": "block", "lines": [3], "not_yet": True}, "metadata": {"x-slo-ms": "800"}},
    ],
    "/v1/completions": [{"prompt": "def f(", "suffix": "return x", "max_tokens": 5}, {"prompt": [[1, 2], [3]]}],
    "/v1/responses": [{"input": "hello"}, {"input": [{"role": "user", "content": "x"}], "text": {"other": 1}}],
    "/v1/embeddings": [{"input": ["a", "b"], "model": "auto"}],
    "/v1/fim/completions": [{"prompt": "a", "suffix": "b"}],
    "/v1/edit/completions": [SAY],
    "/v1/decisions": [
        {"state": {"x": 1}, "questions": {"one": {"type": "noul", "instructions": "Is it?"}}},
        {"input": "x", "questions": [{"type": "predicate", "instructions": "Is it?"}]},
    ],
}
"""Bodies that a router takes, with fields that nobody here knows."""
WRONG: dict[str, list[Json]] = {
    "/v1/chat/completions": [{}, {"messages": "hello"}, SAY | {"temperature": "warm"}],
    "/v1/completions": [{}, {"prompt": {}}],
    "/v1/responses": [{"input": 5}],
    "/v1/embeddings": [{}],
    "/v1/fim/completions": [{"suffix": "b"}],
    "/v1/edit/completions": [{"messages": []}],
    "/v1/decisions": [{"questions": {}}, {"state": "x", "questions": {"one": {"type": "other"}}}],
}


@pytest.fixture(scope="module")
def described() -> Json:
    """The description."""
    return description(overrides=ALL)


def description(**more: Any) -> Json:
    """What the router of a configuration says of itself."""
    store, found = Store(None), config(backend("a"), backend("b"), **more)
    app = make_app(make_router(found, store, lambda reading, body: {"plan": 1.0}, print), store, print)
    assert app.openapi() is app.openapi()
    value: Json = json.loads(json.dumps(app.openapi()))
    return value


def schema_of(described: Json, schema: Json) -> Any:
    """A schema of the description, with the schemas that it refers to."""
    import jsonschema

    return jsonschema.Draft202012Validator({**schema, "components": described["components"]})


def body_of(described: Json, path: str) -> Any:
    """The schema of a path's body."""
    return schema_of(
        described, described["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    )


def objects(value: Any) -> Iterator[Json]:
    """All objects in JSON."""
    if isinstance(value, dict):
        yield value
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from objects(one)


def test_every_route_has_a_body_wishes_answers_and_errors(described: Json) -> None:
    assert set(BODIES) == set(WRONG) == set(ROUTES) <= set(described["paths"])
    for path in ROUTES:
        operation = described["paths"][path]["post"]
        assert [one["name"] for one in operation["parameters"]] == list(NAMES)
        assert all(one["in"] == "header" and not one.get("required") for one in operation["parameters"])
        assert {"200", "400", "401", "413", "429", "4XX", "500", "502", "503", "504"} <= set(operation["responses"])
        assert set(operation["responses"]["200"]["headers"]) == {*SAID, *SOMETIMES}
    streams = [path for path in ROUTES if "text/event-stream" in str(described["paths"][path]["post"]["responses"])]
    assert streams == [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/fim/completions",
        "/v1/edit/completions",
    ]


def test_every_schema_is_one_and_every_reference_leads_to_one(described: Json) -> None:
    import jsonschema

    names = set(described["components"]["schemas"])
    for one in objects(described):
        if "$ref" in one:
            assert one["$ref"].removeprefix("#/components/schemas/") in names
        if isinstance(one.get("schema"), dict):
            jsonschema.Draft202012Validator.check_schema(one["schema"])


def test_no_object_of_the_description_is_closed(described: Json) -> None:
    assert not [one for one in objects(described) if one.get("additionalProperties") is False]


def test_bodies_with_unknown_fields_are_valid_and_wrong_ones_are_not(
    described: Json, subtests: pytest.Subtests
) -> None:
    for path in ROUTES:
        with subtests.test(path):
            schema = body_of(described, path)
            for body in BODIES[path]:
                schema.validate(body)
            for body in WRONG[path]:
                assert not schema.is_valid(body), body


def test_wishes_that_the_configuration_does_not_allow_are_not_described(described: Json) -> None:
    def wishes(value: Json) -> dict[str, Json]:
        return {one["name"]: one["schema"] for one in value["paths"]["/v1/embeddings"]["post"]["parameters"]}

    assert list(wishes(description(overrides=["backend", "slo_ms"]))) == ["x-slo-ms", "x-route-backend"]
    assert wishes(description(overrides=[])) == {}
    assert wishes(described)["x-route-backend"] == {"enum": ["a", "b"]}


def test_the_words_of_a_wish_are_those_that_the_router_knows() -> None:
    assert WISHES.keys() == NAMES.keys()
    assert WISHES["x-route-step"][0]["enum"] == list(STEPS)
    assert WISHES["x-route-cache"][0]["enum"] == list(CACHES)


def test_the_schemas_of_bodies_are_those_that_the_server_reads_with() -> None:
    source = ROOT / "recipes" / "router" / "bodies.py"
    made = runpy.run_path(str(source))["schemas"]()
    kept = json.loads((ROOT / "src" / "daguerre" / "router" / "bodies.json").read_bytes())

    assert kept == json.loads(json.dumps(made)), f"run {source.relative_to(ROOT)} again"


def test_a_router_needs_no_pytorch() -> None:
    code = "import sys, daguerre.router.run; print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    assert ran.stdout == "False\n"


class Asked:
    """A router in front of a backend that answers well, and a client of it."""

    def __init__(self, url: str, one: Scripted, described: Json) -> None:
        self.url, self.one, self.described = url, one, described

    def post(self, path: str, content: bytes, headers: Mapping[str, str | bytes] | None = None) -> httpx2.Response:
        sent: dict[str, str | bytes] = {"content-type": "application/json", **(headers or {})}
        return client().post(self.url + path, content=content, headers=sent)

    def check(self, path: str, response: httpx2.Response) -> None:
        """Compare an answer with what the description says of it."""
        said = self.described["paths"][path]["post"]["responses"]
        status = str(response.status_code)
        found = said.get(status) or said[f"{status[0]}XX"]
        schema_of(self.described, found["content"]["application/json"]["schema"]).validate(response.json())
        for name, header in found.get("headers", {}).items():
            assert not header["required"] or response.headers[name]


@pytest.fixture(scope="module")
def asked(described: Json) -> Iterator[Asked]:
    def reply(body: Json) -> Reply:
        if "prev" in body.get("previous_response_id", ""):
            return Reply(404, body=b'{"error": {"message": "no such response"}}')
        if body.get("stream"):
            return Reply(stream=events("one", "two"))
        text = {"choices": [{"text": "x", "message": {"role": "assistant", "content": "x"}}], "answers": {}}
        return Reply(body=json.dumps(text | {"id": "r1", "output": [], "data": []}).encode())

    one, store = Scripted(reply=reply), Store(None)
    with scripted(one):
        found = config(backend("a", url=one.url), overrides=ALL)
        lines = list[Json]()
        router = make_router(found, store, lambda reading, body: {"plan": 1.0}, lines.append)
        with running(make_app(router, store, lines.append)) as url:
            yield Asked(url, one, described)


def test_routes_without_a_body_have_the_content_that_is_described(asked: Asked, subtests: pytest.Subtests) -> None:
    for path in ("/v1/models", "/metrics", "/status", "/health"):
        with subtests.test(path):
            answer = client().get(asked.url + path)
            content = asked.described["paths"][path]["get"]["responses"]["200"]["content"]
            (kind,) = content
            assert answer.status_code == 200 and answer.headers["content-type"].startswith(kind)
            if kind == "application/json":
                schema_of(asked.described, content[kind]["schema"]).validate(answer.json())


def test_one_model_and_one_that_there_is_not_are_as_described(asked: Asked) -> None:
    said = asked.described["paths"]["/v1/models/{name}"]["get"]["responses"]
    assert set(said) == {"200", "401", "404"}
    for name, status in (("auto", "200"), ("a", "200"), ("other", "404")):
        answer = client().get(f"{asked.url}/v1/models/{name}")
        assert str(answer.status_code) == status
        schema_of(asked.described, said[status]["content"]["application/json"]["schema"]).validate(answer.json())


def test_answers_and_errors_are_as_described(asked: Asked, subtests: pytest.Subtests) -> None:
    wrong = ({"x-slo-ms": "soon"}, {"x-route-step": "nothing"}, {"x-route-backend": "nobody"})
    for path in ROUTES:
        content = json.dumps(BODIES[path][0]).encode()
        for headers, status in (({}, 200), *((each, 400) for each in wrong)):
            with subtests.test(path, headers=headers):
                answer = asked.post(path, content, headers)
                assert answer.status_code == status, answer.text
                asked.check(path, answer)


NO_BODIES = {
    "a deep list": b'{"messages": [], "deep": ' + b"[" * 300 + b"]" * 300 + b"}",
    "deep metadata": b'{"messages": [], "metadata": ' + b'{"a":' * 300 + b"1" + b"}" * 300 + b"}",
    "lists alone": b"[" * 2000 + b"]" * 2000,
    "no UTF-8": b'{"messages": "\xff"}',
    "no number": b'{"messages": NaN}',
    "a list": b"[1]",
    "nothing": b"",
}


def test_what_is_no_body_is_the_clients_error(asked: Asked, subtests: pytest.Subtests) -> None:
    for name, content in NO_BODIES.items():
        with subtests.test(name):
            answer = asked.post("/v1/chat/completions", content)
            assert answer.status_code == 400, answer.text
            asked.check("/v1/chat/completions", answer)


def test_a_header_of_any_bytes_reaches_the_backend(asked: Asked, subtests: pytest.Subtests) -> None:
    for name in ("user-agent", "accept", "idempotency-key", "traceparent", "openai-beta"):
        with subtests.test(name):
            answer = asked.post("/v1/chat/completions", json.dumps(SAY).encode(), {name: "café".encode()})
            assert answer.status_code == 200, answer.text
            assert asked.one.headers[-1][name] == "café"


def test_a_header_in_latin_1_reaches_the_backend_in_utf_8(asked: Asked) -> None:
    answer = asked.post("/v1/chat/completions", json.dumps(SAY).encode(), {"user-agent": "café".encode("latin-1")})
    assert answer.status_code == 200, answer.text
    assert asked.one.headers[-1]["user-agent"] == "café"


def test_a_stream_that_is_asked_for_in_other_words_arrives(asked: Asked, subtests: pytest.Subtests) -> None:
    for stream in (1, "yes", "true", {"a": 1}):
        with subtests.test(stream=stream):
            answer = asked.post("/v1/chat/completions", json.dumps(SAY | {"stream": stream}).encode())
            assert answer.status_code == 200, answer.text
            assert answer.text.endswith("data: [DONE]\n\n")


def test_a_response_that_is_not_there_is_the_clients_error_and_no_failure_of_its_backend(asked: Asked) -> None:
    for _ in range(5):
        answer = asked.post("/v1/responses", json.dumps({"input": "x", "previous_response_id": "prev"}).encode())
        assert answer.status_code == 404 and answer.json() == {"error": {"message": "no such response"}}
    assert asked.post("/v1/chat/completions", json.dumps(SAY).encode()).status_code == 200
