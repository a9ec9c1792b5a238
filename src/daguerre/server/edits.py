"""Mercury's requests for edits, as prompts of a model that was trained on such tasks, and what its answers mean.

Apply: a file and a snippet with `... existing code ...` for what stays; the answer is the merged file. Next edit: a
file with a region, and diffs of the edits before, oldest first; the answer is the region as it should be, fenced, or
"None" where it stays as it is. `daguerre.instructions` and `daguerre.next_edits` have the texts of both.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from string import ascii_letters

from daguerre.errors import ContextError, InputError
from daguerre.http.errors import TOO_LONG, ApiError
from daguerre.instructions import RESULT, apply_pattern, apply_prompt, lettered, lines_of, read_merge
from daguerre.model import Model
from daguerre.next_edits import (
    Change,
    last_change,
    next_edit_pattern,
    next_edit_prompt,
    places_due,
    read_next_edit,
)

MORE = 16
"""How many tokens an answer may have more than the text that it copies."""
PATH = re.compile(r"\A(?:current_file_path|code_snippet_file_path):[^\n]*\n")
CURSOR, MARK = "<|cursor|>", "# ..."
NOTHING = "None"
"""Mercury's answer where no edit is due."""


@dataclass(frozen=True)
class EditPrompt:
    """What a model is asked.

    prompt      the text that it continues
    max_tokens  of its answer
    pattern     the regular expression that its answer matches
    content     the answer of the API, of what the model has written, and whether it has ended. ApiError where that is
                no edit of the file
    grows       whether it has a part of the answer, of what has not ended
    """

    prompt: str
    max_tokens: int
    pattern: str
    content: Callable[[str, bool], str]
    grows: bool


def merge_asked(model: Model, content: str) -> EditPrompt:
    """The merge that a message asks for. ApiError for what is none, and for a file that is too long."""
    code, snippet = _between(content, "original_code"), _between(content, "update_snippet")
    lines = lines_of(code)
    new = _marked(lines, lines_of(snippet))
    prompt = apply_prompt(lines, new)
    room = _room(model, prompt, lettered(new, [f"+{len(lines)}"] * len(new)))
    return EditPrompt(prompt, room, apply_pattern(lines, new), partial(_merged, lines, code.endswith("\n")), grows=True)


def _merged(code: list[str], ends: bool, written: str, ended: bool) -> str:
    """The merged file, or what is certain of it."""
    if not ended and not (written := written[: written.rfind("\n") + 1]):
        return ""
    try:
        text = "".join(line + "\n" for line in read_merge(code, written, ended))
    except InputError as error:
        message = f"the model wrote no edit of this file ({error}): send a snippet with other lines around it"
        raise ApiError(message, 502, code="invalid_answer") from error
    return text if ends else text.removesuffix("\n")


def _marked(code: list[str], snippet: list[str]) -> list[str]:
    """A snippet with a marker before its first line, if that is one of the file but not its first, and the same behind
    the last: many leave them out, and mean that the rest of the file stays.
    """
    before = snippet[0] != code[0] and snippet[0].strip() and snippet[0] in code
    behind = snippet[-1] != code[-1] and snippet[-1].strip() and snippet[-1] in code
    return [*([MARK] if before else []), *snippet, *([MARK] if behind else [])]


def edit_asked(model: Model, content: str) -> EditPrompt:
    """The next edit that a message asks for: of a file that is too long, the lines around the region are shown."""
    file = PATH.sub("", _between(content, "current_file_content")).replace(CURSOR, "")
    region = _between(file, "code_to_edit")
    before, _, behind = _cut(file, "code_to_edit") or ("", "", "")
    head, body, tail = (lines_of(text) if text else [] for text in (before, region, behind))
    change = last_change(history_of(_between(content, "edit_diff_history", optional=True)))
    due = [] if change is None else places_due(body, change, 1, len(body))
    if change is None or not due:
        return EditPrompt(RESULT, MORE, next_edit_pattern(0), lambda written, ended: NOTHING, grows=False)
    content_of = partial(_edited, body, change, due)
    while True:
        places = [(len(head) + line, column) for line, column in due]
        prompt, answer = next_edit_prompt([*head, *body, *tail], change, places), " ".join(ascii_letters[: len(due)])
        if _fits(model, prompt, answer) or not (head or tail):
            return EditPrompt(
                prompt, _room(model, prompt, answer), next_edit_pattern(len(due)), content_of, grows=False
            )
        if len(head) > len(tail):
            head = head[1 + len(head) // 8 :]
        else:
            tail = tail[: -1 - len(tail) // 8]


def _edited(body: list[str], change: Change, due: list[tuple[int, int]], written: str, ended: bool) -> str:
    """The region with the change at the places that were named, fenced; or "None"."""
    made = read_next_edit(body, change, due, written)
    return NOTHING if made == body else "```\n" + "".join(line + "\n" for line in made) + "```"


def history_of(diffs: str) -> list[tuple[str, str]]:
    """The lines that diffs change, each as it was and as it is, oldest first. Where as many lines were removed as were
    added, they are paired; where not, it is unknown which line became which, and they are left out.
    """
    out: list[tuple[str, str]] = []
    old: list[str] = []
    new: list[str] = []
    for line in [*lines_of(diffs), ""]:
        sign = "" if line.startswith(("---", "+++")) else line[:1]
        if sign == "\\":  # "\\ No newline at end of file"
            continue
        if sign != "+" and not (sign == "-" and not new):
            out += zip(old, new, strict=True) if len(old) == len(new) else ()
            old, new = [], []
        if sign in ("-", "+"):
            (old if sign == "-" else new).append(line[1:])
    return out


def _between(content: str, name: str, optional: bool = False) -> str:
    """The text between two markers of Mercury's, each with the end of its line. ApiError where they are not there."""
    found = _cut(content, name)
    if found is None or not (found[1] or optional):
        if optional:
            return ""
        message = f"the message has no <|{name}|> ... <|/{name}|> with a text between them"
        raise ApiError(message, param="messages", code="invalid_message")
    return found[1]


def _cut(content: str, name: str) -> tuple[str, str, str] | None:
    """What is before two markers, between them and behind them, without the ends of lines that are theirs."""
    before, opened, rest = content.partition(f"<|{name}|>")
    text, closed, behind = rest.partition(f"<|/{name}|>")
    if not (opened and closed):
        return None
    return before, text.removeprefix("\n").removesuffix("\n"), behind.removeprefix("\n")


def _fits(model: Model, prompt: str, answer: str) -> bool:
    try:
        return _num(model, prompt) + _num(model, answer) + MORE <= model.config.max_positions
    except ContextError:
        return False


def _room(model: Model, prompt: str, answer: str) -> int:
    """Tokens of an answer that copies this text."""
    if not _fits(model, prompt, answer):
        most = model.config.max_positions
        message = f"the code, the edit and the answer have more tokens than the model's {most}: send less code"
        raise ApiError(message, param="messages", code=TOO_LONG)
    return min(2 * _num(model, answer) + MORE, model.config.max_positions - _num(model, prompt))


def _num(model: Model, text: str) -> int:
    return len(model.tokenizer.encode(text)) + len(model.config.first)
