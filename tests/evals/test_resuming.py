"""An evaluation that was stopped goes on: finished tasks are kept where all that they depend on is the same."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from daguerre.evals.harness import evaluate
from daguerre.evals.resuming import KeptTasks, difference
from daguerre.evals.tasks import TASKS
from daguerre.heldout import Document
from daguerre.model import Model

WHAT = ["infill", "completion"]
SMALL = {"what": WHAT}


class File:
    """A file that a report is kept in, and the tasks that were in it each time."""

    def __init__(self, path: Path) -> None:
        self.path, self.saved = path, list[list[str]]()
        self.kept = KeptTasks()

    def earlier(self, report: Mapping[str, Any], names: Sequence[str]) -> KeptTasks:
        self.kept = KeptTasks.of(self.path, report, names)
        return self.kept

    def save(self, report: dict[str, Any]) -> None:
        self.path.write_text(json.dumps(report))
        self.saved.append([name for name in WHAT if name in report])


def limits(lines: int = 1) -> dict[str, Any]:
    from daguerre.evals.options import EvalLimits

    return {"limits": EvalLimits(lines=lines, grid_lines=1, spans=1)}


def test_a_task_is_written_as_it_ends_and_is_not_measured_twice(
    causal: Model, documents: list[Document], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = File(tmp_path / "report.json")
    completion = TASKS["completion"]

    def stopped(setup: Any) -> Any:
        completion(setup)

        def measure(progress: Any) -> Any:
            raise KeyboardInterrupt

        return measure

    monkeypatch.setitem(TASKS, "completion", stopped)
    with pytest.raises(KeyboardInterrupt):
        evaluate(causal, documents, store=first, **SMALL, **limits())
    assert first.saved == [["infill"]]

    monkeypatch.setitem(TASKS, "completion", completion)
    infill = TASKS["infill"]

    def never(setup: Any) -> Any:
        infill(setup)

        def measure(progress: Any) -> Any:
            raise AssertionError("measured twice")

        return measure

    monkeypatch.setitem(TASKS, "infill", never)
    second = File(tmp_path / "report.json")
    report = evaluate(causal, documents, store=second, **SMALL, **limits())
    assert list(second.kept.tasks) == ["infill"]
    assert report["infill"] == json.loads((tmp_path / "report.json").read_text())["infill"]
    assert second.saved == [WHAT]
    assert set(report["seconds"]) == set(WHAT)

    third = File(tmp_path / "report.json")
    again = evaluate(causal, documents, store=third, **SMALL, **limits())
    assert list(third.kept.tasks) == WHAT
    assert third.saved == []
    assert again["completion"] == json.loads(json.dumps(report["completion"]))


def test_what_was_measured_with_anything_else_is_measured_again(
    causal: Model, documents: list[Document], tmp_path: Path
) -> None:
    path = tmp_path / "report.json"
    report = evaluate(causal, documents, store=File(path), what=["infill"], **limits())

    assert difference(json.loads(path.read_text()), report) is None
    for changed, where in (
        ({"settings": report["settings"] | {"lines": 9}}, "settings.lines: 1, now 9"),
        ({"data": report["data"] | {"sha256": "x"}}, "data.sha256: "),
        ({"model": report["model"] | {"weights_sha256": "y"}}, "model.weights_sha256: None, now 'y'"),
        ({"machine": report["machine"] | {"daguerre": "9"}}, "machine.daguerre: "),
    ):
        kept = KeptTasks.of(path, report | changed, ["infill"])
        assert not kept.tasks
        assert kept.differs is not None and kept.differs.startswith(where)
    other = evaluate(causal, documents[:2], what=["infill"], **limits())
    assert KeptTasks.of(path, other, ["infill"]).differs is not None
    for damaged in ("", "[]", "{", '{"model": 1}'):
        path.write_text(damaged)
        assert KeptTasks.of(path, report, ["infill"]) == KeptTasks()
    assert KeptTasks.of(tmp_path / "nothing", report, ["infill"]) == KeptTasks()
