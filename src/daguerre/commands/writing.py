"""Text that is shown while it is written, and the statement that a completion in a file is."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import typer

from daguerre.errors import InputError

if TYPE_CHECKING:  # which would bring NumPy to every command
    from daguerre.decoding.result import Result, StreamEvent

STATEMENT_TOKENS = 256
"""The most tokens of a statement, where no other number is given."""
QUOTED = re.compile(r"(['\"])(?:\\.|(?!\1).)*\1")
COMMENT = re.compile(r"(?:#|//).*")
TRIPLE = re.compile(r"\"\"\"|'''")


def shown(events: Iterable[StreamEvent], ends: Callable[[str], int | None] = lambda text: None) -> Result:
    """Print what is final of a text, as it becomes so, and its line break; the result. `ends` tells how many characters
    are shown, once that is known. Ctrl-C leaves what was written.
    """
    written, last, end = "", None, None
    try:
        for event in events:
            if end is None:
                end = ends(event.committed)
            final = event.committed[:end]
            if end is None and event.result is None:
                final = final.rstrip("\n")  # which may stand behind the end
            if len(final) > len(written):
                _write(final[len(written) :])
                written = final
            last = event
    finally:
        typer.echo()
    assert last is not None and last.result is not None
    return last.result


def _write(text: str) -> None:
    """Write a text at once. Not through a buffer: Ctrl-C at a bad moment would have it written again at the end."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if not isinstance(raw, io.RawIOBase):
        typer.echo(text, nl=False)
        return
    sys.stdout.flush()
    data = text.encode(sys.stdout.encoding, sys.stdout.errors or "strict")
    while data:
        data = data[raw.write(data) or 0 :]


def written_statement(model: Any, before: str, options: dict[str, Any], show: bool) -> Result:
    """The statement that a model writes behind a text, shown as it is written if `show`."""
    from daguerre.engine.engine import Engine

    most, found = options.pop("max_tokens", STATEMENT_TOKENS), list[int]()

    def ends(text: str) -> int | None:
        end = found[0] if found else statement_end(before, text)
        if end is not None and not found:
            found.append(end)
            job.stop(0)
        return end

    with Engine(model) as engine:
        job = engine.generate(before, most, **options)
        if show:
            result = shown(job.events(), ends)
        else:
            for event in job.events():
                ends(event.committed)
            result = job.result()
    end = found[0] if found else statement_end(before, result.text)
    return result if end is None else until(result, end)


def until(result: Result, end: int) -> Result:
    """The first `end` characters of a result with one gap."""
    starts = accumulate((len(token.text) for token in result.tokens), initial=0)
    num = sum(start < end for start, _ in zip(starts, result.tokens, strict=False))
    usage, text = replace(result.usage, completion_tokens=num), result.text[:end]
    return replace(result, text=text, texts=(text,), tokens=result.tokens[:num], usage=usage, finish_reason="stop")


def statement_end(before: str, written: str) -> int | None:
    """How many characters of what was written are its first statement: a line, with those that its brackets or quotes
    take in, or a block that its indentation closes. None: it goes on.
    """
    lead = len(written) - len(written.lstrip("\n"))
    first = "" if lead else before.rpartition("\n")[2]
    lines, place, base, header = (first + written[lead:]).split("\n"), 0, None, False
    kept, depth, triple = 0, 0, False
    for number, line in enumerate(lines):
        end, stripped = place + len(line), line.strip()
        if stripped and not depth and not triple:
            indent = len(line) - len(line.lstrip())
            if base is not None and header and indent <= base:
                return kept - len(first) + lead
            base = indent if base is None else base
        if number == len(lines) - 1:  # it may go on
            return None
        if stripped:
            depth, triple = _opened(line, depth, triple)
            kept = end
            if not depth and not triple and not header:
                header = stripped.endswith(":")
                if not header and not stripped.startswith("@"):
                    return kept - len(first) + lead
        place = end + 1
    return None


def _opened(line: str, depth: int, triple: bool) -> tuple[int, bool]:
    """How many brackets are open after a line, and whether a text of several lines is."""
    if len(TRIPLE.findall(line)) % 2:
        return depth, not triple
    if triple:
        return depth, triple
    plain = COMMENT.sub("", QUOTED.sub("", line))
    return max(0, depth + sum((char in "([{") - (char in ")]}") for char in plain)), triple


def check_statement(statement: bool | None, options: dict[str, Any]) -> bool:
    """Whether a completion is one statement: by default unless an option of ENDS is given, and InputError for both."""
    other = next((name for name in ENDS if options.get(name) and (name, options[name]) != ("n", 1)), None)
    if statement and other is not None:
        raise InputError(f"--statement writes one text, which ends by itself: leave out --{other.replace('_', '-')}")
    return other is None if statement is None else statement


ENDS = (
    *("min_tokens", "stop", "n", "schema", "regex", "choices", "tools", "keywords", "ending", "pins", "timeout"),
    *("explain", "watch"),
)
"""Options beside which a completion is no statement unless asked."""
