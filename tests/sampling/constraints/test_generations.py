"""A sample of what `benchmarks/constraints.py` counts: texts under public schemas, judged by another's validator."""

from __future__ import annotations

import importlib.util
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from daguerre.errors import InputError
from daguerre.model import Model

ROOT = Path(__file__).resolve().parents[3]
FOLDER = next((place for place in (ROOT.parent, ROOT) if (place / "shared").exists()), ROOT) / "shared/data/jsonschema"
FILES = sorted(FOLDER.glob("*.json"))[2::23]
SCRIPT = ROOT / "benchmarks" / "constraints.py"


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    if not SCRIPT.exists():
        pytest.skip("benchmarks are not here")
    sys.path.insert(0, str(SCRIPT.parent))  # it imports the script beside it
    spec = importlib.util.spec_from_file_location("constraints_benchmark", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(SCRIPT.parent))


@pytest.mark.skipif(not FILES, reason=f"{FOLDER} is not there")
def test_a_sample_of_generations_under_public_schemas_is_valid(script: ModuleType, causal: Model) -> None:
    made = 0
    for path in FILES:
        schema = json.loads(path.read_text(encoding="utf-8"))["schema"]
        try:
            fewest = script.fewest_tokens(causal, schema)
        except InputError:
            continue
        if fewest > 50:
            continue
        made += 1
        record = script.generation({"random": causal}, schema, fewest, random.Random(path.name))
        assert record["wrong"] is None, (path.name, record)
    assert made >= 5


JUDGED = [
    ("date", "2024-02-29", "2023-02-29"),
    ("time", "10:00:00Z", "10:00:00"),
    ("date-time", "2024-01-01T10:00:00+01:00", "2024-13-01T10:00:00Z"),
    ("email", "a@b.c", "a b"),
    ("hostname", "a-b.c", "-a"),
    ("ipv4", "1.2.3.4", "1.2.3.256"),
    ("uri", "a:b", "b"),
    ("uuid", "12345678-1234-1234-1234-123456789abc", "1234"),
]


def test_the_judge_of_formats_refuses_what_is_wrong(script: ModuleType, subtests: pytest.Subtests) -> None:
    for name, good, bad in JUDGED:
        with subtests.test(name):
            assert script.wrong(json.dumps(good), {"format": name}) is None
            assert script.wrong(json.dumps(bad), {"format": name})
