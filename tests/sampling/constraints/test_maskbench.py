"""The 166 schemas of `../shared/data/jsonschema`, a sample of MaskBench: which are supported, and what they accept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from daguerre.errors import InputError
from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.compile import DEPTH, written_dfa
from daguerre.sampling.constraints.keywords import read_schema
from oracles.written_json import written

ROOT = Path(__file__).resolve().parents[3]
FOLDER = next((place for place in (ROOT.parent, ROOT) if (place / "shared").exists()), ROOT) / "shared/data/jsonschema"
FILES = sorted(FOLDER.glob("*.json"))
PARTS = 4
MAX_STATES = 41_000
pytestmark = pytest.mark.skipif(not FILES, reason=f"{FOLDER} is not there")

NESTED = {"Github_trivial---o45027.json", "Github_trivial---o45028.json"}
"""Files with valid instances that nest deeper than fits in a place that the schema leaves open."""
MOST_REFUSED = 6


@pytest.mark.parametrize("files", [slice(i, None, PARTS) for i in range(PARTS)], ids=str)
def test_what_is_accepted_is_what_is_valid_and_only_what_is_too_large_is_refused(files: slice) -> None:
    refused: dict[str, str] = {}
    for path in FILES[files]:
        held = json.loads(path.read_text(encoding="utf-8"))
        schema = read_schema(held["schema"], budget := Budget(max_states=MAX_STATES, seconds=60))
        try:
            dfa = written_dfa(schema, DEPTH, None, budget)
        except InputError as error:
            refused[path.name] = str(error)
            continue
        for test in held["tests"]:
            found = any(dfa.accepts(text.encode()) for text in written(schema, test["data"]))
            assert found == test["valid"] or (test["valid"] and path.name in NESTED), (path.name, test)
    assert all("too large" in error for error in refused.values()), refused
    assert len(refused) <= MOST_REFUSED, refused
