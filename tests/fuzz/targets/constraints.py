"""Schemas, patterns, grammars and tools: a text that an automaton accepts is what it promises."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from daguerre.errors import InputError
from daguerre.models.tokenizer import Tokenizer
from daguerre.sampling.constraints import Budget, TokenAutomaton, compile_grammar, compile_regex, compile_schema
from daguerre.sampling.constraints.compile import compile_tools
from fuzz.target import Run, Target

SECONDS = 1.0
"""The budget of a compilation."""
SCHEMAS: tuple[Any, ...] = (
    {"type": "object", "properties": {"name": {"type": "string"}, "size": {"type": "integer"}}, "required": ["name"]},
    {"type": "array", "items": {"type": "number", "minimum": 0, "maximum": 10}, "minItems": 1, "maxItems": 3},
    {"enum": ["a", 1, None, True, {"a": [1]}]},
    {"const": "x"},
    {"anyOf": [{"type": "string", "pattern": "^[a-z]+$"}, {"type": "null"}]},
    {"oneOf": [{"type": "integer", "multipleOf": 3}, {"type": "boolean"}]},
    {"allOf": [{"type": "object", "required": ["a"]}, {"properties": {"a": {"const": 1}}, "maxProperties": 2}]},
    {"$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}}, "$ref": "#/$defs/node"},
    {"type": "object", "additionalProperties": {"type": "string", "maxLength": 5}, "minProperties": 1},
    {"type": "object", "patternProperties": {"^x": {"type": "integer"}}, "propertyNames": {"maxLength": 4}},
    {"type": "string", "format": "date-time", "minLength": 3},
    {"type": ["string", "integer"], "not": {"const": "no"}},
    {"if": {"properties": {"a": {"const": 1}}}, "then": {"required": ["b"]}, "else": {"required": ["c"]}},
    {"type": "object", "dependentRequired": {"a": ["b"]}, "properties": {"a": {}, "b": {"type": "integer"}}},
    {"prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False, "uniqueItems": True},
    {"type": "array", "contains": {"const": 1}, "minContains": 1, "maxContains": 2, "maxItems": 3},
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "definitions": {"a": {"type": "string"}},
        "$ref": "#/definitions/a",
    },
    {"$id": "http://a/b", "type": "object", "properties": {"a": {"$id": "c", "type": "integer"}, "b": {"$ref": "c"}}},
    {"type": "integer", "exclusiveMinimum": -5, "exclusiveMaximum": 1e3},
    {"type": "object", "required": ["a", "b"], "maxProperties": 2, "title": "t", "nullable": True},
)
PATTERNS: tuple[str, ...] = (
    *("[a-z]+@[a-z]+\\.(com|org)", "(a|b)*abb", "\\d{3}-\\d{4}", "^\\w+\\s\\S*$", '[^\\n"\\\\]*', "(?:x{2,5}y?)+"),
    *(".*", "(a{1,10}){1,10}", "\\p{L}+", "\\u00e9|\\x41", "a??b*?", "[\\]\\[^-]", "(?P<n>a)", "(?i)ab", "\\bfoo\\b"),
    *(
        "(?=a)b",
        "[a-\\d]",
        "",
        "a||b",
        "[^]a]",
        "\\Q.\\E",
        "(?<!a)b",
        "é{0,3}🙂?",
        "\\.\\*\\+",
        "[+\\-]?(0|[1-9]\\d*)(\\.\\d+)?",
    ),
)
GRAMMARS: tuple[Any, ...] = (
    {"start": "sum", "rules": {"sum": "(?&term)(\\+(?&term))*", "term": "\\d+|\\((?&sum)\\)"}, "depth": 2},
    {"start": "a", "rules": {"a": "x(?&a)?y"}},
)
TOOLS: tuple[Any, ...] = (
    {"tools": [{"name": "find", "parameters": SCHEMAS[0]}, {"name": "stop", "parameters": {"type": "object"}}]},
    {"tools": [{"name": "f", "description": "d", "parameters": SCHEMAS[6]}], "choice": "required", "parallel": False},
    {"tools": [{"name": "f", "parameters": True}], "choice": "f", "text": {"type": "string"}},
    {"tools": [{"type": "function", "function": {"name": "g", "parameters": SCHEMAS[0]}}], "lenient": True},
)


def drawn(automaton: TokenAutomaton, tokenizer: Tokenizer, random: Random, most: int = 60) -> bytes | None:
    """A text that the automaton accepts, of random tokens; None where it is long."""
    state, tokens = 0, list[int]()
    while not (automaton.accept[state] and (random.random() < 0.2 or not len(automaton.next_classes(state)))):
        classes = automaton.next_classes(state)
        if len(tokens) == most or not len(classes):
            return None
        token = int(automaton.tokens_of(int(random.choice(classes)))[0])
        tokens, state = [*tokens, token], automaton.step(state, token)
    assert automaton.accepts(tokens)
    return tokenizer.decode_bytes(tokens)


def loaded(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise InputError("not JSON") from None


def schema() -> Run:
    import jsonschema

    tokenizer = Tokenizer.default("2k")

    def run(data: bytes) -> None:
        value, random = loaded(data), Random(len(data))
        automaton = compile_schema(value, tokenizer, lenient=random.random() < 0.5, budget=Budget(seconds=SECONDS))
        for _ in range(3):
            text = drawn(automaton, tokenizer, random)
            if text is None:
                continue
            written = json.loads(text.decode())
            if not automaton.ignored:
                check(jsonschema, value, written)

    return run


def check(jsonschema: Any, value: Any, written: Any) -> None:
    """What is written is valid, as far as an independent judge can say: some schemas it cannot read, as OpenAPI's."""
    if '"nullable": true' in json.dumps(value):
        return
    try:
        kind = jsonschema.validators.validator_for(value, default=jsonschema.Draft202012Validator)
        kind.check_schema(value)
        errors = [error.message for error in kind(value).iter_errors(written)]
    except Exception:
        return
    assert not errors, f"{written!r:.200} is written and not valid: {errors[0]:.200}"


