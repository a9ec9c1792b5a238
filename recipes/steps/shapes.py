"""Shapes around a labeled request: objects that the answer has to be, and tasks in the middle of a loop of tools.

Every type is wrapped alike, so that a schema, a tool that holds, or DSPy's fields alone say little about the type.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

SPLIT = " ;; "
KINDS = {"number": "number", "integer": "integer", "boolean": "boolean"}
USUAL = "Correctly extracted `{title}` with all the required parameters with correct types"
ENDING = "The final response which ends this conversation"
GIVEN = "request|question|input|text|document|task|message|query|context|code|passage|material|requirements|draft|topic"
TYPES = {"list": "list[str]", "items": "list[dict[str, Any]]", "number": "float", "integer": "int", "boolean": "bool"}
FRAME = """Your input fields are:
1. `{i}` (str):
Your output fields are:
{outputs}
All interactions will be structured in the following way, with the appropriate values filled in.

[[ ## {i} ## ]]
{{i}}

{marks}

[[ ## completed ## ]]
In adhering to this structure, your objective is:
        {aim}"""
FRAMED = """[[ ## {i} ## ]]
{u}

Respond with the corresponding output fields, starting with the field {fields}, and then ending with the marker for \
`[[ ## completed ## ]]`."""
"""The frame of a signature of DSPy's, in the system message and in the user's."""
IN_WORDS = (
    "Answer with a JSON object with the keys {keys}.",
    "Output JSON: {example}",
    "Respond in JSON like {example}.",
    "Return only a JSON object ({keys}).",
    "Format: {example}",
    "Reply as JSON. Keys: {keys}.",
    "As a JSON object with schema:\n```json\n{schema}\n```",
    "The output should be formatted as a JSON instance that conforms to the JSON schema below.\n{schema}",
)


@dataclass(frozen=True)
class Field:
    """A field of an answer: its kind, and the labels it may have."""

    name: str
    kind: str
    labels: tuple[str, ...] = ()

    def schema(self) -> dict[str, Any]:
        if self.kind == "labels":
            return {"enum": list(self.labels), "type": "string"}
        if self.kind in ("list", "items"):
            held = {"$ref": "#/$defs/Item"} if self.kind == "items" else {"type": "string"}
            return {"type": "array", "items": held}
        one = {"type": KINDS.get(self.kind.rstrip("?"), "string")}
        return {"anyOf": [one, {"type": "null"}]} if self.kind.endswith("?") else one

    def type(self) -> str:
        if self.kind == "labels":
            return f"Literal[{', '.join(map(repr, self.labels))}]"
        return TYPES.get(self.kind, "str")


def fields_of(spec: str, labels: str) -> tuple[str, list[Field]]:
    """The class and the fields of an item of answers.toml. labels: what a choice has, as text."""
    title, _, rest = spec.partition(": ")
    names = tuple(one.strip() for one in re.split(r",| or ", labels))
    out = list[Field]()
    for one in rest.split(", "):
        name, _, kind = one.partition(":")
        out.append(Field(name.rstrip("?"), kind or ("text?" if name.endswith("?") else "text"), names))
    return title, out


def schema_of(title: str, fields: list[Field], draw: random.Random) -> dict[str, Any]:
    """A JSON Schema of the fields, in the ways that clients write it."""
    titled, said = draw.random() < 0.5, draw.random() < 0.2
    properties = {}
    for field in fields:
        named = field.name.replace("_", " ")
        more = ({"title": named.title()} if titled else {}) | ({"description": f"The {named}."} if said else {})
        properties[field.name] = field.schema() | more
    out: dict[str, Any] = {"properties": properties, "required": list(properties), "title": title, "type": "object"}
    if any(field.kind == "items" for field in fields):
        held = [Field("name", "text"), Field("details", "text")]
        out = {"$defs": {"Item": schema_of("Item", held, draw)}} | out
    return out | ({"additionalProperties": False} if draw.random() < 0.6 else {})


def wrapped(maker: Any, step: str, system: str, turns: list[tuple[str, str]]) -> tuple[str, dict[str, Any]]:
    """A request whose answer has to be an object, as some client sends it."""
    draw = maker.draw
    own = draw.random() < 0.7
    title, fields = fields_of(
        draw.choice(maker.answers[step if own else "any"]), maker.fill(draw.choice(maker.all("labels")))
    )
    way = draw.choice(("dspy", "dspy", "words", "object", "schema", "schema", "flat", "form", "form", "final"))
    if way == "dspy":
        return "chat", dspy(maker, fields, system, turns)
    if way in ("words", "object"):
        system, turns = in_words(draw, schema_of(title, fields, draw), system, turns)
        held = {"response_format": {"type": "json_object"}} if way == "object" else {}
        return "chat", maker.chat(system, turns, []) | held
    schema = schema_of(title, fields, draw)
    name = draw.choice([title, title, title, "final_output", "response", "result", "output_schema"])
    inner = {"name": name, "schema": schema, "strict": draw.random() < 0.7}
    if way == "schema":
        held = {"response_format": {"type": "json_schema", "json_schema": inner}}
        return "chat", maker.chat(system, turns, []) | held
    if way == "flat":
        return "responses", maker.responses(system, turns, []) | {"text": {"format": {"type": "json_schema", **inner}}}
    named = "final_result" if way == "final" else title
    says = ENDING if way == "final" else draw.choice([USUAL.replace("{title}", title), f"A {title.lower()}.", ""])
    choice: Any = "required" if way == "final" else {"type": "function", "function": {"name": named}}
    body = maker.chat(system, turns, [function(named, says, schema)])
    return "chat", body | {"tool_choice": choice if draw.random() < 0.85 else "auto"}


def in_words(
    draw: random.Random, schema: dict[str, Any], system: str, turns: list[tuple[str, str]]
) -> tuple[str, list[tuple[str, str]]]:
    """The object told in the instructions or in the message."""
    keys = list(schema["properties"])
    example = json.dumps(dict.fromkeys(keys, "..."))
    said = draw.choice(IN_WORDS)
    for mark, text in (("{keys}", ", ".join(keys)), ("{example}", example), ("{schema}", json.dumps(schema))):
        said = said.replace(mark, text)
    if draw.random() < 0.5:
        return f"{system}\n\n{said}".strip(), turns
    who, last = turns[-1]
    return system, [*turns[:-1], (who, f"{last}\n\n{said}" if draw.random() < 0.7 else f"{said}\n\n{last}")]


def dspy(
    maker: Any, fields: list[Field], system: str, turns: list[tuple[str, str]], given: str | None = None
) -> dict[str, Any]:
    """A body as DSPy sends it, of typed fields."""
    draw = maker.draw
    if draw.random() < 0.3 and fields[0].name != "reasoning":
        fields = [Field("reasoning", "text"), *fields]
    given = given or draw.choice(GIVEN.split("|"))
    outputs = "\n".join(f"{num}. `{field.name}` ({field.type()}):" for num, field in enumerate(fields, 1))
    marks = "\n\n".join(f"[[ ## {field.name} ## ]]\n{{{field.name}}}" for field in fields)
    wanted = ", ".join(f"`{field.name}`" for field in fields)
    aim = system or f"Given the fields `{given}`, produce the fields {wanted}."
    asked = ", then ".join(f"`[[ ## {field.name} ## ]]`" for field in fields)
    head, tail = FRAME, FRAMED
    for mark, text in (("{{i}}", f"{{{given}}}"), ("{i}", given), ("{outputs}", outputs), ("{marks}", marks)):
        head, tail = head.replace(mark, text), tail.replace(mark, text)
    head, tail = head.replace("{aim}", aim), tail.replace("{fields}", asked).replace("{u}", turns[-1][1])
    return maker.chat(head, [("user", tail)], [])


@dataclass(frozen=True)
class ToolLoop:
    """A task and its calls of tools: (name, arguments, result)."""

    ask: str
    tools: tuple[tuple[str, tuple[str, ...], str], ...]
    calls: tuple[tuple[str, str, str], ...]


def loop_of(line: str) -> ToolLoop:
    """The task of a filled line of loops.toml."""
    ask, tools, *calls = line.split(SPLIT)
    offered = [re.fullmatch(r"(\w+)\((.*?)\): (.*)", one.strip()) for one in tools.split(" | ")]
    made = [re.fullmatch(r"(\w+)\((.*?)\) => (.*)", one, re.DOTALL) for one in calls]
    return ToolLoop(
        ask,
        tuple((one[1], tuple(filter(None, one[2].split(", "))), one[3]) for one in offered if one),
        tuple((one[1], one[2], one[3]) for one in made if one),
    )


def looped(maker: Any, style: str, done: bool, system: str) -> tuple[str, dict[str, Any]]:
    """A request in a loop of tools, after all of its calls or after some."""
    draw = maker.draw
    pool = maker.loops["single" if draw.random() < (0.6 if done else 0.15) else "loop"]
    loop = loop_of(maker.fill(draw.choice(pool)))
    least = int(style == "native" and len(loop.calls) > 1)
    calls = loop.calls if done else loop.calls[: draw.randrange(least, len(loop.calls))]
    if style == "native":
        return native(maker, loop, calls, system)
    return "chat", {"react": react, "lines": lines, "fields": trajectory}[style](maker, loop, calls, system, done)


def native(maker: Any, loop: ToolLoop, calls: Any, system: str) -> tuple[str, dict[str, Any]]:
    """Calls and results as messages or items of their own."""
    draw = maker.draw
    kept = [one for one in loop.tools if draw.random() < 0.85 or one[0] in {call[0] for call in loop.calls}]
    tools = [function(name, says, parameters(fields)) for name, fields, says in draw.sample(kept, len(kept))]
    asked = loop.ask if draw.random() < 0.8 else draw.choice(["Please: ", "Hi! ", "Could you do this? "]) + loop.ask
    more = {"tool_choice": "auto"} if draw.random() < 0.3 else {}
    if draw.random() < 0.35:
        items: list[dict[str, Any]] = [{"role": "user", "content": asked}]
        for place, (name, arguments, result) in enumerate(calls):
            items.append({"type": "function_call", "call_id": f"c{place}", "name": name, "arguments": arguments})
            items.append({"type": "function_call_output", "call_id": f"c{place}", "output": result})
        flat = [{"type": "function", **tool["function"]} for tool in tools]
        return "responses", {"input": items, "tools": flat} | ({"instructions": system} if system else {}) | more
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    messages += [{"role": role, "content": text} for role, text in maker.history()]
    messages.append({"role": "user", "content": asked})
    for place, (name, arguments, result) in enumerate(calls):
        call = {"id": f"c{place}", "type": "function", "function": {"name": name, "arguments": arguments}}
        messages.append({"role": "assistant", "content": draw.choice([None, "", "Let me see."]), "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{place}", "content": result})
    return "chat", {"messages": messages, "tools": tools} | more


def function(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    """A tool."""
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def parameters(fields: Iterable[str]) -> dict[str, Any]:
    """The schema of an object of texts."""
    properties = {name: {"type": "string"} for name in fields}
    return {"type": "object", "properties": properties, "required": list(properties)}


def react(maker: Any, loop: ToolLoop, calls: Any, system: str, done: bool) -> dict[str, Any]:
    """Thought, Action and Observation in one prompt, as LangChain writes it."""
    offered = "\n".join(f"{name}({', '.join(fields)}) - {says}" for name, fields, says in loop.tools)
    names = ", ".join(name for name, _, _ in loop.tools)
    head = (
        "Answer the following questions as best you can. You have access to the following tools:\n\n"
        f"{offered}\n\nUse the following format:\n\nQuestion: the input question you must answer\nThought: you should "
        f"always think about what to do\nAction: the action to take, should be one of [{names}]\nAction Input: the "
        "input to the action\nObservation: the result of the action\n... (this can repeat)\nThought: I now know the "
        "final answer\nFinal Answer: the final answer\n\nBegin!"
    )
    said = [f"Action: {name}\nAction Input: {given}\nObservation: {result}" for name, given, result in calls]
    thought = "I now know the final answer." if done else ""
    tail = "\nThought: ".join([f"Question: {loop.ask}", *said, thought])
    if maker.draw.random() < 0.5:
        return maker.chat(f"{system}\n{head}".strip(), [("user", tail)], [])
    return maker.chat(system, [("user", f"{head}\n\n{tail}")], [])


def lines(maker: Any, loop: ToolLoop, calls: Any, system: str, done: bool) -> dict[str, Any]:
    """Actions as the assistant's text and observations as the user's, as LlamaIndex writes it."""
    offered = "\n\n".join(
        f"> Tool Name: {name}\nTool Description: {says}\nTool Args: {json.dumps(parameters(fields))}"
        for name, fields, says in loop.tools
    )
    head = (
        "You are designed to help with a variety of tasks, from answering questions to providing summaries.\n\n"
        "## Tools\n\nYou have access to a wide variety of tools. You are responsible for using the tools in any "
        f"sequence you deem appropriate.\n\n{offered}\n\n## Output Format\n\nPlease answer in the same language as the "
        "question and use the following format:\n\nThought: I need to use a tool to help me.\nAction: tool name\n"
        "Action Input: the input to the tool, in a JSON format\n\n## Current Conversation\n\nBelow is the current "
        "conversation."
    )
    turns = [("user", loop.ask)]
    for name, given, result in calls:
        turns.append(("assistant", f"Thought: I need a tool.\nAction: {name}\nAction Input: {given}"))
        turns.append(("user", f"Observation: {result}"))
    return maker.chat(f"{head}\n{system}".strip(), turns, [])


def trajectory(maker: Any, loop: ToolLoop, calls: Any, system: str, done: bool) -> dict[str, Any]:
    """DSPy's trajectory: a choice of the next tool, or the answer from it."""
    fields = ("reasoning", "answer") if done else ("next_thought", "next_tool_name", "next_tool_args")
    offered = "\n".join(
        f"({place}) {name}, whose description is <desc>{says}</desc>. It takes arguments {list(given)}."
        for place, (name, given, says) in enumerate(loop.tools, 1)
    )
    agent = (
        "You are an Agent. In each episode, you will be given the fields `question` as input. And you can see your "
        "past trajectory so far.\nYour goal is to use one or more of the supplied tools to collect any necessary "
        "information for producing `answer`.\n\nTo do this, you will interleave next_thought, next_tool_name, and "
        f"next_tool_args in each turn.\nWhen selecting the next_tool_name, the tool must be one of:\n\n{offered}"
    )
    aim = system or "Given the fields `question`, produce the fields `answer`."
    outputs = "\n".join(f"{num}. `{name}` (str):" for num, name in enumerate(fields, 1))
    head = FRAME.replace("{outputs}", outputs).replace("{marks}", "\n\n".join(f"[[ ## {one} ## ]]" for one in fields))
    head = head.replace("{aim}", aim if done else f"{aim}\n\n{agent}").replace("{{i}}", "{question}")
    said = [
        f"[[ ## thought_{num} ## ]]\nNext I need {name}.\n\n[[ ## tool_name_{num} ## ]]\n{name}\n\n"
        f"[[ ## tool_args_{num} ## ]]\n{given}\n\n[[ ## observation_{num} ## ]]\n{result}"
        for num, (name, given, result) in enumerate(calls)
    ]
    text = "\n\n".join([loop.ask, "[[ ## trajectory ## ]]", *said])
    asked = ", then ".join(f"`[[ ## {name} ## ]]`" for name in fields)
    tail = FRAMED.replace("{i}", "question").replace("{fields}", asked).replace("{u}", text)
    return maker.chat(head.replace("{i}", "question"), [("user", tail)], [])
