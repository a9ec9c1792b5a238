"""The 166 schemas of `../shared/data/jsonschema`, a sample of MaskBench: which are supported, and what they accept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from daguerre.errors import InputError
from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.compile import DEPTH, written_dfa
from daguerre.sampling.constraints.keywords import read_schema
from daguerre.sampling.constraints.written import written

ROOT = Path(__file__).resolve().parents[3]
FOLDER = next((place for place in (ROOT.parent, ROOT) if (place / "shared").exists()), ROOT) / "shared/data/jsonschema"
FILES = sorted(FOLDER.glob("*.json"))
PARTS = 4
MAX_STATES = 40_000
pytestmark = pytest.mark.skipif(not FILES, reason=f"{FOLDER} is not there")

REFUSED = {
    "Github_easy---o21053.json": "more than 40,000 states",
    "Github_easy---o26590.json": "keyword 'faker' at #/properties/institution_id",
    "Github_easy---o27828.json": "keyword 'errorMessage' at #",
    "Github_easy---o60117.json": "keyword 'rev' at #/properties/results/items/properties/changes/items",
    "Github_easy---o87942.json": "keyword 'resourceDefinitions' at #",
    "Github_hard---o3446.json": "additionalProperties at #/definitions/template stands under a not",
    "Github_hard---o78015.json": "keyword 'name' at #/properties/profile/properties/vendor_hook",
    "Github_hard---o84048.json": "keyword 'form' at #/properties/resources",
    "Github_medium---o32511.json": "keyword 'claroIds' at #",
    "Github_medium---o82710.json": "keyword 'pbj' at #/properties/user_name",
    "Github_medium---o9405.json": "keyword 'axRole' at #/properties/article/properties/onActions/items",
    "Github_medium---o9513.json": "keyword 'stability' at #",
    "Github_trivial---o45027.json": "keyword 'stability' at #",
    "Github_trivial---o45028.json": "keyword 'stability' at #",
    "Github_trivial---o47151.json": "keyword '$version' at #",
    "Github_trivial---o83137.json": "additionalProperties at #/oneOf/1 stands under a not",
    "Github_trivial---o9817.json": "patternProperties at #/oneOf/0 stands under a not",
    "Handwritten---allOfPProp2.json": "patternProperties at #/not stands under a not",
    "Handwritten---allOfPProp8.json": "patternProperties at #/allOf/1/anyOf/0/not stands under a not",
    "Handwritten---allOfPProp9.json": "patternProperties at #/allOf/1/anyOf/0/not stands under a not",
    "Handwritten---allany17.json": "more than 40,000 states",
    "Handwritten---mod30.json": "excludes the object",
    "Handwritten---mod302.json": "excludes the object",
    "Handwritten---mod303.json": "excludes the object",
    "Handwritten---mod306.json": "excludes the object",
    "Handwritten---mod309.json": "excludes the object",
    "Handwritten---notnames1.json": "propertyNames at #/not stands under a not",
    "Handwritten---num5.json": "more than 40,000 states",
    "Handwritten---object3.json": "patternProperties at #/definitions/reqPattern1/not stands under a not",
    "Handwritten---object6.json": "propertyNames at #/definitions/reqPattern1/not stands under a not",
    "Handwritten---oneofanyofitc6.json": "more than 40,000 states",
    "JME_47.json": "format 'float' at #/properties/price",
}
"""Every file whose schema is not supported, and the part of the error that says why."""


@pytest.mark.parametrize("files", [slice(i, None, PARTS) for i in range(PARTS)], ids=str)
def test_what_is_accepted_is_what_is_valid_and_every_refusal_is_known(files: slice) -> None:
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
            assert found == test["valid"], (path.name, test)
    assert refused.keys() == {path.name for path in FILES[files]} & REFUSED.keys()
    for name, error in refused.items():
        assert REFUSED[name] in error, name


def test_at_least_130_are_supported() -> None:
    assert len(FILES) - len(REFUSED) >= 130
