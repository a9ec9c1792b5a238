"""Questions about held-out Python that the source answers: six kinds, each in a form that a base model can answer.

A base model follows no instructions, so every question is a gap in code with a few labels that could fill it:

    defined   is this name defined above? `print(` follows the text, then the name or the word `value`. Some of the
              names are bound in the last lines of the text; the others are bound only after it and do not occur in it
    returns   does this function return a value? `-> str` or `-> None` in its header, in place of its annotation if it
              has one, with the beginning of its body after it; no generators, and no stubs
    keyword   which of Python's keywords comes here? The rest of the line is given
    operator  which comparison comes here? Some are two words. The rest of the line is given
    name      which of the last four names that were read comes here? The rest of the line is given
    digit     which number from 0 to 9 comes here? The rest of the line is given

Every question shows whole lines above it.
"""

from __future__ import annotations

import ast
import io
import keyword
import re
import tokenize
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from daguerre.evals.lines import fitting, hashed_order, parse, round_robin, split_lines
from daguerre.heldout import Document
from daguerre.models.tokenizer import Tokenizer
from daguerre.scoring.decisions import Choice, Question, Score, YesNo

SHOWN_TOKENS, LINE_BYTES, BODY_BYTES = 192, 64, 480
NUM_NAMES, MIN_NAME, NEAR_LINES = 4, 3, 12
CONTROL = "value"
OPERATORS = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
    ast.In: "in", ast.NotIn: "not in", ast.Is: "is", ast.IsNot: "is not",
}  # fmt: skip


@dataclass(frozen=True)
class QuestionExample:
    """A question, the index of its right label, and where it is from: a document, and a line from 0."""

    document: Document
    line: int
    state: str
    question: Question
    truth: int


@dataclass(frozen=True)
class QuestionPlace:
    """A question without its state, which is the lines above `line`. `key`: different for each question of a line."""

    line: int
    key: object
    question: Question
    truth: int


@dataclass(frozen=True)
class ParsedDocument:
    """A document that parses, its lines with their breaks."""

    document: Document
    tree: ast.Module
    lines: list[str]
    seed: int

    @cached_property
    def bound(self) -> dict[str, int]:
        """Names that it binds, of MIN_NAME characters or more and not CONTROL, and the first line, from 0, of each."""
        first: dict[str, int] = {}
        for node in ast.walk(self.tree):
            for name in _names(node):
                if len(name) >= MIN_NAME and name != CONTROL:
                    line = node.lineno - 1  # type: ignore[attr-defined]
                    first[name] = min(line, first.get(name, line))
        return first

    def around(self, line: int, start: int, stop: int) -> tuple[str, str]:
        """A line, from 0, before and after its bytes [start, stop); the part after is cut to LINE_BYTES."""
        raw = self.lines[line].encode()
        return raw[:start].decode(), raw[stop:][:LINE_BYTES].decode(errors="ignore")


Kind = Callable[[ParsedDocument], Iterator[QuestionPlace]]


def make_questions(
    documents: Sequence[Document], kind: str, limit: int, room: int, *, seed: int = 0
) -> list[QuestionExample]:
    """At most `limit` questions of a kind of KINDS, spread evenly over the documents, in an order hashed from
    `seed`. No text takes more than `room` positions, those of the model.
    """
    counter = Tokenizer.default("2k")
    return round_robin(documents, seed, limit, lambda document: _examples(document, kind, counter, room, seed))


