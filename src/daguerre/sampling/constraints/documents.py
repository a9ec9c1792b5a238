"""A schema document: its draft, and where its references lead.

Every schema resource has a base URI, from `$id` (`id` up to draft 4); a `$ref` is read against the base of the resource
that it stands in. Only what the document itself holds can be reached.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urljoin

from daguerre.errors import InputError, UnsupportedError
from daguerre.sampling.constraints.text import escaped

Json = Mapping[str, Any]

DRAFTS = {"draft-03": 3, "draft-04": 4, "draft-06": 6, "draft-07": 7, "2019-09": 2019, "2020-12": 2020}
LONE = frozenset(
    "not if then else items additionalItems additionalProperties contains propertyNames unevaluatedItems "
    "unevaluatedProperties contentSchema".split()
)
LISTED = frozenset("allOf anyOf oneOf prefixItems items".split())
NAMED = frozenset("properties patternProperties $defs definitions dependentSchemas dependencies".split())
"""Keywords whose value is a schema, a list of schemas, or schemas by name."""


class SchemaDocument:
    """A schema document. Places in it are JSON pointers."""

    def __init__(self, content: object) -> None:
        self.content = content
        self.resources: dict[str, str] = {}  # the place of each URI
        self.anchors: dict[tuple[str, str], str] = {}  # the place of each (URI, name)
        self.dynamic: dict[str, list[str]] = {}  # the places of each $dynamicAnchor, the root's first
        self.bases: dict[str, tuple[str, int | None]] = {}  # (URI, draft) of each resource, by its place
        for pointer, schema, base, draft in self._walk(content, "", "", None):
            self._enter(pointer, schema, base, draft)
        self.resources.setdefault("", "")
        self.bases.setdefault("", ("", None))

    def _walk(
        self, part: object, pointer: str, base: str, draft: int | None
    ) -> Iterator[tuple[str, Json, str, int | None]]:
        """(place, schema, base URI, draft) of every schema. Not recursive: a document may be nested deep."""
        waiting = [(part, pointer, base, draft)]
        while waiting:
            part, pointer, base, draft = waiting.pop()
            if not isinstance(part, dict):
                continue
            draft = draft_of(part) or draft
            base = _joined(base, _id(part, pointer, draft))
            yield pointer, part, base, draft
            waiting += [(inner, place, base, draft) for place, inner in list(_inner(part, pointer))[::-1]]

    def _enter(self, pointer: str, schema: Json, base: str, draft: int | None) -> None:
        own = _id(schema, pointer, draft)
        if pointer == "" or (own and not own.startswith("#")):
            self.bases[pointer] = base, draft
            self.resources.setdefault(base, pointer)
        found = [schema.get("$anchor"), schema.get("$dynamicAnchor"), own.partition("#")[2]]
        if draft is None and str(schema.get("id", "")).startswith("#"):
            found.append(schema["id"][1:])
        for name in found:
            if isinstance(name, str) and name:
                self.anchors.setdefault((base, name), pointer)
        if isinstance(schema.get("$dynamicAnchor"), str):
            self.dynamic.setdefault(schema["$dynamicAnchor"], []).append(pointer)

    def resource(self, pointer: str) -> tuple[str, int | None]:
        """(URI, draft) of the resource that a place is in; no draft where the document names none."""
        while pointer not in self.bases:
            pointer = pointer.rpartition("/")[0]
        return self.bases[pointer]

    def resolve(self, pointer: str) -> object:
        """The part of the document at a place. InputError when there is none."""
        found = self.content
        for raw in pointer.split("/")[1:]:
            key = raw.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and key in found:
                found = found[key]
            elif isinstance(found, list) and key.isascii() and key.isdigit() and int(key) < len(found):
                found = found[int(key)]
            else:
                raise InputError(f"the schema has nothing at #{pointer}, which a $ref points to: correct it")
        return found

    def target(self, ref: object, pointer: str) -> str:
        """The place that a reference at a place leads to. UnsupportedError when it leads outside the document."""
        if isinstance(ref, str):
            uri, _, fragment = ref.partition("#")
            base = _joined(self.resource(pointer)[0], uri)
            if base in self.resources:
                return self._within(base, unquote(fragment), ref, pointer)
        raise UnsupportedError(f"the $ref {ref!r} at #{pointer} leads outside the schema: copy its target into $defs")

    def _within(self, base: str, fragment: str, ref: str, pointer: str) -> str:
        root = self.resources[base]
        if not fragment:
            return root
        if not fragment.startswith("/"):
            if (base, fragment) in self.anchors:
                return self.anchors[base, fragment]
            raise InputError(f"the $ref {ref!r} at #{pointer} names an anchor that is not there: correct it")
        try:
            self.resolve(root + fragment)
        except InputError:
            return fragment  # many a document counts from its root although an id makes another base
        return root + fragment

    def dynamic_target(self, ref: object, pointer: str) -> str:
        """Where a `$dynamicRef` leads: the same place on every way, else an UnsupportedError."""
        found = self.target(ref, pointer)
        schema = self.resolve(found)
        name = schema.get("$dynamicAnchor") if isinstance(schema, dict) else None
        if name is None or str(ref).rpartition("#")[2] != name:
            return found  # it acts as a $ref
        places = self.dynamic[name]
        if len(places) == 1:
            return found
        for place in places:
            if self.resource(place)[0] == self.resource("")[0]:  # the root is on every way, and the outermost
                return place
        raise UnsupportedError(
            f"the $dynamicRef {ref!r} at #{pointer} may lead to any of {len(places)} anchors: use $ref"
        )

    def recursive_target(self, ref: object, pointer: str) -> str:
        """Where a `$recursiveRef` of draft 2019-09 leads, likewise."""
        found = self.target(ref, pointer)
        schema, root = self.resolve(found), self.content
        if not (isinstance(schema, dict) and schema.get("$recursiveAnchor") is True) or found == "":
            return found
        if isinstance(root, dict) and root.get("$recursiveAnchor") is True:
            return ""
        raise UnsupportedError(f"the $recursiveRef at #{pointer} may lead to several schemas: use $ref")


def draft_of(schema: Json) -> int | None:
    """The draft that `$schema` names, if it is a known one."""
    named = str(schema.get("$schema", ""))
    return next((draft for name, draft in DRAFTS.items() if name in named), None)


def ignores_siblings(draft: int | None) -> bool:
    """Whether what is beside a `$ref` says nothing."""
    return draft is not None and draft <= 7


def _id(schema: Json, pointer: str, draft: int | None) -> str:
    """The URI, perhaps relative, that a schema gives itself; ""."""
    if "$ref" in schema and ignores_siblings(draft):
        return ""
    own = schema.get("$id") if draft is None or draft > 4 else schema.get("id")
    if draft is None and own is None and pointer == "":
        own = schema.get("id")
    return own if isinstance(own, str) else ""


def _joined(base: str, uri: str) -> str:
    uri = uri.partition("#")[0]
    if not uri:
        return base
    try:
        return urljoin(base, uri)
    except ValueError:
        return uri


def _inner(schema: Json, pointer: str) -> Iterator[tuple[str, object]]:
    """The schemas directly inside a schema, with their places."""
    for key, value in schema.items():
        place = f"{pointer}/{escaped(key)}"
        if key in LONE and isinstance(value, dict):
            yield place, value
        elif key in LISTED and isinstance(value, list):
            yield from ((f"{place}/{i}", inner) for i, inner in enumerate(value))
        elif key in NAMED and isinstance(value, dict):
            yield from ((f"{place}/{escaped(name)}", inner) for name, inner in value.items())
