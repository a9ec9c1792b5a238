"""Labels: which concepts are where in a file, exactly, for training and for checking what a model wrote.

A whole file is labeled before it is cut into windows or masked. What is labeled is an instance; in a file that parses
all other characters are certified to be none. A file that does not parse has labels of lexical concepts alone, and
nothing is certified.

Letters: S spans, T tokens, C concepts (`Taxonomy.num_ids`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from daguerre.concepts.source import SourceText
from daguerre.concepts.taxonomy import Concept, Taxonomy, taxonomy
from daguerre.errors import InputError

CHUNK = 64
"""Tokens of Python by which prevalence is counted."""
TEXT_ENDINGS = (".py", ".md", ".markdown", ".rst", ".txt", ".text", ".org", ".adoc", ".tex")
"""How the names of files of text and of Python end."""


@dataclass(frozen=True, eq=False)
class Labels:
    """The labels of a text.

    spans    int64 (S, 3): number of a concept, first character, character after the last; by place, then by number
    certain  whether everything else is certified to be no instance
    """

    spans: np.ndarray
    certain: bool

    def of(self, one: Concept) -> list[tuple[int, int]]:
        """The spans of one concept."""
        return [(start, end) for number, start, end in self.spans.tolist() if number == one.id]


@dataclass(frozen=True, eq=False)
class TokenLabels:
    """The labels of a text's tokens, in rows that are as short as they can be.

    ends      int64 (T,): concepts[ends[t - 1] : ends[t]] are those of token t
    concepts  int16: numbers of concepts
    certain   as in `Labels`
    """

    ends: np.ndarray
    concepts: np.ndarray
    certain: bool

    def matrix(self, start: int, end: int, num: int) -> np.ndarray:
        """Bool (end - start, C) of these tokens, with C = `num`."""
        out = np.zeros((end - start, num), dtype=bool)
        first = int(self.ends[start - 1]) if start else 0
        counts = np.diff(self.ends[start:end], prepend=first)
        out[np.repeat(np.arange(end - start), counts), self.concepts[first : first + int(counts.sum())]] = True
        return out


def label(text: str, concepts: Iterable[Concept] | None = None) -> Labels:
    """The labels of a text, of all concepts or of some. An instance of a concept is one of its parents, too."""
    return label_source(SourceText(text), taxonomy(), concepts)


def label_source(source: SourceText, known: Taxonomy, concepts: Iterable[Concept] | None = None) -> Labels:
    """`label` of a text that is read already."""
    numbers, places = list[int](), list[tuple[int, int]]()
    for one in known.concepts if concepts is None else concepts:
        if source.tree is None and not one.lexical:
            continue
        found = list(one.detect(source))
        for also in (one, *known.ancestors[one.name]) if found else ():
            numbers += [also.id] * len(found)
            places += found
    spans = np.column_stack([np.array(numbers, dtype=np.int64), np.array(places, dtype=np.int64).reshape(-1, 2)])
    spans = spans[np.lexsort((spans[:, 0], spans[:, 2], spans[:, 1]))]
    new = np.ones(len(spans), dtype=bool)
    new[1:] = (spans[1:] != spans[:-1]).any(axis=1)
    return Labels(spans[new], source.tree is not None)


def of_tokens(labels: Labels, text: str, pieces: Sequence[bytes], num: int) -> TokenLabels:
    """The labels of the tokens of a text. A token has those of all spans that it has a byte in common with.

    pieces: the bytes of each token, which together are the text. InputError if they are not.
    """
    ends = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
    if b"".join(pieces) != text.encode():
        raise InputError("the tokens are not those of the text: encode it without <bos> and without healing")
    starts = ends - [len(piece) for piece in pieces]
    rows, concepts = np.nonzero(token_concepts(in_bytes(labels.spans, text), starts, ends, num))
    return TokenLabels(
        np.searchsorted(rows, np.arange(len(pieces)), side="right"), concepts.astype(np.int16), labels.certain
    )


def token_concepts(spans: np.ndarray, starts: np.ndarray, ends: np.ndarray, num: int) -> np.ndarray:
    """The concepts of tokens, bool (T, num), that begin and end at these bytes of a text, (T,) each, ascending, from
    spans (S, 3) in bytes. A token has the concepts of all spans that it has a byte in common with; an empty one none.
    """
    found = np.zeros((len(starts), num), dtype=bool)
    spans = spans[(spans[:, 1] < ends[-1]) & (spans[:, 2] > starts[0])] if len(starts) else spans[:0]
    first = np.searchsorted(ends, spans[:, 1], side="right")
    last = np.searchsorted(starts, spans[:, 2], side="left")
    for concept, start, end in zip(spans[:, 0].tolist(), first.tolist(), last.tolist(), strict=True):
        found[start:end, concept] = True
    found[starts == ends] = False
    return found


def in_bytes(spans: np.ndarray, text: str) -> np.ndarray:
    """Spans (S, 3) of a text in bytes of it, which are in characters."""
    if text.isascii():
        return spans
    return np.column_stack([spans[:, 0], byte_offsets(text)[spans[:, 1:]]])


def byte_offsets(text: str) -> np.ndarray:
    """Of each character, and of the end, the byte at which it begins."""
    points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    sizes = 1 + (points >= 0x80) + (points >= 0x800) + (points >= 0x10000)
    return np.concatenate([[0], np.cumsum(sizes)])


def python_files(paths: Iterable[Path], suffixes: Sequence[str] = (".py",)) -> Iterator[Path]:
    """The Python files of folders, or those whose names end otherwise, and files, in order. InputError for a path that
    is neither.
    """
    for path in paths:
        if path.is_dir():
            yield from sorted(one for one in path.rglob("*.*") if one.suffix in suffixes and one.is_file())
        elif path.is_file():
            yield path
        else:
            raise InputError(f"{path} is no file and no folder: name one with Python source")


class LabelChunks:
    """Counts in how many chunks of CHUNK tokens of Python each concept has an instance; over texts that parse."""

    def __init__(self) -> None:
        self.num_texts = self.num_tokens = self.num_chunks = 0
        self.counts: Counter[int] = Counter()

    def add(self, source: SourceText, labels: Labels) -> None:
        """Count a text."""
        starts = np.array([source.token_span(token)[0] for token in source.tokens if token.string.strip()])
        if not labels.certain or not len(starts):
            return
        self.num_texts += 1
        self.num_tokens += len(starts)
        self.num_chunks += -(-len(starts) // CHUNK)
        first = np.searchsorted(starts, labels.spans[:, 1], side="left") // CHUNK
        last = (np.searchsorted(starts, labels.spans[:, 2], side="left") - 1) // CHUNK
        seen = set[tuple[int, int]]()
        for number, begin, end in zip(labels.spans[:, 0].tolist(), first.tolist(), last.tolist(), strict=True):
            seen.update((number, chunk) for chunk in range(begin, end + 1))
        self.counts.update(number for number, _ in seen)

    def prevalence(self, one: Concept) -> float:
        """The share of chunks with an instance."""
        return self.counts[one.id] / max(1, self.num_chunks)


def prevalences(texts: Iterable[str]) -> dict[str, float]:
    """The prevalence of every concept in these texts."""
    chunks, known = LabelChunks(), taxonomy()
    for text in texts:
        source = SourceText(text)
        chunks.add(source, label_source(source, known))
    return {one.name: chunks.prevalence(one) for one in known.concepts}
