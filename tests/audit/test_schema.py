"""The published schema, held to another implementation of JSON Schema."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from daguerre.audit.keys import SigningKey
from daguerre.audit.ledger import Ledger
from daguerre.audit.recorder import Recorder
from daguerre.audit.schema import SEALED, complaint, part, schema
from daguerre.audit.summary import Alerts
from daguerre.audit.trial import opened
from daguerre.errors import InputError
from daguerre.model import Model
from daguerre.scoring.decisions import YesNo


@pytest.fixture(scope="module")
def values(
    small: Model, named: Any, signing: SigningKey, tmp_path_factory: pytest.TempPathFactory
) -> list[tuple[Any, str | None]]:
    """A record of every kind, and its sealed part."""
    path = tmp_path_factory.mktemp("ledger") / "audit.jsonl"
    for model, alerts in ((small, Alerts(concepts=tuple(range(8)), weight=0.01)), (named(concepts=None), None)):
        with Recorder(str(path), model, signing, subject={"system": "ide"}, alerts=alerts) as recorder:
            recorder.generate("a = ", 3, mode="block", regex="[0-9]+")
            recorder.decide("a = ", [YesNo(before="1 ==")])
            with pytest.raises(InputError):
                recorder.generate("a = ", -3)
    with Ledger(path, signing) as ledger:
        first, second = (clear["id"] for clear, _ in opened(path)[:3:2])
        ledger.follow_up(second, "review", {"by": "reviewer 3"}, "a note")
        ledger.follow_up(second, "decision")
        ledger.erase(first)
        ledger.append("repair", {"torn": {"bytes": 3, "sha256": "0" * 64, "file": "x"}})
    found: list[tuple[Any, str | None]] = []
    for clear, content in opened(path):
        found.append((clear, None))
        if content is not None:
            found.append((content, clear["kind"]))
    return found


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values in a value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


@cache
def judge(kind: str | None) -> jsonschema.Draft7Validator:
    """The other implementation."""
    return jsonschema.Draft7Validator(schema() if kind is None else part(SEALED[kind]))


def judged(value: Any, kind: str | None) -> bool:
    """Whether the other implementation accepts it."""
    return judge(kind).is_valid(value)


def test_the_schema_is_one() -> None:
    jsonschema.Draft7Validator.check_schema(schema())


def test_every_kind_of_record_follows_the_schema(values: list[tuple[Any, str | None]]) -> None:
    kinds = {value["kind"] for value, kind in values if kind is None}
    assert kinds == {"generation", "decision", "refusal", "erasure", "repair", "change", "follow_up"}
    for value, kind in values:
        assert complaint(value, kind) is None
        assert judged(value, kind)


def test_both_implementations_judge_damaged_records_alike(values: list[tuple[Any, str | None]]) -> None:
    refused = 0
    for value, kind in values:
        for path in [path for path in places(value) if path][::3]:
            for damaged in (None, -1, "x", {}, [1.5]):
                changed = inner = copy.deepcopy(value)
                for key in path[:-1]:
                    inner = inner[key]
                inner[path[-1]] = damaged
                right = judged(changed, kind)
                assert (complaint(changed, kind) is None) == right, (path, damaged)
                refused += not right
    assert refused > 300


def test_a_field_more_or_less_is_refused(values: list[tuple[Any, str | None]]) -> None:
    for value, kind in values:
        assert complaint({**value, "more": 1}, kind) is not None
        for name in value:
            less = {key: one for key, one in value.items() if key != name}
            assert complaint(less, kind) is not None, name


def test_the_schema_is_a_file_of_the_package() -> None:
    assert (Path(__file__).parents[2] / "src/daguerre/audit/schema.json").is_file()
