"""Text, or calls: one language in which a reader can tell them apart."""

from __future__ import annotations

from typing import Any

import pytest

from daguerre.errors import InputError, UnsupportedError
from daguerre.models.tokenizer import Tokenizer
from daguerre.sampling.constraints import compile_tools
from daguerre.sampling.constraints.tokens import TokenAutomaton

WEATHER: dict[str, Any] = {
    "name": "weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 14}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
NOW: dict[str, Any] = {"name": "now"}
CALL = '<tool_call>{"name":"weather","arguments":{"city":"Oslo","days":3}}</tool_call>'
EMPTY = '<tool_call>{"name":"now","arguments":{}}</tool_call>'


def accepts(automaton: TokenAutomaton, tokenizer: Tokenizer, text: str) -> bool:
    return automaton.accepts(tokenizer.encode(text))


def test_text_or_one_or_more_calls(tokenizer: Tokenizer) -> None:
    automaton = compile_tools([WEATHER, NOW], tokenizer)

    for text in ("", "It is cold. <tool> 日本", CALL, CALL + EMPTY + CALL):
        assert accepts(automaton, tokenizer, text)
    for text in (CALL[:-1], "See: " + CALL, CALL + "done", CALL.replace("3", "15"), CALL.replace("weather", "moon")):
        assert not accepts(automaton, tokenizer, text)


def test_required_leaves_out_the_text_and_a_name_asks_for_one_call(tokenizer: Tokenizer) -> None:
    required = compile_tools([WEATHER, NOW], tokenizer, choice="required")
    named = compile_tools([WEATHER, NOW], tokenizer, choice="now")

    assert accepts(required, tokenizer, CALL + EMPTY) and not accepts(required, tokenizer, "text")
    assert accepts(named, tokenizer, EMPTY)
    assert not any(accepts(named, tokenizer, text) for text in (CALL, EMPTY + EMPTY, ""))


def test_tools_in_the_shape_of_openai_are_the_same_language(tokenizer: Tokenizer) -> None:
    wrapped = [{"type": "function", "function": tool} for tool in (WEATHER, {**NOW, "parameters": None})]
    automaton = compile_tools(wrapped, tokenizer)

    for text in ("text", CALL, EMPTY, CALL + EMPTY):
        assert accepts(automaton, tokenizer, text)
    assert not accepts(automaton, tokenizer, CALL.replace("3", "15"))
    for odd in ({"type": "web_search"}, {"type": "function", "function": "now"}):
        with pytest.raises(InputError, match="a tool must be"):
            compile_tools([odd], tokenizer)


def test_none_leaves_out_the_calls(tokenizer: Tokenizer) -> None:
    automaton = compile_tools([NOW], tokenizer, choice="none")
    formatted = compile_tools([NOW], tokenizer, choice="none", text={"type": "integer"})

    assert accepts(automaton, tokenizer, "text") and not accepts(automaton, tokenizer, EMPTY)
    assert accepts(formatted, tokenizer, "12") and not accepts(formatted, tokenizer, "text")


def test_without_parallel_calls_there_is_at_most_one(tokenizer: Tokenizer) -> None:
    auto = compile_tools([WEATHER, NOW], tokenizer, parallel=False)
    required = compile_tools([WEATHER, NOW], tokenizer, choice="required", parallel=False)

    for automaton in (auto, required):
        assert accepts(automaton, tokenizer, CALL) and accepts(automaton, tokenizer, EMPTY)
        assert not accepts(automaton, tokenizer, CALL + EMPTY)
    assert accepts(auto, tokenizer, "text") and not accepts(required, tokenizer, "text")


def test_the_text_may_be_json_of_a_schema(tokenizer: Tokenizer) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "faker": 1}
    schema["additionalProperties"] = False
    automaton = compile_tools([NOW], tokenizer, text=schema, lenient=True)

    for text in ('{"a":3}', EMPTY, EMPTY + EMPTY):
        assert accepts(automaton, tokenizer, text)
    for text in ("", "text", "{}", '{"a":3}' + EMPTY, EMPTY + '{"a":3}'):
        assert not accepts(automaton, tokenizer, text)
    assert automaton.ignored == ("keyword 'faker' at #",)


def test_other_marks_may_stand_around_calls(tokenizer: Tokenizer) -> None:
    automaton = compile_tools([NOW], tokenizer, marks=("[[", "]]"))

    assert accepts(automaton, tokenizer, '[[{"name":"now","arguments":{}}]]')
    assert accepts(automaton, tokenizer, "a[b]") and not accepts(automaton, tokenizer, "a[[b]")


def test_what_is_wrong_with_a_function_is_said_with_its_name(tokenizer: Tokenizer) -> None:
    odd = [{"name": "f", "parameters": {"type": "object", "faker": 1}}]
    with pytest.raises(UnsupportedError, match=r"function 'f': .* 'faker' at #"):
        compile_tools(odd, tokenizer, strict=True)
    assert compile_tools(odd, tokenizer).ignored == ("keyword 'faker' at # of f",)
    with pytest.raises(InputError, match="unknown function 'nov': did you mean 'now'"):
        compile_tools([NOW], tokenizer, choice="nov")
    for tools in ([NOW, NOW], [{"name": "auto"}], [{"name": "none"}], [{}], [{"function": {}}]):
        with pytest.raises(InputError, match="needs a different name"):
            compile_tools(tools, tokenizer)
    with pytest.raises(InputError, match="nothing to call"):
        compile_tools([], tokenizer)
