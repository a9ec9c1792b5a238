"""The taxonomy: which concepts there are, by numbers that never change their meaning.

`taxonomy.json` beside this file has a record of each concept, and the numbers of those that were given up, which no
other concept gets. A new concept is a detector and a record without "id" and "prevalence"; one is given up by removing
its detector. Then `python -m daguerre.concepts.renew FOLDER` gives new concepts new numbers, and measures prevalences
on the Python files of a folder; who changes what a record says raises the file's version.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import pkgutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import resources
from itertools import count
from typing import Any, Literal

from daguerre.concepts import detectors
from daguerre.concepts.detectors import DETECTORS, Detector
from daguerre.errors import DataError, unknown

FILE = "taxonomy.json"
GROUPS = {
    "lexical": "literals and names",
    "comments": "comments and docstrings",
    "imports": "imports and the structure of a module",
    "libraries": "what comes from a library",
    "functions": "functions and signatures",
    "types": "annotations",
    "returns": "what functions return",
    "classes": "classes and protocols",
    "control": "control flow",
    "errors": "errors and validation",
    "expressions": "expressions and data",
    "calls": "calls and idioms of built-ins",
    "services": "files, system, network and the standard library",
    "science": "arrays and science",
    "testing": "tests",
    "risk": "what a review would stop at",
}
Rule = Literal["node", "header", "body", "token"]
"""What a span covers: the whole expression or statement; the lines of a block up to its colon; what is below that; or
single tokens."""


@dataclass(frozen=True)
class Concept:
    """A concept.

    id           its number, for ever
    rule         what its spans cover
    lexical      it is read from tokens alone, also in files that do not parse
    parents      more general concepts, by name
    detector     the module that detects it
    prevalence   the share of chunks of CHUNK Python tokens with an instance, in the files it was measured on
    """

    id: int
    name: str
    group: str
    description: str
    rule: Rule
    lexical: bool
    parents: tuple[str, ...]
    detector: str
    prevalence: float

    @property
    def detect(self) -> Detector:
        """Its detector."""
        return DETECTORS[self.name]


@dataclass(frozen=True)
class Taxonomy:
    """All concepts, by their numbers. sha256: of the file, by which a model says which taxonomy it was trained with."""

    version: int
    concepts: tuple[Concept, ...]
    retired: frozenset[int]
    sha256: str

    @cached_property
    def by_name(self) -> dict[str, Concept]:
        """Concepts by their names."""
        return {one.name: one for one in self.concepts}

    @cached_property
    def num_ids(self) -> int:
        """One more than the largest number that a concept has or had."""
        return 1 + max([one.id for one in self.concepts] + list(self.retired), default=-1)

    def named(self, name: str) -> Concept:
        """The concept of a name. InputError for one that there is not."""
        if name not in self.by_name:
            raise unknown("concept", name, self.by_name)
        return self.by_name[name]

    @cached_property
    def ancestors(self) -> dict[str, tuple[Concept, ...]]:
        """Of each concept all that are more general."""
        out = dict[str, tuple[Concept, ...]]()
        for one in self.concepts:
            found, todo = dict[str, None](), list(one.parents)
            while todo:
                name = todo.pop()
                if name not in found:
                    found[name] = None
                    todo.extend(self.by_name[name].parents)
            out[one.name] = tuple(self.by_name[name] for name in found)
        return out


@lru_cache(maxsize=1)
def taxonomy() -> Taxonomy:
    """The taxonomy of this version. DataError where the file and the detectors are not of one another."""
    content = (resources.files("daguerre.concepts") / FILE).read_text(encoding="utf-8")
    found = parsed(content)
    load_detectors()
    differing = {one.name for one in found.concepts} ^ DETECTORS.keys()
    if differing:
        raise DataError(f"{FILE} and the detectors differ in {min(differing)!r}: reinstall daguerre")
    return found


def load_detectors() -> None:
    """Import all detectors, which registers them."""
    for module in pkgutil.iter_modules(detectors.__path__):
        importlib.import_module(f"{detectors.__name__}.{module.name}")


def parsed(content: str) -> Taxonomy:
    """The taxonomy of a file's text. DataError for numbers that are used twice and parents that there are not."""
    raw = json.loads(content)
    concepts = tuple(Concept(**record | {"parents": tuple(record["parents"])}) for record in raw["concepts"])
    ids, names = Counter(one.id for one in concepts), {one.name for one in concepts}
    retired = frozenset(raw["retired"])
    if max(ids.values(), default=1) > 1 or retired & ids.keys() or len(names) < len(concepts):
        raise DataError(f"{FILE} gives a number or a name twice: a number is never used again")
    missing = sorted({parent for one in concepts for parent in one.parents} - names)
    if missing:
        raise DataError(f"{FILE} has no concept {missing[0]!r}, which is a parent")
    return Taxonomy(raw["version"], concepts, retired, hashlib.sha256(content.encode()).hexdigest())


def renewed(old: Mapping[str, Any], prevalence: Mapping[str, float]) -> dict[str, Any]:
    """The file's content for the detectors as they are now."""
    load_detectors()
    records = [dict(record) for record in old["concepts"] if record["name"] in DETECTORS]
    numbers = {record["id"] for record in old["concepts"] if "id" in record}
    retired = {*old["retired"], *numbers} - {record.get("id") for record in records}
    following = count(1 + max([*numbers, *retired], default=-1))
    changed = len(records) < len(old["concepts"])
    for number, record in enumerate(records):
        if "id" not in record:
            records[number], changed = {"id": next(following), **record}, True
        records[number]["prevalence"] = round(prevalence.get(record["name"], 0.0), 5)
    records.sort(key=lambda record: int(record["id"]))
    return {"version": old["version"] + changed, "retired": sorted(retired), "concepts": records}


def text_of(content: Mapping[str, Any]) -> str:
    """The file's text: a concept a line."""
    lines = ",\n".join("  " + json.dumps(record, ensure_ascii=False) for record in content["concepts"])
    return (
        f'{{"version": {content["version"]}, "retired": {json.dumps(content["retired"])}, "concepts": [\n{lines}\n]}}\n'
    )
