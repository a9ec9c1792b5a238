"""Search by concept: where a model with concept heads reads a concept in texts; and search for concepts by words.

A text is read in spans of SPAN tokens (blocks of a model with blocks; the whole text in full context), each behind all
text before it, with nothing masked. These are the rows by which decoding would predict the span's tokens: a token's
concepts are those of the row that predicts it, and that row sees the token. Exceptions: in reordered context a row sees
the tokens up to its own; in a shifted model the last token of a span, and behind a clean anchor the first of a block,
have no row that sees them. With heads that `read` (`models.core.shapes.ConceptShape`) a token's known concepts are
those that its own clean row has read. A text longer than the model's context is read in windows, of which a quarter was
read before.

How strongly a unit, a function (in a text that is no Python, a paragraph) or a file, has a concept:

    peak   log P, in nats, of the token with the largest: P = sigmoid(logit of the concept)
    mean   the mean over its tokens of the concept's weight, which is 0 in rows that do not keep it

For several concepts of a query that are wanted (+) and unwanted (-), as if they were independent:

    peak   sum over wanted of log P + sum over unwanted of log(1 - P)
    mean   sum over wanted - sum over unwanted

Letters: T tokens, J concepts of a query, D width.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any, Literal, TypeVar, get_args

import numpy as np

from daguerre.canvas import Canvas
from daguerre.errors import InputError, UnsupportedError, no_concept_heads, unknown
from daguerre.models.catalog import Catalog
from daguerre.models.core.config import ModelConfig
from daguerre.models.core.shapes import CLAMP
from daguerre.models.denoiser import Denoiser
from daguerre.models.forward import Hidden
from daguerre.models.heads import Heads, largest, sigmoid
from daguerre.models.session import Asking, compute, together
from daguerre.models.tokenizer import Tokenizer
from daguerre.scoring.embedding import clean_forward

SPAN = 64
"""Most tokens of a span in causal context."""
AT_ONCE = 16
"""Windows whose forwards are in one batch."""
Strength = Literal["peak", "mean"]
STRENGTHS: tuple[Strength, ...] = get_args(Strength)
UnitKind = Literal["function", "file"]
UNITS: tuple[UnitKind, ...] = get_args(UnitKind)
T = TypeVar("T")
SIGN = re.compile(r"(?:^|(?<=\s))([+-])\s*")
BREAK = re.compile(rb"\r\n|\r|\n")
WORD = re.compile(r"[^\W_]+")
NAME_WEIGHT = 3
"""How many times as much a word counts in a concept's name as in its description."""
MOST_PARAGRAPHS = 1000
"""Units of a text that is no Python."""


@dataclass(frozen=True)
class Term:
    """A concept of a query: `wanted`, or unwanted."""

    number: int
    name: str
    wanted: bool = True


@dataclass(frozen=True)
class SearchedText:
    """A text to search, and what it is called."""

    name: str
    text: str


@dataclass(frozen=True)
class ConceptPlace:
    """Where a unit has a concept most strongly. strength: P, or the weight; line: from 1; text: that line."""

    concept: str
    strength: float
    line: int
    text: str


@dataclass(frozen=True)
class FoundUnit:
    """A unit of a document.

    unit         the function's qualified name; "" for a paragraph, a file, or what of it is in no function
    first, last  its lines, from 1
    score        as this module says; for "peak" in nats
    places       the best place of each wanted concept
    """

    document: str
    unit: str
    first: int
    last: int
    score: float
    places: tuple[ConceptPlace, ...]


