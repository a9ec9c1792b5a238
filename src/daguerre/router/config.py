"""The configuration of a router: a TOML file of these tables, checked as a whole before anything is routed.

Money is in dollars for a million tokens, times in milliseconds. A file that is wrong is one DataError, which names the
line. `Config.model_json_schema()` is the JSON Schema of the file.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, HttpUrl, ValidationError, field_validator, model_validator

from daguerre.errors import DataError, unknown

Operation = Literal["chat", "completions", "responses", "embeddings", "fim", "edit", "decisions"]
Need = Literal["suffix", "pins", "spans", "edit", "decisions", "schema", "strict_schema", "tools", "images", "logprobs"]
Step = Literal[
    "classify",
    "look_up",
    "extract",
    "tool_arguments",
    "short_answer",
    "facts",
    "edit",
    "infill",
    "summarize",
    "plan",
    "reason",
    "write_code",
    "long_text",
]
Override = Literal["slo_ms", "backend", "step", "tags", "max_cost", "cache", "explore"]
OPERATIONS, NEEDS, STEPS = get_args(Operation), get_args(Need), get_args(Step)
Share = Annotated[float, Field(ge=0, le=1)]
Amount = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"


class Table(BaseModel):
    """A table of the file: nothing in it is ignored, and nothing changes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Price(Table):
    """Dollars for a million tokens, and for each request."""

    input: Amount = 0.0
    output: Amount = 0.0
    request: Amount = 0.0


class Latency(Table):
    """What is expected of a backend before it was measured, in milliseconds: until its first text, and for each token
    after it, at the median and at the 95th percentile; and how much a cold start adds.
    """

    first: Amount = 500.0
    first_p95: Amount = 1500.0
    token: Amount = 15.0
    token_p95: Amount = 30.0
    cold_start: Amount = 0.0


class Backend(Table):
    """A server that speaks OpenAI's interface.

    name        in decisions, logs and headers
    url         its base, such as http://127.0.0.1:8000/v1
    model       the name that it knows the model by
    key_env, key_file   where its API key is; neither: it needs none
    body        fields that every request to it gets, such as a decoding mode
    operations  what it serves
    needs       what else it can do: requests that need more never go there
    context     tokens of the longest request, its answer included
    tags        such as where data stay; a request that asks for tags goes where all of them are
    quality     by step type, the share of requests that it answers well, 0 to 1; `default` for all others, .5 if it
                is not given
    most_in_flight   requests at a time
    timeout     seconds without a byte after which a request to it has failed
    """

    name: Annotated[str, Field(pattern=NAME)]
    url: HttpUrl
    model: str
    key_env: str | None = None
    key_file: Path | None = None
    body: dict[str, Any] = Field(default_factory=dict)
    operations: tuple[Operation, ...] = ("chat", "completions")
    needs: tuple[Need, ...] = ("tools", "schema", "strict_schema")
    context: Count = 8192
    tags: tuple[str, ...] = ()
    quality: dict[Step | Literal["default"], Share] = Field(default_factory=dict)
    price: Price = Price()
    latency: Latency = Latency()
    most_in_flight: Count = 64
    timeout: Annotated[float, Field(gt=0)] = 60.0

    @model_validator(mode="after")
    def _one_key(self) -> Self:
        if self.key_env is not None and self.key_file is not None:
            raise ValueError("give key_env or key_file, not both")
        return self

    def quality_of(self, step: str) -> float:
        """The share of requests of a step type that it answers well."""
        return self.quality.get(step, self.quality.get("default", 0.5))  # type: ignore[call-overload]


class StepRule(Table):
    """What a step type needs: the least quality, and milliseconds within which 95% of its answers must be there."""

    quality: Share = 0.0
    slo_ms: Annotated[float, Field(gt=0)] | None = None
    tokens: Count = 256
    """Expected length of an answer that names no limit."""


class Explore(Table):
    """A share of requests goes to a backend that is not the best, of those that may have it."""

    share: Share = 0.0
    steps: tuple[Step, ...] = STEPS


class Server(Table):
    """Where the router listens, and who may ask. keys_file has lines as `daguerre serve --keys` reads them."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8800
    keys_file: Path | None = None
    state: Path | None = None
    most_body: Count = 8 * 2**20
    log: Path | None = None
    log_text: bool = False


class Config(Table):
    """A whole file.

    steps         what each step type needs; those that are not named have no floor and no SLO
    cost_within   costs within this share of the least count as equal, so that load decides
    overrides     which of its own wishes a request may name, in headers `x-route-*` or in `metadata`
    """

    backends: Annotated[tuple[Backend, ...], Field(min_length=1)]
    steps: dict[Step, StepRule] = Field(default_factory=dict)
    cost_within: Share = 0.0
    overrides: tuple[Override, ...] = ("slo_ms", "tags")
    explore: Explore = Explore()
    server: Server = Server()

    @field_validator("backends")
    @classmethod
    def _unlike_names(cls, given: tuple[Backend, ...]) -> tuple[Backend, ...]:
        names = [each.name for each in given]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two backends are called {twice[0]!r}: rename one")
        return given

    def backend(self, name: str) -> Backend:
        """The backend of a name. InputError if there is none."""
        for each in self.backends:
            if each.name == name:
                return each
        raise unknown("backend", name, [each.name for each in self.backends])

    def rule(self, step: str) -> StepRule:
        """What a step type needs."""
        return self.steps.get(step, StepRule())  # type: ignore[call-overload]

    @cached_property
    def sha256(self) -> str:
        """Of the configuration as canonical JSON, defaults included."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def read_config(path: Path) -> Config:
    """The configuration of a TOML file. DataError for a file that cannot be read or is wrong."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path}: {error}") from None
    return parse_config(text, str(path))


def parse_config(text: str, name: str) -> Config:
    """The configuration of a text; `name` is for errors."""
    try:
        return Config.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{name} is no TOML: {error}") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = tuple(first["loc"])
        said = str(first["msg"]).removeprefix("Value error, ")
        raise DataError(f"{name}, line {line_of(text, place)}: {'.'.join(map(str, place)) or 'file'}: {said}") from None


def line_of(text: str, place: tuple[Any, ...]) -> int:
    """The line, from 1, of the value at a place such as ("backends", 1, "price", "input"), or of the innermost table
    around it that the text names. Lines in strings of several lines may be taken for others.
    """
    found, table, seen = 1, tuple[Any, ...](), dict[str, int]()
    best = 0
    for number, line in enumerate(text.splitlines(), 1):
        if head := re.match(r"\s*(\[\[?)\s*([^\]]+?)\s*\]", line):
            path = tuple(part.strip().strip("\"'") for part in head[2].split("."))
            if head[1] == "[[":
                seen[head[2]] = seen.get(head[2], -1) + 1
            table = _numbered(path, seen)
            here = table
        elif pair := re.match(r"\s*([A-Za-z0-9_\-.\"']+)\s*=", line):
            here = (*table, *(part.strip("\"'") for part in pair[1].split(".")))
        else:
            continue
        size = len(place) if here[: len(place)] == place else len(here) if here == place[: len(here)] else 0
        if size > best:
            found, best = number, size
    return found


def _numbered(path: tuple[str, ...], seen: dict[str, int]) -> tuple[Any, ...]:
    """A table's path with the number of the item behind each array of tables."""
    out: list[Any] = []
    for place, part in enumerate(path):
        out.append(part)
        name = ".".join(path[: place + 1])
        if name in seen:
            out.append(seen[name])
    return tuple(out)
