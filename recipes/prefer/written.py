"""Python that a model writes: beginnings of code to go on from, samples, and whether what was written parses.

A prompt is a run of whole lines of a file: from a statement of its top level up to a random later line, which may be
within that statement. A model goes on for TOKENS tokens; what it wrote is cut behind its last line break, and the
parser of Python reads prompt and rest:

    whole    it parses, and compiles
    open     the parser reads it to its end and wants more: a block, a bracket or a long text is not closed yet
    failed   the parser stops before the end; or it parses and does not compile ("return" outside a function); or the
             model ended the text itself where the parser wants more; or no line was finished

Cutting at TOKENS is ours and no fault of the model, so "open" is no failure. `shares` shows besides how much of what
was written is code, so that a model which hides in a docstring shows.
"""

from __future__ import annotations

import ast
import sys
import sysconfig
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from daguerre.decoding.generate import Request
from daguerre.evals.lines import first_line_number, parse
from daguerre.heldout import load_frozen
from daguerre.model import Model
from daguerre.models.tokenizer import Tokenizer

sys.path.append(str(Path(__file__).resolve().parents[1]))

from proofs import answered

TOKENS = 96
TEMPERATURE = 0.8
SHORTEST, LONGEST = 24, 160
"""Tokens of a prompt."""
WANTS_MORE = 0x4000
"""ast.PyCF_ALLOW_INCOMPLETE_INPUT, as `codeop` uses it: another error where the parser has read to the end."""
AT_ONCE = 64
"""Samples that are drawn together."""


@dataclass(frozen=True)
class CodePrompt:
    """Where code begins, and the file that it is from."""

    file: str
    text: str


@dataclass(frozen=True)
class WrittenCode:
    """What a model wrote, up to its last line break, and the verdict on it."""

    text: str
    verdict: str

    @property
    def failed(self) -> bool:
        return self.verdict == "failed"


