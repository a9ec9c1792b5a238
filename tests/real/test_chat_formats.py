"""How calls are written by the models of published chat templates: written, read back, held by a constraint; and the
answers that llama.cpp's own tests read.

Templates that write no calls and are in no table are named.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from daguerre.errors import InputError
from daguerre.models.chat_format.chat_format import ChatFormat
from daguerre.models.chat_format.description import Format
from daguerre.models.chat_format.marks import MARK
from daguerre.models.chat_format.named import ASSUMED
from daguerre.models.chat_format.news import message_of
from daguerre.models.chat_format.readers import reader_of
from daguerre.models.gguf.header import read_header
from daguerre.models.gguf.tokenizer import gguf_tokenizer, tokenizer_config
from daguerre.models.published_tokenizer import PublishedTokenizer
from daguerre.sampling.constraints.answers import answer_dfa, code_of, coded
from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.call_arguments import ArgumentLanguage
from daguerre.sampling.constraints.tokens import TokenAutomaton, VocabularyBytes, lift
from real.conftest import FULL, some
from real.files import bring_llama_cpp_files
from real.peer_answers import Case, Name, cases, tool

NUM_TEMPLATES = 71
NO_CALLS = ("SmolLM3", "gemma-2", "granite-3.3", "rwkv", "Phi-3.5")
"""Of the templates that write no calls and whose models are in no table, what is in the name."""
RIGHT_ANSWERS = 397
PROPERTIES: dict[str, Any] = {
    "place": {"type": "string", "description": "A place."},
    "num": {"type": "integer", "description": "A number."},
    "ratio": {"type": "number", "description": "A number."},
    "on": {"type": "boolean", "description": "Whether."},
    "note": {"type": ["string", "null"], "description": "A note."},
    "none": {"type": "null", "description": "Nothing."},
    "opt": {"type": "object", "additionalProperties": True, "description": "Options."},
    "items": {"type": "array", "items": {"type": "string"}, "description": "Items."},
}
PLAIN = {"type": "object", "additionalProperties": {"type": "string"}, "description": "Options."}
SIMPLER = {"note": {"type": "string", "description": "A note."}, "opt": PLAIN}
"""For templates that describe types as Python's, and know no lists of types."""
NESTED = {
    "place": "Ro\"me's\n 'x' \\n <b> 😀 {é}",
    "num": 3,
    "ratio": 2.5,
    "on": True,
    "opt": {"a": [1, None, True, "q\"'\n"], "b": {"c": "😀"}},
    "items": ["x", "y, z"],
}


def tools_with(properties: dict[str, Any]) -> list[dict[str, Any]]:
    parameters = {"type": "object", "additionalProperties": False, "properties": properties, "required": ["place"]}
    return [
        {"type": "function", "function": {"name": name, "description": "Does it.", "parameters": parameters}}
        for name in ("set_alarm", "get_weather", "find-it")
    ]


def call(name: str, arguments: Any, number: int = 0) -> dict[str, Any]:
    given = json.dumps(arguments, ensure_ascii=False)
    return {"id": f"abcdef12{number}", "type": "function", "function": {"name": name, "arguments": given}}


CALLS = [
    call("set_alarm", NESTED),
    call("get_weather", {"place": "2"}, 1),
    call("find-it", {"place": "x = {1: 2}\n\n  y\n", "num": -7, "items": [], "opt": {}}, 2),
]
MESSAGES = [
    {"content": "", "tool_calls": CALLS[:1]},
    {"content": "", "tool_calls": CALLS},
    {"content": "Sure, I do.", "tool_calls": CALLS[:1]},
    {"content": "", "tool_calls": CALLS[:1], "reasoning_content": "I think\nso."},
    {"content": "Well.", "reasoning_content": "I think\nso."},
    {"content": "Hello, world!\nWhat's up?"},
    {"content": "", "tool_calls": [call("set_alarm", {"place": "a", "none": None, "note": None, "opt": {"a": None}})]},
    {"content": "", "tool_calls": [call("set_alarm", {})]},
]


@cache
def formats() -> dict[str, ChatFormat]:
    """The formats of all templates, by name."""
    out = {}
    for path in sorted((bring_llama_cpp_files() / "models/templates").glob("*.jinja")):
        form = ChatFormat(path.read_text("utf-8"), bos_token="<BOS>", eos_token="<EOS>")
        _ = form.form
        out[path.stem] = form
    return out


def with_calls() -> dict[str, ChatFormat]:
    return {name: form for name, form in formats().items() if form.form.source != ASSUMED}


def plain(message: dict[str, Any]) -> tuple[str, str, list[tuple[str, Any]]]:
    calls = [one["function"] for one in message.get("tool_calls") or ()]
    made = [(one["name"], json.loads(one["arguments"])) for one in calls]
    return message.get("content") or "", message.get("reasoning_content") or "", made


def tools_for(form: ChatFormat) -> list[dict[str, Any]]:
    tools = tools_with(PROPERTIES)
    try:
        form.write(MESSAGES[0], tools)
    except InputError:
        return tools_with({key: one for key, one in (PROPERTIES | SIMPLER).items() if key != "none"})
    return tools


