"""Taxonomies of a user's own: concepts of any text, each with a name, a sentence and a rule that says where it is.

A taxonomy is a file of TOML with a table for each concept, or JSON Lines of labeled texts alone:

    [concepts.price]
    means = "An amount of money."
    pattern = '[$€£] ?\\d+(?:[.,]\\d+)*'

    means    a sentence, which a reader sees, and a model that is asked
    pattern  a regular expression (`sampling.constraints.matches`); an instance is a match
    syntax   a concept of Python by its name (`daguerre concepts list`), or a node of its syntax tree, such as
             "ast.Assert"; with a pattern, too, those instances in whose text it has a match
    labels   a file of JSON Lines, beside the taxonomy: {"text": "...", "spans": [["price", 4, 9], ...]}, in
             characters; what is in no span is no instance
    parents  more general concepts of the same file: an instance is one of these, too

A concept without a rule is asked for (`concepts.asked`). `marks`, beside the tables, names a file of JSON Lines with
what a person has decided: {"concept": "apology", "text": "...", "is": true}.

A pattern is a stranger's: it is followed in time that is linear in the text, PIECE characters at a time, and one that
takes too many steps is an InputError.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from daguerre.concepts.labels import Labels, label_source
from daguerre.concepts.source import SourceText, Span
from daguerre.concepts.taxonomy import taxonomy
from daguerre.errors import DataError, InputError, printable, shown, unknown
from daguerre.models.catalog import NamedConcept
from daguerre.models.json_files import parse_json
from daguerre.sampling.constraints.matches import find_matches

PIECE = 16_384
"""Characters that a pattern is followed through at once, about: whole lines, where these are no longer."""
MOST_CONCEPTS, MOST_MEANING = 2000, 500
NODE = "ast."
"""What the name of a node of Python's syntax tree begins with."""
PLACED = (ast.expr, ast.stmt, ast.excepthandler, ast.arg, ast.keyword, ast.alias)
"""Nodes that have a place in a text."""
NAME = re.compile(r"[a-z][a-z0-9_]{0,59}")
SURROGATE = re.compile("[\ud800-\udfff]")
GROUP = "own"


@dataclass(frozen=True, kw_only=True)
class OwnConcept:
    """A concept of a taxonomy, and its rule. labeled: texts with labels say where it is."""

    name: str
    means: str = ""
    pattern: str = ""
    syntax: str = ""
    labeled: bool = False
    parents: tuple[str, ...] = ()

    @property
    def is_asked(self) -> bool:
        """Whether it has no rule, so that a model is asked."""
        return not (self.pattern or self.syntax or self.labeled)

    def check(self) -> None:
        """InputError for a name, a sentence or a rule that is none."""
        if not NAME.fullmatch(self.name):
            raise InputError(
                f"the concept {shown(self.name)}: a name has small letters, digits and underscores, 60 at most, and "
                "begins with a letter"
            )
        if self.labeled and (self.pattern or self.syntax):
            raise InputError(f"the concept {self.name!r} has labels and a rule: leave out one of the two")
        if not self.labeled and not self.means.strip():
            raise InputError(f"the concept {self.name!r} needs means, one sentence that says what it is")
        if len(self.means) > MOST_MEANING or printable(self.means) != self.means:
            raise InputError(f"the concept {self.name!r}: means is one sentence of {MOST_MEANING} characters at most")
        try:
            find_matches(self.pattern, "")
            if self.syntax:
                instances(self.syntax, SourceText(""))
        except InputError as error:
            raise InputError(f"the concept {self.name!r}: {error}") from None

    def spans(self, source: SourceText) -> list[Span]:
        """Where it is in a text, by its pattern and its syntax. InputError, which names it, for a pattern that takes
        too many steps.
        """
        try:
            if not self.syntax:
                return matches_in(self.pattern, source.text)
            found = instances(self.syntax, source)
            return [(a, b) for a, b in found if not self.pattern or matches_in(self.pattern, source.text[a:b])]
        except InputError as error:
            raise InputError(f"the concept {self.name!r}: {error}") from None


@dataclass(frozen=True)
class LabeledText:
    """A text and the spans of concepts in it: name, first character, character after the last."""

    text: str
    spans: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class Mark:
    """What a person has decided: whether a text has a concept."""

    concept: str
    text: str
    has: bool


