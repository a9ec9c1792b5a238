"""Mercury's requests for edits, as prompts of a model, and what its answers mean. One that was trained on such tasks
gets them as they are; one with a chat template in a conversation.

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

from daguerre.decoding.result import Result
from daguerre.editing import snippets
from daguerre.editing.answers import UnreadableAnswer, fence_for
from daguerre.editing.merging import posed
from daguerre.editing.rewriting import Asked, Editing, answer_of, rewriting
from daguerre.editing.snippets import marked
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
CURSOR = "<|cursor|>"
SHOWN_ANSWER = 2_000
"""Characters of an answer that is no edit, which the error has."""
NOTHING = "None"
"""Mercury's answer where no edit is due."""


@dataclass(frozen=True)
class EditPrompt:
    """What a model is asked.

    prompt      the text that it continues, or the tokens of a conversation
    max_tokens  of its answer
    pattern     the regular expression that its answer matches
    content     the answer of the API, of what the model has written, and whether it has ended. ApiError where that is
                no edit of the file
    grows       whether it has a part of the answer, of what has not ended
    """

    prompt: str | list[int]
    max_tokens: int
    pattern: str
    content: Callable[[str, bool], str]
    grows: bool


def merge_asked(model: Model, content: str) -> EditPrompt:
    """The merge that a message asks for. ApiError for what is none, and for a file that is too long."""
    code, snippet = _between(content, "original_code"), _between(content, "update_snippet")
    lines = lines_of(code)
    new = marked(lines, lines_of(snippet))
    prompt = posed(model, model.tasks, "apply", apply_prompt(lines, new))
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


def merged_exactly(content: str) -> str | None:
    """The merge that a message asks for, where its lines alone say what it is; else None."""
    return snippets.merged_exactly(_between(content, "original_code"), _between(content, "update_snippet"))


def edit_asked(model: Model, content: str) -> EditPrompt:
    """The next edit that a message asks for: of a file that is too long, the lines around the region are shown."""
    file = PATH.sub("", _between(content, "current_file_content")).replace(CURSOR, "")
    region = _between(file, "code_to_edit")
    before, _, behind = _cut(file, "code_to_edit") or ("", "", "")
    head, body, tail = (lines_of(text) if text else [] for text in (before, region, behind))
    change = last_change(history_of(_between(content, "edit_diff_history", optional=True)))
    due = [] if change is None else places_due(body, change, 1, len(body))
    if change is None or not due:
        return EditPrompt(
            posed(model, model.tasks, "next_edit", RESULT),
            MORE,
            next_edit_pattern(0),
            lambda written, ended: NOTHING,
            grows=False,
        )
    content_of = partial(_edited, body, change, due)
    while True:
        places = [(len(head) + line, column) for line, column in due]
        prompt = posed(model, model.tasks, "next_edit", next_edit_prompt([*head, *body, *tail], change, places))
        answer = " ".join(ascii_letters[: len(due)])
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


def can_converse(model: Model) -> bool:
    """Whether a model takes instructions."""
    return getattr(model.tokenizer, "chat_template", None) is not None


class InstructedEdit:
    """An instruction that is carried out: what a model is `asked` next; None once its answer has made the `content` of
    the API's.
    """

    def __init__(self, edit: Editing) -> None:
        self._edit, self.content = edit, ""
        self.asked: Asked | None = next(edit)

    def read(self, result: Result) -> None:
        """Read what it wrote. ApiError, with the raw answer, where that is no edit the second time."""
        try:
            self.asked = self._edit.send(answer_of(result))
        except StopIteration as done:
            self.asked, region = None, done.value.region
            marks, end = fence_for(region), "" if region.endswith("\n") else "\n"
            self.content = f"{marks}\n{region}{end}{marks}" if done.value.changed else NOTHING
        except UnreadableAnswer as error:
            message = f"{error}. It wrote: {error.answer[:SHOWN_ANSWER]}"
            raise ApiError(message, 502, code="invalid_answer") from error


def instruction_asked(model: Model, content: str, instruction: str) -> InstructedEdit:
    """The edit of a message's region, or without one of its file; a message without Mercury's marks is the file."""
    found = _cut(content, "current_file_content")
    file = content if found is None else found[1] + "\n"
    path = PATH.match(file)
    name = "" if path is None else path[0].partition(":")[2].strip()
    file = PATH.sub("", file).replace(CURSOR, "")
    region, lines = _cut(file, "code_to_edit"), None
    if region is not None:
        before, body, behind = region
        file, first = f"{before}{body}\n{behind}", before.count("\n") + 1
        lines = (first, first + body.count("\n"))
    if not can_converse(model):
        message = "this model has no chat template, so it takes no instructions: name an instruct model"
        raise ApiError(message, 400, "model", "unsupported")
    return InstructedEdit(rewriting(model, file, instruction, lines, name))


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


def _fits(model: Model, prompt: str | list[int], answer: str) -> bool:
    try:
        return _num(model, prompt) + _num(model, answer) + MORE <= model.config.max_positions
    except ContextError:
        return False


def _room(model: Model, prompt: str | list[int], answer: str) -> int:
    """Tokens of an answer that copies this text."""
    if not _fits(model, prompt, answer):
        most = model.config.max_positions
        message = f"the code, the edit and the answer have more tokens than the model's {most}: send less code"
        raise ApiError(message, param="messages", code=TOO_LONG)
    return min(2 * _num(model, answer) + MORE, model.config.max_positions - _num(model, prompt))


def _num(model: Model, text: str | list[int]) -> int:
    return len(model.tokenizer.encode(text) if isinstance(text, str) else text) + len(model.config.first)
