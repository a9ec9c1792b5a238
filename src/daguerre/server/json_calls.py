"""Calls of functions that an answer has as plain JSON, bare or in a fence, in place of the marks around calls.

Many models that were trained on calls write {"name": ..., "arguments": {...}} so, or several of them, in a list or one
after the other. It is a call only if the whole answer is nothing else, each names a given function, and its arguments
are in the language of calls (`sampling.constraints.tools`). Any other answer stays a text, byte for byte.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from daguerre.errors import InputError
from daguerre.server.calls import written

ARGUMENTS = ("arguments", "parameters")
OTHERS = ("type", "id", "function", *ARGUMENTS)
"""Keys that a call may begin with besides its name."""
FENCE = re.compile(r"\s*```[a-z_]*[ \t]*\n(.*?)\n?```\s*", re.DOTALL)
FENCED = ("", "json", "tool_call", "tool_code", "xml")
MOST_BLANKS = 256
"""An answer that begins with more white space is no call."""
BEGUN = re.compile(
    r"\s*(?:```([a-z_]*)[ \t]*\n)?[\s\[]{0,64}"
    r'(?:\{\s*(?:"([^"\\]*)("\s*(?::\s*(?:"([^"\\]*)("?))?)?)?)?)?'
)
"""The beginning of such an answer: a fence, brackets, and the first key with its value, either of which may be cut."""


@dataclass(frozen=True)
class JsonCalls:
    """Reads the calls of answers. tools: the parameters of each function, by its name; accepts: whether a call as it is
    written is in the language of calls; several: whether an answer may have more than one.
    """

    tools: Mapping[str, Any]
    accepts: Callable[[str], bool]
    several: bool

    def may_be(self, text: str) -> bool:
        """Whether an answer that begins with this text may yet be calls."""
        left = text.lstrip()
        if not left:
            return len(text) < MOST_BLANKS
        if left[0] not in "`[{" or (left[0] == "`" and not left.startswith("```"[: len(left)])):
            return False
        found = BEGUN.match(text)
        assert found is not None
        fence, key, known, value, whole = found.groups()
        if fence is not None and fence not in FENCED:
            return False
        if key is None:
            return found.end() == len(text) or text[found.end()] == "`"
        if known is None:  # the key is cut
            return any(name.startswith(key) for name in ("name", *OTHERS))
        if key != "name":
            return key in OTHERS
        return (
            value is None or value in self.tools or (not whole and any(name.startswith(value) for name in self.tools))
        )

    def read(self, text: str) -> list[tuple[str, str]]:
        """The names and arguments, as compact JSON, of the calls that a whole answer is; empty where it is none."""
        try:
            return self._read(text)
        except (ValueError, RecursionError, InputError):  # no JSON, too deep, or with a text that no token writes
            return []

    def _read(self, text: str) -> list[tuple[str, str]]:
        fenced = FENCE.fullmatch(text)
        values = _values((fenced[1] if fenced else text).strip())
        if len(values) == 1 and isinstance(values[0], list):
            values = values[0]
        found = [self._call(value) for value in values]
        calls = [call for call in found if call is not None]
        return calls if len(calls) == len(values) and (self.several or len(calls) == 1) else []

    def _call(self, value: Any) -> tuple[str, str] | None:
        """The call that a JSON value is."""
        if isinstance(value, Mapping) and isinstance(value.get("function"), Mapping):
            value = value["function"]
        name = value.get("name") if isinstance(value, Mapping) else None
        if not isinstance(name, str) or name not in self.tools:
            return None
        given = [value[key] for key in ARGUMENTS if key in value]
        if len(given) != 1 or not isinstance(given[0], Mapping) or set(value) - {"name", "type", "id", *ARGUMENTS}:
            return None
        arguments = json.dumps(ordered(given[0], self.tools[name]), ensure_ascii=False, separators=(",", ":"))
        arguments.encode()  # of half a character there is a name in JSON, and no text
        return (name, arguments) if self.accepts(written(name, arguments)) else None


def _values(text: str) -> list[Any]:
    """JSON values, one after the other. ValueError for anything else."""
    decoder, out, at = json.JSONDecoder(), list[Any](), 0
    while at < len(text):
        value, at = decoder.raw_decode(text, at)
        out.append(value)
        while at < len(text) and text[at] in " \t\r\n,;":
            at += 1
    return out


def ordered(value: Any, schema: Any) -> Any:
    """A JSON value whose members are in the order of a schema's properties, all others last."""
    if isinstance(value, list):
        inner = schema.get("items") if isinstance(schema, Mapping) else None
        return [ordered(one, inner) for one in value]
    if not isinstance(value, Mapping):
        return value
    known = schema.get("properties") if isinstance(schema, Mapping) else None
    known = known if isinstance(known, Mapping) else {}
    names: Sequence[str] = [*(name for name in known if name in value), *(name for name in value if name not in known)]
    return {name: ordered(value[name], known.get(name)) for name in names}