def written_alike(form: ChatFormat, one: dict[str, Any], other: dict[str, Any], tools: list[dict[str, Any]]) -> bool:
    """Whether the template writes two messages alike."""
    try:
        return form.write(one, tools) == form.write(other, tools)
    except InputError:
        return False


def test_most_templates_show_how_calls_are_written() -> None:
    assert len(formats()) == NUM_TEMPLATES
    without = formats().keys() - with_calls().keys()
    assert len(without) == len(NO_CALLS) and all(any(one in name for name in without) for one in NO_CALLS), without


def test_what_is_written_is_read_back_whole_and_cut_anywhere(subtests: pytest.Subtests) -> None:
    """Of every template: whatever it tells apart. In CI, texts are cut at some places only."""
    for name, form in with_calls().items():
        tools = tools_for(form)
        for message in MESSAGES:
            if len(message.get("tool_calls", ())) > 1 and not (form.form.calls and form.form.calls.several):
                continue
            with subtests.test(template=name, message=message):
                text = form.write(message, tools)
                whole = form.read(text, tools)
                back = [call(*one, number=at) for at, one in enumerate(plain(whole)[2])]
                assert plain(whole) == plain(message) or written_alike(
                    form, whole | {"tool_calls": back}, message, tools
                )
                for cut in range(1, len(text), some(1, 41)):
                    reader = form.reader(tools)
                    pieces = [*reader.feed(text[:cut]), *reader.feed(text[cut:], last=True)]
                    assert plain(message_of(pieces)) == plain(whole)


# constraints

HELD: dict[str, Any] = {
    "type": "object",
    "properties": {
        "place": {"type": "string", "maxLength": 12, "description": "A place."},
        "num": {"type": "integer", "minimum": 0, "maximum": 99, "description": "A number."},
        "kind": {"enum": ["a b", "c'd"], "type": "string", "description": "A kind."},
        "on": {"type": "boolean", "description": "Whether."},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 5}, "maxItems": 2, "description": "Tags."},
        "opt": {
            "type": "object",
            "properties": {"deep": {"type": "string", "maxLength": 4}, "n": {"type": ["number", "null"]}},
            "required": ["deep"],
            "additionalProperties": False,
            "description": "Options.",
        },
    },
    "required": ["place", "opt"],
    "additionalProperties": False,
}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
SCHEMAS = {"set_alarm": HELD, "get-time": NOTHING}
FUNCTIONS = [
    {"type": "function", "function": {"name": name, "description": "Does it.", "parameters": schema}}
    for name, schema in SCHEMAS.items()
]


@cache
def qwen2() -> list[bytes]:
    """The bytes of Qwen2's tokens."""
    header = read_header(bring_llama_cpp_files() / "models/ggml-vocab-qwen2.gguf")
    content, config = gguf_tokenizer(header, tokenizer_config(header)) or ("", {})
    tokenizer = PublishedTokenizer(content, config)
    return [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]


def texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif dataclasses.is_dataclass(value):
        yield from (text for each in dataclasses.fields(value) for text in texts_in(getattr(value, each.name)))
    elif isinstance(value, dict):
        yield from (text for held in value.values() for text in texts_in(held))
    elif isinstance(value, tuple):
        yield from (text for held in value for text in texts_in(held))


def automaton_of(form: Format, choice: str, thinks: str | None, special: dict[str, int]) -> TokenAutomaton:
    budget = Budget()
    spelled = partial(coded, special=special)
    tools = {name: ArgumentLanguage(schema, 3, budget, {}, spelled) for name, schema in SCHEMAS.items()}
    dfa = answer_dfa(form, tools, choice, special, budget, thinks=thinks)
    texts = [b"" if b"\xff" in text else text for text in qwen2()]
    return lift(dfa, VocabularyBytes.of(texts + [code_of(token) for token in special.values()]), budget)


class Walks:
    """Random texts of an automaton, which end soon after so many tokens."""

    def __init__(self, automaton: TokenAutomaton, rng: random.Random) -> None:
        self.automaton, self.rng, pairs = automaton, rng, automaton.pairs
        self.far = np.where(automaton.accept, 0, 10**6)
        while True:
            nearer = self.far.copy()
            np.minimum.at(nearer, pairs.src, self.far[pairs.dst] + 1)
            if (nearer == self.far).all():
                break
            self.far = nearer

    def walk(self) -> list[int]:
        pairs, state, tokens, most = self.automaton.pairs, 0, list[int](), self.rng.choice([5, 20, 60])
        while not (self.automaton.accept[state] and (len(tokens) > most or self.rng.random() < 0.1)):
            options = range(pairs.first[state], pairs.first[state + 1])
            if not options:
                break
            if len(tokens) > most:
                nearest = min(self.far[pairs.dst[one]] for one in options)
                options = [one for one in options if self.far[pairs.dst[one]] == nearest]
            chosen = self.rng.choice(options)
            bundle = pairs.bundle[chosen]
            classes = pairs.classes[pairs.starts[bundle] : pairs.starts[bundle + 1]]
            held = self.automaton.tokens_of(int(self.rng.choice(classes)))
            tokens.append(int(held[self.rng.randrange(len(held))]))
            state = int(pairs.dst[chosen])
        return tokens


