"""The long run of the server finds what it looks for: wrong answers, differing answers, and memory that grows."""

from __future__ import annotations

import importlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import daguerre

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "soak.py"


@pytest.fixture(scope="module")
def soak() -> Iterator[ModuleType]:
    """The script, which imports another one beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPT.parent))
        yield importlib.import_module("soak")


def test_the_shares_of_a_run_are_those_that_are_promised(soak: ModuleType) -> None:
    counts = Counter(soak.kind_of(number) for number in range(10_000))

    for kind in ("cancelled", "malformed", "too long"):
        assert counts[kind] == pytest.approx(500, abs=80)
    assert counts["slow"] == pytest.approx(200, abs=60)
    assert counts["plain"] > 8000


def test_every_kind_of_body_occurs_and_a_number_has_one_body(soak: ModuleType) -> None:
    bodies = [soak.body_of(number) for number in range(300)]

    assert bodies == [soak.body_of(number) for number in range(300)]
    for kind in soak.KINDS.values():
        assert any(kind.items() <= body.items() for body in bodies)


def test_a_wrong_answer_and_two_different_answers_are_found(soak: ModuleType) -> None:
    model, body = daguerre.load(), {"prompt": "x = ", "seed": 1, "temperature": 0.8, "max_tokens": 4}
    key, good = json.dumps(body), soak.of_library(model, body)

    def wrong(*texts: str) -> list[str]:
        seen = soak.ServerSeen()
        seen.answers[key].update(texts)
        assert soak.compare(seen, 10) == 1
        return seen.wrong

    assert wrong(good) == []
    assert "the library says" in wrong(good + "!")[0]
    assert "2 answers to one request" in wrong(good, good + "!")[0]


def test_memory_counts_from_the_end_of_the_warm_up(soak: ModuleType) -> None:
    rising = [(number, 50 + number if number < 2 else 100 + number) for number in range(10)]

    assert soak.growth([(number, 100) for number in range(10)]) == 1
    assert soak.growth(rising) == pytest.approx(109 / 102)
    assert soak.growth([(0, 1), (1, 1), *[(number, 100) for number in range(2, 10)]]) == 1


def test_a_report_with_a_failure_says_so(soak: ModuleType) -> None:
    seen = soak.ServerSeen(memory=[(number, 100 << 20) for number in range(10)], done=10)
    seen.statuses["plain"].update([200, 500])
    seen.wrong.append("plain: 500 instead of 200")
    report = soak.report_of(seen, 1.0, 0, "")

    assert (report["server_errors"], report["num_wrong"]) == (1, 1)
    assert "plain: 500 instead of 200" in soak.markdown(report)
    seen.memory[-1] = (10, 106 << 20)
    assert soak.report_of(seen, 1.0, 0, "")["num_wrong"] == 2


def test_attacks_beside_honest_clients_in_a_short_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers, statuses and what is left in the engine; shares and memory are figures of the long form."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    hostile = importlib.import_module("soak_hostile")
    report = hostile.run(0.1)
    assert len(report["attacks"]) >= len(hostile.ATTACKS) and report["compared_with_library"] >= 10
    assert report["wrong"] == []
    assert "What went wrong" in hostile.markdown(report)
