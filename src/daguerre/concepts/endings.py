"""What a text that was cut off says: whether it is the beginning of a program, and which concepts it uses already.

A continuation of so many tokens ends anywhere: in a name, a bracket, a body. To be fair to such a text,

* it *parses* if CPython's own parser finds its whole lines, all up to the last line break, to be a program or the
  beginning of one ("incomplete input"). A text without a line break after the prompt is judged with its last line left
  out, so it parses if the prompt's lines do.
* it *uses* a concept if the concept has an instance that begins at or after the end of the prompt, in the longest part
  of the text, cut at its end or at the end of a line, that can be *closed*: brackets that are open are closed, a header
  without a body gets `pass`, a `try` without handlers `finally: pass`. Instances that begin in what was added do not
  count.
"""

from __future__ import annotations

import ast
import codeop
import io
import re
import tokenize
import warnings
from collections.abc import Iterator

from daguerre.concepts.labels import label
from daguerre.concepts.taxonomy import Concept

CLOSING = {"(": ")", "[": "]", "{": "}"}
MOST_ADDED = 24
"""Additions that close a text, at most: a body each, or the brackets."""
HEADER, TRY = re.compile(r"on line (\d+)"), re.compile(r"(\s*)try\s*:")


def parses(text: str) -> bool:
    """Whether the whole lines of a text are a program or the beginning of one; see the module."""
    lines = text[: text.rfind("\n") + 1]
    try:
        _compile(lines, ast.PyCF_ONLY_AST)
    except SyntaxError as error:
        if "unterminated string literal" in str(error) or "unterminated f-string literal" in str(error):
            return False  # a string that ends with its line, and no incomplete input
        return _is_incomplete(lines)
    except ValueError:  # null bytes
        return False
    return True


def _is_incomplete(lines: str) -> bool:
    try:
        _compile(lines, ast.PyCF_ONLY_AST | codeop.PyCF_ALLOW_INCOMPLETE_INPUT)  # type: ignore[attr-defined]
    except SyntaxError as error:
        return "incomplete input" in str(error)
    return True


def _compile(text: str, flags: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of escapes that a string should not have
        compile(text, "", "exec", flags)


def uses(concept: Concept, prompt: str, continuation: str) -> bool:
    """Whether the continuation uses a concept; see the module."""
    for end in cuts(continuation):
        text = prompt + continuation[:end]
        whole = closed(text)
        if whole is not None:
            return any(len(prompt) <= start < len(text) for start, _ in label(whole, [concept]).of(concept))
    return False


def cuts(continuation: str) -> Iterator[int]:
    """Where a continuation may be cut, the latest first: at its end, and after each of its lines."""
    yield len(continuation)
    end = continuation.rfind("\n")
    while end >= 0:
        if end + 1 < len(continuation):
            yield end + 1
        end = continuation.rfind("\n", 0, end)


def closed(text: str) -> str | None:
    """The text, its trailing white space left out, with the little that makes it a program; None if that is not
    enough.
    """
    whole = text.rstrip()
    for _ in range(MOST_ADDED):
        try:
            _compile(whole, ast.PyCF_ONLY_AST)
        except SyntaxError as error:
            more = _completion(whole, str(error.msg))
            if not more:
                return None
            whole += more
        except ValueError:
            return None
        else:
            return whole
    return None


def _completion(text: str, message: str) -> str | None:
    """What answers a complaint of the parser about the end of a text; None for any other complaint."""
    if message.endswith("was never closed"):
        brackets = _open_brackets(text)
        return None if brackets is None else "".join(CLOSING[one] for one in reversed(brackets))
    lines = text.split("\n")
    if message.startswith("expected an indented block"):
        found = HEADER.search(message)
        header = lines[int(found[1]) - 1] if found else lines[-1]
        indent = header[: len(header) - len(header.lstrip())]
        return f"\n{indent}    pass"
    if message == "expected 'except' or 'finally' block":
        opened = _open_try(lines)
        return None if opened is None else f"\n{opened}finally:\n{opened}    pass"
    return None


def _open_try(lines: list[str]) -> str | None:
    """The indentation of the innermost `try` whose body is the end of the text."""
    least: int | None = None
    for line in reversed(lines):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        found, indent = TRY.match(line), len(line) - len(line.lstrip())
        if found and (least is None or indent < least):
            return found[1]
        least = indent if least is None else min(least, indent)
    return None


def _open_brackets(text: str) -> list[str] | None:
    """The brackets that are open at the end of a text; None where a string is, or a bracket does not fit."""
    out: list[str] = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.OP and token.string in CLOSING:
                out.append(token.string)
            elif token.type == tokenize.OP and token.string in CLOSING.values():
                if not out or CLOSING[out.pop()] != token.string:
                    return None
    except tokenize.TokenError as error:
        if "string" in str(error):
            return None
    except (IndentationError, SyntaxError):
        return None
    return out