def test_random_texts_of_the_constraint_are_read_as_valid_calls(subtests: pytest.Subtests) -> None:
    """In each template's format, with its marks as single tokens; 100 texts of each, in CI a few of some."""
    rng, every = random.Random(1), with_calls()
    for name in every if FULL else list(every)[::6]:
        form = every[name].form
        marks = sorted(
            {
                found[0]
                for text in texts_in(dataclasses.replace(form, header="", source=""))
                for found in MARK.finditer(text)
            }
        )
        special = {mark: len(qwen2()) + place for place, mark in enumerate(marks)}
        names = {token: mark for mark, token in special.items()}
        for choice, thinks in (("auto", "may"), ("required", every[name].thinks()), ("get-time", None)):
            with subtests.test(template=name, choice=choice):
                walks = Walks(automaton_of(form, choice, thinks, special), rng)
                for _ in range(some(34, 5)):
                    written = [names[token].encode() if token in names else qwen2()[token] for token in walks.walk()]
                    text = b"".join(written).decode()
                    news = reader_of(form, FUNCTIONS, thinks or "may").feed(text, last=True)
                    called = plain(message_of(news))[2]
                    for function, arguments in called:
                        jsonschema.validate(arguments, SCHEMAS[function])
                    assert called or choice == "auto"
                    assert choice != "get-time" or called == [("get-time", {})]


# answers that another program reads


def read_as_theirs(case: Case, form: ChatFormat) -> bool:
    """Whether a case is read as it should be. Arguments are compared as JSON; of a case that is cut, one beginning is
    compared with the other. Where thoughts are to stay in the text, they are not read apart.
    """
    tools = [tool(one) for one in case.one("tools", [])]
    thinks = case.one("enable_thinking", True)
    question, found = [{"role": "user", "content": "Hey there!"}], form.form
    probe = form._probe
    try:
        prompt, without = (probe.render(question, tools, begins, enable_thinking=thinks) for begins in (True, False))
    except InputError:  # without tools
        prompt, without = probe.prompt(), ""
    state, text, begun = form.thinks(prompt), case.text, ""
    if case.one("reasoning_format", Name("_NONE")).text.endswith("_NONE") and found.thinking is not None:
        own = prompt.removeprefix(without)
        place = own.rfind(found.thinking.open) if found.thinking.open else -1
        unread = place >= 0 and found.thinking.close not in own[place:] and found.thinking.close in text
        begun, found = own[place:] if unread else "", dataclasses.replace(found, thinking=None)
    if (filling := case.one("continue_final_message")) is not None:
        begun, text, state = "", _continued(case, form, filling.text, tools) + text, form.thinks()
    cut = case.one("is_partial", False)
    reader = reader_of(found, tools or None, state, calls=bool(tools))
    read, wanted = message_of(reader.feed(begun + text, last=not cut)), case.expected
    calls = [(one["function"]["name"], one["function"]["arguments"]) for one in read.get("tool_calls", ())]
    said = (read["content"], read.get("reasoning_content", ""), [name for name, _ in calls])
    alike = said == (wanted["content"], wanted["reasoning"], [name for name, _ in wanted["calls"]])
    return alike and all(_same(one[1], other[1], cut) for one, other in zip(calls, wanted["calls"], strict=True))


def _continued(case: Case, form: ChatFormat, kind: str, tools: list[dict[str, Any]]) -> str:
    """What an answer goes on from, as the model would have written it."""
    begun = case.one("messages")[-1]
    filled = begun["reasoning"] if kind.endswith("REASONING") or not begun["content"] else begun["content"]
    text = form.write({"content": begun["content"], "reasoning_content": begun["reasoning"]}, tools or None)
    return text[: text.rindex(filled) + len(filled)] if filled in text else filled


def _same(one: str, other: str, cut: bool) -> bool:
    try:
        return bool(json.loads(one or "{}") == json.loads(other or "{}"))
    except ValueError:
        one, other = "".join(one.split()), "".join(other.split())
        return cut and (one.startswith(other) or other.startswith(one))


def test_answers_are_read_as_llama_cpp_reads_them(record_property: Any) -> None:
    """A case that is run with several templates counts once, if it is right for all."""
    top, known = bring_llama_cpp_files(), dict[str, ChatFormat]()
    right, wrong = 0, list[str]()
    for case in cases(top / "tests/test-chat.cpp"):
        good = bool(case.templates)
        for path in case.templates:
            try:
                form = known.setdefault(path, ChatFormat((top / path).read_text("utf-8")))
                good = good and read_as_theirs(case, form)
            except InputError:  # a template that cannot be rendered
                good = False
        right += good
        wrong += [] if good else [f"{case.line} {Path(case.templates[0]).stem if case.templates else ''}"]
    record_property("right", right)
    assert right >= RIGHT_ANSWERS, f"{right} are right, and these are not: {wrong}"