@dataclass(frozen=True)
class OwnTaxonomy:
    """Concepts, numbered in their order; texts with labels of them, if a file has some; and marks."""

    concepts: tuple[OwnConcept, ...]
    texts: tuple[LabeledText, ...] = ()
    marks: tuple[Mark, ...] = ()

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of all that says where the concepts are, by which heads say what they were trained with."""
        asked = {one.name for one in self.asked}
        marks = [asdict(mark) for mark in self.marks if mark.concept in asked]
        values = [[asdict(one) for one in self.concepts], [asdict(one) for one in self.texts], marks]
        return hashlib.sha256(json.dumps(values, ensure_ascii=False, sort_keys=True).encode()).hexdigest()

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The numbers of concepts by their names."""
        return {one.name: number for number, one in enumerate(self.concepts)}

    @property
    def asked(self) -> list[OwnConcept]:
        """The concepts for which a model is asked: without a rule, and not only a general name for others."""
        general = {parent for one in self.concepts for parent in one.parents} - {mark.concept for mark in self.marks}
        return [one for one in self.concepts if one.is_asked and one.name not in general]

    @property
    def is_python(self) -> bool:
        """Whether a concept is found by syntax, so that all texts must be Python that parses."""
        return any(one.syntax for one in self.concepts)

    def only(self, names: Collection[str]) -> OwnTaxonomy:
        """The taxonomy with these concepts alone. InputError where none is left."""
        kept = [
            replace(one, parents=tuple(p for p in self._with_parents[one.name][1:] if p in names))
            for one in self.concepts
            if one.name in names
        ]
        if not kept:
            raise InputError("no concept of the taxonomy is left: mark more examples, or give concepts rules")
        return replace(self, concepts=tuple(kept))

    def named(self) -> tuple[NamedConcept, ...]:
        """The concepts for a catalog."""
        return tuple(
            NamedConcept(number=number, name=one.name, group=GROUP, description=one.means, parents=one.parents)
            for number, one in enumerate(self.concepts)
        )

    def label(self, text: str, more: Iterable[tuple[str, int, int]] = ()) -> Labels:
        """The labels of a text by all rules, and more spans: (name, first character, character after the last)."""
        source = SourceText(text) if self.is_python else _Plain(text)
        found = [(one.name, a, b) for one in self.concepts if one.pattern or one.syntax for a, b in one.spans(source)]
        rows = {
            (start, end, self.numbers[also])
            for name, start, end in (*found, *more)
            if name in self.numbers
            for also in self._with_parents[name]
        }
        spans = np.array([(number, start, end) for start, end, number in sorted(rows)], np.int64).reshape(-1, 3)
        return Labels(spans, not self.is_python or source.tree is not None)

    @cached_property
    def _with_parents(self) -> dict[str, list[str]]:
        parents, out = {one.name: one.parents for one in self.concepts}, dict[str, list[str]]()
        for name in parents:
            found, todo = dict[str, None](), [name]
            while todo:
                if (one := todo.pop()) not in found:
                    found[one] = None
                    todo += parents[one]
            out[name] = [*found]
        return out


class _Plain(SourceText):
    """A text that is not Python: it has no tokens and no tree."""

    def __init__(self, text: str) -> None:
        self.text, self.tree = text, None


def matches_in(pattern: str, text: str) -> list[Span]:
    """The matches of a pattern in a text, empty ones left out; none of them is in two pieces."""
    return [
        (start + first, start + last)
        for start, end in pieces(text)
        for first, last in find_matches(pattern, text[start:end])
        if last > first
    ]


def pieces(text: str) -> Iterator[Span]:
    """A text in pieces of PIECE characters or fewer, cut at ends of lines where there are some."""
    start = 0
    while len(text) - start > PIECE:
        end = text.rfind("\n", start, start + PIECE) + 1 or start + PIECE
        yield start, end
        start = end
    yield start, len(text)


def instances(syntax: str, source: SourceText) -> list[Span]:
    """Where a text has what `OwnConcept.syntax` names. InputError for a name that there is not."""
    if not syntax.startswith(NODE):
        known = taxonomy()
        one = known.named(syntax)
        below = [each for each in known.concepts if each is one or one in known.ancestors[each.name]]
        return sorted(set(label_source(source, known, below).of(one)))
    kind = getattr(ast, syntax.removeprefix(NODE), None)
    if not isinstance(kind, type) or not issubclass(kind, PLACED):
        names = [name for name, each in vars(ast).items() if isinstance(each, type) and issubclass(each, PLACED)]
        raise unknown("node of Python's syntax tree", syntax.removeprefix(NODE), names)
    return [source.span(node) for node in source.of(kind)]


