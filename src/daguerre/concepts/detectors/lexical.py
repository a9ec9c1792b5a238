"""Names, numbers, and other literals. What stands inside of an f-string belongs to that token alone, in each version of
Python, wherever a concept is read from tokens.
"""

from __future__ import annotations

import ast
import keyword
import tokenize
from collections.abc import Callable, Iterator

from daguerre.concepts.detectors import ConceptGroup
from daguerre.concepts.names import BUILTINS
from daguerre.concepts.source import SourceText, Span, once

GROUP = ConceptGroup("lexical")
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


@once
def names(source: SourceText) -> list[tokenize.TokenInfo]:
    """The tokens that are names, no keywords."""
    return [one for one in whole_tokens(source) if one.type == tokenize.NAME and one.string not in KEYWORDS]


@once
def numbers(source: SourceText) -> list[tokenize.TokenInfo]:
    return [one for one in whole_tokens(source) if one.type == tokenize.NUMBER]


@GROUP.token(
    "builtin_name", "A name of a builtin function, type or exception, not after a dot or in an f-string.", lexical=True
)
def builtin_name(source: SourceText) -> Iterator[Span]:
    dotted = False
    for token in whole_tokens(source):
        if token.type == tokenize.NAME and token.string in BUILTINS and not dotted:
            yield source.token_span(token)
        if token.type not in UNSEEN:
            dotted = token.type == tokenize.OP and token.string in (".", "...")


def _name(name: str, description: str, test: Callable[[str], bool]) -> None:
    def detect(source: SourceText) -> Iterator[Span]:
        return (source.token_span(token) for token in names(source) if test(token.string))

    GROUP.token(name, description, lexical=True)(detect)


_name(
    "single_letter_name",
    "A name that is a single letter, also as an attribute, outside of f-strings.",
    lambda x: len(x) == 1 and x.isalpha(),
)
_name(
    "camel_case",
    "A name without underscores that starts in lower case and has a capital, outside of f-strings.",
    lambda x: not x.islower() and x[0].islower() and "_" not in x and any(map(str.isupper, x)),
)
_name(
    "pascal_case",
    "A name without underscores that starts with a capital and has a small letter, outside of f-strings.",
    lambda x: x[0].isupper() and not x.isupper() and "_" not in x and any(map(str.islower, x)),
)
_name(
    "upper_case_name",
    "A name of two or more characters with capitals and no small letters, outside of f-strings.",
    lambda x: len(x) > 1 and x.isupper(),
)


@GROUP.node("private_attribute", "An attribute whose name starts with one underscore, not two: x._name.")
def private_attribute(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.Attribute):
        if node.attr.startswith("_") and not node.attr.startswith("__"):
            yield source.span(node)


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


def _number(name: str, description: str, test: Callable[[str], bool], *parents: str) -> None:
    def detect(source: SourceText) -> Iterator[Span]:
        return (source.token_span(token) for token in numbers(source) if test(token.string))

    GROUP.token(name, description, lexical=True, parents=parents)(detect)


_number("int_literal", "An int literal in any base, without a sign, outside of f-strings.", _is_int)
_number("float_literal", "A float literal: a number with a point or an exponent, outside of f-strings.", _is_float)
_number("complex_literal", "An imaginary literal: a number that ends in j, outside of f-strings.", _is_complex)
_number(
    "hex_literal",
    "An int literal in base 16, as 0xff, outside of f-strings.",
    lambda x: x[:2] in ("0x", "0X"),
    "int_literal",
)
_number(
    "bin_oct_literal",
    "An int literal in base 2 or 8, as 0b1 or 0o7, outside of f-strings.",
    lambda x: x[:2] in ("0b", "0B", "0o", "0O"),
    "int_literal",
)
_number(
    "large_int",
    "An int literal above 1000, in any base, outside of f-strings.",
    lambda x: _is_int(x) and _is_large(x),
    "int_literal",
)


@GROUP.token("bool_literal", "The keyword True or False, outside of f-strings.", lexical=True)
def bool_literal(source: SourceText) -> Iterator[Span]:
    for token in whole_tokens(source):
        if token.type == tokenize.NAME and token.string in ("True", "False"):
            yield source.token_span(token)


@GROUP.token("none_literal", "The keyword None, outside of f-strings.", lexical=True)
def none_literal(source: SourceText) -> Iterator[Span]:
    for token in whole_tokens(source):
        if token.type == tokenize.NAME and token.string == "None":
            yield source.token_span(token)


@GROUP.node("ellipsis_literal", "The expression `...`, not the dots of a relative import.")
def ellipsis_literal(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.Constant):
        if node.value is ...:
            yield source.span(node)


@GROUP.node("list_literal", "A list in brackets, no comprehension and no target of an assignment.")
def list_literal(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.List):
        if isinstance(node.ctx, ast.Load):
            yield source.span(node)


@GROUP.node("tuple_literal", "A tuple with or without parentheses, no target and no index as in x[1, 2].")
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


@GROUP.node("dict_literal", "A dict in braces, empty or with entries, no comprehension.")
def dict_literal(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.Dict):
        yield source.span(node)


@GROUP.node("set_literal", "A set in braces, no comprehension.")
def set_literal(source: SourceText) -> Iterator[Span]:
    for node in source.of(ast.Set):
        yield source.span(node)
