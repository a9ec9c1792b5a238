"""Values of arguments that are written without quotes: what type they are of, by a schema or by how they look."""

from __future__ import annotations

import ast
import json
from collections.abc import Collection, Mapping
from typing import Any

KINDS: dict[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}
NOTHING = object()
"""What stands for no value."""
CONTAINERS = ("anyOf", "oneOf", "allOf")


class Schemas:
    """The parameters of functions, by name; what a schema refers to is looked up in its own."""

    def __init__(self, tools: Collection[Mapping[str, Any]] | None) -> None:
        functions = [one.get("function", one) for one in tools or ()]
        named = {one.get("name"): one.get("parameters") for one in functions if isinstance(one, Mapping)}
        self._roots = {name: root for name, root in named.items() if isinstance(name, str)}

    @property
    def names(self) -> Collection[str]:
        """The functions that are known; none: any is taken."""
        return self._roots

    def root(self, name: str) -> Any:
        """The parameters of a function."""
        return self._roots.get(name)

    def of(self, name: str, key: str) -> Any:
        """The schema of an argument; None where it is not known."""
        root = self.root(name)
        properties = root.get("properties") if isinstance(root, Mapping) else None
        return properties.get(key) if isinstance(properties, Mapping) else None

    def kinds(self, name: str, schema: Any) -> frozenset[str]:
        """The types that a schema allows; none: it does not say."""
        return frozenset(_kinds(schema, self.root(name), 0))


def _kinds(schema: Any, root: Any, depth: int) -> set[str]:
    if not isinstance(schema, Mapping) or depth > 8:
        return set()
    if isinstance(reference := schema.get("$ref"), str):
        return _kinds(_pointed(root, reference), root, depth + 1)
    given = schema.get("type")
    if isinstance(given, str | list):
        return {given} if isinstance(given, str) else {one for one in given if isinstance(one, str)}
    if "const" in schema:
        return {KINDS.get(type(schema["const"]), "string")}
    if isinstance(schema.get("enum"), list):
        return {KINDS.get(type(one), "string") for one in schema["enum"]}
    branches: list[Any] = next((schema[key] for key in CONTAINERS if isinstance(schema.get(key), list)), [])
    found = [_kinds(branch, root, depth + 1) for branch in branches]
    return set().union(*found) if all(found) else set()


def _pointed(root: Any, reference: str) -> Any:
    value = root if reference.startswith("#") else None
    for key in reference.removeprefix("#").split("/")[1:]:
        value = value.get(key.replace("~1", "/").replace("~0", "~")) if isinstance(value, Mapping) else None
    return value


def literal(text: str, styles: Collection[str] = ("json", "python")) -> Any:
    """The value that a text is a literal of, no string; NOTHING where it is none."""
    text = text.strip()
    if text[:1] in ('"', "'") or not text:
        return NOTHING
    if "json" in styles or text[:1] in "-0123456789":
        try:
            value = json.loads(text, parse_constant=_refuse)
            json.dumps(value, allow_nan=False)  # 1e999 is infinite
            return value
        except (ValueError, RecursionError):
            pass
    if "python" in styles:
        try:
            value = ast.literal_eval(text)
            json.dumps(value, allow_nan=False)
            return NOTHING if isinstance(value, str | bytes | tuple | set | complex) else value
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            return NOTHING
    return NOTHING


def _refuse(name: str) -> Any:
    raise ValueError(name)


def value_of(text: str, kinds: Collection[str], styles: Collection[str]) -> Any:
    """The value of a text that may be of some types; of none that is known, a literal is what it says, and any other
    text is a string.
    """
    if set(kinds) == {"string"}:
        return text
    found = literal(text, styles)
    if found is NOTHING and kinds and "string" not in kinds:
        found = literal(text)
    if found is NOTHING:
        return None if "null" in kinds and "string" not in kinds and not text.strip() else text
    if not kinds or KINDS[type(found)] in kinds or (isinstance(found, int) and "number" in kinds):
        return found
    return text if "string" in kinds else found