def _examples(document: Document, kind: str, counter: Tokenizer, room: int, seed: int) -> Iterator[QuestionExample]:
    tree = None if "\r" in document.text or "\f" in document.text else parse(document.text)
    if tree is None:
        return
    source = ParsedDocument(document, tree, split_lines(document.text), seed)
    for place in sorted(KINDS[kind](source), key=lambda p: hashed_order(seed, document.sha256, p.line, p.key)):
        shown = fitting(source.lines[: place.line][::-1], counter, min(SHOWN_TOKENS, room // 4))
        state = "".join(reversed(shown))
        if kind == "defined" and not _has_answer(state, place, source):
            continue
        question = place.question
        longest = max(len(counter.encode(question.before + text + question.after)) for text in question.texts.values())
        if longest < room - room // 4 - 8:
            yield QuestionExample(document, place.line, state, question, place.truth)


def _defined(source: ParsedDocument) -> Iterator[QuestionPlace]:
    """At every eighth line two names: one bound above the line, one after it."""
    for line in range(8, len(source.lines), 8):
        above = [name for name, first in source.bound.items() if line - NEAR_LINES <= first < line]
        below = [name for name, first in source.bound.items() if first >= line]
        for truth, names in enumerate((above, below)):
            if names:
                name = min(names, key=lambda name: hashed_order(source.seed, line, name))
                yield QuestionPlace(line, truth, YesNo(before="\n\nprint(", yes=name, no=CONTROL, after=")"), truth)


def _has_answer(state: str, place: QuestionPlace, source: ParsedDocument) -> bool:
    """Whether the text shown binds the name, or does not have the name at all."""
    assert isinstance(place.question, YesNo)
    name = place.question.yes
    occurs = re.search(rf"\b{re.escape(name)}\b", state) is not None
    return occurs == (place.truth == 0) and (not occurs or source.bound[name] >= place.line - state.count("\n"))


def _names(node: ast.AST) -> list[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return [(alias.asname or alias.name).partition(".")[0] for alias in names]
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
            return [name]
    return []


def _returns(source: ParsedDocument) -> Iterator[QuestionPlace]:
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or all(map(_says_nothing, node.body)):
            continue
        body = list(_nodes_of(node))
        header, rest = _without_annotation(source, node)
        if not header.endswith(")") or not rest.startswith(":\n") or any(map(_yields, body)):
            continue
        question = YesNo(before=header + " ->", yes=" str", no=" None", after=rest)
        valued = any(isinstance(each, ast.Return) and each.value is not None for each in body)
        yield QuestionPlace(node.lineno - 1, node.name, question, int(not valued))


def _without_annotation(source: ParsedDocument, node: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[str, str]:
    """A function up to the end of its parameters, and from the colon on, cut to BODY_BYTES."""
    lines = [line.encode() for line in source.lines[node.lineno - 1 : node.end_lineno]]
    if node.returns is None:
        row = node.body[0].lineno - node.lineno
        start = b"".join(lines[:row]).rstrip()
        head, tail = start.removesuffix(b":"), start[-1:] + b"\n" + b"".join(lines[row:])
    else:
        first, last = node.returns.lineno - node.lineno, (node.returns.end_lineno or 0) - node.lineno
        head = b"".join(lines[:first]) + lines[first][: node.returns.col_offset]
        tail = lines[last][node.returns.end_col_offset :] + b"".join(lines[last + 1 :])
        head = head.rstrip().removesuffix(b"->").rstrip()
    return head.decode(), tail[:BODY_BYTES].decode(errors="ignore")


def _says_nothing(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _yields(node: ast.AST) -> bool:
    return isinstance(node, ast.Yield | ast.YieldFrom)


def _nodes_of(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes of a function, without those of functions and classes inside it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            yield child
            yield from _nodes_of(child)


def _keyword(source: ParsedDocument) -> Iterator[QuestionPlace]:
    for token, start, stop in _tokens(source, tokenize.NAME):
        if keyword.iskeyword(token.string):
            before, after = source.around(token.start[0] - 1, start, stop)
            labels = keyword.kwlist
            question = Choice(before=before, labels=labels, after=after)
            yield QuestionPlace(token.start[0] - 1, start, question, labels.index(token.string))


def _digit(source: ParsedDocument) -> Iterator[QuestionPlace]:
    for token, start, stop in _tokens(source, tokenize.NUMBER):
        if len(token.string) == 1:
            before, after = source.around(token.start[0] - 1, start, stop)
            yield QuestionPlace(
                token.start[0] - 1, start, Score(before=before, low=0, high=9, after=after), int(token.string)
            )


def _tokens(source: ParsedDocument, kind: int) -> Iterator[tuple[tokenize.TokenInfo, int, int]]:
    """Tokens of a kind that are not the last of their line, and their bytes [start, stop) in it."""
    for token in tokenize.generate_tokens(io.StringIO(source.document.text).readline):
        if token.type == kind and token.end[1] < len(token.line):
            start, stop = (len(token.line[: place[1]].encode()) for place in (token.start, token.end))
            yield token, start, stop


def _operator(source: ParsedDocument) -> Iterator[QuestionPlace]:
    labels = list(OPERATORS.values())
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Compare) or len(node.ops) > 1:
            continue
        right, name = node.comparators[0], OPERATORS[type(node.ops[0])]
        if node.left.end_lineno == right.lineno and node.left.end_col_offset is not None:
            between = source.lines[right.lineno - 1].encode()[node.left.end_col_offset : right.col_offset]
            if between == b" " + name.encode() + b" ":
                before, after = source.around(right.lineno - 1, node.left.end_col_offset + 1, right.col_offset - 1)
                question = Choice(before=before, labels=labels, after=after)
                yield QuestionPlace(right.lineno - 1, right.col_offset, question, labels.index(name))


def _name(source: ParsedDocument) -> Iterator[QuestionPlace]:
    """The labels are the names last read above, the nearest first."""
    reads = [node for node in ast.walk(source.tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    recent: list[str] = []
    for node in sorted(reads, key=lambda node: (node.lineno, node.col_offset)):
        if node.id in recent and len(recent) == NUM_NAMES:
            before, after = source.around(node.lineno - 1, node.col_offset, node.end_col_offset or 0)
            if after:
                question = Choice(before=before, labels=list(recent), after=after)
                yield QuestionPlace(node.lineno - 1, node.col_offset, question, recent.index(node.id))
        recent = [node.id, *(name for name in recent if name != node.id)][:NUM_NAMES]


KINDS: dict[str, Kind] = {
    "defined": _defined,
    "returns": _returns,
    "keyword": _keyword,
    "operator": _operator,
    "name": _name,
    "digit": _digit,
}
FREE = frozenset({"name"})
"""Kinds in which every question has other labels, so that labels have no bias. They are numbered by nearness."""
