"""What surrounds an answer: the header that a prompt has written, marks of thinking, what encloses a text, the end."""

from __future__ import annotations

import re
from dataclasses import dataclass

from daguerre.models.chat_format.description import Thinking
from daguerre.models.chat_format.marks import MARK, common_end, common_start
from daguerre.models.chat_format.probe import THINKING_KEYS, Probe, renders
from daguerre.models.chat_format.sentinels import TEXT, THOUGHT, message

USUAL = ("<think>", "</think>"), ("[THINK]", "[/THINK]")
"""Marks of models whose templates do not write thoughts, but know how to leave them out."""


@dataclass(frozen=True)
class Surroundings:
    """header: what every turn begins with, and a prompt ends with; text: what a text is written between; end: of a
    text, and after it.
    """

    header: str
    thinking: Thinking | None
    text: tuple[str, str]
    end: str


def with_thinking(probe: Probe) -> Probe:
    """The probe with the key that the template reads thoughts from."""
    for key in THINKING_KEYS:
        given = probe.shaped(thinking=key)
        for one in ({"content": TEXT}, message(1)):
            text = renders(given, {**one, "reasoning_content": THOUGHT}) or ""
            if THOUGHT in text and "'thinking'" not in text and '"thinking"' not in text:
                return given
    return probe


def surroundings(probe: Probe) -> Surroundings:
    """What surrounds an answer; a probe `with_thinking`."""
    said = renders(probe, {"content": TEXT})
    called = renders(probe, message(1))
    thought = [renders(probe, {**one, "reasoning_content": THOUGHT}) for one in ({"content": TEXT}, message(1))]
    thought = [text if text and THOUGHT in text else None for text in thought] if probe.shape.thinking else [None, None]
    turns = [text for text in (said, called, *thought) if text is not None]
    header = common_start([probe.prompt(), *turns])
    thinking = _thinking(probe, header, said or "", thought[0], thought[1] if thought[0] is None else None)
    if thinking is not None:
        header = _unopened(header, thinking)
    before, after = _around(unthought((said or TEXT)[len(header) :], thinking), TEXT)
    before = "" if thinking is not None and before.strip() == thinking.open else before
    called = unthought((called or "")[len(header) :], thinking)
    end = common_end([after, called]) if called and MARK.search(common_end([after, called])) else after
    if end == after and before.strip() and len(marks := list(MARK.finditer(after))) > 1:
        end = after[marks[-1].start() :]
    return Surroundings(header, thinking, (before, after[: len(after) - len(end)]), end)


def unthought(body: str, thinking: Thinking | None) -> str:
    """A turn's text behind the empty thought that it may begin with."""
    if thinking is None:
        return body
    opened, close = re.escape(thinking.open.strip()), re.escape(thinking.close.strip())
    found = re.match(rf"\s*(?:{opened})?\s*{close}", body)
    return body if found is None else body[found.end() :].removeprefix(thinking.after)


def _thinking(probe: Probe, header: str, said: str, thought: str | None, only_called: str | None) -> Thinking | None:
    written = thought or only_called
    if written is None:
        sources = "".join(probe.template.sources.values())
        usual = next((marks for marks in USUAL if marks[1] in sources), None)
        return None if usual is None else Thinking(*usual)
    opened, rest = written[len(header) :].split(THOUGHT, 1)
    middle = rest.split(TEXT, 1)[0] if thought else _first_mark(rest)
    plain = said[len(header) :].split(TEXT, 1)[0]
    closing = middle.removesuffix(plain) if plain.strip() and plain != middle else middle
    if plain == middle and len(marks := list(MARK.finditer(middle))) > 1:
        closing = middle[: marks[0].end()]
    close = closing.rstrip() if closing.strip() else middle.strip()
    close, after = close.strip(), closing[len(close) :]
    return Thinking(opened.strip() or _opening(probe, header, close), close, after, probe.shape.thinking)


def _first_mark(text: str) -> str:
    """A text up to the end of the mark that it begins with."""
    found = MARK.match(text.lstrip())
    return text[: len(text) - len(text.lstrip()) + (0 if found is None else found.end())]


def _opening(probe: Probe, header: str, close: str) -> str:
    """The mark that a prompt opens thinking with, in place of the model."""
    more = probe.prompt()[len(header) :].split(close)[0].strip()
    if more:
        return more
    found = [mark for mark in MARK.finditer(header.rstrip()) if mark.end() == len(header.rstrip())]
    return found[-1][0] if found else ""


def _unopened(header: str, thinking: Thinking) -> str:
    """A header without the thinking that it opens, and closes."""
    text = header.rstrip()
    text = text.removesuffix(thinking.close).rstrip() if thinking.close else text
    if thinking.open and text.endswith(thinking.open):
        return text.removesuffix(thinking.open)
    return header if text == header.rstrip() else header[: len(text)]


def _around(text: str, what: str) -> tuple[str, str]:
    before, found, after = text.partition(what)
    return (before, after) if found else ("", text)
