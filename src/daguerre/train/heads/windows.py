"""Which text concept heads learn from: files, labeled whole, and of their windows those that are chosen.

Of Python, a fixed list names packages that are held out (`train.corpus.sources.heldout_splits`); where none of them is
there, one file in ten is. A concept is in a window as often as it is in spans of CHUNK tokens. Windows with rare
concepts are chosen first, so that each has enough spans where the files have them, and the others at random.

Letters: T tokens, W windows, N concepts, P bytes of N bits.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from daguerre.concepts.labels import CHUNK, in_bytes, token_concepts
from daguerre.concepts.taxonomy import taxonomy
from daguerre.errors import DataError
from daguerre.files import atomic_write
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.corpus.document import CorpusDocument
from daguerre.train.heads.options import HeadOptions
from daguerre.train.heads.subject import PYTHON, HeadSubject

MOST_OF_FILE = 16
"""Windows of one file, at most: evenly many of its parts."""
RARE = 0.6
"""The largest share of the rows that is chosen for rare concepts."""
Progress = Callable[[int, int], None]
ARRAYS = ("tokens", "labels", "sizes", "held", "files")


@dataclass(frozen=True, eq=False)
class ChosenWindows:
    """Labeled windows, one after the other.

    tokens   int32 (T,), without <bos>
    labels   uint8 (T, P): the concepts of each token, as bits
    sizes    int32 (W,): tokens of each window
    held     bool (W,): it is held out
    files    int32 (W,): the number of its file
    num      N
    """

    tokens: np.ndarray
    labels: np.ndarray
    sizes: np.ndarray
    held: np.ndarray
    files: np.ndarray
    num: int

    @property
    def starts(self) -> np.ndarray:
        """Where each window begins, int64 (W,)."""
        return np.cumsum(self.sizes, dtype=np.int64) - self.sizes

    def concepts(self, places: np.ndarray) -> np.ndarray:
        """The concepts of some tokens (A,), bool (A, N)."""
        return np.unpackbits(self.labels[places], axis=1, count=self.num).astype(bool)

    def take(self, which: np.ndarray) -> ChosenWindows:
        """Some of the windows, int64 (W',)."""
        starts = self.starts
        places = [np.arange(starts[each], starts[each] + self.sizes[each]) for each in which.tolist()]
        rows = np.concatenate(places) if places else np.zeros(0, np.int64)
        of_windows = (self.sizes[which], self.held[which], self.files[which])
        return ChosenWindows(self.tokens[rows], self.labels[rows], *of_windows, self.num)

    def counts(self) -> np.ndarray:
        """In how many spans of CHUNK tokens each window has each concept, uint8 (W, N)."""
        out = np.zeros((len(self.sizes), self.num), np.uint8)
        for number, (start, size) in enumerate(zip(self.starts.tolist(), self.sizes.tolist(), strict=True)):
            edges = np.arange(start, start + size, CHUNK)
            bits = np.bitwise_or.reduceat(self.labels[start : start + size], edges - start, axis=0)
            out[number] = np.unpackbits(bits, axis=1, count=self.num).sum(axis=0)
        return out

    def save(self, path: Path) -> None:
        """Write them to a file, which appears when it is whole."""
        with atomic_write(path) as file:
            np.savez(file, num=self.num, **{name: getattr(self, name) for name in ARRAYS})

    @classmethod
    def load(cls, path: Path) -> ChosenWindows:
        """DataError for a damaged file."""
        try:
            with np.load(path, allow_pickle=False) as held:
                num = int(held["num"]) if "num" in held else taxonomy().num_ids  # of runs before there were others
                return cls(**{name: held[name] for name in ARRAYS}, num=num)
        except (OSError, ValueError, KeyError) as error:
            raise DataError(f"{path} is damaged ({error}): remove it, and it is made again") from None


class LabeledFiles:
    """Labeled files that are kept in a folder until windows are chosen, so that an interruption loses one at most."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def of(self, name: str, make: Callable[[], ChosenWindows | None]) -> ChosenWindows | None:
        """The windows of a file by a name for its text and how it is cut, made if they are not there; None for a file
        without.
        """
        path = self._folder / f"{name}.npz"
        if not path.exists():
            (make() or joined([], 0)).save(path)
        found = ChosenWindows.load(path)
        return found if len(found.sizes) else None

    def remove(self) -> None:
        """Delete them."""
        shutil.rmtree(self._folder)


@dataclass(frozen=True)
class TextCutter:
    """What makes labeled windows of texts."""

    tokenizer: Tokenizer
    subject: HeadSubject
    window: int

    def name(self, document: CorpusDocument, held: bool, number: int) -> str:
        """A name for a text and how it is cut."""
        return f"{document.sha256}-{self.subject.names.sha256[:12]}-{self.window}-{int(held)}-{number}"

    def windows(self, document: CorpusDocument, held: bool, number: int) -> ChosenWindows | None:
        """The windows of a text; see `windows_of`."""
        return windows_of(document, self.tokenizer, self.subject, self.window, held, number)


def make_windows(
    sources: Sequence[Path],
    tokenizer: Tokenizer,
    options: HeadOptions,
    progress: Progress,
    kept: LabeledFiles,
    subject: HeadSubject = PYTHON,
) -> ChosenWindows:
    """The windows that are chosen of a subject's texts in folders. progress: called with the tokens that are labeled,
    and all. DataError where there is no text.
    """
    texts, asked = subject.texts(sources, options.seed), options.labeled + options.held
    cutter = TextCutter(tokenizer, subject, options.window)
    rest = labeled(texts.held, cutter, True, options.held, kept, lambda n: progress(n, asked))
    done = len(rest.tokens)
    found = labeled(texts.train, cutter, False, options.labeled, kept, lambda n: progress(done + n, asked), texts.share)
    if not len(found.sizes):
        raise DataError("there is no text in these folders that can be learned from: give --data with other ones")
    chosen = np.random.default_rng(options.seed).permutation(choose(found.counts(), found.sizes, options))
    return joined([rest, found.take(chosen)], found.num)


def labeled(
    documents: Iterable[CorpusDocument],
    cutter: TextCutter,
    held: bool,
    most: int,
    kept: LabeledFiles,
    progress: Callable[[int], None] = lambda _: None,
    share: float = 1.0,
) -> ChosenWindows:
    """The windows of documents, until they have so many tokens, of which one package has at most `share`."""
    of_package, done, parts = Counter[str](), 0, list[ChosenWindows]()
    for number, document in enumerate(documents):
        if done >= most:
            break
        if of_package[document.package] >= share * most:
            continue
        one = kept.of(cutter.name(document, held, number), partial(cutter.windows, document, held, number))
        if one is not None:
            fits = int((np.cumsum(one.sizes) <= most - done).sum())
            parts.append(one := one.take(np.arange(max(1, fits))))
            of_package[document.package] += len(one.tokens)
            done += len(one.tokens)
            progress(done)
    return joined(parts, cutter.subject.names.num)


def joined(parts: Sequence[ChosenWindows], num: int) -> ChosenWindows:
    """The windows of several parts."""
    if not parts:
        flags = (np.zeros(0, bool), np.zeros(0, np.int32))
        return ChosenWindows(
            np.zeros(0, np.int32), np.zeros((0, -(-num // 8)), np.uint8), np.zeros(0, np.int32), *flags, num
        )
    whole = {name: np.concatenate([getattr(part, name) for part in parts]) for name in ARRAYS}
    return ChosenWindows(**whole, num=num)


def windows_of(
    document: CorpusDocument, tokenizer: Tokenizer, subject: HeadSubject, window: int, held: bool, file: int
) -> ChosenWindows | None:
    """The windows of a text; None for one that has no labels, is too short, or that the tokenizer changes."""
    text, num, found = document.text, subject.names.num, subject.label(document)
    if found is None:
        return None
    ids = np.array(tokenizer.encode_plain(text), np.int32)
    pieces = [tokenizer.token_bytes(token) for token in ids.tolist()]
    if len(ids) < subject.shortest or b"".join(pieces) != text.encode():
        return None
    sizes = np.array([len(piece) for piece in pieces])
    ends = np.cumsum(sizes)
    concepts = token_concepts(in_bytes(found.spans, text), ends - sizes, ends, num)
    cuts = np.arange(0, len(ids), window)
    lengths = np.diff(np.append(cuts, len(ids))).astype(np.int32)
    last = len(cuts) - int(lengths[-1] < subject.shortest)
    flags = (np.full(len(cuts), held), np.full(len(cuts), file, np.int32))
    whole = ChosenWindows(ids, np.packbits(concepts, axis=1), lengths, *flags, num)
    return whole.take(np.unique(np.linspace(0, last - 1, min(last, MOST_OF_FILE)).astype(int)))


def rows_of(windows: ChosenWindows, held: bool) -> np.ndarray:
    """The rows, int64, of windows that are held out, or of the others; but for the last of each window."""
    inside = np.repeat(windows.held == held, windows.sizes)
    inside[np.cumsum(windows.sizes) - 1] = False
    return np.flatnonzero(inside)


def choose(counts: np.ndarray, sizes: np.ndarray, options: HeadOptions) -> np.ndarray:
    """Which windows are taken, int64, ascending: for each concept, the rarest first, those with it that have the most
    concepts that still lack spans, until it has `fewest`; and then others at random.
    """
    total, have = counts.sum(axis=0, dtype=np.int64), np.zeros(counts.shape[1], np.int64)
    taken, rows, rng = np.zeros(len(counts), bool), 0, np.random.default_rng(options.seed)
    for concept in np.argsort(total, kind="stable"):
        lacking = have < np.minimum(options.fewest, total)
        if not lacking[concept] or rows > RARE * options.tokens:
            continue
        some = np.flatnonzero((counts[:, concept] > 0) & ~taken)
        for number in some[np.argsort(-(counts[some][:, lacking] > 0).sum(axis=1), kind="stable")].tolist():
            if have[concept] >= options.fewest or rows > RARE * options.tokens:
                break
            taken[number], have, rows = True, have + counts[number], rows + int(sizes[number])
    for number in rng.permutation(len(counts)).tolist():
        if rows >= options.tokens:
            break
        if not taken[number]:
            taken[number], rows = True, rows + int(sizes[number])
    return np.flatnonzero(taken)
