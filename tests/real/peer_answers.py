"""Answers that llama.cpp's own tests read, with what is read from them: `tests/test-chat.cpp` of its source archive.

The file is C++. Its cases are chains of calls, `tst.test(TEXT).tools({...}).expect(MESSAGE).run()`, whose arguments are
literals, names of constants of the file, and a few functions that make messages. No more than that is read here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TOKEN = re.compile(
    r"""\s+|//[^\n]*|/\*.*?\*/
    |(?P<raw>R"(?P<fence>[^(\s]*)\((?P<inside>.*?)\)(?P=fence)")
    |(?P<text>u?8?"(?:[^"\\]|\\.)*")
    |(?P<number>-?\d+)
    |(?P<name>[A-Za-z_][\w:]*)
    |(?P<sign>.)""",
    re.DOTALL | re.VERBOSE,
)
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", '"': '"', "'": "'", "\\": "\\"}


@dataclass(frozen=True)
class Name:
    """A name of the file that is no constant, such as an enumeration's."""

    text: str


@dataclass
class Case:
    """A case. line: in the file; templates: paths it is run with; calls: the arguments of each method of the chain."""

    line: int
    templates: tuple[str, ...]
    text: str
    given: dict[str, list[Any]] = field(default_factory=dict)

    def one(self, name: str, default: Any = None) -> Any:
        """The argument of a method."""
        return self.given[name][0] if name in self.given else default

    @property
    def expected(self) -> dict[str, Any]:
        """The message that is read: content, reasoning and calls, each (name, arguments)."""
        out = dict(self.one("expect", {"content": "", "reasoning": "", "calls": []}))
        out["content"] = self.one("expect_content", out["content"])
        out["reasoning"] = self.one("expect_reasoning", out["reasoning"])
        if "expect_tool_calls" in self.given:
            out["calls"] = [(one[0], one[1]) for one in self.one("expect_tool_calls")]
        return out


def message(content: str = "", reasoning: str = "", name: str = "", arguments: str = "", key: str = "") -> Any:
    """What the file's functions make."""
    return {"content": content, "reasoning": reasoning, "calls": [(name, arguments)] if name or key else []}


FUNCTIONS = {
    "simple_assist_msg": message,
    "message_with_tool_calls": lambda name, arguments: message("", "", name, arguments),
    "message_with_tool_calls_and_reasoning": lambda name, arguments, thought: message("", thought, name, arguments),
    "message_with_reasoning_content_and_multiple_tool_calls": lambda thought, content, calls: {
        "content": content,
        "reasoning": thought,
        "calls": [(one[0], one[1]) for one in calls],
    },
    "message_with_content_and_tool_call": lambda content, name, arguments: message(content, "", name, arguments),
    "message_with_reasoning_and_tool_call": lambda thought, name, arguments: message("", thought, name, arguments),
    "std::string": lambda text="": text,
    "std::vector": lambda *items: list(items),
}


class Reader:
    """Reads expressions of the file from a place on."""

    def __init__(self, source: str) -> None:
        self.source, self.at = source, 0

    def token(self, take: bool = True) -> tuple[str, str]:
        """(kind, text) of the next token that is no white space or comment."""
        place = self.at
        while True:
            found = TOKEN.match(self.source, place)
            if found is None:
                return "end", ""
            place = found.end()
            kind = next((kind for kind in ("raw", "text", "number", "name", "sign") if found[kind] is not None), None)
            if kind is not None:
                break
        self.at = place if take else self.at
        return (
            ("text", found["inside"]) if kind == "raw" else (kind, _plain(found[kind]) if kind == "text" else found[0])
        )

    def expression(self) -> Any:
        """A value, or a sum of texts."""
        value = self._term()
        while self.token(take=False) == ("sign", "+"):
            self.token()
            value = value + self._term()
        return value

    def _term(self) -> Any:
        kind, text = self.token()
        if kind == "text":
            while self.token(take=False)[0] == "text":
                text += self.token()[1]
            return text
        if kind == "number":
            return int(text)
        if (kind, text) == ("sign", "{"):
            return self.items("}")
        if kind != "name":
            raise ValueError(f"unexpected {text!r}")
        if text in ("true", "false"):
            return text == "true"
        following = self.token(take=False)[1]
        if following == "<":
            self.at = self.source.index(">", self.at) + 1
            following = self.token(take=False)[1]
        if following in ("(", "{") and text in FUNCTIONS:
            self.token()
            return FUNCTIONS[text](*self.items(")" if following == "(" else "}"))
        return self._constant(text)

    def items(self, end: str) -> list[Any]:
        """Values up to a closing sign."""
        out = []
        while self.token(take=False) != ("sign", end):
            out.append(self.expression())
            if self.token(take=False) == ("sign", ","):
                self.token()
        self.token()
        return out

    def _constant(self, name: str) -> Any:
        """The value that a name was last given before this place."""
        pattern = rf"(?:string|char \*|auto|json|_msg|_tool)\s*&?\s*\b{name}\s*(=\s*|(?={{))"
        places = list(re.finditer(pattern, self.source[: self.at]))
        if not places:
            return Name(name)
        inner = Reader(self.source)
        inner.at = places[-1].end()
        value = inner.expression()
        if isinstance(value, list) and value and value[0] == "user":
            return Name(name)
        return value


def _plain(literal: str) -> str:
    text = literal[literal.index('"') + 1 : -1]
    out = re.sub(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)", _escaped, text, flags=re.DOTALL)
    try:
        return out.encode("latin-1").decode() if re.search(r"\\x", text) else out
    except UnicodeError:
        return out


def _escaped(found: re.Match[str]) -> str:
    code = found[1]
    return chr(int(code[1:], 16)) if len(code) > 1 else ESCAPES.get(code, code)


def cases(path: Path) -> Iterator[Case]:
    """The cases of a file, in its order."""
    source = path.read_text("utf-8")
    testers = list(re.finditer(r"auto (tst\d?) = peg_tester\(([^;]*?)(?:, detailed_debug)?\);", source))
    for found in re.finditer(r"\b(tst\d?)\.test\(", source):
        tester = [one for one in testers if one[1] == found[1] and one.start() < found.start()][-1]
        reader = Reader(source)
        reader.at = found.end()
        text = reader.items(")")
        case = Case(source.count("\n", 0, found.start()) + 1, _templates(source, tester), text[0])
        while reader.token(take=False) == ("sign", "."):
            reader.token()
            name = reader.token()[1]
            reader.token()
            case.given[name] = reader.items(")")
        yield case


def _templates(source: str, tester: re.Match[str]) -> tuple[str, ...]:
    """The templates that a tester runs with: named at once, by a loop, or by who calls its function."""
    named = re.fullmatch(r'"([^"]*)"', tester[2].strip())
    if named:
        return (named[1],)
    before = source[: tester.start()]
    if tester[2].strip() == "path":
        loop = before[before.rindex("for (") :]
        return tuple(re.findall(r'"([^"]*\.jinja)"', loop))
    calls = re.search(r"for \(const char \* tmpl : \{(.*?)\}\)", source[tester.end() :], re.DOTALL)
    return tuple(re.findall(r'"([^"]*\.jinja)"', calls[1])) if calls else ()


def tool(value: Any) -> dict[str, Any]:
    """A function as OpenAI's API has it."""
    name, description, parameters = value[:3]
    given = {"name": name, "description": description, "parameters": json.loads(parameters)}
    return {"type": "function", "function": given}
