"""Published chat templates, as llama.cpp collects them: conversations as the server sends them, beside transformers.

Of 71 templates with 8 conversations each, 548 of 568 are rendered. Of these transformers renders 538, to the same text.
The other ten it renders once it is allowed what those templates ask for (ALLOWED), again to the same text. The rest
belongs to templates for conversations with tools (NEEDS_TOOLS), which render nothing without, there as here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from daguerre.errors import InputError
from daguerre.models.chat_messages import fitted
from daguerre.models.chat_template import ChatTemplate
from daguerre.server.prompts import checked, make_prompt
from real.files import bring_llama_cpp_files

Json = dict[str, Any]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
NOW = datetime(2026, 11, 29, 8, 30)
TEXT = {"type": "string", "description": "The city's name."}
DAYS = {"type": "integer", "description": "How many."}
PARAMETERS = {"type": "object", "properties": {"city": TEXT, "days": DAYS}, "required": ["city"]}
FUNCTION = {"name": "weather", "description": "The weather of a city.", "parameters": PARAMETERS}
TOOLS = [{"type": "function", "function": FUNCTION}]
USER: Json = {"role": "user", "content": "Hi"}
ANSWER: Json = {"role": "assistant", "content": "Hello!"}


def called(arguments: object) -> list[Json]:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "Sunny"}
    return [{"role": "user", "content": "The weather in Paris?"}, said, result]


CONVERSATIONS: dict[str, tuple[list[Json], list[Json]]] = {
    "plain": ([USER], []),
    "system": ([{"role": "system", "content": "Be brief."}, USER], []),
    "turns": (
        [USER, ANSWER, {"role": "user", "content": "And 3 + 3?"}, {"role": "assistant", "content": "6"}, USER],
        [],
    ),
    "tools": ([USER], TOOLS),
    "object": (called({"city": "Paris", "days": 2}), TOOLS),
    "string": (called('{"city": "Paris", "days": 2}'), TOOLS),
    "thinking": ([USER, {**ANSWER, "reasoning_content": "They greet me."}, USER], []),
    "parts": ([{"role": "user", "content": [{"type": "text", "text": "Hi "}, {"type": "text", "text": "you"}]}], []),
}
NEEDS_TOOLS = {
    "CohereForAI-c4ai-command-r-plus-tool_use": "it runs over tools",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": "it runs over tools",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "it runs over tools",
    "fireworks-ai-llama-3-firefunction-v2": "it writes functions, a text",
}
"""Templates that have nothing without tools, and why."""
WITHOUT_TOOLS = [name for name, (_, tools) in CONVERSATIONS.items() if not tools]
ALLOWED = {
    "Kimi-K2-Instruct": ("object", "string"),  # a list of its own grows
    "Kimi-K2-Thinking": ("object", "string"),
    "llama-cpp-deepseek-r1": ("tools", "object", "string"),  # what yields the tools is written as JSON
    "fireworks-ai-llama-3-firefunction-v2": ("tools", "object", "string"),  # functions and datetime are given
}
"""Conversations that transformers refuses, and what they need."""


def sent(template: ChatTemplate, messages: Sequence[Json], tools: Sequence[Json]) -> list[Json]:
    """What the server gives to a template."""
    held = list[Any]()

    def chat_prompt(given: Sequence[Json], **values: Any) -> list[int]:
        held.extend(fitted(given, template.wants(bool(values.get("tools")))))
        return []

    words = SimpleNamespace(chat_template=template, decode_bytes=lambda ids: b"")
    make_prompt(SimpleNamespace(tokenizer=words, chat_prompt=chat_prompt), checked(messages), tools)  # type: ignore[arg-type]
    return held


def of_transformers(source: str, messages: Sequence[Json], tools: Sequence[Json]) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template

    values = {"tools": tools or None, "chat_template": source, "add_generation_prompt": True}
    (text,), _ = render_jinja_template([messages], **values, **TOKENS)
    return str(text)


def of_lenient_transformers(source: str, messages: Sequence[Json], tools: Sequence[Json]) -> str:
    """Its own environment, in which lists may grow and what yields values is written as a list."""
    from transformers.utils.chat_template_utils import _cached_compile_jinja_template

    def tojson(value: Any, indent: int | None = None) -> str:
        listed = value if isinstance(value, Mapping | list | str) else list(value)
        return json.dumps(listed, ensure_ascii=False, indent=indent)

    template = _cached_compile_jinja_template(source)
    template.environment.filters["tojson"] = tojson
    template.environment.is_safe_attribute = lambda *given: True
    more = {"functions": json.dumps(tools, indent=4), "datetime": NOW.strftime("%Y-%m-%d %H:%M:%S")}
    return str(template.render(messages=messages, tools=tools, add_generation_prompt=True, **more, **TOKENS))


def templates() -> list[Path]:
    return sorted((bring_llama_cpp_files() / "models" / "templates").glob("*.jinja"))


def test_what_the_server_sends_is_rendered(subtests: pytest.Subtests) -> None:
    outcomes = dict.fromkeys(("rendered", "needs tools"), 0)
    for path in templates():
        template = ChatTemplate.of(path.read_text(encoding="utf-8"), TOKENS)
        for name, (messages, tools) in CONVERSATIONS.items():
            with subtests.test(f"{path.stem}: {name}"):
                given = sent(template, messages, tools)
                if path.stem in NEEDS_TOOLS and name in WITHOUT_TOOLS:
                    with pytest.raises(InputError, match=r"NoneType|functions"):
                        template.render(given)
                    outcomes["needs tools"] += 1
                else:
                    text = template.render(given, tools or None)
                    assert all(one["content"] in text for one in given if isinstance(one.get("content"), str))
                    outcomes["rendered"] += 1
    assert outcomes == {"rendered": 548, "needs tools": 20}


def test_what_the_server_sends_is_rendered_as_transformers_renders_it(subtests: pytest.Subtests) -> None:
    """About ten seconds: 71 templates are compiled twice."""
    pytest.importorskip("transformers")
    outcomes = dict.fromkeys(("alike", "alike where it is allowed", "needs tools"), 0)
    for path in templates():
        source = path.read_text(encoding="utf-8")
        template = ChatTemplate.of(source, TOKENS)
        for name, (messages, tools) in CONVERSATIONS.items():
            with subtests.test(f"{path.stem}: {name}"):
                given = sent(template, messages, tools)
                if path.stem in NEEDS_TOOLS and name in WITHOUT_TOOLS:
                    with pytest.raises(Exception, match=r"NoneType|functions"):
                        of_transformers(source, given, tools)
                    outcomes["needs tools"] += 1
                    continue
                allowed = name in ALLOWED.get(path.stem, ())
                judge = of_lenient_transformers if allowed else of_transformers
                assert template.render(given, tools or None, now=NOW if allowed else None) == judge(
                    source, given, tools
                )
                outcomes["alike where it is allowed" if allowed else "alike"] += 1
                if allowed:
                    with pytest.raises(Exception, match=r"unsafe|not JSON|functions"):
                        of_transformers(source, given, tools)
    assert outcomes == {"alike": 538, "alike where it is allowed": 10, "needs tools": 20}


def test_what_a_system_says_is_never_lost(subtests: pytest.Subtests) -> None:
    """Alone, before an answer, and before a question, on each template."""
    said: list[Json] = [{"role": "system", "content": "SystemQ"}]
    for path in templates():
        template = ChatTemplate.of(path.read_text(encoding="utf-8"), TOKENS)
        for more in ([], [ANSWER, USER], [USER]):
            with subtests.test(path.stem, more=more):
                text = template.render(sent(template, [*said, *more], TOOLS), TOOLS)
                assert text.count("SystemQ") == 1


SAID = ("SystemQ", "AskedQ", "CityQ", "SunnyQ", "NextQ", "LaterQ")


def test_neither_of_two_calls_at_once_is_lost_nor_its_result(subtests: pytest.Subtests) -> None:
    named = [(f"call_{number}", city) for number, city in enumerate(("ParisQ", "RomeQ"))]
    calls = [
        {"id": key, "type": "function", "function": {"name": "weather", "arguments": json.dumps({"city": city})}}
        for key, city in named
    ]
    results = [{"role": "tool", "tool_call_id": key, "content": f"In {city} it is {key}Q"} for key, city in named]
    messages = [
        {"role": "user", "content": "AskedQ"},
        {"role": "assistant", "content": "", "tool_calls": calls},
        *results,
        {"role": "assistant", "content": "NextQ"},
        {"role": "user", "content": "LaterQ"},
    ]
    said = ("AskedQ", "ParisQ", "RomeQ", "call_0Q", "call_1Q", "NextQ", "LaterQ")
    for path in templates():
        with subtests.test(path.stem):
            template = ChatTemplate.of(path.read_text(encoding="utf-8"), TOKENS)
            text = template.render(sent(template, messages, TOOLS), TOOLS)
            assert [word for word in said if word not in text] == []
            assert text.count("call_1Q") == 1


def test_nothing_that_a_conversation_says_is_lost(subtests: pytest.Subtests) -> None:
    """Two messages of the system, at the beginning and late; a call and its result; on each template."""
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "CityQ"}'}}
    messages = [
        {"role": "system", "content": "SystemQ"},
        {"role": "user", "content": "AskedQ"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "SunnyQ"},
        {"role": "assistant", "content": "NextQ"},
        {"role": "developer", "content": "LaterQ"},
        {"role": "user", "content": "AskedQ"},
    ]
    for path in templates():
        with subtests.test(path.stem):
            template = ChatTemplate.of(path.read_text(encoding="utf-8"), TOKENS)
            text = template.render(sent(template, messages, TOOLS), TOOLS)
            assert [word for word in SAID if word not in text] == []