def pattern() -> Run:
    tokenizer = Tokenizer.default("2k")

    def run(data: bytes) -> None:
        automaton = compile_regex(data.decode("utf-8", "surrogateescape"), tokenizer, budget=Budget(seconds=SECONDS))
        text = drawn(automaton, tokenizer, Random(len(data)))
        assert text is None or isinstance(text.decode(), str)

    return run


def grammar() -> Run:
    tokenizer = Tokenizer.default("2k")

    def run(data: bytes) -> None:
        value = loaded(data)
        rules, start = (value.get("rules"), value.get("start")) if isinstance(value, dict) else (None, None)
        if isinstance(rules, dict) and isinstance(start, str) and all(isinstance(rule, str) for rule in rules.values()):
            compile_grammar(rules, start, tokenizer, depth=2, budget=Budget(seconds=SECONDS))

    return run


def tools() -> Run:
    """As a request asks for them: `Decode` has checked the types."""
    from daguerre.decoding.request import Decode

    tokenizer = Tokenizer.default("2k")

    def run(data: bytes) -> None:
        value = loaded(data)
        if isinstance(value, dict):
            given = {"choice": "tool_choice", "parallel": "parallel_calls", "text": "schema"}
            decode = Decode(**{given.get(name, name): one for name, one in value.items()})
            if decode.language[0] == "tools":
                kinds = decode.language[1]
                compile_tools(**kinds, lenient=decode.lenient, tokenizer=tokenizer, budget=Budget(seconds=SECONDS))

    return run


def encoded(values: Sequence[Any]) -> Callable[[], list[bytes]]:
    return lambda: [json.dumps(value).encode() for value in values]


TARGETS = (
    Target(name="schema", make=schema, seeds=encoded(SCHEMAS), cases=120),
    Target(name="pattern", make=pattern, seeds=lambda: [one.encode() for one in PATTERNS], cases=150),
    Target(name="grammar", make=grammar, seeds=encoded(GRAMMARS), cases=40),
    Target(name="tools", make=tools, seeds=encoded(TOOLS), cases=40),
)
