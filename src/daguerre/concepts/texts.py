"""Texts of concepts: every instance of a concept contains one of its strings, so a text without them has none.

They are for language constraints (`forbid_exactly`). Python allows spaces, tabs, form feeds and joined lines between
tokens, and letters that stand for others in names (NFKC, PEP 3131); the strings count all of these. What is renamed
elsewhere (`e = eval`, `from shelve import open` before the gap) is not spelled out where it is used, and a positional
argument has no name.
"""

from __future__ import annotations

import sys
import unicodedata
from functools import lru_cache

from daguerre.concepts.taxonomy import taxonomy
from daguerre.models.catalog import Catalog, NamedConcept
from daguerre.models.core.shapes import ConceptShape

BLANKS = (" ", "\t", "\f", "\\")
"""What may stand between two tokens of a line, by its first character."""
CALLED = {
    "eval_exec": ("eval", "exec"),
    "print_call": ("print",),
    "shell_true": ("shell",),
    "unsafe_deserialization": ("load", "Unpickler", "read_pickle", "shelve"),
    "weak_hash": ("md5", "sha1", "file_digest"),
    "insecure_tempfile": ("mktemp",),
    "warning_call": ("warn",),
    "sort_call": ("sort",),
    "copy_call": ("copy",),
    "format_call": ("format",),
    "file_read": ("read",),
    "file_write": ("write",),
    "pytest_parametrize": ("parametrize",),
}
"""Concepts whose instances spell out one of these names."""
KEYWORDS = {
    "global_statement": "global",
    "nonlocal_statement": "nonlocal",
    "lambda_expression": "lambda",
    "while_loop": "while",
    "await_expression": "await",
}
"""Concepts whose instances have this keyword."""
PAIRS = {
    "bare_except": ("except", ":"),
    "star_import": ("import", "*"),
    "finally_block": ("finally", ":"),
    "weak_hash": ("new", "("),
}
"""Concepts whose instances have these two tokens, one after the other, where they have no name that is in CALLED."""
OPERATORS = {"walrus": ":="}
"""Concepts whose instances have this operator."""


def adjacent(first: str, second: str) -> tuple[str, ...]:
    """Strings one of which is in any text where the second token follows the first, with or without blanks between."""
    beyond = [f"{first}{blank}" for blank in BLANKS if blank != " "]
    spaced = [f"{first} {next_one}" for next_one in (second, *BLANKS)]
    return (f"{first}{second}", *beyond, *spaced)


@lru_cache
def lookalikes(letters: str) -> tuple[str, ...]:
    """Characters beyond ASCII that may be in a name and that Python reads as one of these letters, or as more."""
    found = []
    for code in range(0x80, sys.maxunicode + 1):
        one = chr(code)
        if f"a{one}".isidentifier() and set(unicodedata.normalize("NFKC", one)) & set(letters):
            found.append(one)
    return tuple(found)


def texts() -> dict[str, tuple[str, ...]]:
    """The texts of all concepts that have some, by their names."""
    out: dict[str, tuple[str, ...]] = {name: (word,) for name, word in (KEYWORDS | OPERATORS).items()}
    out |= {name: adjacent(*tokens) for name, tokens in PAIRS.items()}
    for name, words in CALLED.items():
        first = PAIRS[name][0] if name in PAIRS else ""
        out[name] = (*words, *out.get(name, ()), *lookalikes("".join(words) + first))
    return out


def named_concepts() -> tuple[NamedConcept, ...]:
    """The concepts of this taxonomy, as a catalog has them."""
    spelled = texts()
    return tuple(
        NamedConcept(
            number=one.id,
            name=one.name,
            group=one.group,
            description=one.description,
            lexical=one.lexical,
            parents=one.parents,
            texts=spelled.get(one.name, ()),
        )
        for one in taxonomy().concepts
    )


def catalog_of(shape: ConceptShape) -> Catalog:
    """The catalog of a model that was trained with this taxonomy."""
    return Catalog(named_concepts(), shape.known, shape.discovered, taxonomy().sha256)