def parse_query(query: str, catalog: Catalog) -> tuple[Term, ...]:
    """The concepts of "for_loop + try_block - bare_except". A sign stands at the beginning or behind a space.

    InputError for a name that there is not, for one that is given twice, and where none is wanted.
    """
    _, *parts = SIGN.split(query if SIGN.match(query.lstrip()) else f"+ {query.strip()}")
    pairs = list(zip(parts[::2], (name.strip() for name in parts[1::2]), strict=True))
    if not any(sign == "+" and name for sign, name in pairs):
        raise InputError('a query names a concept that is to be there, such as "for_loop - try_block"')
    terms = tuple(
        Term(number, catalog.name(number), sign == "+") for sign, name in pairs for number in [catalog.number(name)]
    )
    twice = sorted({one.name for one in terms if sum(other.number == one.number for other in terms) > 1})
    if twice:
        raise InputError(f"the query names {twice[0]!r} twice: name it once")
    return terms


def search(
    denoiser: Denoiser,
    heads: Heads,
    tokenizer: Tokenizer,
    terms: Sequence[Term],
    documents: Iterable[SearchedText],
    by: Strength = "peak",
    unit: UnitKind = "function",
) -> Iterator[FoundUnit]:
    """The units of documents, document by document, with how strongly the model reads the concepts in them. Of a
    document that is no Python paragraphs are the units; an empty one has none.

    InputError for an unknown `by` or `unit`; UnsupportedError for a model without concept heads, or whose tokens cannot
    be read as bytes.
    """
    if by not in STRENGTHS:
        raise unknown("strength", by, STRENGTHS)
    if unit not in UNITS:
        raise unknown("unit", unit, UNITS)
    if denoiser.config.concepts is None:
        raise no_concept_heads("search by concept")
    tokenizer.require_bytes("search by concept")
    return _search(
        ConceptReader(denoiser, heads, [one.number for one in terms], by), tokenizer, terms, documents, by, unit
    )


def _search(
    reader: ConceptReader,
    tokenizer: Tokenizer,
    terms: Sequence[Term],
    documents: Iterable[SearchedText],
    by: Strength,
    unit: UnitKind,
) -> Iterator[FoundUnit]:
    for document, table in read_tables(reader, tokenizer, documents):
        yield from found_in(document, table, terms, range(len(terms)), by, unit)


def read_tables(
    reader: ConceptReader, tokenizer: Tokenizer, documents: Iterable[SearchedText]
) -> Iterator[tuple[SearchedText, UnitTable]]:
    """Each document with what its units have of the reader's concepts, as soon as all of it is read."""
    for some in _groups(documents, AT_ONCE):
        tokens = [tokenizer.encode(one.text) for one in some]
        folds = [UnitFold(one.text, ids, tokenizer, reader) for one, ids in zip(some, tokens, strict=True)]
        done = 0
        for number, start, values in reader.pieces(tokens):
            while done < number:
                yield some[done], folds[done].table()
                done += 1
            folds[number].add(start, values)
        yield from ((some[number], folds[number].table()) for number in range(done, len(some)))


@dataclass(frozen=True, eq=False)
class UnitTable:
    """What the U units of a document have of C concepts.

    units    kind, qualified name, first and last line
    best     float32 (U, C): the logit, or the weight, of the token with the largest
    lines    int32 (U, C): the line of that token
    means    float64 (U, C): the mean weight; (0, C) where logits are read
    """

    units: Sequence[tuple[str, str, int, int]]
    best: np.ndarray
    lines: np.ndarray
    means: np.ndarray


