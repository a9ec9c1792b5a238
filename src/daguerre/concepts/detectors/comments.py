"""Comments, by their tokens."""

from __future__ import annotations

import ast
import re
import tokenize
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress

from daguerre.concepts.detectors import ConceptGroup
from daguerre.concepts.detectors.lexical import whole_tokens
from daguerre.concepts.source import SourceText, Span, once

GROUP = ConceptGroup("comments")
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


def _comment(name: str, description: str, test: Callable[[str], bool], *parents: str) -> None:
    def detect(source: SourceText) -> Iterator[Span]:
        return (source.token_span(token) for token, _ in comments(source) if test(token.string))

    GROUP.token(name, description, lexical=True, parents=parents)(detect)


def _is_separator(text: str) -> bool:
    rest = text.strip("# \t\f")
    if not rest:
        return "#####" in text and len(set(text.strip())) == 1
    return len(rest) >= 4 and len(set(rest)) == 1 and not rest[0].isalnum()


_comment("comment", "A comment: a # and what follows it on its line.", lambda x: True)
_comment(
    "todo_comment",
    "A comment with the word TODO, FIXME, XXX or HACK in capitals.",
    lambda x: TODO.search(x) is not None,
    "comment",
)
_comment(
    "tool_pragma",
    "A comment with noqa, nosec, `type: ignore`, or the name of a tool like pylint and a colon after a #.",
    lambda x: PRAGMA.search(x) is not None,
    "comment",
)
_comment(
    "license_comment",
    "A comment with copyright, license, licence or all rights reserved, in any case.",
    lambda x: LICENSE.search(x) is not None,
    "comment",
)
_comment("url_comment", "A comment with http:// or https://.", lambda x: URL.search(x) is not None, "comment")
_comment(
    "separator_comment",
    "A comment that is only a row of four or more of one mark, or of five or more # signs.",
    _is_separator,
    "comment",
)


@GROUP.token("inline_comment", "A comment behind code on its line.", lexical=True, parents=("comment",))
def inline_comment(source: SourceText) -> Iterator[Span]:
    return (source.token_span(token) for token, inline in comments(source) if inline)


@GROUP.token(
    "commented_out_code",
    "A comment that parses, past #, as a call, unannotated assignment, keyword statement or block header.",
    lexical=True,
    parents=("comment",),
)
def commented_out_code(source: SourceText) -> Iterator[Span]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of escapes in strings, for example
        found = [token for token, _ in comments(source) if _is_code(token.string.lstrip("#").strip())]
    for token in found:
        yield source.token_span(token)


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


@GROUP.token(
    "encoding_comment",
    "A comment that declares the encoding of the file, on line 1 or 2, as in `coding: utf-8`.",
    lexical=True,
    parents=("comment",),
)
def encoding_comment(source: SourceText) -> Iterator[Span]:
    for token in whole_tokens(source):
        if token.start[0] > 2 or token.type not in (tokenize.COMMENT, tokenize.NL):
            return
        if token.type == tokenize.COMMENT and ENCODING.match(token.string):
            yield source.token_span(token)
            return
