"""Constrained and unconstrained filling compared: literals of a known type, and the arguments of calls, are taken out
of held-out code and filled in again, with the type as a constraint and without.

A string, a number, True, False or None, a list of such literals, and what is between the parentheses of a call each
have a pattern (PATTERNS). The length of the gap is unknown; the constrained request always matches the pattern.
Three methods see the same examples, so differences are counted in pairs:

    constrained  with the pattern
    free         without, otherwise the same
    healed       without, and with the last word before the gap drawn again: the default of `infill`

    exact   the original text, character for character
    begins  what is written begins with it: what `exact` could be if every text were cut at the right place
    valid   of the right type (arguments: what a call takes)
    parses  the file is Python with the text in place

Seconds are those of the request; the pattern's automaton is compiled before, and that time is reported separately.
"""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from daguerre.errors import DataError
from daguerre.evals.lines import fitting, hashed_order, parse, round_robin, split_lines
from daguerre.evals.spans import AFTER_TOKENS, BEFORE_TOKENS
from daguerre.evals.statistics import means, paired_difference, shares
from daguerre.evals.workers import ItemProgress, map_examples
from daguerre.heldout import Document
from daguerre.model import Model
from daguerre.models.tokenizer import Tokenizer

GAP_TOKENS = 16
"""Length of the gap, and the most tokens of an example."""
METHODS = ("constrained", "free", "healed")

NUMBER = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?(e-?[1-9][0-9]?)?"
STRING = "|".join(rf"{quote}([^{quote}\\\n\r]|\\[nrt0\\'\"])*{quote}" for quote in ("'", '"'))
CONSTANT = "True|False|None"
LITERAL = f"({NUMBER}|{STRING}|{CONSTANT})"
LIST = rf"\[({LITERAL}(, {LITERAL})*)?\]"
NAME = r"[A-Za-z_][A-Za-z0-9_]*"


def _arguments(depth: int) -> str:
    """Arguments of a call, in which calls and subscripts are nested at most this deep."""
    inner = "" if depth == 0 else rf"(\(({_arguments(depth - 1)})?\)|\[{_value(depth - 1)}\])?"
    value = rf"({LITERAL}|{NAME}(\.{NAME})*{inner})"
    one = rf"({NAME}=)?{value}( [-+*/%] {value})?"
    return f"{one}(, {one})*"


def _value(depth: int) -> str:
    inner = "" if depth == 0 else rf"(\[{_value(depth - 1)}\])?"
    return rf"({LITERAL}|{NAME}(\.{NAME})*{inner})"


PATTERNS = {
    "string": STRING,
    "number": NUMBER,
    "constant": CONSTANT,
    "list": LIST,
    "arguments": _arguments(1),
}


@dataclass(frozen=True)
class Missing:
    """A literal, or the arguments of a call, of a document; what is shown around it, and the file around it."""

    document: Document
    kind: str
    text: str
    prefix: str
    suffix: str
    before: str = field(repr=False)
    after: str = field(repr=False)


@dataclass(frozen=True)
class WrittenLiteral:
    """What one method wrote, and the cost."""

    text: str
    exact: bool
    begins: bool
    valid: bool
    parses: bool
    forwards: int
    seconds: float


@dataclass(frozen=True)
class LiteralOutcome:
    """One method on the examples of one kind. Intervals are of 95%: Wilson's, and of differences in pairs.

    Differences are those of the constrained method less this one.
    """

    kind: str
    method: str
    num: int
    exact: float
    exact_interval: tuple[float, float]
    begins: float
    valid: float
    valid_interval: tuple[float, float]
    parses: float
    parses_interval: tuple[float, float]
    forwards: float
    seconds: float
    exact_difference: float
    exact_difference_interval: tuple[float, float]
    parses_difference: float
    parses_difference_interval: tuple[float, float]


@dataclass(frozen=True)
class Literals:
    """Outcomes by kind and method; seconds to compile each kind's automaton; and what was written."""

    outcomes: tuple[LiteralOutcome, ...]
    compile_seconds: Mapping[str, float]
    written: Sequence[Mapping[str, str]] = field(repr=False)


def make_literals(
    documents: Sequence[Document],
    tokenizer: Tokenizer,
    limit: int,
    *,
    seed: int = 0,
    shown: tuple[int, int] = (BEFORE_TOKENS, AFTER_TOKENS),
) -> list[Missing]:
    """At most `limit` examples of each kind, spread evenly over the documents, in an order hashed from seed.

    DataError when there is none of any kind.
    """
    places = {document.sha256: _places(document, tokenizer) for document in documents}
    of = partial(_examples, places=places, tokenizer=tokenizer, seed=seed, shown=shown)
    out = [one for kind in PATTERNS for one in round_robin(documents, seed, limit, partial(of, kind=kind))]
    if not out:
        raise DataError(
            "no literal and no call to fill in: give Python files that parse, with text before and after them"
        )
    return out


