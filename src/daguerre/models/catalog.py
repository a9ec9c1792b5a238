"""The catalog: names of a model's concepts. `concepts.json` in a model's folder, beside `config.json`.

Low layers know concepts by their numbers (`models.core.concept_heads`). A catalog gives known ones a name and a
meaning, and discovered ones, which nobody has named, a number of their own: "discovered 17" is the concept N + 17.

    {"version": 1, "taxonomy": SHA-256 or "", "concepts": [{"number": 0, "name": "for_loop", "group": "control",
     "description": "...", "lexical": false, "parents": ["loop"], "texts": ["for "]}, ...]}
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from daguerre.errors import CheckpointError, InputError, unknown
from daguerre.models.core.shapes import ConceptShape
from daguerre.models.json_files import read_json

FILE = "concepts.json"
VERSION = 1
KINDS = ("known", "discovered")


@dataclass(frozen=True, kw_only=True)
class NamedConcept:
    """A known concept.

    lexical   it can be told from the text's tokens alone
    parents   names of more general concepts
    texts     strings of which every instance contains one, for a constraint that forbids them; empty: there are none
    """

    number: int
    name: str
    group: str = ""
    description: str = ""
    lexical: bool = False
    parents: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "parents", tuple(self.parents))
        object.__setattr__(self, "texts", tuple(self.texts))


@dataclass(frozen=True)
class Catalog:
    """Names of N known concepts, of which some may have none, and of M discovered ones.

    taxonomy   SHA-256 of the taxonomy that gave the numbers; "": none did
    """

    concepts: tuple[NamedConcept, ...]
    num_known: int
    num_discovered: int
    taxonomy: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "concepts", tuple(self.concepts))
        names, numbers = (Counter(getattr(one, key) for one in self.concepts) for key in ("name", "number"))
        for kind, counts in (("name", names), ("number", numbers)):
            twice = [repr(value) for value, times in counts.items() if times > 1]
            if twice:
                raise CheckpointError(f"the catalog has the {kind} {twice[0]} twice: each concept has its own")
        outside = [one.number for one in self.concepts if not 0 <= one.number < self.num_known]
        if outside:
            raise CheckpointError(
                f"the catalog has the number {outside[0]}, and the known concepts are 0 to {self.num_known - 1}: it is "
                "of another model"
            )

    @classmethod
    def numbered(cls, shape: ConceptShape) -> Catalog:
        """A catalog without names, for a model that has none."""
        return cls((), shape.known, shape.discovered, shape.taxonomy)

    @cached_property
    def by_name(self) -> Mapping[str, NamedConcept]:
        """Named concepts by their names."""
        return {one.name: one for one in self.concepts}

    @cached_property
    def by_number(self) -> Mapping[int, NamedConcept]:
        """Named concepts by their numbers."""
        return {one.number: one for one in self.concepts}

    @property
    def num_concepts(self) -> int:
        """N + M."""
        return self.num_known + self.num_discovered

    def number(self, name: str | int) -> int:
        """The number of a concept, given its name, "known 3", "discovered 17", or its number. InputError where there
        is no such concept, with the nearest name.
        """
        if isinstance(name, str) and name in self.by_name:
            return self.by_name[name].number
        counted = self._counted(name)
        if counted is None and self.by_name:
            raise unknown("concept", name, self.by_name)
        if counted is None:
            raise InputError(
                f"unknown concept {name!r}: this model's concepts have no names; say 'known 3' or 'discovered 17'"
            )
        kind, place = counted
        num = {"known": self.num_known, "discovered": self.num_discovered}.get(kind, self.num_concepts)
        if not 0 <= place < num:
            what = f"{kind} concepts" if kind in KINDS else "concepts"
            raise InputError(f"there is no concept {name!r}: this model's {what} are 0 to {num - 1}")
        return place + (self.num_known if kind == "discovered" else 0)

    @staticmethod
    def _counted(name: str | int) -> tuple[str, int] | None:
        """A kind of concepts and a number among them; the kind "" for a number among all."""
        if isinstance(name, int) and not isinstance(name, bool):
            return "", name
        if not isinstance(name, str):
            return None
        kind, _, digits = name.strip().rpartition(" ")
        return (kind, int(digits)) if kind in ("", *KINDS) and digits.isdecimal() else None

    def name(self, number: int) -> str:
        """The name of a concept; "known 3" or "discovered 17" for one without. InputError for no concept's number."""
        if number in self.by_number:
            return self.by_number[number].name
        self.number(number)
        kind, place = ("known", number) if number < self.num_known else ("discovered", number - self.num_known)
        return f"{kind} {place}"

    def texts(self, names: Sequence[str | int]) -> tuple[str, ...]:
        """The texts of several concepts, each once. InputError, naming it, for one that has none."""
        out = dict[str, None]()
        for name in names:
            number = self.number(name)
            found = self.by_number[number].texts if number in self.by_number else ()
            if not found:
                raise InputError(
                    f"no text is in every instance of the concept {self.name(number)!r}, so no constraint can forbid "
                    "it: leave out forbid_exactly, or this concept"
                )
            out |= dict.fromkeys(found)
        return tuple(out)

    def to_bytes(self) -> bytes:
        """The content of `concepts.json`."""
        values = {"version": VERSION, "taxonomy": self.taxonomy, "concepts": [asdict(one) for one in self.concepts]}
        return (json.dumps(values, ensure_ascii=False, indent=1) + "\n").encode("utf-8")


