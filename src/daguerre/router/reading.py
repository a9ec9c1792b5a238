"""What a request body holds, as texts and plain facts: one reading for features and for step types.

Bodies are JSON of any kind. A field of the wrong type counts as absent here; whether the body is right is for the
backend to say. Reading raises nothing, and does not recurse, so depth is no danger; a body with more in it than any
request needs is refused before (`json_of`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson

from daguerre.http.errors import ApiError

MOST_ITEMS = 10_000
"""Messages, or items, and tools of a request."""
MOST_CONTAINERS = 100_000
"""Objects and lists in a body, at any depth."""
MOST_SIGNS = {b"{": 500_000, b"[": 500_000, b",": 1_500_000}
"""In a body, its texts included: so many values take a twentieth of a second to read."""
CONTAINERS = (dict, list)
ITEMS = ("messages", "input", "tools", "functions", "prompt")


def json_of(raw: bytes) -> dict[str, Any]:
    """The JSON object of a body. ApiError for what is none, is nested too deeply, or has too many parts."""
    if any(raw.count(sign) > most for sign, most in MOST_SIGNS.items()):
        raise _too_many("the body has more values than are read", None)
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise ApiError(f"the body is no JSON: {error}", 400, code="invalid_json") from None
    if not isinstance(value, dict):
        raise ApiError("the body must be a JSON object", 400, code="invalid_json")
    _check_items(value)
    _check_containers(value)
    try:
        orjson.dumps([[[[value]]]])  # what is made of it later may be nested a little deeper
    except orjson.JSONEncodeError:
        raise ApiError("the body is nested too deeply: 250 levels are the most", 400, code="invalid_json") from None
    return value


def _check_items(body: dict[str, Any]) -> None:
    for name in ITEMS:
        items = body.get(name)
        if isinstance(items, list) and len(items) > MOST_ITEMS and not isinstance(items[0], int):
            raise _too_many(f"{name} has {len(items)} items, of at most {MOST_ITEMS}", name)


def _check_containers(body: dict[str, Any]) -> None:
    left: list[Any] = [body]
    num = 1
    while left:
        one = left.pop()
        values = one.values() if type(one) is dict else one
        if set(map(type, values)).isdisjoint(CONTAINERS):  # as in long lists of numbers
            continue
        inner = [each for each in values if type(each) in CONTAINERS]
        num += len(inner)
        if num > MOST_CONTAINERS:
            raise _too_many(f"the body has more than {MOST_CONTAINERS} objects and lists", None)
        left += inner


def _too_many(said: str, name: str | None) -> ApiError:
    return ApiError(f"{said}: send less", 413, name, "too_many_items")


IMAGES = ("image_url", "input_image", "image")
SYSTEM = ("system", "developer")
CALLS = ("function_call", "tool_call")
RESULTS = ("function_call_output", "tool_result")


@dataclass(frozen=True, kw_only=True)
class ParsedMessage:
    """A message. role: user, assistant, tool or system; calls: tools that it calls."""

    role: str
    text: str
    calls: int = 0


@dataclass(frozen=True, kw_only=True)
class ParsedRequest:
    """A request.

    turns     messages in their order; a prompt is one turn of the user
    tools     names and descriptions of tools, and `schemas` the characters and bytes of all that defines them
    choice    which tools must be called: none, auto, required, named
    format    text, json_object or json_schema, and `schema` the names and values in the schema
    strict    a schema must hold in every keyword
    labels    whether the schema, or what else restricts the answer, is a choice among given labels
    limit     the most tokens of the answer; None: it names none
    suffix    the text after the gap
    own       names of fields that are given in the `daguerre` object, or are of our own requests
    """

    operation: str
    turns: tuple[ParsedMessage, ...]
    tools: tuple[str, ...] = ()
    described: str = ""
    choice: str = "auto"
    format: str = "text"
    schema: str = ""
    size: tuple[int, int] = (0, 0)
    strict: bool = False
    labels: bool = False
    images: int = 0
    logprobs: bool = False
    limit: int | None = None
    suffix: str = ""
    own: frozenset[str] = frozenset()
    stream: bool = False

    def of(self, *roles: str) -> list[str]:
        """The texts of some roles."""
        return [turn.text for turn in self.turns if turn.role in roles]


OWN = ("pins", "spans", "lines", "gaps", "template", "pattern", "strength", "questions", "kind")
"""Fields of our own requests."""


def read(operation: str, body: object) -> ParsedRequest:
    """The reading of a body."""
    given = body if isinstance(body, dict) else {}
    turns, images = _turns(given)
    if operation in ("decisions", "embeddings"):
        turns += [
            ParsedMessage(role="user", text=" ".join(strings(given.get(name)))) for name in ("state", "questions")
        ]
    tools = [one for name in ("tools", "functions") for one in dicts(given.get(name))]
    functions = [as_object(one.get("function")) or one for one in tools]
    format_, schema, strict, labels = _format(given)
    sizes = [sized(strings(one)) for one in (*tools, schema)]
    own = as_object(given.get("daguerre"))
    return ParsedRequest(
        operation=operation,
        turns=tuple(turn for turn in turns if turn.text or turn.calls or turn.role != "system"),
        tools=tuple(as_text(one.get("name")) for one in functions),
        described=" ".join(as_text(one.get("description")) for one in functions),
        choice=_choice(given),
        format=format_,
        schema=" ".join(strings(schema)),
        size=(sum(size[0] for size in sizes), sum(size[1] for size in sizes)),
        strict=strict or any(one.get("strict") is True for one in functions),
        labels=labels or bool(own.get("choices")),
        images=images,
        logprobs=_logprobs(given),
        limit=0 if operation in ("embeddings", "decisions") else _limit(given),
        suffix=as_text(given.get("suffix")) or as_text(given.get("input_suffix")),
        own=frozenset(str(name) for name, value in own.items() if value not in (None, False, [], {}))
        | {name for name in OWN if given.get(name)},
        stream=given.get("stream") is True or given.get("diffusing") is True,
    )


def strings(value: object) -> list[str]:
    """All strings and keys in a JSON value, in no promised order of depth."""
    out, left = list[str](), [value]
    while left:
        one = left.pop()
        if isinstance(one, str):
            out.append(one)
        elif isinstance(one, dict):
            for name, held in one.items():
                out.append(str(name))
                left.append(held)
        elif isinstance(one, list):
            left += reversed(one)
        elif one is not None:
            out.append(str(one)[:32] if not isinstance(one, int) else "0")
    return out


def sized(texts: Iterable[str]) -> tuple[int, int]:
    """Characters and bytes of UTF-8, with three characters of JSON around each text."""
    chars = extra = 0
    for text in texts:
        chars += len(text) + 3
        extra += 0 if text.isascii() else len(text.encode("utf-8", "surrogatepass")) - len(text)
    return chars, chars + extra


def as_object(value: object) -> dict[str, Any]:
    """An object in a JSON value; an empty one where it is none."""
    return value if isinstance(value, dict) else {}


def dicts(value: object) -> list[dict[str, Any]]:
    """The objects in a list of JSON values; none where it is no list."""
    return [one for one in as_list(value) if isinstance(one, dict)]


def as_list(value: object) -> list[Any]:
    """The same of a list."""
    return value if isinstance(value, list) else []


def as_text(value: object) -> str:
    """The same of a text."""
    return value if isinstance(value, str) else ""


def _turns(body: dict[str, Any]) -> tuple[list[ParsedMessage], int]:
    """Messages of all surfaces, and how many images they have."""
    out, images = list[ParsedMessage](), 0
    for name in ("system", "instructions"):
        text, _ = _content(body.get(name))
        out.append(ParsedMessage(role="system", text=text))
    for name in ("messages", "input", "prompt", "input_prefix", "text", "template", "prefix"):
        value = body.get(name)
        if name == "text" and isinstance(value, dict):
            continue
        several = dicts(value)
        if value and not several:
            out.append(ParsedMessage(role="user", text=_prompt(value)))
        for one in several:
            turn, num = _turn(one)
            out.append(turn)
            images += num
    return out, images


def _turn(item: dict[str, Any]) -> tuple[ParsedMessage, int]:
    kind, role = item.get("type"), as_text(item.get("role"))
    if kind in CALLS:
        return ParsedMessage(
            role="assistant", text=f"{as_text(item.get('name'))} {as_text(item.get('arguments'))}", calls=1
        ), 0
    if kind in RESULTS or role in ("tool", "function"):
        text, images = _content(item.get("output", item.get("content")))
        return ParsedMessage(role="tool", text=text), images
    text, images = _content(item.get("content", item.get("text")))
    calls = dicts(item.get("tool_calls"))
    functions = [as_object(call.get("function")) for call in calls]
    called = [f"{as_text(one.get('name'))} {as_text(one.get('arguments'))}" for one in functions]
    role = "system" if role in SYSTEM else role if role == "assistant" else "user"
    return ParsedMessage(role=role, text=" ".join([text, *called]).strip(), calls=len(calls)), images


def _content(value: object) -> tuple[str, int]:
    """The text of a content, and how many images it has."""
    if isinstance(value, str):
        return value, 0
    parts = dicts(value) if isinstance(value, list) else dicts([value])
    texts = [as_text(part.get("text")) or as_text(part.get("content")) for part in parts]
    texts += [one for one in value if isinstance(one, str)] if isinstance(value, list) else []
    return "\n".join(text for text in texts if text), sum(part.get("type") in IMAGES for part in parts)


def _prompt(value: object) -> str:
    """A prompt: a text, several, or tokens, each of which stands for four characters."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        return " ".join(strings(value))
    return "\n".join(
        one if isinstance(one, str) else "0000" * (len(one) if isinstance(one, list) else 1) for one in value
    )


