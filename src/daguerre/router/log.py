"""The log of decisions: one JSON line for each request, enough to decide it again.

A line has the request's features, the backends' state, the decision, what was tried and what came of it. The first line
of a run, and of each other configuration, is the configuration itself, so a log needs no other file. Texts are in it
only when asked. `text_hash` says which requests have the same one; without the salt, which is in the router's state,
nobody can find a text by trying. A line that was cut off by a crash is the last one of its run, and is counted and left
out.

A shadow, a request that was also sent to a second backend, ends after the line of its request was written, so it has a
line of its own, which names the request: `shadow_of`.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson

from daguerre.errors import DataError
from daguerre.router.choose import BackendState, Features, RoutingDecision, State, choose
from daguerre.router.config import Config

VERSION = 2
"""Of logs. The candidates of version 1 have no `first_p50`."""
TEXTS = (
    *("system", "instructions", "messages", "input", "prompt", "suffix", "input_prefix", "input_suffix"),
    *("prefix", "template", "text", "state", "questions"),
)
"""Fields of a body that hold its text."""
SHADOW_NUMBERS = ("ms", "cost", "grade", "main_grade")
"""Of a shadow's line, as `ShadowOutcome` has them last."""


def config_line(config: Config) -> dict[str, Any]:
    """The line of a configuration."""
    return {"version": VERSION, "config": config.sha256, "value": config.model_dump(mode="json", exclude_unset=True)}


def text_hash(body: Mapping[str, Any], salt: bytes) -> str:
    """Of the text of a request: equal where the text is, whatever else is asked for. 32 hexadecimal digits."""
    texts = {name: body[name] for name in TEXTS if name in body}
    if isinstance(texts.get("text"), dict):  # the format of a response
        del texts["text"]
    return hashlib.blake2b(orjson.dumps(texts, option=orjson.OPT_SORT_KEYS), key=salt, digest_size=16).hexdigest()


def decision_line(features: Features, state: State, decision: RoutingDecision) -> dict[str, Any]:
    """What a line says of a decision; the router adds what came of it."""
    return {
        "features": features.to_dict(),
        "state": {name: dict(vars(each)) for name, each in state.items()},
        "decision": decision.to_dict(),
    }


@dataclass(frozen=True)
class LogEntry:
    """A line of a log that was read: its number from 1, its values, the configuration that it was decided with, and the
    version of the log.
    """

    number: int
    line: dict[str, Any]
    config: Config
    version: int

    @cached_property
    def features(self) -> Features:
        """Those of the request."""
        return Features.from_dict(self.line["features"])

    @cached_property
    def state(self) -> State:
        """That of the backends."""
        return {name: BackendState(**each) for name, each in self.line["state"].items()}

    def again(self, config: Config | None = None) -> RoutingDecision:
        """The decision, made again; or that of another configuration."""
        return choose(self.features, self.state, config or self.config)


@dataclass(frozen=True, slots=True)
class ShadowOutcome:
    """What came of sending a request to a second backend, too. Times are milliseconds, costs dollars, grades 0 to 1;
    None: not known.

    backend     None: there was none, and only the answer that the client got was graded
    exact       `grade` says that both answers are the same, and not how good one is
    main_grade  of the answer that the client got
    """

    backend: str | None
    exact: bool
    ms: float | None
    cost: float | None
    grade: float | None
    main_grade: float | None


@dataclass
class Read:
    """What reading a log found beside its entries: lines that were cut off."""

    cut_off: int = 0


def read_log(path: Path, found: Read | None = None) -> Iterator[LogEntry]:
    """The requests of a log, in order. DataError, with the line's number, for what no router has written."""
    configs = dict[str, tuple[Config, int]]()
    for number, text in _numbered(path):
        try:
            line = orjson.loads(text)
        except ValueError:
            if found is None or text.endswith(b"}\n"):
                raise DataError(f"line {number} of {path} is no JSON: it was changed, or is no log") from None
            found.cut_off += 1
            continue
        try:
            if "shadow_of" in line:
                continue
            if "value" in line:
                config = Config.model_validate(line["value"])
                configs[line["config"]] = config, int(line["version"])
                continue
            entry = LogEntry(number, line, *configs[line["decision"]["config"]])
            entry.features, entry.state  # noqa: B018 (read now, so that what is wrong is known with its line)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise no_line(path, number, error) from None
        yield entry


def read_shadows(path: Path) -> dict[str, list[ShadowOutcome]]:
    """The shadows of a log by the id of their request. DataError for a line of one that no router has written. A line
    that was cut off is passed over: `read_log` counts it.
    """
    out = defaultdict[str, list[ShadowOutcome]](list)
    for number, text in _numbered(path):
        if b'"shadow_of"' not in text:
            continue
        with suppress(orjson.JSONDecodeError):
            line = orjson.loads(text)
            if "shadow_of" not in line:
                continue
            try:
                numbers = [None if (value := line.get(name)) is None else float(value) for name in SHADOW_NUMBERS]
                backend = None if line["backend"] is None else str(line["backend"])
                out[str(line["shadow_of"])].append(ShadowOutcome(backend, line.get("grader") == "exact", *numbers))
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise no_line(path, number, error) from None
    return dict(out)


def _numbered(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a log with their numbers, from 1. DataError where it cannot be read."""
    try:
        with path.open("rb") as file:
            yield from enumerate(file, 1)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None


def no_line(path: Path, number: int, error: Exception) -> DataError:
    """The error of a line that no router has written."""
    said = " ".join(repr(error).split())
    return DataError(f"line {number} of {path} is no line of a router's log: {said:.200}")


@dataclass(frozen=True)
class Replay:
    """Decisions of a log that were made again: how many, the numbers of lines whose decision is another one, and how
    many lines were cut off.
    """

    decisions: int
    differing: tuple[int, ...]
    cut_off: int


def replay(path: Path) -> Replay:
    """Decide all requests of a log again, and compare every number of every decision that its version has."""
    found, differing, num = Read(), list[int](), 0
    for entry in read_log(path, found):
        num += 1
        again = json.loads(json.dumps(entry.again().to_dict()))
        for each in again["candidates"] if entry.version == 1 else ():
            del each["first_p50"]
        if again != entry.line["decision"]:
            differing.append(entry.number)
    return Replay(num, tuple(differing), found.cut_off)
