"""The taxonomy's file: it has the concepts that detectors find, and a number keeps its meaning for ever."""

from __future__ import annotations

import hashlib
import json
from importlib import resources
from typing import Any

import pytest

from daguerre.concepts.detectors import DETECTORS
from daguerre.concepts.taxonomy import FILE, parsed, renewed, taxonomy, text_of
from daguerre.errors import DataError, InputError

RISK = {
    *("shell_true", "eval_exec", "unsafe_deserialization", "weak_hash", "insecure_tempfile", "tls_verify_disabled"),
    *("hardcoded_secret", "bare_except", "swallowed_exception", "mutable_default_argument", "star_import"),
    *("global_statement", "sql_string"),
}


def content() -> dict[str, Any]:
    return json.loads((resources.files("daguerre.concepts") / FILE).read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def test_the_file_has_the_concepts_that_are_detected() -> None:
    old = content()
    made = renewed(old, {record["name"]: record["prevalence"] for record in old["concepts"]})
    assert made == old, "run python -m daguerre.concepts.renew FOLDER"
    assert {record["name"] for record in old["concepts"]} == DETECTORS.keys()
    assert parsed(text_of(made)).sha256 == taxonomy().sha256


def test_there_are_enough_concepts_and_all_of_risk() -> None:
    known = taxonomy()
    assert 256 <= len(known.concepts) <= 384
    assert {one.name for one in known.concepts if one.group == "risk"} == RISK
    for one in known.concepts:
        assert one.description.endswith(".") and len(one.description) <= 400, one.name
        assert 0.0 <= one.prevalence <= 1.0
        assert one.name not in {above.name for above in known.ancestors[one.name]}


def test_a_number_is_never_used_again() -> None:
    old = content()
    first, *others = old["concepts"]
    new = {key: value for key, value in first.items() if key not in ("id", "prevalence")}
    made = renewed({**old, "concepts": [*others, new], "retired": [first["id"]]}, {})
    again = next(record["id"] for record in made["concepts"] if record["name"] == first["name"])
    assert again == taxonomy().num_ids and made["retired"] == [first["id"]]
    assert made["version"] == old["version"] + 1
    gone = renewed({**old, "concepts": [*old["concepts"], {**first, "id": 900, "name": "gone"}]}, {})
    assert gone["retired"] == [*old["retired"], 900] and gone["version"] == old["version"] + 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": 1, "name": "other"}, "never used again"),
        ({"name": "bare_except", "id": 800}, "never used again"),
        ({"id": 801, "name": "other", "parents": ["nobody"]}, "no concept 'nobody'"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(change: dict[str, Any], message: str) -> None:
    old = content()
    with pytest.raises(DataError, match=message):
        parsed(json.dumps({**old, "concepts": [*old["concepts"], {**old["concepts"][0], **change}]}))


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(InputError, match="did you mean 'bare_except'"):
        taxonomy().named("bare_exept")


def test_no_number_has_ever_another_name() -> None:
    """Numbers stand in models, records and labels. A concept is added with a new number; a name is changed by retiring
    the number: then, and only then, the lines below grow.
    """
    known = taxonomy()
    names = {one.id: one.name for one in known.concepts}
    first = "\n".join(f"{number} {names.get(number, 'retired')}" for number in range(384))
    assert (
        hashlib.sha256(first.encode()).hexdigest() == "70b375faaf4d2d9556a10c360e14e242d9c05f5c71044bbd0758861019640b5e"
    )
