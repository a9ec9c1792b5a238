"""Requests of every kind are laid out again from their records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from daguerre import Pin
from daguerre.audit.keys import SigningKey
from daguerre.audit.recorder import Recorder
from daguerre.audit.verification import REPLAYED, verify
from daguerre.model import Model
from daguerre.models.catalog import Catalog, NamedConcept

PROMPT = "def fib(n):\n    if n"
TOOL = {
    "name": "f",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
}
COMPLETIONS: list[dict[str, Any]] = [
    {"mode": "ar", "draft": " < 2:\n        return n"},
    {"timeout": 30.0},
    {"timeout": 1e-6, "mode": "block"},
    {"timeout": 1e-6, "mode": "ar", "regex": "[ab]{20}"},
    {"mode": "block", "min_tokens": 5},
    {"mode": "block", "pins": [Pin("x", at=3), Pin("yy", at=(5, None))]},
    {"mode": "ar", "pins": [Pin("x", at=3)]},
    {"mode": "ar", "keywords": "ab"},
    {"mode": "block", "sliding": True, "block_size": 4},
    {"temperature": 0.9, "top_k": 5, "top_p": 0.9, "seed": 7},
    {"guidance": 1.7, "negative": "class", "heal": False},
    {"mode": "block", "guidance": 2.0, "heal": False, "n": 3, "temperature": 1.0},
    {"mode": "block", "policy": "confidence", "steps": 3},
    {"mode": "block", "policy": "entropy_bounded", "rank_by": "drawn", "temperature": 0.7},
    {"mode": "full", "policy": "origin"},
    {"mode": "full", "end_of_text": "last"},
    {"mode": "full", "end_of_text": "never"},
    {"mode": "block", "forbid": ["loop"]},
    {"mode": "ar", "forbid": ["loop", "call"], "forbid_exactly": True},
    {"steer": [{"kind": "add", "concepts": ["loop"], "strength": 2.0, "span": (2, 6)}]},
    {
        "steer": [{"kind": "set", "concepts": ["loop"], "strength": 1.0, "span": 0, "schedule": "until", "tokens": 5}],
        "mode": "block",
        "explain": True,
    },
    {"mode": "ar", "tools": [TOOL], "tool_choice": "required", "max_tokens": 40},
    {
        "mode": "block",
        "schema": {"type": "object", "properties": {"a": {"maximum": 10**20}}, "required": ["a"]},
        "max_tokens": 30,
    },
]


@pytest.fixture(scope="module")
def cataloged(small: Model) -> Model:
    """A model whose concepts have names."""
    concepts = (
        NamedConcept(number=1, name="loop", texts=("for ", "while ")),
        NamedConcept(number=5, name="call", texts=("(",)),
    )
    return Model(small.backbone, small.tokenizer, "torch", concepts=Catalog(concepts, 12, 24))


def test_a_completion_is_replayed(
    subtests: pytest.Subtests, cataloged: Model, signing: SigningKey, tmp_path: Path
) -> None:
    for number, options in enumerate(COMPLETIONS):
        with subtests.test(", ".join(options), number=number):
            path = tmp_path / f"{number}.jsonl"
            with Recorder(path, cataloged, signing) as recorder:
                given = {"max_tokens": 16, **options}
                result = recorder.generate(PROMPT, **given)

            report = verify(path, cataloged)

            assert list(report.complaints()) == []
            assert {record.status for record in report.records} == {REPLAYED}
            assert len(report.records) == 1 + len(result.others)


def test_a_draft_that_may_have_been_taken_is_recorded_and_not_replayed(
    cataloged: Model, signing: SigningKey, tmp_path: Path
) -> None:
    path = tmp_path / "audit.jsonl"
    with Recorder(path, cataloged, signing) as recorder:
        taken = recorder.generate(PROMPT, 16, mode="ar", draft=" < 2:\n", accept_draft=0.0, heal=False)
    report = verify(path, cataloged)
    assert taken.text == " < 2:\n" and report.sound
    assert "accept_draft" in report.records[0].status


def test_gaps_and_edits_are_replayed(cataloged: Model, signing: SigningKey, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with Recorder(path, cataloged, signing) as recorder:
        recorder.infill("a = [", "]\n", 10, search_length=True, mode="block")
        recorder.infill("a = [", "", 10)
        recorder.fill("a = <gap> + <gap>\n", 6, mode="block", regex="[a-z]+")
        recorder.edit("a = 1\nb = 2\n", lines=[(2, 2)])

    report = verify(path, cataloged)

    assert list(report.complaints()) == []
    assert report.num_replayed == 4


def test_a_record_gives_what_the_model_gives(cataloged: Model, signing: SigningKey, tmp_path: Path) -> None:
    with Recorder(tmp_path / "audit.jsonl", cataloged, signing) as recorder:
        for options in ({"mode": "ar"}, {"mode": "block", "temperature": 0.8}, {"forbid": ["loop"]}, {"n": 2}):
            recorded, plain = recorder.generate(PROMPT, 8, **options), cataloged.generate(PROMPT, 8, **options)
            assert (recorded.text, recorded.tokens) == (plain.text, plain.tokens)
            assert [one.text for one in recorded.choices] == [one.text for one in plain.choices]
