"""The published schema of records, schema.json beside this file, and what does not follow it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from importlib import resources
from typing import Any

from daguerre.errors import MissingExtra

SEALED = {
    "generation": "generation",
    "decision": "decision",
    "failure": "error",
    "refusal": "error",
    "follow_up": "note",
}
"""Of each kind of record with a sealed part, the definition of that part."""


@lru_cache(maxsize=1)
def schema() -> dict[str, Any]:
    """The JSON Schema of a record, with definitions of the sealed parts."""
    text = (resources.files("daguerre.audit") / "schema.json").read_text(encoding="utf-8")
    out: dict[str, Any] = json.loads(text)
    return out


def part(definition: str) -> dict[str, Any]:
    """The schema of one of the definitions."""
    whole = schema()
    return {name: whole[name] for name in ("$schema", "definitions")} | {"$ref": f"#/definitions/{definition}"}


@lru_cache(maxsize=4)
def _checker(definition: str | None) -> Callable[[Any], object]:
    try:
        import fastjsonschema
    except ImportError:
        raise MissingExtra("fastjsonschema", "audit") from None
    out: Callable[[Any], object] = fastjsonschema.compile(schema() if definition is None else part(definition))
    return out


def complaint(value: Any, kind: str | None = None) -> str | None:
    """Why a record, or with a `kind` the sealed part of one, does not follow the schema; None: it does."""
    if kind is not None and kind not in SEALED:
        return f"a record of kind {kind} has no sealed part"
    check = _checker(None if kind is None else SEALED[kind])
    try:
        check(value)
    except ValueError as error:  # fastjsonschema.JsonSchemaException is one
        return str(error)[:200]
    return None
