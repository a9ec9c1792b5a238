"""What concept heads learn: the concepts of the package's taxonomy in Python, or those of a user's own in any text.

A subject says which texts there are, which of them are held out, and where its concepts are in each.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from zlib import crc32

import numpy as np

from daguerre.concepts.asked import ConceptAsker
from daguerre.concepts.labels import Labels, label
from daguerre.concepts.own import OwnTaxonomy
from daguerre.concepts.taxonomy import taxonomy
from daguerre.concepts.texts import named_concepts
from daguerre.errors import CheckpointError, InputError
from daguerre.files import write_json
from daguerre.models.catalog import Catalog, NamedConcept
from daguerre.models.core.shapes import ConceptShape
from daguerre.models.json_files import read_json
from daguerre.train.corpus.document import CorpusDocument
from daguerre.train.corpus.harvest import harvest
from daguerre.train.corpus.languages import text_files
from daguerre.train.corpus.sources import Package, find_packages, heldout_splits, normalize, user_folder

HELD_OUT = 10
"""One file in so many is held out where no package is."""
MOST_OF_PACKAGE = 0.08
"""The largest share of the labeled tokens that one package may have, where there are FEW_PACKAGES or more."""
FEW_PACKAGES = 13
FILE = "taxonomy.json"
"""What the folder of a run keeps the names in, where they are not those of the package."""
Place = tuple[Package, str]
"""A file of a package."""


@dataclass(frozen=True)
class HeadNames:
    """The concepts of heads.

    num       one more than the largest number
    sha256    of the taxonomy
    concepts  those that have names
    given     the hash of the taxonomy that was given, of which some may have been left out
    """

    num: int
    sha256: str
    concepts: tuple[NamedConcept, ...]
    given: str = ""

    def catalog(self, shape: ConceptShape) -> Catalog:
        """The catalog of heads."""
        return Catalog(self.concepts, shape.known, shape.discovered, self.sha256)

    def keep(self, run: Path) -> None:
        """Keep them in the folder of a run."""
        write_json(run / FILE, asdict(self))

    @classmethod
    def kept(cls, run: Path) -> HeadNames:
        """Those of a run in a folder; the package's where it keeps none."""
        values = read_json(run / FILE)
        if not values:
            return PYTHON.names
        try:
            return cls(**values | {"concepts": tuple(NamedConcept(**one) for one in values["concepts"])})
        except (TypeError, KeyError) as error:
            raise CheckpointError(f"{run / FILE} is damaged ({error}): begin another run with --out") from None


@dataclass(frozen=True)
class SubjectTexts:
    """Texts to learn from and held-out ones, both in a random order and read when they are asked for; and the share of
    the tokens that one package may have.
    """

    train: Iterable[CorpusDocument]
    held: Iterable[CorpusDocument]
    share: float = 1.0


class HeadSubject(ABC):
    """See the module. shortest: tokens of a window, at least; asked: the name of the model that is asked, if one is."""

    names: HeadNames
    shortest: int = 32
    asked: str = ""

    @abstractmethod
    def texts(self, sources: Sequence[Path], seed: int) -> SubjectTexts:
        """The texts in folders. InputError where there can be none."""

    @abstractmethod
    def label(self, document: CorpusDocument) -> Labels | None:
        """Where its concepts are in a text; None for one that cannot be labeled whole."""


class PythonSubject(HeadSubject):
    """The concepts of the package, in Python that parses."""

    @property
    def names(self) -> HeadNames:  # type: ignore[override]
        """The names of the package's taxonomy."""
        known = taxonomy()
        return HeadNames(known.num_ids, known.sha256, named_concepts())

    def texts(self, sources: Sequence[Path], seed: int) -> SubjectTexts:
        """The Python files of folders; without any, of the standard library and the installed packages."""
        packages = packages_of(sources)
        train, held = places_in(packages, seed)
        seen, share = set[str](), MOST_OF_PACKAGE if len(packages) >= FEW_PACKAGES else 1.0
        return SubjectTexts(texts_at(train, seen), texts_at(held, seen), share)

    def label(self, document: CorpusDocument) -> Labels | None:
        """By the detectors; see `HeadSubject`."""
        found = label(document.text)
        return found if found.certain else None


