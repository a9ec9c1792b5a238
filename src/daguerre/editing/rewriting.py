"""An edit by instruction: a model writes a region of a text again, with the old one as its draft.

An edit is a generator, which yields what a model is `Asked` and is sent its answer, so that a library call and a server
drive it alike. The functions and classes of a Python file that an instruction names are shown alone
(`daguerre.editing.definitions`). Else the prompt begins with the file, so that the next edit of the same file reuses
its keys. The answer is begun for the model with the fence of its block. What cannot be read, or changes nothing, is
asked for once more, with the reason; then UnreadableAnswer has the raw answer. Nothing outside the region is ever the
model's.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

from daguerre.decoding.context import TOKEN_LENGTH, choose
from daguerre.decoding.result import Result, Usage
from daguerre.decoding.text_spans import CharSpan, find_spans, split_at
from daguerre.editing.answers import UnreadableAnswer, check_syntax, fence_for, language_of, read_parts, read_region
from daguerre.editing.definitions import small_file
from daguerre.errors import ContextError, InputError, UnsupportedError
from daguerre.kinds import TEXT
from daguerre.models.core.config import ModelConfig
from daguerre.models.tokenizer import Tokenizer

REQUEST = (
    "{shown}Write {what} again with one change, and every other line, comment and blank line exactly as it is. Answer "
    "with one code block.\n\nThe change: {instruction}"
)
WHOLE, PART, PARTS = "the whole file", "this part", "these parts"
AGAIN = "That cannot be used: {reason}. Write all of it again, with the change: {instruction}"
SLACK, GROWTH = 192, 1.25
"""An answer may have this many times the tokens of the region, and so many more."""
MOST_WHOLE = 4_096
"""Tokens of a text up to which it is a region as a whole."""
AROUND, WORDS = 1_024, 160
"""Tokens that are shown of the text around a region; and those of what is said beside both, if it is short."""


class ToldModel(Protocol):
    """What is needed of a model."""

    tokenizer: Tokenizer

    @property
    def config(self) -> ModelConfig: ...

    def chat_prompt(self, messages: Sequence[Mapping[str, Any]], **template: Any) -> list[int]: ...


@dataclass(frozen=True)
class Asked:
    """What a model is asked: the tokens of a conversation, the likely answer, and the most tokens that it may have."""

    prompt: list[int]
    draft: str
    max_tokens: int


@dataclass(frozen=True)
class WrittenAnswer:
    """What it wrote, and whether it has ended."""

    text: str
    ended: bool


@dataclass(frozen=True)
class EditedText:
    """A text with another region, and the characters of that in it. changed: whether it is another text."""

    text: str
    span: CharSpan
    changed: bool

    @property
    def region(self) -> str:
        """The region as it is now."""
        return self.text[self.span[0] : self.span[1]]


Editing = Generator[Asked, WrittenAnswer, EditedText]


def rewriting(
    model: ToldModel, text: str, instruction: str, lines: Sequence[CharSpan] | CharSpan | None = None, name: str = ""
) -> Editing:
    """An edit of `text` as the instruction says, in lines (first, last), from 1, or where it chooses; name: the file's.

    UnsupportedError for a model without a chat template; ContextError for a region that is too long; UnreadableAnswer
    for a second answer that is none. Read `daguerre.editing.answers` for what an answer must be.
    """
    check_writer(model)
    if not isinstance(instruction, str) or not instruction.strip():
        raise InputError("the instruction must say what to do: give a sentence")
    if not text.strip():
        raise InputError("the text is empty: there is nothing to edit; use generate")
    language = language_of(name)
    small = None
    if lines is None and language in ("python", ""):
        small = small_file(text, instruction, loosely=not _is_short(model, text))
    span = region_of(model, text, lines) if small is None else (0, len(text))
    old = text[span[0] : span[1]] if small is None else small.text
    what = PARTS if small is not None else WHOLE if span == (0, len(text)) else PART
    shown = _shown(model, text, span, name) if small is None else _shown_parts(old, name)
    begun, told = _begun(text, language), instruction.strip()
    messages = [{"role": "user", "content": REQUEST.format(shown=shown, what=what, instruction=told)}]
    reason = UnreadableAnswer("")
    for turn in range(2):
        try:
            asked = _asked(model, messages, begun, old)
        except ContextError:
            if turn == 0:
                raise
            break  # there is no room for the first answer
        answer = yield asked
        written = begun + answer.text
        try:
            if not answer.ended:
                raise UnreadableAnswer(f"the answer was cut off after {asked.max_tokens} tokens", written)
            if small is None:
                new = read_region(written, old, language)
                made = text[: span[0]] + new + text[span[1] :]
            else:
                made = new = small.merged(read_parts(written, old, language), written)
            check_syntax(text, made, language, written)
            if made == text and turn == 0:
                raise UnreadableAnswer("nothing is changed", written)
            return EditedText(made, (span[0], span[0] + len(new)), made != text)
        except UnreadableAnswer as error:
            reason = error
            said = AGAIN.format(reason=error.reason, instruction=told)
            messages += [{"role": "assistant", "content": written}, {"role": "user", "content": said}]
    raise UnreadableAnswer(f"the model's answer is no edit of the text, which stays as it is: {reason}", reason.answer)


def check_writer(model: ToldModel) -> None:
    """UnsupportedError for a model that cannot be told what to do."""
    if getattr(model.tokenizer, "chat_template", None) is None:
        raise UnsupportedError(
            "this model has no chat template, so it takes no instructions: name an instruct model, or give spans, "
            "lines or a pattern without an instruction"
        )


# ---- the region ------------------------------------------------------------------------------------------------------


def region_of(model: ToldModel, text: str, lines: Sequence[CharSpan] | CharSpan | None = None) -> CharSpan:
    """The characters of the region: those of the lines; else of all of a text that is short. ContextError for a longer
    one.
    """
    if lines is not None:
        ((start, end),) = find_spans(text, lines=_one_pair(lines))
        return start, _with_break(text, end)
    if _is_short(model, text):
        return 0, len(text)
    raise ContextError(
        f"the text has more than the {_most_whole(model):,} tokens that are written again as a whole: say which "
        "lines, or name the functions or classes of a Python file that alone are to change"
    )


def _is_short(model: ToldModel, text: str) -> bool:
    return len(text) <= MOST_WHOLE * TOKEN_LENGTH and _num(model, text) <= _most_whole(model)


def _one_pair(lines: Any) -> list[CharSpan]:
    pairs = [lines] if lines and isinstance(lines[0], int) else list(lines)
    if len(pairs) != 1:
        raise InputError("an instruction is for one run of lines: give one pair")
    return pairs


def _with_break(text: str, end: int) -> int:
    for mark in ("\r\n", "\n"):
        if text.startswith(mark, end):
            return end + len(mark)
    return end


def _most_whole(model: ToldModel) -> int:
    """The region is in the prompt, and may grow in the answer; both are in the conversation of a second try."""
    return max(1, min(MOST_WHOLE, (model.config.max_positions - 4 * SLACK) // 4))


# ---- the prompt ------------------------------------------------------------------------------------------------------


def _shown(model: ToldModel, text: str, span: CharSpan, name: str) -> str:
    """The file, or what is shown of it, and the region where that is a part of it."""
    language, called = language_of(name), f" `{name}`" if name else ""
    fence = fence_for(text)
    if span == (0, len(text)):
        return f"Here is the file{called}:\n\n{_block(text, fence, language)}\n\n"
    region = text[slice(*span)]
    around = split_at(text, [span])
    room = min(AROUND, model.config.max_positions - 3 * _num(model, region) - 2 * SLACK - WORDS)
    if len(text) > AROUND * TOKEN_LENGTH or _num(model, around[0]) + _num(model, around[1]) > room:
        around = choose(model.tokenizer, around, [region], max(1, room)).texts
    file = _block(around[0] + region + around[1], fence, language)
    return f"Here is the file{called}:\n\n{file}\n\nThis is a part of it:\n\n{_block(region, fence, language)}\n\n"


def _shown_parts(shown: str, name: str) -> str:
    called = f" `{name}`" if name else ""
    return f"Here are parts of the file{called}:\n\n{_block(shown, fence_for(shown), language_of(name))}\n\n"


def _block(text: str, fence: str, language: str) -> str:
    text = text.replace("\r\n", "\n")
    return f"{fence}{language}\n{text}{'' if text.endswith(chr(10)) else chr(10)}{fence}"


def _begun(text: str, language: str) -> str:
    return f"{fence_for(text)}{language}\n"


def _asked(model: ToldModel, messages: Sequence[dict[str, str]], begun: str, old: str) -> Asked:
    prompt = model.chat_prompt([*messages, {"role": "assistant", "content": begun}])
    draft = old.replace("\r\n", "\n")
    draft = f"{draft}{'' if draft.endswith(chr(10)) else chr(10)}{begun[: len(begun) - len(begun.lstrip('`'))]}"
    most = int(_num(model, draft) * GROWTH) + SLACK
    if len(prompt) + most > model.config.max_positions - 1:
        raise ContextError(
            f"the region and its answer need {len(prompt) + most:,} tokens, and the model has "
            f"{model.config.max_positions:,} positions: name fewer lines"
        )
    return Asked(prompt, draft, most)


def _num(model: ToldModel, text: str) -> int:
    return len(model.tokenizer.encode_plain(text))


# ---- driving it ------------------------------------------------------------------------------------------------------


def how_written(config: ModelConfig, asked: Asked, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of an answer: greedy, with its draft where the model reads one, unless they say otherwise."""
    plain: dict[str, Any] = {"temperature": 0.0}
    if config.process == "absorbing":
        plain["draft"] = asked.draft
    if config.context == "causal" and config.mask_id is None:
        plain["mode"] = "speculative"
    return {**plain, **options}


