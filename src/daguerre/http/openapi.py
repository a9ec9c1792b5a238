"""/openapi.json: FastAPI's description of an application, changed to what its routes do; and the schemas for that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fastapi import FastAPI

Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "number"}


def an_object(required: Mapping[str, Schema], /, **optional: Schema) -> Schema:
    """The schema of an object; other fields are let through."""
    return {"type": "object", "required": list(required), "properties": {**required, **optional}}


def listed(items: Schema) -> Schema:
    """The schema of a list."""
    return {"type": "array", "items": items}


def maybe(schema: Schema) -> Schema:
    """The schema of what may be null."""
    return {"anyOf": [schema, {"type": "null"}]}


ERROR = an_object(
    {"error": an_object({"message": TEXT, "type": TEXT, "param": maybe(TEXT), "code": maybe(TEXT)})},
)
EVENT = an_object({"data": {}}, event=TEXT)
CALL = an_object(
    {"id": TEXT, "type": {"const": "function"}, "function": an_object({"name": TEXT, "arguments": TEXT})},
)


def in_json(schema: Schema) -> Schema:
    """The content of a body in JSON."""
    return {"application/json": {"schema": schema}}


def describe_with(app: FastAPI, change: Callable[[Schema], None]) -> None:
    """Make an application describe itself with FastAPI's description, changed. Called once all routes are there."""
    plain = app.openapi

    def openapi() -> Schema:
        if app.openapi_schema is None:
            change(plain())  # which keeps what it returns
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