def _places(document: Document, tokenizer: Tokenizer) -> dict[str, list[tuple[int, int]]]:
    """Character spans of what can be taken out, by kind."""
    tree = None if "\r" in document.text or "\f" in document.text else parse(document.text)
    out: dict[str, list[tuple[int, int]]] = {}
    if tree is None:
        return out
    lines = [line.encode() for line in document.text.split("\n")]
    starts = np.cumsum([0, *(len(line.decode()) + 1 for line in lines)]).tolist()
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for node in ast.walk(tree):
        kind = _kind_of(node)
        if kind is None or id(node) in inside or not isinstance(node, ast.expr) or node.end_lineno != node.lineno:
            continue
        row = lines[node.lineno - 1]
        begin, end = (len(row[:offset].decode()) for offset in (node.col_offset, node.end_col_offset))
        if kind == "arguments":
            assert isinstance(node, ast.Call)
            begin = row.decode().find("(", len(row[: node.func.end_col_offset].decode())) + 1
            end -= 1
        text = row.decode()[begin:end]
        if re.fullmatch(PATTERNS[kind], text) and len(tokenizer.encode(text)) <= GAP_TOKENS:
            first = starts[node.lineno - 1]
            out.setdefault(kind, []).append((first + begin, first + end))
    return out


def _kind_of(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant):
        kinds = {str: "string", int: "number", float: "number", bool: "constant", type(None): "constant"}
        return kinds.get(type(node.value))
    if isinstance(node, ast.List) and node.elts and isinstance(node.ctx, ast.Load):
        return "list"
    return "arguments" if isinstance(node, ast.Call) else None


def _examples(
    document: Document,
    kind: str,
    places: dict[str, dict[str, list[tuple[int, int]]]],
    tokenizer: Tokenizer,
    seed: int,
    shown: tuple[int, int],
) -> Iterator[Missing]:
    found = places[document.sha256].get(kind, [])
    for start, end in sorted(found, key=lambda place: hashed_order(seed, document.sha256, kind, place)):
        before, after = document.text[:start], document.text[end:]
        prefix = "".join(reversed(fitting(split_lines(before)[::-1], tokenizer, shown[0])))
        suffix = "".join(fitting(split_lines(after), tokenizer, shown[1]))
        if prefix.strip() and suffix.strip():
            yield Missing(document, kind, document.text[start:end], prefix, suffix, before, after)


def is_valid(kind: str, text: str) -> bool:
    """Whether the text is a literal of the kind, or arguments of a call."""
    tree = parse(f"f({text})" if kind == "arguments" else f"({text}\n)")
    if tree is None or len(tree.body) != 1 or not isinstance(tree.body[0], ast.Expr):
        return False
    node = tree.body[0].value
    if kind == "arguments":
        return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "f"
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError):
        return False
    types = {"string": (str,), "number": (int, float), "constant": (bool, type(None)), "list": (list,)}
    return type(value) in types[kind]


def constrained_filling(
    model: Model, examples: Sequence[Missing], *, workers: int = 1, progress: ItemProgress | None = None
) -> Literals:
    """Fill every example in by every method."""
    kinds = list(dict.fromkeys(example.kind for example in examples))
    compiled = {kind: _compile(model, kind) for kind in kinds}
    found = map_examples(partial(fill_in, model), examples, workers, progress)
    outcomes = []
    for kind in kinds:
        some = [each for each, example in zip(found, examples, strict=True) if example.kind == kind]
        outcomes += [_outcome(kind, method, some) for method in METHODS]
    return Literals(tuple(outcomes), compiled, [{m: w.text for m, w in each.items()} for each in found])


def _compile(model: Model, kind: str) -> float:
    """Seconds to compile the pattern's automaton, which later requests find ready."""
    started = time.perf_counter()
    model.infill("x = ", "\n", GAP_TOKENS, mode="block", regex=PATTERNS[kind], timeout=1e-9)
    return time.perf_counter() - started


def fill_in(model: Model, example: Missing) -> dict[str, WrittenLiteral]:
    """The example under each method; compiling the pattern in this process is not timed."""
    _compile(model, example.kind)
    options: dict[str, dict[str, Any]] = {
        "constrained": {"regex": PATTERNS[example.kind]},
        "free": {"heal": False},
        "healed": {},
    }
    out = {}
    for method in METHODS:
        started = time.perf_counter()
        result = model.infill(example.prefix, example.suffix, GAP_TOKENS, mode="block", **options[method])
        seconds = time.perf_counter() - started
        out[method] = WrittenLiteral(
            text=result.text,
            exact=result.text == example.text,
            begins=result.text.startswith(example.text),
            valid=is_valid(example.kind, result.text),
            parses=parse(example.before + result.text + example.after) is not None,
            forwards=result.usage.forwards,
            seconds=seconds,
        )
    return out


def _outcome(kind: str, method: str, found: Sequence[Mapping[str, WrittenLiteral]]) -> LiteralOutcome:
    written = [each[method] for each in found]
    differences = dict[str, Any]()
    for name in ("exact", "parses"):
        value, interval = _difference(name, method, found)
        differences |= {f"{name}_difference": value, f"{name}_difference_interval": interval}
    return LiteralOutcome(
        kind=kind,
        method=method,
        num=len(found),
        **shares(written, "exact", "valid", "parses"),
        **means(written, "begins", "forwards", "seconds"),
        **differences,
    )


def _difference(
    name: str, method: str, found: Sequence[Mapping[str, WrittenLiteral]]
) -> tuple[float, tuple[float, float]]:
    pairs = [(getattr(each["constrained"], name), getattr(each[method], name)) for each in found]
    return paired_difference(pairs.count((True, False)), pairs.count((False, True)), len(pairs))