def _choice(body: dict[str, Any]) -> str:
    choice = body.get("tool_choice", body.get("function_call"))
    if isinstance(choice, dict):
        kind = choice.get("type")
        return "required" if kind == "any" else kind if kind in ("auto", "none") else "named"
    return {"none": "none", "required": "required", "any": "required"}.get(as_text(choice), "auto")


def _format(body: dict[str, Any]) -> tuple[str, object, bool, bool]:
    """The format of the answer, its schema, whether that is strict, and whether it is a choice of labels alone."""
    wanted = as_object(body.get("response_format")) or as_object(as_object(body.get("text")).get("format"))
    kind = wanted.get("type")
    if kind not in ("json_object", "json_schema"):
        return "text", None, False, False
    held = as_object(wanted.get("json_schema")) or wanted
    schema = as_object(held.get("schema"))
    fields = [one for one in as_object(schema.get("properties")).values() if isinstance(one, dict)]
    texts = [one for one in fields if one.get("type") == "string" and "enum" not in one]
    labels = any("enum" in one or "$ref" in one or one.get("type") == "boolean" for one in fields) and len(texts) <= 1
    return str(kind), schema, held.get("strict") is True, labels and len(fields) <= 3


def _limit(body: dict[str, Any]) -> int | None:
    """The limit of new tokens that the body names first."""
    for name in ("max_completion_tokens", "max_output_tokens", "max_tokens", "n_predict"):
        value = body.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return None


def _logprobs(body: dict[str, Any]) -> bool:
    """Whether logprobs are asked for: true in chat, a number in completions."""
    value, top = body.get("logprobs"), body.get("top_logprobs")
    counts = value is True or (isinstance(value, int) and not isinstance(value, bool))
    included = body.get("include")
    named = isinstance(included, list) and "message.output_text.logprobs" in [one for one in included if one]
    return counts or bool(top) or named