class UnitFold:
    """Makes the table of a document from the values of its tokens, as they are read from left to right."""

    def __init__(self, text: str, ids: Sequence[int], tokenizer: Tokenizer, reader: ConceptReader) -> None:
        lines = Lines(text, [tokenizer.token_bytes(token) for token in ids])
        units = [(kind, *one) for kind in UNITS for one in _units(text, kind, lines) if one[-1].any()]
        self._units, self._of_token = [one[:-1] for one in units], lines.of_token
        self._inside = [one[-1] for one in units]
        shape = len(units), reader.num_concepts
        first = np.array([inside.argmax() for inside in self._inside], dtype=np.int64)
        self._best = np.full(shape, reader.nothing, dtype=np.float32)
        self._places = np.broadcast_to(first[:, None], shape).copy()
        self._sums = np.zeros(shape if reader.by == "mean" else (0, shape[1]))

    def add(self, start: int, values: np.ndarray) -> None:
        """The values (A, C) of the tokens from `start` on."""
        for number, inside in enumerate(self._inside):
            rows = np.flatnonzero(inside[start : start + len(values)])
            if not len(rows):
                continue
            some = values[rows]
            largest = some.argmax(axis=0)
            best = np.take_along_axis(some, largest[None], axis=0)[0]
            better = best > self._best[number]
            self._best[number][better] = best[better]
            self._places[number][better] = start + rows[largest[better]]
            if len(self._sums):
                self._sums[number] += some.sum(axis=0, dtype=np.float64)

    def table(self) -> UnitTable:
        """What was read."""
        num = np.array([inside.sum() for inside in self._inside]).reshape(-1, 1)
        lines = self._of_token[self._places].astype(np.int32) if self._units else self._places.astype(np.int32)
        means = self._sums / num if len(self._sums) else self._sums
        return UnitTable(self._units, self._best, lines, means)


def found_in(
    document: SearchedText,
    table: UnitTable,
    terms: Sequence[Term],
    columns: Sequence[int],
    by: Strength,
    unit: UnitKind,
) -> Iterator[FoundUnit]:
    """The units of a document, of one kind, with their scores. columns: of the terms in the table."""
    wanted, texts = np.array([one.wanted for one in terms]), BREAK.split(document.text.encode())
    for number, (kind, name, first, last) in enumerate(table.units):
        if kind != unit:
            continue
        best, lines = table.best[number, columns], table.lines[number, columns].tolist()
        if by == "peak":
            score = float(np.where(wanted, log_sigmoid(best), log_sigmoid(-best)).sum())
            best = np.exp(log_sigmoid(best))
        else:
            score = float(np.where(wanted, 1, -1) @ table.means[number, columns])
        shown = tuple(
            ConceptPlace(term.name, float(strength), line, texts[line - 1].decode("utf-8", errors="replace").strip())
            for term, strength, line in zip(terms, best, lines, strict=True)
            if term.wanted
        )
        yield FoundUnit(document.name, name, first, last, score, shown)


def log_sigmoid(logits: np.ndarray) -> np.ndarray:
    """log(1 / (1 + exp(-z))), float64."""
    out: np.ndarray = -np.logaddexp(0.0, -logits.astype(np.float64))
    return out


