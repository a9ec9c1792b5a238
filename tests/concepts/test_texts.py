"""Texts of concepts: every instance contains one of its concept's."""

from __future__ import annotations

import ast
import unicodedata
from collections import Counter

import pytest

from daguerre.concepts.labels import label
from daguerre.concepts.taxonomy import taxonomy
from daguerre.concepts.texts import CALLED, catalog_of, lookalikes, texts
from daguerre.heldout import load_frozen
from daguerre.models.core.shapes import ConceptShape

Texts = dict[str, tuple[str, ...]]
SPELLINGS = {
    "bare_except": [
        "except:",
        "except :",
        "except  :",
        "except\t:",
        "except\f:",
        "except \t:",
        "except\\\n:",
        "except \\\n :",
    ],
    "star_import": ["import*", "import *", "import  *", "import\t*", "import\\\n*", "import \f*"],
    "finally_block": ["finally:", "finally :", "finally\t :", "finally\\\n:"],
    "weak_hash": ["hashlib.md5(x)", "hashlib. sha1 (x)", "hashlib.new ('M' 'D5')", "hashlib.file_digest(f, 'SHA-1')"],
    "unsafe_deserialization": ["pickle.loads(x)", "dill.Unpickler(f)", "shelve.open(f)", "yaml.full_load_all(f)"],
    "insecure_tempfile": ["tempfile.mktemp()"],
}
AROUND = {
    "bare_except": "try:\n    f()\n{}\n    pass\n",
    "star_import": "from x {}\n",
    "finally_block": "try:\n    f()\n{}\n    g()\n",
    "weak_hash": "import hashlib\n{}\n",
    "unsafe_deserialization": "import pickle, dill, shelve, yaml\n{}\n",
    "insecure_tempfile": "import tempfile\n{}\n",
}


@pytest.fixture(scope="module")
def spelled() -> Texts:
    """The texts of all concepts; making them looks at every character there is."""
    return texts()


def test_every_way_to_space_two_tokens_has_one_of_the_texts(subtests: pytest.Subtests, spelled: Texts) -> None:
    for name, ways in SPELLINGS.items():
        concept = taxonomy().named(name)
        for written in ways:
            with subtests.test(name, written=written):
                text = AROUND[name].format(written)
                ast.parse(text)
                assert label(text, [concept]).of(concept)
                assert any(one in written for one in spelled[name])


def test_two_tokens_that_others_stand_between_have_none_of_the_texts(spelled: Texts) -> None:
    for text in ("except ValueError:", "except (A, B) as e:", "import os", "from x import y", "finally_done = 1"):
        assert not any(one in text for name in SPELLINGS for one in spelled[name]), text


def test_a_name_in_letters_that_python_reads_as_others_has_one_of_the_texts(spelled: Texts) -> None:
    for name, words in CALLED.items():
        for word in words:
            for letter in word:
                for other in [
                    one for one in lookalikes("".join(words)) if unicodedata.normalize("NFKC", one) == letter
                ]:
                    written = word.replace(letter, other)
                    assert ast.parse(f"{written}(x)").body[0].value.func.id == word  # type: ignore[attr-defined]
                    assert any(one in written for one in spelled[name])


def test_held_out_instances_have_one_of_their_concept_s_texts(spelled: Texts) -> None:
    concepts, found = [taxonomy().named(name) for name in spelled], Counter[str]()
    for document in load_frozen()[::3]:
        labels = label(document.text, concepts)
        for one in concepts:
            for start, end in labels.of(one):
                found[one.name] += 1
                assert any(text in document.text[start:end] for text in spelled[one.name]), (one.name, document.file)
    assert len(found) > 5 and found.total() > 100


def test_the_catalog_has_all_concepts_of_the_taxonomy() -> None:
    known = taxonomy()
    shape = ConceptShape(known=known.num_ids, discovered=3, rank=2, kept_discovered=2, taxonomy=known.sha256)
    catalog = catalog_of(shape)
    assert [(one.number, one.name) for one in catalog.concepts] == [(one.id, one.name) for one in known.concepts]
    assert catalog.texts(["walrus"]) == (":=",)
