"""The engine finds what is planted, whatever it does to the process, and goes on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fuzz.engine import Child, cases, smaller
from fuzz.mutate import mutant, places
from fuzz.targets import TARGETS

WHERE = "fuzz.planted:PLANTED"


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    one = Child()
    yield one
    one.close()


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"right", None),
        (b"raise", "KeyError in planted.py:run"),
        (b"lines", "an error of several lines"),
        (b"much", "MemoryError in planted.py:run"),
        (b"die", "ends the process (3)"),
        (b"deep", "takes more than 1 s"),
        (b"loop", "takes more than 1 s"),
        (b"nothing", None),
    ],
)
def test_every_kind_of_fault_is_found_and_the_next_case_runs(child: Child, data: bytes, kind: str | None) -> None:
    found = child.run(WHERE, data)
    assert (None if found is None else found.kind) == kind
    if kind is not None and kind.startswith("takes"):
        assert "planted.py" in found.why  # where it was


def test_a_finding_is_made_small(child: Child) -> None:
    found = child.run(WHERE, b"a long text before: raise, and more of it behind")
    assert found is not None
    assert smaller(child, found).data == b"raise"


@pytest.mark.parametrize("name", ["schema", "template", "weights"])
def test_cases_depend_on_the_seed_alone_and_are_unlike(name: str) -> None:
    target = TARGETS[name]
    one, again, other = (list(cases(target, seed, 40)) for seed in (1, 1, 2))
    assert one == again != other
    assert len(set(one)) > len(one) * 3 // 4


def test_every_place_of_a_tree_is_changed() -> None:
    from json import loads
    from random import Random

    seed, random, seen = b'{"a": [1, {"b": "c"}], "d": null}', Random(0), set()
    for _ in range(300):
        changed = mutant(seed, [seed], random)
        try:
            value = loads(changed)
        except ValueError:
            seen.add("no JSON")
            continue
        if isinstance(value, dict):
            seen |= {key for _, key in places(value) if isinstance(key, str)} - {"a", "b", "d"}
            seen |= {f"without {key}" for key in ("a", "d") if key not in value}
            seen |= {"b changed"} if value.get("a") not in (None, [1, {"b": "c"}]) else set()
    assert {"no JSON", "without a", "without d", "b changed"} <= seen