def verdict(code: str) -> str:
    """Whether the parser reads code: "whole", "open" or "failed"."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            tree = compile(code, "<code>", "exec", ast.PyCF_ONLY_AST | WANTS_MORE)
            compile(tree, "<code>", "exec")
        except SyntaxError as error:
            return "open" if error.msg == "incomplete input" else "failed"
        except (ValueError, RecursionError, MemoryError):  # a null byte, a pile of brackets
            return "failed"
    return "whole"


def judged(prompt: str, written: str, ended: bool) -> WrittenCode:
    """The verdict on what a model wrote behind a prompt, and whether the model ended it itself."""
    text = written if ended else written[: written.rfind("\n") + 1]
    if not text and not ended:
        return WrittenCode(written, "failed")
    word = verdict(prompt + text)
    return WrittenCode(text, "failed" if ended and word == "open" else word)


def up_to_failure(prompt: str, text: str) -> str:
    """The shortest run of lines of a text at whose end the parser has stopped; all of it where there is none."""
    lines = text.splitlines(keepends=True)
    for num in range(1, len(lines)):
        if verdict(prompt + (begins := "".join(lines[:num]))) == "failed":
            return begins
    return text


def as_long_as(text: str, other: str) -> str:
    """The shortest run of lines of a text that has as many characters as another; all of it if it is shorter."""
    place = text.find("\n", max(0, len(other) - 1))
    return text if place < 0 else text[: place + 1]


def prompts_of(name: str, code: str, tokenizer: Tokenizer, num: int, rng: np.random.Generator) -> Iterator[CodePrompt]:
    """At most `num` prompts of a file, each from another statement."""
    tree = parse(code)
    if tree is None:
        return
    body, lines, found = tree.body, code.splitlines(keepends=True), 0
    for index in rng.permutation(len(body)).tolist():
        first = first_line_number(body[index])
        sizes = _sizes(lines[first:], tokenizer)
        fitting = np.flatnonzero((sizes >= SHORTEST) & (sizes <= LONGEST))
        if not len(fitting) or "\r" in code:
            continue
        text = "".join(lines[first : first + 1 + int(rng.choice(fitting))])
        if text.endswith("\n") and verdict(text) != "failed" and found < num:
            found += 1
            yield CodePrompt(name, text)


def _sizes(lines: Sequence[str], tokenizer: Tokenizer) -> np.ndarray:
    """Tokens of the first line, of the first two, and so on, up to LONGEST."""
    sizes, total = list[int](), 0
    for line in lines:
        total += len(tokenizer.encode(line))
        if total > LONGEST:
            break
        sizes.append(total)
    return np.array(sizes, dtype=np.int64)


def library_prompts(tokenizer: Tokenizer, num: int, seed: int, folder: Path | None = None) -> list[CodePrompt]:
    """Prompts of a folder of Python, or of the standard library, which the default model was trained on."""
    root, rng = folder or Path(sysconfig.get_path("stdlib")), np.random.default_rng(seed)
    files = sorted(path for path in root.rglob("*.py") if "site-packages" not in path.parts)
    found: list[CodePrompt] = []
    while len(found) < num and files:
        before = len(found)
        for index in rng.permutation(len(files)).tolist():
            if len(found) >= num:
                break
            try:
                code = files[index].read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError):
                continue
            found += prompts_of(files[index].relative_to(root).as_posix(), code, tokenizer, 2, rng)
        if len(found) == before:
            break
    return found[:num]


def held_out_prompts(tokenizer: Tokenizer, num: int, seed: int) -> list[CodePrompt]:
    """Prompts of the frozen sample, from packages that no model of ours was trained on."""
    rng, documents = np.random.default_rng(seed), load_frozen()
    each = -(-num // len(documents)) + 1
    found = [
        prompt
        for document in documents
        for prompt in prompts_of(f"{document.package}/{document.file}", document.text, tokenizer, each, rng)
    ]
    return [found[index] for index in sorted(rng.permutation(len(found))[:num].tolist())]


def samples(
    model: Model, prompts: Sequence[CodePrompt], num: int, seed: int, tokens: int | None = None
) -> Iterator[list[WrittenCode]]:
    """`num` samples of each prompt, in order, of TOKENS tokens or another number; mode "ar", so that each is drawn from
    the model's own distribution.
    """
    at_once = max(1, AT_ONCE // num)
    for first in range(0, len(prompts), at_once):
        together = prompts[first : first + at_once]
        how: dict[str, Any] = {"mode": "ar", "temperature": TEMPERATURE, "heal": False}
        requests = [
            Request.of("generate", prompt.text, tokens or TOKENS, seed=seed + number, **how)
            for number, prompt in enumerate(together, first)
        ]
        results = answered(model, requests, num)
        for place, prompt in enumerate(together):
            yield [
                judged(prompt.text, one.text, one.finish_reason == "stop")
                for one in results[place * num : (place + 1) * num]
            ]


def shares(prompt: str, text: str) -> tuple[int, int]:
    """Of what was written behind a prompt: bytes in comments and in strings that reach over lines, and all bytes."""
    code, first = prompt + text, prompt.count("\n") + 1
    lines = code.splitlines(keepends=True)
    hidden, begun = 0, len(lines) + 1
    try:
        for token in tokenize.generate_tokens(iter(lines).__next__):
            long = token.type == tokenize.STRING and "\n" in token.string
            if token.type == tokenize.COMMENT or long:
                inside = token.string.splitlines(keepends=True)[max(0, first - token.start[0]) :]
                hidden += sum(len(line.encode()) for line in inside) if token.end[0] >= first else 0
    except tokenize.TokenError as error:  # a string that is not closed goes on to the end
        begun = error.args[1][0] if "string" in str(error.args[0]) else begun
    except SyntaxError:
        pass
    hidden += sum(len(line.encode()) for line in lines[max(first, begun) - 1 :])
    return hidden, len(text.encode())