def read_taxonomy(path: Path) -> OwnTaxonomy:
    """The taxonomy in a file. InputError, in one line, for one that is none; DataError for damaged lines."""
    if path.suffix == ".jsonl":
        texts = joined_texts(labeled_texts(path))
        names = sorted({name for one in texts for name, _, _ in one.spans})
        return _checked(tuple(OwnConcept(name=name, labeled=True) for name in names), texts, ())
    values = _toml(path)
    _check_keys(values, ("concepts", "marks"), f"{path}:")
    tables = values.get("concepts")
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise InputError(f"{path} has no table of a concept, such as [concepts.price]: see docs/concepts.md")
    files, concepts = dict[Path, None](), list[OwnConcept]()
    for name, table in tables.items():
        concepts.append(_concept(name, table))
        if concepts[-1].labeled:
            files[path.parent / table["labels"]] = None
    texts = joined_texts(text for file in files for text in labeled_texts(file))
    marks = tuple(read_marks(path.parent / values["marks"])) if "marks" in values else ()
    return _checked(tuple(concepts), texts, marks)


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read the taxonomy {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"the taxonomy {path} is not valid TOML: {error}") from None


def _check_keys(values: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in values:
        if key not in known:
            raise InputError(f"{where} {unknown('key', key, known)}")
    wrong = [
        key for key in ("marks", "means", "pattern", "syntax", "labels") if not isinstance(values.get(key, ""), str)
    ]
    if wrong:
        raise InputError(f"{where} {wrong[0]} is a text, not {shown(values[wrong[0]])}")


def _concept(name: str, table: Mapping[str, Any]) -> OwnConcept:
    known = [each.name for each in fields(OwnConcept) if each.name not in ("name", "labeled")]
    _check_keys(table, [*known, "labels"], f"the concept {shown(name)}:")
    parents = table.get("parents", [])
    if not isinstance(parents, list) or not all(isinstance(one, str) for one in parents):
        raise InputError(f"the concept {shown(name)}: parents is a list of names, not {shown(parents)}")
    rule = {key: table[key] for key in known if key in table}
    return OwnConcept(name=name, **rule | {"parents": tuple(parents)}, labeled="labels" in table)


def _checked(concepts: tuple[OwnConcept, ...], texts: tuple[LabeledText, ...], marks: tuple[Mark, ...]) -> OwnTaxonomy:
    """A taxonomy, with InputError for what does not fit together."""
    if not 0 < len(concepts) <= MOST_CONCEPTS:
        raise InputError(f"a taxonomy has 1 to {MOST_CONCEPTS:,} concepts, not {len(concepts):,}")
    names = [one.name for one in concepts]
    for one in concepts:
        one.check()
        for parent in one.parents:
            if parent not in names:
                raise unknown(f"parent of {one.name!r}", parent, names)
    for mark in marks:
        if mark.concept not in names:
            raise unknown("concept of a mark", mark.concept, names)
    return OwnTaxonomy(concepts, texts, marks)


def records_of(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a file of JSON Lines, with what an error calls each. InputError for a file that cannot be read."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or "it is no file of UTF-8"
        raise InputError(f"cannot read {printable(str(path))}: {said}") from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            record = parse_json(line, f"{path}, line {number}", DataError)
            if SURROGATE.search(json.dumps(record, ensure_ascii=False)):
                raise DataError(f"{path}, line {number} has half of a character: write all of it")
            yield f"{path}, line {number}", record


def labeled_texts(path: Path) -> Iterator[LabeledText]:
    """The texts of a file of labels. DataError, with the line, for one that is none."""
    for where, record in records_of(path):
        text, spans = record.get("text"), record.get("spans")
        if not isinstance(text, str) or not isinstance(spans, list):
            raise DataError(f'{where} needs "text" and a list of "spans", such as ["price", 4, 9]')
        yield LabeledText(text, tuple(_span(one, len(text), where) for one in spans))


def joined_texts(texts: Iterable[LabeledText]) -> tuple[LabeledText, ...]:
    """The texts, each once, with all spans that they have in any file."""
    out = dict[str, dict[tuple[str, int, int], None]]()
    for one in texts:
        out.setdefault(one.text, {}).update(dict.fromkeys(one.spans))
    return tuple(LabeledText(text, tuple(spans)) for text, spans in out.items())


def _span(given: object, size: int, where: str) -> tuple[str, int, int]:
    if (
        isinstance(given, list)
        and [type(part) for part in given] == [str, int, int]
        and 0 <= given[1] < given[2] <= size
    ):
        return given[0], given[1], given[2]
    raise DataError(f"{where}: a span is a name and two numbers of characters inside the text, not {shown(given)}")


def read_marks(path: Path) -> Iterator[Mark]:
    """The marks of a file; lines whose "is" is null are not marked yet. DataError, with the line, for one that is
    none.
    """
    for where, record in records_of(path):
        concept, text, has = (record.get(key) for key in ("concept", "text", "is"))
        if not isinstance(concept, str) or not isinstance(text, str) or not (has is None or isinstance(has, bool)):
            raise DataError(f'{where} needs "concept", "text", and "is", which is true or false')
        if has is not None:
            yield Mark(concept, text, has)
