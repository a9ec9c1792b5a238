"""The arguments of a call as automata, in each way in which models write them (`models.chat_format.description`).

Strings between tags stand as they are: they have no escapes, and what closes them does not occur in them. Other values
are compact JSON. Where arguments have tags of their own, they come in the order of the schema, and others than those
that it names are not written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from daguerre.errors import InputError, UnsupportedError
from daguerre.models.chat_format.description import TYPES, Arguments, JsonArguments, NestedTags, Tag, Tags
from daguerre.models.chat_format.values import Schemas
from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.dfa import Dfa, subtract
from daguerre.sampling.constraints.keywords import read_schema
from daguerre.sampling.constraints.nfa import Nfa
from daguerre.sampling.constraints.wording import holding
from daguerre.sampling.constraints.writing import Writer

ANY_DEPTH, MOST_NESTED = 1, 6
"""How deep values may nest: of parameters without a schema, and of schemas that contain themselves."""
OTHERS = tuple(kind for kind in TYPES if kind != "string")
Json = Mapping[str, Any]
Write = Callable[[int], int]
"""Adds a part behind a state, and gives its last state."""


class ArgumentLanguage:
    """Writes the arguments of one function.

    parameters  its schema
    spelled     the bytes of a literal
    """

    def __init__(
        self, parameters: object, depth: int, budget: Budget, how: dict[str, Any], spelled: Callable[[str], bytes]
    ) -> None:
        self._schema = read_schema(parameters, budget, **how)
        self._parameters, self._depth, self._budget, self._how = parameters, depth, budget, how
        self._spelled = spelled

    @property
    def ignored(self) -> list[str]:
        """What was left out of the schema, as far as it has been read."""
        return list(self._schema.ignored)

    def write(self, nfa: Nfa, arguments: Arguments) -> Write:
        """What adds the arguments, as a format writes them."""
        if isinstance(arguments, JsonArguments):
            if arguments.quoted:
                raise UnsupportedError("calls whose arguments are a string of JSON cannot be held to a schema")
            dfa = Writer(self._schema, self._depth, self._budget).dfa(self._schema.root, ANY_DEPTH)
            return lambda entry: nfa.embed(entry, dfa)
        if isinstance(arguments, Tags):
            return self._tags(nfa, arguments)
        if isinstance(arguments, NestedTags):
            mark = arguments.mark
            return self._members(nfa, self._root, lambda key, schema: self._element(nfa, mark, key, schema, 0))
        return self._bare(nfa, self._root, arguments.quote, 0)

    @property
    def _root(self) -> Json:
        return self._parameters if isinstance(self._parameters, Mapping) else {}

    # arguments one by one

    def _tags(self, nfa: Nfa, tags: Tags) -> Write:
        def argument(key: str, schema: object) -> Write:
            return lambda entry: self._tagged(nfa, self._literal(nfa, entry, tags.before + key), schema, tags)

        return self._members(nfa, self._root, argument, tags.separator)

    def _tagged(self, nfa: Nfa, entry: int, schema: object, tags: Tags) -> int:
        kinds: dict[Tag, list[str]] = {}
        for kind in OTHERS:
            if kind in tags.tags:
                kinds.setdefault(tags.tags[kind], []).append(kind)
        string = tags.tags["string"]
        avoided = [string.after.strip() or string.after, *([tags.wrapping[0]] if tags.wrapping else [])]
        if not string.after:  # strings are literals
            return nfa.embed(self._literal(nfa, entry, string.between), self._json(schema, TYPES))
        found = [(tag, self._json(schema, held)) for tag, held in kinds.items()]
        found.append((string, self._strings(schema, avoided)))
        last = nfa.state()
        for tag, dfa in found:
            if not dfa.is_empty:
                value = nfa.embed(self._literal(nfa, entry, tag.between), dfa)
                nfa.link(self._literal(nfa, value, tag.after), last)
        return last

    def _members(self, nfa: Nfa, schema: object, member: Callable[[str, object], Write], separator: str = "") -> Write:
        """The members of an object that a schema names, in its order."""
        held = schema if isinstance(schema, Mapping) else {}
        properties = held.get("properties")
        named = properties if isinstance(properties, Mapping) else {}
        required = set(held.get("required") or ()) if isinstance(held.get("required"), Sequence) else set()

        def write(entry: int) -> int:
            none, some = entry, nfa.state()  # after no member, and after one or more
            for key, inner in named.items():
                after = nfa.state()
                part = member(key, inner)
                if none >= 0:
                    nfa.link(part(none), after)
                nfa.link(part(self._literal(nfa, some, separator)), after)
                if key in required:
                    none = -1
                else:
                    nfa.link(some, after)
                some = after
            if none >= 0:
                nfa.link(none, some)
            return some

        return write

    # values

    def _within(self, schema: object, *more: object) -> Any:
        """The schema of a part, with what the whole has for it to refer to."""
        kept = {key: self._root[key] for key in ("$defs", "definitions", "$schema") if key in self._root}
        return {**kept, "allOf": [schema, *more]}

    def _strings(self, schema: object, without: Sequence[str]) -> Dfa:
        """The strings that a schema allows, as they are, in which some texts do not occur."""
        read = read_schema(self._within(schema), self._budget, **self._how)
        dfa: Dfa = read.values(read.root).strings
        for text in without:
            dfa = subtract(dfa, holding(text.encode(), self._budget), self._budget)
        return dfa

    def _json(self, schema: object, kinds: Sequence[str]) -> Dfa:
        """The JSON of the values of some types that a schema allows."""
        read = read_schema(self._within(schema, {"type": list(kinds)}), self._budget, **self._how)
        return Writer(read, self._depth, self._budget).dfa(read.root, ANY_DEPTH)

    def _literal(self, nfa: Nfa, entry: int, text: str) -> int:
        return nfa.literal(entry, self._spelled(text)) if text else entry

    # elements and objects without quotes

    def _element(self, nfa: Nfa, mark: str, key: str, schema: object, depth: int) -> Write:
        def write(entry: int) -> int:
            inside = self._literal(nfa, entry, f"{mark}<{key}>")
            return self._literal(nfa, self._content(nfa, inside, mark, schema, depth), f"{mark}</{key}>")

        return write

    def _content(self, nfa: Nfa, entry: int, mark: str, schema: object, depth: int) -> int:
        last = nfa.state()
        for kind, one in self._branches(schema, depth):
            if kind == "object":
                members = self._members(nfa, one, lambda key, sub: self._element(nfa, mark, key, sub, depth + 1))
                nfa.link(members(entry), last)
            elif kind == "array":
                item = self._element(nfa, mark, "item", one.get("items", {}), depth + 1)
                nfa.link(nfa.repeat(entry, item, *_bounds(one)), last)
            else:
                dfa = self._strings(one, [mark or "<"]) if kind == "string" else self._json(one, [kind])
                self._add(nfa, entry, dfa, last)
        return last

    def _bare(self, nfa: Nfa, schema: object, quote: str, depth: int) -> Write:
        def member(key: str, inner: object) -> Write:
            return lambda entry: self._bare_value(nfa, self._literal(nfa, entry, f"{key}:"), inner, quote, depth + 1)

        def write(entry: int) -> int:
            members = self._members(nfa, schema, member, ",")
            return self._literal(nfa, members(self._literal(nfa, entry, "{")), "}")

        return write

    def _bare_value(self, nfa: Nfa, entry: int, schema: object, quote: str, depth: int) -> int:
        last = nfa.state()
        for kind, one in self._branches(schema, depth):
            if kind == "object":
                nfa.link(self._bare(nfa, one, quote, depth)(entry), last)
            elif kind == "array":
                nfa.link(self._bare_items(nfa, entry, one, quote, depth), last)
            elif kind == "string":
                inside = self._literal(nfa, entry, quote)
                closed = nfa.state()
                self._add(nfa, inside, self._strings(one, [quote]), closed)
                nfa.link(self._literal(nfa, closed, quote), last)
            else:
                self._add(nfa, entry, self._json(one, [kind]), last)
        return last

    def _bare_items(self, nfa: Nfa, entry: int, schema: Json, quote: str, depth: int) -> int:
        least, most = _bounds(schema)
        begun = self._literal(nfa, entry, "[")
        end = nfa.state()
        if least == 0:
            nfa.link(begun, end)

        def item(state: int) -> int:
            return self._bare_value(nfa, state, schema.get("items", {}), quote, depth + 1)

        if most != 0:
            more = nfa.repeat(
                item(begun), lambda state: item(self._literal(nfa, state, ",")), max(0, least - 1), most and most - 1
            )
            nfa.link(more, end)
        return self._literal(nfa, end, "]")

    @staticmethod
    def _add(nfa: Nfa, entry: int, dfa: Dfa, last: int) -> None:
        if not dfa.is_empty:
            nfa.link(nfa.embed(entry, dfa), last)

    def _branches(self, schema: object, depth: int) -> list[tuple[str, Json]]:
        """A schema by the type of its values."""
        if depth > MOST_NESTED:
            raise InputError(
                f"the parameters nest more than {MOST_NESTED} deep, which this model cannot write: flatten"
            )
        held = self._resolved(schema)
        for key in ("anyOf", "oneOf"):
            if isinstance(held.get(key), Sequence) and not isinstance(held.get(key), str):
                return [branch for one in held[key] for branch in self._branches(one, depth + 1)]
        known = Schemas([{"name": "it", "parameters": self._root}])
        kinds = known.kinds("it", held) or set(TYPES) - {"array", "object"}
        kinds = kinds - {"integer"} if "number" in kinds else kinds
        return [(kind, held) for kind in TYPES if kind in kinds]

    def _resolved(self, schema: object) -> Json:
        held = schema if isinstance(schema, Mapping) else {}
        for _ in range(MOST_NESTED):
            reference = held.get("$ref")
            if not isinstance(reference, str):
                break
            value: Any = self._root
            for part in reference.removeprefix("#").split("/")[1:]:
                value = value.get(part) if isinstance(value, Mapping) else None
            held = value if isinstance(value, Mapping) else {}
        return held


def _bounds(schema: Json) -> tuple[int, int | None]:
    least, most = schema.get("minItems", 0), schema.get("maxItems")
    return (least if isinstance(least, int) else 0), (most if isinstance(most, int) else None)
