"""Names, numbers, and other literals. What stands inside of an f-string belongs to that token alone, in each version of
Python, wherever a concept is read from tokens.
"""

from __future__ import annotations

import ast
import keyword
import tokenize
from collections.abc import Callable, Iterable, Iterator

from daguerre.concepts.detectors import Detector, add, concept, nodes
from daguerre.concepts.names import BUILTINS
from daguerre.concepts.source import SourceText, Span, once

OPENERS = {getattr(tokenize, name, None) for name in ("FSTRING_START", "TSTRING_START")} - {None}
CLOSERS = {getattr(tokenize, name, None) for name in ("FSTRING_END", "TSTRING_END")} - {None}
UNSEEN = {tokenize.NL, tokenize.COMMENT}
KEYWORDS = frozenset(keyword.kwlist)


@once
def whole_tokens(source: SourceText) -> list[tokenize.TokenInfo]:
    """The tokens, with each f-string as one STRING, as it was until Python 3.11."""
    if not OPENERS:
        return source.tokens
    out, depth, first = list[tokenize.TokenInfo](), 0, None
    for token in source.tokens:
        if token.type in OPENERS:
            first = first if depth else token
            depth += 1
        elif token.type in CLOSERS and first is not None:
            depth -= 1
            if not depth:
                text = source.text[source.token_span(first)[0] : source.token_span(token)[1]]
                out.append(tokenize.TokenInfo(tokenize.STRING, text, first.start, token.end, first.line))
        elif not depth:
            out.append(token)
    return out


def with_tokens(
    tokens: Callable[[SourceText], Iterable[tokenize.TokenInfo]], test: Callable[[str], object]
) -> Detector:
    """A detector of those of some tokens whose text passes a test."""
    return lambda source: (source.token_span(token) for token in tokens(source) if test(token.string))


@once
def words(source: SourceText) -> list[tokenize.TokenInfo]:
    """The tokens that are names or keywords."""
    return [one for one in whole_tokens(source) if one.type == tokenize.NAME]


@once
def names(source: SourceText) -> list[tokenize.TokenInfo]:
    """Those that are no keywords."""
    return [one for one in words(source) if one.string not in KEYWORDS]


@once
def numbers(source: SourceText) -> list[tokenize.TokenInfo]:
    return [one for one in whole_tokens(source) if one.type == tokenize.NUMBER]


@concept
def builtin_name(source: SourceText) -> Iterator[Span]:
    dotted = False
    for token in whole_tokens(source):
        if token.type == tokenize.NAME and token.string in BUILTINS and not dotted:
            yield source.token_span(token)
        if token.type not in UNSEEN:
            dotted = token.type == tokenize.OP and token.string in (".", "...")


def _is_based(number: str) -> bool:
    return number[:2] in ("0x", "0X", "0b", "0B", "0o", "0O")


def _is_complex(number: str) -> bool:
    return number[-1] in "jJ"


def _is_float(number: str) -> bool:
    return not _is_based(number) and not _is_complex(number) and ("." in number or "e" in number or "E" in number)


def _is_int(number: str) -> bool:
    return _is_based(number) or not (_is_complex(number) or _is_float(number))


def _is_large(number: str) -> bool:
    if _is_based(number):
        return int(number, 0) > 1000
    digits = number.replace("_", "").lstrip("0")
    return len(digits) > 4 or (len(digits) == 4 and digits != "1000")  # `int` refuses thousands of digits


_TOKENS: dict[str, tuple[Callable[[SourceText], list[tokenize.TokenInfo]], Callable[[str], bool]]] = {
    "single_letter_name": (names, lambda x: len(x) == 1 and x.isalpha()),
    "camel_case": (names, lambda x: not x.islower() and x[0].islower() and "_" not in x and any(map(str.isupper, x))),
    "pascal_case": (names, lambda x: x[0].isupper() and not x.isupper() and "_" not in x and any(map(str.islower, x))),
    "upper_case_name": (names, lambda x: len(x) > 1 and x.isupper()),
    "bool_literal": (words, lambda x: x in ("True", "False")),
    "none_literal": (words, lambda x: x == "None"),
    "int_literal": (numbers, _is_int),
    "float_literal": (numbers, _is_float),
    "complex_literal": (numbers, _is_complex),
    "hex_literal": (numbers, lambda x: x[:2] in ("0x", "0X")),
    "bin_oct_literal": (numbers, lambda x: x[:2] in ("0b", "0B", "0o", "0O")),
    "large_int": (numbers, lambda x: _is_int(x) and _is_large(x)),
}
for _name, (_tokens, _test) in _TOKENS.items():
    add(_name, with_tokens(_tokens, _test))
nodes("private_attribute", ast.Attribute, lambda _, node: node.attr.startswith("_") and not node.attr.startswith("__"))
nodes("ellipsis_literal", ast.Constant, lambda _, node: node.value is ...)
nodes("list_literal", ast.List, lambda _, node: isinstance(node.ctx, ast.Load))
nodes("dict_literal", ast.Dict)
nodes("set_literal", ast.Set)


@concept
def tuple_literal(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.Tuple):
        above = source.parent(node)
        if not isinstance(node.ctx, ast.Load) or (isinstance(above, ast.Subscript) and above.slice is node):
            continue
        start, end = source.span(node)
        if node.elts and source.text[start] == "{" and source.span(node.elts[0])[0] > start:
            # In f"{a, b}" Python 3.11 counts the braces in
            inner = source.text[start + 1 : end - 1]
            start, end = end - 1 - len(inner.lstrip()), start + 1 + len(inner.rstrip())
        yield start, end
