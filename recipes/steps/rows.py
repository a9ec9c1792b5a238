"""The labeled requests that the classifier of step types learns from: `python recipes/steps/rows.py rows.jsonl`.

families.toml has templates, phrases.toml, more.toml and editors.toml have more of them, and instructions with the
materials that they stand beside; pools.toml has what fills them all. A seed fixes every row. A row is {"step",
"family", "fold", "operation", "body"}. Shapes, frames of clients, personas, needless tools, history, limits, typing
mistakes and case are drawn for all types alike, so that they say little about the type; but questions that tools might
answer have no needless tools.
"""

from __future__ import annotations

import json
import random
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shapes import KINDS, Field, dspy, function, looped, parameters, wrapped

FOLDS = 5
EACH = 110
"""Rows of a family."""
SEED = 20
FRAMED_SHARE, WRAPPED_SHARE = 0.07, 0.15
"""Of requests without tools: how many stand in fields of DSPy's, and how many have to be answered by an object."""
SLOT = re.compile(r"\{([a-z_]+)\}")
HERE = Path(__file__).parent
SHARED = tuple("pl labels n money persona city day person company place element labels_lang".split())
"""Pools that all families share: words that every type has."""
LIMITS = (16, 64, 100, 200, 256, 400, 512, 800, 1000, 1024, 2048, 4096)
POSITIONS = (
    *("{t}\n\n{m}", "{t}\n\n{m}", "{m}\n\n{t}", "{m}\n\n{t}", "{t} {m}", '{t}\n\n"{m}"', "{m}\n\n{t}\n"),
    *(
        "{t}\n---\n{m}\n---",
        "{t}\n\n```\n{m}\n```",
        "{t}\n\n<text>\n{m}\n</text>",
        "Here:\n{m}\n\n{t}",
        "{t}\nText: {m}",
    ),
)
"""Where an instruction stands beside its material."""
SIGNATURES = ("request response", "question answer", "input output", "text result", "query reply", "prompt completion",
              "message answer")  # fmt: skip
FORMS = {"form": "record", "label_form": "labels", "flag_form": "flag", "steps_form": "steps"}
"""Tools that only hold an object, by the object."""
CLASSES = {"record": "classes", "labels": "class_of_labels", "flag": "class_of_flags", "steps": "class_of_steps"}


def rows(seed: int = SEED, each: int = EACH) -> Iterator[dict[str, Any]]:
    """All rows, family by family."""
    pools = load("pools.toml")
    roles = pools.pop("roles")
    answers, loops = load("answers.toml"), load("loops.toml")
    for step, table in families().items():
        for place, (name, family) in enumerate(table.items()):
            fold = place % FOLDS
            own = dealt(pools, fold) | {"role": roles[step][fold::FOLDS]}
            quiet = {"untooled": step in ("facts", "short_answer")}
            maker = RequestMaker(random.Random(f"{seed} {step} {name}"), own, quiet | family)
            maker.answers, maker.loops = dealt(answers, fold), dealt(loops, fold)
            for _ in range(family.get("times", 1) * each):
                operation, body = maker.request(step)
                row = {"step": step, "family": f"{step}.{name}", "fold": fold}
                yield row | {"operation": operation, "body": body}


def families() -> dict[str, dict[str, Any]]:
    """By step type and name: templates, then phrases."""
    held = [load(name) for name in ("families.toml", "phrases.toml", "more.toml", "editors.toml")]
    out = {step: dict[str, Any]() for step in held[0]}
    for some in held:
        for step, table in some.items():
            assert not out[step].keys() & table.keys()
            out[step] |= table
    return out


def load(name: str) -> dict[str, Any]:
    """A file of this folder."""
    return tomllib.loads((HERE / name).read_text(encoding="utf-8"))


def dealt(pools: dict[str, list[str]], fold: int) -> dict[str, list[str]]:
    """The items that families of a fold may use."""
    return {name: items if name in SHARED else items[fold::FOLDS] for name, items in pools.items()}


