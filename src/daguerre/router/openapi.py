"""/openapi.json of a router: bodies as `daguerre serve` takes them, wishes as headers, and what an answer says of its
decision.

A router passes on fields and values that it does not know, and answers as the backend gave them, so all schemas are
open, and an answer has no more fields that must be there than all servers of OpenAI's interface send.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from importlib import resources

import orjson
from fastapi import FastAPI

from daguerre.http.openapi import (
    CALL,
    ERROR,
    EVENT,
    NUMBER,
    TEXT,
    WHOLE,
    Schema,
    an_object,
    describe_with,
    in_json,
    listed,
    maybe,
)
from daguerre.router.config import STEPS, Config
from daguerre.router.requests import CACHES, NAMES

BODIES = "bodies.json"
"""By path the schemas of bodies, and by "" the schemas that they refer to, as `recipes/router/bodies.py` writes them.
The models themselves would bring the engine to the router, and PyTorch with it.
"""
USAGE = an_object({})


def _completion(choice: Schema) -> Schema:
    return an_object({"choices": listed(choice)}, id=TEXT, object=TEXT, model=TEXT, usage=maybe(USAGE))


MESSAGE = an_object({"role": TEXT}, content=maybe(TEXT), tool_calls=maybe(listed(CALL)))
TEXTS = _completion(an_object({"text": TEXT}, index=WHOLE, finish_reason=maybe(TEXT)))
CHAT = _completion(an_object({"message": MESSAGE}, index=WHOLE, finish_reason=maybe(TEXT)))
VECTOR = an_object({"embedding": {"anyOf": [listed(NUMBER), TEXT]}}, index=WHOLE)
ANSWERS: Mapping[str, Schema] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": TEXTS,
    "/v1/responses": an_object({"id": TEXT, "output": listed({})}, object=TEXT, status=TEXT, usage=maybe(USAGE)),
    "/v1/embeddings": an_object({"data": listed(VECTOR)}, object=TEXT, model=TEXT, usage=maybe(USAGE)),
    "/v1/fim/completions": TEXTS,
    "/v1/edit/completions": CHAT,
    "/v1/decisions": an_object({"answers": {"type": ["object", "array"]}}, model=TEXT, usage=maybe(USAGE)),
}
"""What an answer that is not streamed has at least."""
WISHES: Mapping[str, tuple[Schema, str]] = {
    "x-slo-ms": ({"type": "number", "exclusiveMinimum": 0}, "Milliseconds within which the answer must be there"),
    "x-route-backend": (TEXT, "The name of the backend that should answer"),
    "x-route-step": ({"enum": list(STEPS)}, "The step type of the request"),
    "x-route-tags": (TEXT, "Tags that the backend must have, with commas between them"),
    "x-route-max-cost": ({"type": "number", "minimum": 0}, "The most dollars that the answer may cost"),
    "x-route-cache": ({"enum": list(CACHES)}, "Whether a kept answer may be given"),
    "x-route-explore": ({"enum": ["on", "off"]}, "Whether a backend that is not the best may be tried"),
    "x-route-test": (TEXT, "A test of the configuration that a small backend's answer must pass"),
}
ALSO = "It may stand in the body's `metadata` instead."
SAID: Mapping[str, str] = {
    "x-route-id": "The id by which the log of decisions names the request.",
    "x-route-step": "The step type that the request was taken for.",
    "x-route-reason": "Why it was decided so.",
}
SOMETIMES: Mapping[str, str] = {
    "x-route-backend": "The backend that answered.",
    "x-route-cache": "`hit` or `near` for an answer that was kept.",
    "x-route-cascade": "Whether the answer of the small backend, which was asked first, was `accepted` or `rejected`.",
    "x-route-similarity": "How similar the request was to one whose answer was kept, 0 to 1.",
}
ERRORS = {
    "400": "A body that is no JSON object, a wish that cannot be, or a request that no backend can serve.",
    "401": "An API key that is not known.",
    "403": "A browser's page of another site, or a name in `Host` that is not this machine's.",
    "408": "A body that did not come in time.",
    "413": "A body that is too large, or has too many parts.",
    "415": "A browser's body that is not application/json.",
    "429": "A limit is reached, of the key or of every backend; ask again after `Retry-After` seconds.",
    "4XX": "What the backend answered to a request that it finds wrong.",
    "500": "The router failed; its log says why.",
    "501": "The backend was not made for it.",
    "502": "Every backend that was tried failed.",
    "503": "No backend takes requests now, or too many bodies are on their way; ask again after `Retry-After` seconds.",
    "504": "No backend answered in time.",
}

PASSED_ON = ("4XX", "501")
"""Errors of backends, as they sent them."""
ONE_MODEL = "/v1/models/{name}"
KEPT = "/v1/responses/"
"""Where responses that a backend keeps are, by their id."""
MODEL = an_object({"id": TEXT, "object": {"const": "model"}, "created": WHOLE, "owned_by": TEXT})
CONTENTS: Mapping[str, Schema] = {
    "/v1/models": {"application/json": {"schema": an_object({"object": {"const": "list"}, "data": listed(MODEL)})}},
    ONE_MODEL: {"application/json": {"schema": MODEL}},
    "/metrics": {"text/plain": {"schema": TEXT}},
}
"""What routes without a body answer with, where it is more than JSON."""


def describe(app: FastAPI, config: Config) -> None:
    """Make the application of a configuration describe itself. Called once all routes are there."""
    describe_with(app, partial(_change, wishes=_parameters(config)))


def _change(schema: Schema, wishes: list[Schema]) -> None:
    paths = _schemas()
    named = paths.pop("")
    schema.setdefault("components", {}).setdefault("schemas", {}).update(named)
    served = {path: {"post": _described(path, body, named, wishes)} for path, body in paths.items()}
    schema["paths"] = served | schema["paths"]
    kept = {"description": "What the backend says of a response that it keeps.", "content": in_json({})}
    for path, methods in schema["paths"].items():
        if path.startswith(KEPT):
            for operation in methods.values():
                operation["responses"] = {"200": kept, **_errors("400", "401", "4XX", "500", "502")}
    for path, content in CONTENTS.items():
        if path in schema["paths"]:
            schema["paths"][path]["get"]["responses"]["200"]["content"] = content
    one = schema["paths"][ONE_MODEL]["get"]["responses"]
    one.pop("422", None)
    one |= {"404": {"description": "No model of this name.", "content": in_json(ERROR)}, **_errors("401")}


def _schemas() -> dict[str, Schema]:
    """By path: the schema of its body; by "": the named schemas that they refer to."""
    found: dict[str, Schema] = orjson.loads((resources.files("daguerre.router") / BODIES).read_bytes())
    return found


def _parameters(config: Config) -> list[Schema]:
    """The wishes that a request may have."""
    kinds = {"x-route-backend": {"enum": [one.name for one in config.backends]}}
    return [
        {"name": name, "in": "header", "schema": kinds.get(name, kind), "description": f"{said}. {ALSO}"}
        for name, (kind, said) in WISHES.items()
        if NAMES[name] in config.overrides
    ]


def _described(path: str, body: Schema, named: dict[str, Schema], wishes: list[Schema]) -> Schema:
    """The operation of a path that backends serve. named: schemas that the one of its body refers to."""
    content = in_json(ANSWERS[path])
    if any("stream" in named[one["$ref"].rpartition("/")[2]]["properties"] for one in body.get("anyOf", [body])):
        content["text/event-stream"] = {"schema": EVENT}
    headers = {name: _header(said, required=True) for name, said in SAID.items()}
    headers |= {name: _header(said, required=False) for name, said in SOMETIMES.items()}
    good = {"description": "The backend's answer, as it is.", "headers": headers, "content": content}
    name = path.removeprefix("/v1/").replace("/", "_")
    return {
        "summary": name.replace("_", " ").capitalize(),
        "operationId": name,
        "parameters": wishes,
        "requestBody": {"required": True, "content": in_json(body)},
        "responses": {"200": good} | _errors(*ERRORS),
    }


def _errors(*statuses: str) -> Schema:
    return {
        status: {"description": ERRORS[status], "content": in_json({} if status in PASSED_ON else ERROR)}
        for status in statuses
    }


def _header(said: str, *, required: bool) -> Schema:
    return {"description": said, "required": required, "schema": TEXT}
