"""Every target with changed seeds, the same in each run: a result or a `DaguerreError`, in time and memory.

`make fuzz` goes on from here with new ones.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fuzz.engine import Child, cases
from fuzz.targets import TARGETS

pytestmark = pytest.mark.slow
SEED = 0


@pytest.fixture(scope="session")
def child() -> Iterator[Child]:
    one = Child()
    yield one
    one.close()


@pytest.mark.parametrize("name", TARGETS)
def test_whatever_is_read_ends_in_a_result_or_in_an_error_that_says_what_to_do(child: Child, name: str) -> None:
    target = TARGETS[name]
    for data in cases(target, SEED, target.cases):
        found = child.run(name, data)
        assert found is None, f"{found.kind}\n{found.why}\n{data[:2_000]!r}"