class ConceptReader:
    """Reads concepts in texts: their logits (peak) or their weights (mean), by their numbers; None: of all.

    nothing  what a token has that no row predicts
    """

    def __init__(self, denoiser: Denoiser, heads: Heads, numbers: Sequence[int] | None, by: Strength) -> None:
        config = denoiser.config
        if config.context in ("causal", "block") and config.process != "absorbing":
            raise UnsupportedError(f"concepts are not read in a model of the {config.process} process")
        self.denoiser, self.config, self.heads, self.by = denoiser, config, heads, by
        self._numbers = None if numbers is None else np.array(list(numbers), dtype=np.int64)
        self.nothing = -CLAMP if by == "peak" else 0.0

    @property
    def num_concepts(self) -> int:
        """J."""
        return self.heads.shape.known + self.heads.shape.discovered if self._numbers is None else len(self._numbers)

    def read(self, texts: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """What the tokens of each text have, float32 (T, J). A token that no row predicts has the smallest value."""
        out = [np.full((len(ids), self.num_concepts), self.nothing, dtype=np.float32) for ids in texts]
        for number, start, values in self.pieces(texts):
            out[number][start : start + len(values)] = values
        return out

    def pieces(self, texts: Sequence[Sequence[int]]) -> Iterator[tuple[int, int, np.ndarray]]:
        """The same in pieces, from left to right: the text's number, the piece's first token, and values (A, J)."""
        most = self._most
        todo = [(number, each) for number, ids in enumerate(texts) for each in windows(len(ids), most, most // 4)]
        for some in _groups(todo, AT_ONCE):
            askings = [self._window(texts[number][start:stop], read - start) for number, (start, read, stop) in some]
            found = compute(together(*askings), self.denoiser.backend)
            for (number, (_, _, stop)), values in zip(some, found, strict=True):
                yield number, stop - len(values), values

    @property
    def _most(self) -> int:
        """Tokens of a window."""
        return self.config.max_positions - len(self.config.first)

    def _window(self, ids: Sequence[int], seen: int) -> Asking[np.ndarray]:
        """What the tokens of a window have but for the first `seen`, (T', J)."""
        config, first = self.config, len(self.config.first)
        offset = int(config.shift and not self.heads.shape.reads)
        begin, end = max(first + seen, offset), first + len(ids)
        if begin >= end:
            return np.zeros((0, self.num_concepts), dtype=np.float32)
        if config.context in ("full", "reordered") or self.heads.shape.reads:
            forward = clean_forward(config, ids)
            forward.wanted = np.arange(begin - offset, end - offset, dtype=np.int32)
            (answer,) = yield [forward]
            assert answer.hidden is not None
            return self._of(answer.hidden)
        tokens = np.array([*config.first, *ids], dtype=np.int64)
        canvas = Canvas(tokens, np.zeros(end, dtype=bool), ((begin, end),))
        session, parts = self.denoiser.session(canvas), []
        for span in spans(config, begin, end):
            answer = yield from session.ask(canvas.at(span), np.arange(*span), Hidden())
            assert answer.hidden is not None
            parts.append(self._of(answer.hidden))
        return np.concatenate(parts)

    def _of(self, hidden: np.ndarray) -> np.ndarray:
        """The values (A, J) of hidden states (A, D)."""
        values = self.heads.weights(hidden) if self.by == "mean" else self.heads.logits(hidden)
        if self.heads.shape.reads:
            read = self.heads.read_logits(hidden)
            values[:, : read.shape[1]] = self._kept(read) if self.by == "mean" else read
        return values if self._numbers is None else values[:, self._numbers]

    def _kept(self, logits: np.ndarray) -> np.ndarray:
        """The weights of logits (A, N) of known concepts, 0 for those that a row does not keep."""
        out, places = np.zeros_like(logits), largest(logits, self.heads.shape.kept_known)
        np.put_along_axis(out, places, sigmoid(np.take_along_axis(logits, places, axis=-1)), axis=-1)
        return out


def windows(num: int, most: int, again: int) -> Iterator[tuple[int, int, int]]:
    """How a text of `num` tokens is read, at most `most` at a time: (start, read, stop), of which those from `read` on
    are read, and the `again` tokens before it are seen again.
    """
    start = read = 0
    while read < num:
        stop = min(num, start + most)
        yield start, read, stop
        start, read = stop - again, stop


def spans(config: ModelConfig, begin: int, end: int) -> list[tuple[int, int]]:
    """The active spans in which positions [begin, end) are read: in causal context of about the same lengths."""
    if config.context == "block":
        assert config.block_size is not None
        size = config.block_size
        edges = {begin, end, *range(begin // size * size, end, size)}
        if config.anchor == "clean":  # a block's first position is a span of its own
            edges |= {edge + 1 for edge in edges if edge % size == 0}
    else:
        edges = set(np.linspace(begin, end, -(-(end - begin) // SPAN) + 1).astype(int).tolist())
    return list(pairwise(sorted(edge for edge in edges if begin <= edge <= end)))


class Lines:
    """The lines of a text, and of each token that in which its first character stands that is no white space.

    of_token  int64 (T,), from 1
    """

    def __init__(self, text: str, pieces: Sequence[bytes]) -> None:
        content = text.encode()
        if b"".join(pieces) != content:
            raise UnsupportedError("this model's tokenizer changes texts, so places in them are not known")
        self._lines = BREAK.split(content)
        starts = np.array([0, *(found.end() for found in BREAK.finditer(content))])
        sizes = [len(piece) for piece in pieces]
        blank = [len(piece) - len(piece.lstrip()) if piece.strip() else 0 for piece in pieces]
        first = np.cumsum([0, *sizes])[:-1] + np.array(blank, dtype=np.int64)
        self.of_token = np.searchsorted(starts, first, side="right")
        self.num = len(starts) - bool(content and starts[-1] == len(content))

    def text(self, line: int) -> str:
        """A line, without white space around it."""
        return self._lines[line - 1].decode("utf-8", errors="replace").strip()


def _units(text: str, unit: UnitKind, lines: Lines) -> Iterator[tuple[str, int, int, np.ndarray]]:
    """Name, first and last line, and tokens, bool (T,), of each unit; what is in no function is one, too."""
    outside, named = np.ones(len(lines.of_token), dtype=bool), functions(text) if unit == "function" else []
    plain = paragraphs(text) if unit == "function" and not named else []
    for name, first, last in named or plain:
        inside = (lines.of_token >= first) & (lines.of_token <= last)
        outside &= ~inside
        yield name, first, last, inside
    if not plain:
        yield "", 1, lines.num, outside


def paragraphs(text: str) -> list[tuple[str, int, int]]:
    """The paragraphs of a text that is no Python, which have no names: first and last line. None where it is Python."""
    try:
        with warnings.catch_warnings(action="ignore"):
            ast.parse(text)
            return []
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        lines = [line.strip() for line in BREAK.split(text.encode())]
    edges = [at for at, (before, line) in enumerate(pairwise([b"", *lines, b""])) if bool(before) != bool(line)]
    found = [(first + 1, last) for first, last in zip(edges[::2], edges[1::2], strict=True)]
    each = -(-len(found) // MOST_PARAGRAPHS)  # neighbors that are one unit, where there are more
    return [("", found[at][0], found[min(at + each, len(found)) - 1][1]) for at in range(0, len(found), each or 1)]


def functions(text: str) -> list[tuple[str, int, int]]:
    """The functions of Python source, nested ones as well, as they begin: qualified name, first line, with decorators,
    and last line. None where the text does not parse.
    """
    try:
        with warnings.catch_warnings(action="ignore"):
            waiting: list[tuple[str, ast.AST]] = [("", ast.parse(text))]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    out = list[tuple[str, int, int]]()
    while waiting:
        above, node = waiting.pop()
        for child in ast.iter_child_nodes(node):
            name = above
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{above}.{child.name}".lstrip(".")
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                first = min([child.lineno, *(one.lineno for one in child.decorator_list)])
                out.append((name, first, child.end_lineno or first))
            waiting.append((name, child))
    return sorted(out, key=lambda one: one[1:])


def _groups(items: Iterable[T], num: int) -> Iterator[list[T]]:
    """The items, `num` at a time."""
    left = iter(items)
    while some := list(islice(left, num)):
        yield some


D = TypeVar("D", bound=Any)
"""A concept of the taxonomy or of a catalog."""


def find_concepts(words: str, concepts: Iterable[D]) -> list[tuple[int, D]]:
    """The concepts whose name or description has one of these words, and how often, in a name NAME_WEIGHT times as
    much; the most often first. A name is divided at underscores; capitals do not count.

    InputError where there is no word.
    """
    asked = set(_words(words))
    if not asked:
        raise InputError("what to find is a word or several, such as: loop dictionary")
    counted = [
        (
            NAME_WEIGHT * sum(word in asked for word in _words(one.name))
            + sum(word in asked for word in _words(one.description)),
            one,
        )
        for one in concepts
    ]
    return sorted((pair for pair in counted if pair[0]), key=lambda pair: -pair[0])


def _words(text: str) -> list[str]:
    return [word.casefold() for word in WORD.findall(text)]
