"""String literals, by their tokens: text in quotes as it is written, escapes and all."""

from __future__ import annotations

import re
import tokenize
from collections.abc import Callable, Iterator
from typing import NamedTuple

from daguerre.concepts.detectors import add, concept
from daguerre.concepts.detectors.lexical import whole_tokens
from daguerre.concepts.source import SourceText, Span, once

ESCAPES_OR_FIELD = re.compile(
    r"""\\N\{[^{}]*\} | \\. | \{\{ | \}\}
    | (?P<field>\{ (?:[^\W\d]\w*|\d+)? (?:\.\w+|\[[^\[\]{}]+\])* (?:![rsa])? (?: :[^{}]*(?:\{[^{}]*\}[^{}]*)* )? \})""",
    re.VERBOSE | re.DOTALL,
)
CONVERSION = re.compile(r"%(?:%|(?:\([^()]*\))?[-+#0]*(?:\d+|\*)?(?:\.(?:\d+|\*)?)?[diouxXeEfFgGcrsa])")
REGEX = re.compile(r"\\[dDsSwW]|\(\?|[)\]][*+?]")
TAG = re.compile(r"</[A-Za-z][\w:.-]*\s*>|<[A-Za-z][\w:.-]*(?:\s+[\w:.-]+\s*=[^<>]*|\s*)>|<[A-Za-z][\w:.-]*\s*/>")
URL = re.compile(r"https?://")
EXTENSIONS = """
    bat bin bmp c cc cfg class conf cpp css csv dat db dll doc docx exe gif go gz h hpp htm html ico ini ipynb jar java
    jpeg jpg js json jsonl log lock lua md mp3 mp4 npy npz o parquet pdf php pkl png po proto ps1 pt pth py pyc pyi pyx
    rb rs rst sh so sql sqlite svg tar tex tgz tif tiff toml ts tsv txt wav webp whl xls xlsx xml yaml yml zip
    """.split()
FILENAME = re.compile(rf"[\w./\\~-]*[\w-]\.(?:{'|'.join(EXTENSIONS)})")


class Literal(NamedTuple):
    """A token: its prefix in lower case, its quotes, and what is between them."""

    token: tokenize.TokenInfo
    prefix: str
    quotes: str
    body: str


@once
def literals(source: SourceText) -> tuple[list[Literal], list[Literal]]:
    """Those of strings, and those of bytes."""
    texts, data = list[Literal](), list[Literal]()
    for token in whole_tokens(source):
        if token.type == tokenize.STRING:
            rest = token.string.lstrip("rRbBuUfFtT")
            prefix = token.string[: len(token.string) - len(rest)].lower()
            quotes = rest[:3] if rest[:3] in ('"""', "'''") else rest[0]
            found = Literal(token, prefix, quotes, rest[len(quotes) : len(rest) - len(quotes)])
            (data if "b" in prefix else texts).append(found)
    return texts, data


@concept
def bytes_literal(source: SourceText) -> Iterator[Span]:
    return (source.token_span(one.token) for one in literals(source)[1])


def _is_f(literal: Literal) -> bool:
    return "f" in literal.prefix


def _is_template(literal: Literal) -> bool:
    if literal.prefix not in ("", "u") or "{" not in literal.body or "}" not in literal.body:
        return False
    return any(found["field"] for found in ESCAPES_OR_FIELD.finditer(literal.body))


def _is_percent(literal: Literal) -> bool:
    signs = literal.body.count("%")
    if not signs or _is_f(literal):
        return False
    found = CONVERSION.findall(literal.body)
    return any(one != "%%" for one in found) and sum(one.count("%") for one in found) == signs


def _string(name: str, test: Callable[[Literal], bool] = lambda x: True) -> None:
    """Register a concept for the literals of strings that pass a test."""
    add(name, lambda source: (source.token_span(one.token) for one in literals(source)[0] if test(one)))


_string("string_literal")
_string("single_quoted", lambda x: x.quotes == "'")
_string("double_quoted", lambda x: x.quotes == '"')
_string("triple_quoted", lambda x: len(x.quotes) == 3)
_string("raw_string", lambda x: "r" in x.prefix)
_string("fstring", _is_f)
_string("multiline_string", lambda x: x.token.end[0] > x.token.start[0])
_string("long_string", lambda x: len(x.body) > 80)
_string("empty_string", lambda x: not x.body)
_string("non_ascii_string", lambda x: not x.body.isascii())
_string("format_template", _is_template)
_string("percent_template", _is_percent)
_string("regex_like_string", lambda x: "r" in x.prefix and REGEX.search(x.body) is not None)
_string("markup_string", lambda x: "<" in x.body and TAG.search(x.body) is not None)
_string("url_string", lambda x: "://" in x.body and URL.search(x.body) is not None)
_string("filename_string", lambda x: "." in x.body and FILENAME.fullmatch(x.body) is not None)