def carry_out(
    model: Any,
    operation: str,
    text: str,
    spans: Any = None,
    max_tokens: Any = None,
    decode: Any = None,
    *,
    instruction: str,
    lines: Sequence[CharSpan] | CharSpan | None = None,
    name: str = "",
    **options: Any,
) -> Result:
    """The result of `Model.edit` with an instruction: `text` with it carried out, and all else as it was.

    lines: one pair, from 1; None: the definitions that are named, or all of a text that is short, may change. name:
    the file's, which says its language. options: those of `generate`. An answer that is no edit is asked for once more,
    with the reason (`daguerre.editing.answers`); then UnreadableAnswer has it, and nothing is changed. UnsupportedError
    for a model without a chat template.
    """
    if operation != "edit":
        raise InputError(f"an instruction is for edit, not for {operation}: leave it out")
    if spans is not None or max_tokens is not None or options.keys() & {"pattern", "strength", "search_length"}:
        raise InputError("an instruction is for the text or for lines of it: leave out what else says what to edit")
    TEXT("text", text)

    def write(asked: Asked) -> Result:
        how = how_written(model.config, asked, options) if decode is None else {"draft": asked.draft, **options}
        result: Result = model.generate(asked.prompt, asked.max_tokens, decode, **how)
        return result

    return edited(rewriting(model, text, instruction, lines, name), write, text)


def edited(edit: Editing, write: Callable[[Asked], Result], text: str) -> Result:
    """The result of an edit of `text`, whose answers `write` makes; its usage is that of all of them."""
    results = list[Result]()
    asked = next(edit)
    while True:
        results.append(write(asked))
        try:
            asked = edit.send(answer_of(results[-1]))
        except StopIteration as done:
            return result_of_edit(done.value, results, text)


def answer_of(result: Result) -> WrittenAnswer:
    """A result as an edit reads it."""
    return WrittenAnswer(result.text, result.finish_reason == "stop" and not result.looped)


def result_of_edit(made: EditedText, results: Sequence[Result], text: str) -> Result:
    """The result of an edit of `text`: the last answer's, with the whole text."""
    usage = added([one.usage for one in results])
    return replace(results[-1], text=made.text, texts=(made.region,), original=text, spans=(made.span,), usage=usage)


def added(usages: Sequence[Usage]) -> Usage:
    """What several answers computed together."""
    names = [one.name for one in fields(Usage) if one.init and one.name != "mode"]
    return replace(usages[-1], **{name: sum(getattr(one, name) for one in usages) for name in names})