class RequestMaker:
    """Requests of one family."""

    def __init__(self, draw: random.Random, pools: dict[str, list[str]], family: dict[str, Any]) -> None:
        self.draw, self.pools, self.family = draw, pools, family
        self.left = dict[int, list[str]]()
        self.answers, self.loops = dict[str, list[str]](), dict[str, list[str]]()

    def request(self, step: str) -> tuple[str, dict[str, Any]]:
        """An operation and a body."""
        draw, family = self.draw, self.family
        if "loop" in family:
            told = self.fill(draw.choice(self.pools["persona"] + self.pools["role"])) if draw.random() < 0.5 else ""
            operation, body = looped(self, draw.choice(family["loop"]), step != "tool_arguments", told)
            return operation, self.limited(body)
        system, user = self.texts()
        user = self.typed(user)
        if not family.get("plain") and draw.random() < (0.25 if system else 0.4):
            persona = self.fill(draw.choice(self.pools["persona"]))
            system = f"{persona}\n\n{system}".strip() if draw.random() < 0.7 else f"{system}\n{persona}".strip()
        if not family.get("plain") and draw.random() < (0.12 if system else 0.2):
            system = f"{system} {draw.choice(self.pools['role'])}".strip()
        if system and draw.random() < 0.08:
            user, system = f"{system}\n\n{user}", ""
        if family.get("suffix"):
            return "completions", self.limited({"prompt": user, "suffix": self.fill("{code}\n")})
        tools, choice = self.tools()
        if not tools and not family.get("plain") and "format" not in family:
            chance = draw.random()
            if chance < FRAMED_SHARE:
                return "chat", self.limited(self.framed(system, user))
            if chance < FRAMED_SHARE + WRAPPED_SHARE:
                operation, body = wrapped(self, step, system, [("user", user)])
                return operation, self.limited(body)
        able = ["chat", "chat", "responses"] if tools or family.get("last") else ["chat", "chat", "chat", "responses"]
        shape = draw.choice(able if tools or family.get("last") or "format" in family else [*able, "completions"])
        if shape == "completions":
            return shape, self.limited({"prompt": self.joined(system, user)})
        turns = [*self.history(), ("user", user)]
        if "last" in family:
            turns += self.called()
        body = self.chat(system, turns, tools) if shape == "chat" else self.responses(system, turns, tools)
        if choice:
            body["tool_choice"] = choice
        return shape, self.limited(body | self.format(shape))

    def texts(self) -> tuple[str, str]:
        """The system message and the user's."""
        draw, family = self.draw, self.family
        if "user" in family:
            return self.fill(draw.choice(family["system"])) if "system" in family else "", self.one(family["user"])
        if "say" in family:
            return "", self.one(family["say"])
        material = self.fill(f"{{{draw.choice(family['on'])}}}")
        if "told" in family:
            return self.one(family["told"]), material
        said = self.one(family["tell"])
        if draw.random() < 0.2:
            return said, material
        said = said[0].upper() + said[1:] if draw.random() < 0.5 else said
        return "", draw.choice(POSITIONS).replace("{t}", said).replace("{m}", material)

    def one(self, templates: list[str]) -> str:
        """A template filled; each is drawn once before any is drawn again."""
        left = self.left.setdefault(id(templates), [])
        if not left:
            left += self.draw.sample(templates, len(templates))
        return self.fill(left.pop())

    def framed(self, system: str, user: str) -> dict[str, Any]:
        """A body as DSPy sends it for one field of text."""
        given, wanted = self.draw.choice(SIGNATURES).split()
        return dspy(self, [Field(wanted, "text")], system, [("user", user)], given)

    def fill(self, text: str, depth: int = 0) -> str:
        """A template with its slots filled."""

        def one(match: re.Match[str]) -> str:
            name = match[1]
            several = {"doc": ("sentence", 2, 6), "long": ("sentence", 9, 26), "codes": ("code", 2, 4)}
            if name in several:
                pool, least, most = several[name]
                mark = " " if pool == "sentence" else "\n\n"
                num = self.draw.randint(least, most)
                parts = [self.fill(self.draw.choice(self.all(pool)), depth + 1) for _ in range(num)]
                if pool == "sentence" and self.draw.random() < 0.3:
                    parts.insert(num // 2, "\n\n")
                return mark.join(parts)
            items = self.pools.get(name)
            return match[0] if not items or depth > 6 else self.fill(self.draw.choice(items), depth + 1)

        return SLOT.sub(one, text)

    def all(self, pool: str) -> list[str]:
        return self.pools[pool]

    def typed(self, text: str) -> str:
        """As somebody types it: sometimes in lower case, without the last mark, or with a slip."""
        chance = self.draw.random()
        if chance < 0.08:
            return text.lower()
        if chance < 0.13:
            return text.rstrip(".?!:")
        if chance < 0.22 and len(text) > 30:
            places = [place for place in range(min(len(text) - 1, 120)) if text[place : place + 2].isalpha()]
            for place in self.draw.sample(places, min(2, len(places))):
                text = text[:place] + text[place + 1] + text[place] + text[place + 2 :]
        if 0.22 < chance < 0.27:
            return self.draw.choice(["Hi! ", "Hello, ", "ok so ", "pls "]) + text
        if 0.27 < chance < 0.31:
            return text + self.draw.choice(
                ["\n\nThanks!", " Thank you.", " (it's urgent)", "\n\n--\nSent from my phone"]
            )
        return text

    def joined(self, system: str, user: str) -> str:
        frame = self.draw.choice(
            ["{s}\n\n{u}", "{s}\n\nUser: {u}\nAssistant:", "### Instruction\n{s}\n{u}\n\n### Response\n"]
        )
        return frame.replace("{s}", system).replace("{u}", user).strip() if system else user

    def tools(self) -> tuple[list[dict[str, Any]], Any]:
        """Tools of a request and which must be called."""
        kind, draw = self.family.get("tools"), self.draw
        if kind in FORMS:
            return self.form(FORMS[kind])
        if kind is None and (
            self.family.get("plain") or self.family["untooled"] or draw.random() > 0.1 or "format" in self.family
        ):
            return [], None
        pool = self.pools["toolset"] * 2
        some = [parsed(one) for one in dict.fromkeys(draw.sample(pool, draw.randint(1, min(3, len(pool)))))]
        some += [
            parsed(one)
            for one in ("search_docs: Search documents. (query)", "memory: Notes. (text)")
            if draw.random() < 0.5
        ]
        choice = draw.choice(["required", {"type": "function", "function": {"name": some[0]["function"]["name"]}}])
        return some, choice if kind == "must" else draw.choice([None, None, "auto"])

    def form(self, kind: str) -> tuple[list[dict[str, Any]], Any]:
        """A tool whose arguments are an object of a kind, and that it must be called."""
        draw = self.draw
        schema = self.schema(kind)
        title = schema.pop("title")
        name = draw.choice([title, title, title, "final_result", "extract", "respond"])
        said = schema.pop("description", "")
        usual = f"Correctly extracted `{title}` with all the required parameters with correct types"
        said = draw.choice([said, usual, "The final response which ends this conversation", "A record.", ""])
        named = {"type": "function", "function": {"name": name}}
        return [function(name, said, schema)], draw.choice([named, named, "required", "auto"])

    def schema(self, kind: str) -> dict[str, Any]:
        """The schema of an object of a kind: record, labels, flag, steps or answer."""
        draw = self.draw
        spec = draw.choice(self.pools[CLASSES[kind]]) if kind in CLASSES else "Answer: answer"
        title, _, rest = spec.partition(": " if ": " in spec else ".")
        properties, out = self.fields(kind, title, rest)
        if kind in ("labels", "flag") and draw.random() < 0.4:
            properties[draw.choice(["reason", "why", "explanation", "rationale", "reasoning"])] = {"type": "string"}
        if kind == "labels" and draw.random() < 0.15:
            properties["confidence"] = {"type": "number"}
        if draw.random() < 0.5:
            properties = {name: {**one, "title": name.replace("_", " ").title()} for name, one in properties.items()}
        if draw.random() < 0.15:
            properties = {name: {**one, "description": f"the {name}"} for name, one in properties.items()}
        needed = [name for name, one in properties.items() if "anyOf" not in one]
        out = {"type": "object", "title": title, "properties": properties, "required": needed} | out
        if draw.random() < 0.6:
            out["additionalProperties"] = False
        return out | ({"description": f"A {title.lower()}."} if draw.random() < 0.3 else {})

    def fields(self, kind: str, title: str, rest: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """The properties of a class, whose fields `rest` names, and what stands beside them."""
        texts = {"type": "array", "items": {"type": "string"}}
        if kind == "labels":
            names = [one.strip() for one in re.split(r",| or ", self.draw.choice(self.pools["labels"]))]
            choice = {"enum": names, "type": "string"}
            if self.draw.random() < 0.25:
                return {rest: {"$ref": f"#/$defs/{title}Kind"}}, {"$defs": {f"{title}Kind": choice}}
            return {rest: choice}, {}
        if kind in ("steps", "flag"):
            return {rest: texts if kind == "steps" else {"type": "boolean"}}, {}
        out = dict[str, Any]()
        for one in rest.split(", "):
            name, _, type_ = one.rstrip("?").partition(":")
            held = texts if type_ == "list" else {"type": KINDS.get(type_, "string")}
            out[name] = {"anyOf": [held, {"type": "null"}]} if one.endswith("?") else held
        return out, {}

    def format(self, shape: str) -> dict[str, Any]:
        """The field that asks for a format."""
        kind = self.family.get("format")
        if kind is None:
            return {}
        if kind == "object" or self.draw.random() < 0.1:
            held: dict[str, Any] = {"type": "json_object"}
            return {"response_format": held} if shape == "chat" else {"text": {"format": held}}
        schema = self.schema(kind)
        name = self.draw.choice([schema["title"], schema["title"], "final_output", "result", "response"])
        inner = {"name": name, "schema": schema, "strict": self.draw.random() < 0.7}
        if shape == "chat":
            return {"response_format": {"type": "json_schema", "json_schema": inner}}
        return {"text": {"format": {"type": "json_schema", **inner}}}

    def history(self) -> list[tuple[str, str]]:
        """Earlier turns, about anything."""
        if self.family.get("plain") or self.draw.random() > 0.15:
            return []
        asked = ["{tiny}", "{deed}", "{fact}?", "{change}\n{code}", "{topic}?", "{doc}"]
        told = ["Sure.", "{sentence}", "{doc}", "Done.", "```\n{code}\n```"]
        pairs = range(self.draw.randint(1, 3))
        return [
            (role, self.fill(self.draw.choice(some)))
            for _ in pairs
            for role, some in (("user", asked), ("assistant", told))
        ]

    def called(self) -> list[tuple[str, str]]:
        """Calls of tools and their results."""
        num = 1 if self.family["last"] == "more" or self.draw.random() < 0.6 else self.draw.randint(2, 3)
        return [
            one
            for _ in range(num)
            for one in (("call", "search_docs"), ("tool", self.fill(self.draw.choice(self.pools["result"]))))
        ]

    def chat(self, system: str, turns: list[tuple[str, str]], tools: list[dict[str, Any]]) -> dict[str, Any]:
        """A body of chat completions."""
        role = "developer" if self.draw.random() < 0.1 else "system"
        messages: list[dict[str, Any]] = [{"role": role, "content": system}] if system else []
        for place, (who, text) in enumerate(turns):
            if who == "call":
                name = tools[0]["function"]["name"] if tools else text
                call = {"id": f"call_{place}", "type": "function", "function": {"name": name, "arguments": "{}"}}
                messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
            elif who == "tool":
                messages.append({"role": "tool", "tool_call_id": f"call_{place - 1}", "content": text})
            else:
                content: Any = [{"type": "text", "text": text}] if self.draw.random() < 0.1 else text
                messages.append({"role": who, "content": content})
        return {"messages": messages} | ({"tools": tools} if tools else {})

    def responses(self, system: str, turns: list[tuple[str, str]], tools: list[dict[str, Any]]) -> dict[str, Any]:
        """A body of responses."""
        items: list[dict[str, Any]] = []
        for place, (who, text) in enumerate(turns):
            if who == "call":
                name = tools[0]["function"]["name"] if tools else text
                items.append({"type": "function_call", "call_id": f"call_{place}", "name": name, "arguments": "{}"})
            elif who == "tool":
                items.append({"type": "function_call_output", "call_id": f"call_{place - 1}", "output": text})
            else:
                items.append({"role": who, "content": text})
        alone = len(items) == 1 and self.draw.random() < 0.6
        body: dict[str, Any] = {"input": turns[0][1] if alone else items}
        if system:
            body["instructions"] = system
        flat = [{"type": "function", **tool["function"]} for tool in tools]
        return body | ({"tools": flat} if flat else {})

    def limited(self, body: dict[str, Any]) -> dict[str, Any]:
        """With a model, and sometimes a limit, a temperature, and a stream."""
        body = {"model": "default"} | body
        if self.draw.random() < 0.3:
            name = "max_output_tokens" if "input" in body else self.draw.choice(["max_tokens", "max_completion_tokens"])
            body[name] = self.draw.choice(LIMITS)
        if self.draw.random() < 0.4:
            body["temperature"] = self.draw.choice([0, 0.2, 0.7, 1])
        if self.draw.random() < 0.3:
            body["stream"] = True
        return body


def parsed(line: str) -> dict[str, Any]:
    """A tool from a line such as `name: What it does. (first, second)`."""
    name, _, rest = line.partition(": ")
    says, _, fields = rest.rstrip(")").partition(" (")
    return function(name, says, parameters(map(str.strip, fields.split(","))))


def main() -> None:
    """Write all rows to the file that is named."""
    with Path(sys.argv[1]).open("w", encoding="utf-8") as file:
        for row in rows():
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