def parse_catalog(values: Mapping[str, Any], shape: ConceptShape, source: str = FILE) -> Catalog:
    """The catalog of a model with heads of this shape. CheckpointError, in one line, for anything that is none, or is
    of another model.
    """
    if values.get("version") != VERSION:
        raise CheckpointError(f"{source} has version {values.get('version')!r} and {VERSION} is read: save it again")
    strange = sorted(values.keys() - {"version", "taxonomy", "concepts"})
    if strange:
        raise CheckpointError(f"{source} has an unknown key {strange[0]!r}: save it again")
    taxonomy, records = values.get("taxonomy", ""), values.get("concepts")
    if not isinstance(taxonomy, str) or not isinstance(records, list):
        raise CheckpointError(f"{source} needs a list of concepts, and the hash of their taxonomy: save it again")
    if taxonomy != shape.taxonomy:
        raise CheckpointError(
            f"{source} is of the taxonomy {taxonomy[:12] or 'without a hash'}, and the model was trained with "
            f"{shape.taxonomy[:12] or 'none'}: copy the folder again"
        )
    concepts = tuple(_concept(record, source) for record in records)
    try:
        return Catalog(concepts, shape.known, shape.discovered, taxonomy)
    except CheckpointError as error:
        raise CheckpointError(f"{source}: {error}") from None


def read_catalog(path: Path, shape: ConceptShape) -> Catalog:
    """The catalog in a file; one without names where there is no such file. CheckpointError for a damaged one."""
    values = read_json(path, hint="copy it again")
    return parse_catalog(values, shape, str(path)) if values else Catalog.numbered(shape)


def _concept(record: Any, source: str) -> NamedConcept:
    kinds: dict[str, type] = {"number": int, "name": str, "group": str, "description": str, "lexical": bool}
    known = {field.name for field in fields(NamedConcept)}
    more = ", ".join(sorted(known - {"number", "name"}))
    if not isinstance(record, dict) or not {"number", "name"} <= record.keys() <= known:
        raise CheckpointError(f"{source}: a concept has a number and a name, and may have {more}: save it again")
    right = all(type(record[key]) is kind for key, kind in kinds.items() if key in record)
    for key in ("parents", "texts"):
        given = record.get(key, [])
        right &= isinstance(given, list | tuple) and all(isinstance(text, str) and text for text in given)
    if not right or not record["name"]:
        raise CheckpointError(
            f"{source}: a value of the concept {record['name']!r:.40} has a wrong type: save it again"
        )
    return NamedConcept(**record)
