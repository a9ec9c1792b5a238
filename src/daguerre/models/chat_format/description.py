"""How a model writes an answer: its thinking, its text, its calls of functions, its end. Plain data.

    answer     [thinking.open thought thinking.close] [text.open text text.close] [section] end
    section    begin call [separator call]... end
    call       its parts, one after the other: literals, and slots for what differs from call to call

White space in literals is what a template writes; a reader takes any.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

TYPES = ("string", "integer", "number", "boolean", "null", "array", "object")
"""JSON's types, as schemas name them."""


class Slot(Enum):
    """What differs from call to call."""

    NAME = "name"
    ID = "id"
    INDEX = "number"
    ARGUMENTS = "arguments"


Part = str | Slot


@dataclass(frozen=True)
class Spacing:
    """The white space that a template writes in JSON, after commas and after colons."""

    comma: str = " "
    colon: str = " "


@dataclass(frozen=True)
class JsonArguments:
    """Arguments are one JSON object; quoted: written as a string of JSON."""

    spacing: Spacing = Spacing()
    quoted: bool = False


@dataclass(frozen=True)
class Tag:
    """What stands between an argument's name and its value, and what follows the value."""

    between: str
    after: str


@dataclass(frozen=True)
class Tags:
    """Arguments one by one: `before`, the name, and, by the value's type, a tag around the value.

    tags      by JSON type; null is missing where it is not written
    literals  how values that are no strings are written: "json", "python", or both
    wrapping  what strings with special characters are written between, in their tags
    """

    before: str
    tags: Mapping[str, Tag]
    separator: str
    literals: frozenset[str] = frozenset({"json"})
    wrapping: tuple[str, str] | None = None

    @property
    def typed(self) -> bool:
        """Whether strings are told from other values by their tags."""
        string = self.tags["string"]
        return all(tag != string for kind, tag in self.tags.items() if kind not in ("string", "null"))


@dataclass(frozen=True)
class NestedTags:
    """Arguments as elements, `<name>value</name>`, and so their members, each tag after `mark`; items are `<item>`."""

    mark: str = ""


@dataclass(frozen=True)
class BareObject:
    """Arguments as an object whose keys have no quotes, and whose strings stand between `quote`s, as they are."""

    quote: str


Arguments = JsonArguments | Tags | NestedTags | BareObject


@dataclass(frozen=True)
class Envelope:
    """A call that is a JSON object.

    name       the key of the function's name; None: the name is the key, the arguments its value
    arguments  the key of the arguments
    id         that of the call's id
    within     the key of the object that has name and arguments
    """

    name: str | None
    arguments: str | None = None
    id: str | None = None
    within: str | None = None


@dataclass(frozen=True)
class Calls:
    """How calls are written.

    envelope  where a call is a JSON object; `prefix` and `suffix` are what of the parts is around it
    several   whether the template writes more than one call
    """

    begin: str
    parts: tuple[Part, ...]
    separator: str
    end: str
    arguments: Arguments
    envelope: Envelope | None = None
    prefix: str = ""
    suffix: str = ""
    several: bool = True

    @property
    def opening(self) -> str:
        """What the first call begins with, up to its object or its first slot."""
        if self.envelope is not None:
            return self.begin + self.prefix
        first = self.parts[0]
        return self.begin + (first if isinstance(first, str) else "")

    @property
    def bare(self) -> bool:
        """Whether nothing but JSON shows where a call begins."""
        return self.envelope is not None and not self.opening.strip().rstrip("[")


@dataclass(frozen=True)
class Thinking:
    """The marks around what a model thinks; `open` is empty where a prompt alone opens it.

    after   white space between the closing mark and a text
    key     that of the messages that the template reads it from; None: the text itself has the marks
    """

    open: str
    close: str
    after: str = ""
    key: str | None = None


@dataclass(frozen=True)
class Format:
    """How a model writes an answer.

    source   how it was found: "derived", "named (...)" or "assumed"
    text     what a text is written between
    glue     what stands between a text and calls
    ends     marks that end an answer
    header   what each turn begins with, and a prompt ends with
    text_beside_calls   whether a text stands before calls in one turn
    losses   what the template does not tell apart, or leaves out
    tagged   another way in which calls may come, told by its first mark, behind which calls of the usual way may come
             as well; it is read, and not written
    """

    source: str
    calls: Calls | None = None
    thinking: Thinking | None = None
    text: tuple[str, str] = ("", "")
    glue: str = ""
    ends: tuple[str, ...] = ()
    header: str = ""
    text_beside_calls: bool = True
    losses: tuple[str, ...] = field(default=())
    tagged: Calls | None = None


TOOL_CALL = Calls(
    begin="",
    parts=('<tool_call>\n{"name": "', Slot.NAME, '", "arguments": ', Slot.ARGUMENTS, "}\n</tool_call>"),
    separator="\n",
    end="",
    arguments=JsonArguments(),
    envelope=Envelope("name", "arguments"),
    prefix="<tool_call>\n",
    suffix="\n</tool_call>",
)
"""How calls are written where no template says so."""
