"""Comments, by their tokens."""

from __future__ import annotations

import ast
import re
import tokenize
import warnings
from collections.abc import Iterator
from contextlib import suppress

from daguerre.concepts.detectors import add, concept
from daguerre.concepts.detectors.lexical import whole_tokens, with_tokens
from daguerre.concepts.source import SourceText, Span, once

TODO = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b")
PRAGMA = re.compile(
    r"#\s*(?:(?i:noqa)\b|nosec\b|type:\s*ignore\b|(?:pragma|pylint|fmt|isort|mypy|pyright|ruff|flake8|yapf):)"
)
LICENSE = re.compile(r"copyright|licen[cs]e|all rights reserved", re.IGNORECASE)
URL = re.compile(r"https?://")
ENCODING = re.compile(r"#.*?coding[:=][ \t]*[-\w.]+")
CODE = re.compile(
    r"[=(]|(?:assert|async|break|class|continue|def|del|elif|else|except|finally|for|from|global|if|import|nonlocal|pass"
    r"|raise|return|try|while|with)\b"
)
"""What is in all statements that `commented_out_code` looks for: most comments need no parser."""
BEFORE = {"elif": "if 1: pass\n", "else": "if 1: pass\n", "except": "try: pass\n", "finally": "try: pass\n"}
"""What a header has to follow, by its first word."""
FIRST = re.compile(r"\w*")


@once
def comments(source: SourceText) -> list[tuple[tokenize.TokenInfo, bool]]:
    """Those outside of f-strings, and whether something stands before each on its line."""
    out, line = list[tuple[tokenize.TokenInfo, bool]](), 0
    for token in whole_tokens(source):
        if token.type == tokenize.COMMENT:
            out.append((token, line == token.start[0]))
        line = token.end[0]
    return out


def _is_separator(text: str) -> bool:
    rest = text.strip("# \t\f")
    if not rest:
        return "#####" in text and len(set(text.strip())) == 1
    return len(rest) >= 4 and len(set(rest)) == 1 and not rest[0].isalnum()


for _name, _test in {
    "comment": lambda _: True,
    "todo_comment": TODO.search,
    "tool_pragma": PRAGMA.search,
    "license_comment": LICENSE.search,
    "url_comment": URL.search,
    "separator_comment": _is_separator,
}.items():
    add(_name, with_tokens(lambda source: (token for token, _ in comments(source)), _test))  # type: ignore[arg-type]


@concept
def inline_comment(source: SourceText) -> Iterator[Span]:
    return (source.token_span(token) for token, inline in comments(source) if inline)


@concept
def commented_out_code(source: SourceText) -> Iterator[Span]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of escapes in strings, for example
        found = [token for token, _ in comments(source) if _is_code(token.string.lstrip("#").strip())]
    return map(source.token_span, found)


def _is_code(text: str) -> bool:
    if CODE.match(text) is None and "=" not in text and "(" not in text:
        return False
    if text.endswith(":"):
        first = FIRST.match(text)
        word = first[0] if first else ""
        text = f"{BEFORE.get(word, '')}{text} pass" + ("\nfinally: pass" if word == "try" else "")
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        body = ast.parse(text).body
        return bool(body) and all(map(_is_action, body))
    return False


def _is_action(node: ast.stmt) -> bool:
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    return not isinstance(node, ast.AnnAssign)


@concept
def encoding_comment(source: SourceText) -> Iterator[Span]:
    for token in whole_tokens(source):
        if token.start[0] > 2 or token.type not in (tokenize.COMMENT, tokenize.NL):
            return
        if token.type == tokenize.COMMENT and ENCODING.match(token.string):
            yield source.token_span(token)
            return