PYTHON = PythonSubject()


class OwnSubject(HeadSubject):
    """The concepts of a user's own taxonomy. asker: for those without a rule, a model of the name `asked`; given: see
    `HeadNames`.
    """

    def __init__(self, own: OwnTaxonomy, asker: ConceptAsker | None = None, given: str = "", asked: str = "") -> None:
        self._own, self._asker, self.asked = own, asker, asked
        self._spans = {_sha256(one.text): one.spans for one in own.texts}
        self.names = HeadNames(len(own.concepts), own.sha256, own.named(), given or own.sha256)
        self.shortest = 8 if own.texts else 32

    def texts(self, sources: Sequence[Path], seed: int) -> SubjectTexts:
        """The texts that have labels; or the text files of folders, which are Python where syntax is a rule."""
        if self._own.texts:
            if sources:
                raise InputError("a taxonomy with labels is learned from the texts that have them: leave out --data")
            return self._labeled(seed)
        if not sources and not self._own.is_python:
            raise InputError("concepts of your own are learned from text: give --data with folders that have some")
        if self._own.is_python:
            return PYTHON.texts(sources, seed)
        folders = [user_folder(folder, text_files(folder)) for folder in map(_folder, sources)]
        folders = [replace(one, name=f"folder {number}") for number, one in enumerate(folders)]
        train, held = places_in(folders, seed)
        seen = set[str]()
        return SubjectTexts(texts_at(train, seen, any_language=True), texts_at(held, seen, any_language=True))

    def _labeled(self, seed: int) -> SubjectTexts:
        texts = [
            CorpusDocument("labels", "", "", str(number), _sha256(one.text), len(one.text.encode()), one.text)
            for number, one in enumerate(self._own.texts)
        ]
        texts = [texts[number] for number in np.random.default_rng(seed).permutation(len(texts)).tolist()]
        num = max(1, len(texts) // HELD_OUT)
        return SubjectTexts(texts[num:], texts[:num])

    def label(self, document: CorpusDocument) -> Labels | None:
        """By rules, labels, and what the model says; see `HeadSubject`."""
        asked = [] if self._asker is None else self._asker.label(document.text)
        if asked is None:
            return None
        found = self._own.label(document.text, [*asked, *self._spans.get(document.sha256, ())])
        return found if found.certain else None


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def _folder(path: Path) -> Path:
    if not path.is_dir():
        raise InputError(f"{path} is no folder: give --data a folder of text files")
    return path


def packages_of(sources: Sequence[Path]) -> list[Package]:
    """The packages in folders, or all that are installed."""
    given = bool(sources)
    found = find_packages(sources, stdlib=not given, installed=not given)
    return [one for one in found if isinstance(one, Package)]


def places_in(packages: Sequence[Package], seed: int) -> tuple[list[Place], list[Place]]:
    """The files to learn from, and those that are held out, in a random order."""
    places = [(package, file) for package in packages for file in package.files]
    places = [places[number] for number in np.random.default_rng(seed).permutation(len(places)).tolist()]
    packaged = heldout_splits()
    held = [place for place in places if normalize(place[0].name) in packaged]
    held = held or [place for place in places if crc32(place[1].encode()) % HELD_OUT == 0]
    out = {(package.name, file) for package, file in held}
    return [place for place in places if (place[0].name, place[1]) not in out], held


def texts_at(places: Sequence[Place], seen: set[str], any_language: bool = False) -> Iterator[CorpusDocument]:
    """The files that pass the corpus filters, read when they are asked for; of equal ones the first."""
    for package, file in places:
        one = replace(package, files=(file,))
        for document in harvest(one, signatures=False, any_language=any_language).documents:
            if document.sha256 not in seen:
                seen.add(document.sha256)
                yield document
