"""The example of real models behind a router, from its tasks to its tables: with backends that know the answers in
place of models, over real sockets.
"""

from __future__ import annotations

import gzip
import importlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from daguerre.errors import UnsupportedError
from daguerre.router.app import make_app, make_router
from daguerre.router.config import read_config
from daguerre.router.store import Store
from daguerre.train.reinforce.sandbox import Sandbox
from scripted_backends import Reply, Scripted, scripted
from server.conftest import running

FOLDER = Path(__file__).parents[2] / "examples" / "routing"
SURE, UNSURE = math.log(0.95), math.log(0.4)


@pytest.fixture(scope="module")
def measure() -> Iterator[ModuleType]:
    """The script, and beside it what it imports."""
    sys.path.insert(0, str(FOLDER))
    try:
        yield importlib.import_module("measure")
    finally:
        sys.path.remove(str(FOLDER))
        for name in ("load", "measure", "report", "tasks"):
            sys.modules.pop(name, None)


@pytest.fixture
def humaneval(tmp_path: Path) -> Path:
    """A file of gaps in functions of four lines, as HumanEval's."""
    lines = list[dict[str, str]]()
    for number in range(8):
        head = f"def add_{number}(x):\n"
        body = [f"    y = x + {number}\n", "    z = y * 2\n", "    w = z - 1\n", "    return w\n"]
        test = f"\ndef check(f):\n    assert f(3) == (3 + {number}) * 2 - 1\n"
        for place, line in enumerate(body):
            around = {"prompt": head + "".join(body[:place]), "suffix": "".join(body[place + 1 :])}
            task = {"task_id": f"SingleLineInfilling/HumanEval/{number}/L{place}", "entry_point": f"add_{number}"}
            lines.append(task | around | {"canonical_solution": line, "test": test})
    path = tmp_path / "gaps.jsonl.gz"
    path.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode()))
    return path


def solution(task: Any) -> str:
    """The right answer."""
    if task.kind in ("line", "lines"):
        number = int(task.right["name"].removeprefix("add_"))
        whole = f"def add_{number}(x):\n    y = x + {number}\n    z = y * 2\n    w = z - 1\n    return w\n"
        gap = whole.removeprefix(task.right["before"]).removesuffix(task.right["after"])
        return gap.removesuffix("\n") if task.kind == "line" else gap
    return json.dumps(task.right) if task.kind == "data" else str(next(iter(task.right.values())))


def replies(tasks: list[Any], knows: Callable[[Any], bool]) -> Callable[[dict[str, Any]], Reply]:
    """Right and sure where the model knows, else wrong and unsure."""
    by_body = {key(one.body): one for one in tasks}

    def reply(body: dict[str, Any]) -> Reply:
        task = by_body.get(key(body))
        known = task is not None and knows(task)
        text, nats = (solution(task), SURE) if known else ("pass", UNSURE)
        if "state" in body:
            label = {"type": "choice", "choice": text, "confidence": math.exp(nats)}
            return Reply(body=json.dumps({"answers": {"label": label}}).encode())
        choice: dict[str, Any] = {"index": 0, "finish_reason": "stop", "text": text}
        choice |= {"message": {"content": text}, "logprobs": {"content": [{"logprob": nats}], "token_logprobs": []}}
        return Reply(body=json.dumps({"choices": [choice], "usage": {}}).encode())

    return reply


def key(body: dict[str, Any]) -> str:
    return json.dumps([body.get(name) for name in ("messages", "prompt", "suffix", "state")])


def test_a_run_measures_all_ways_and_goes_on_where_it_was_interrupted(
    measure: ModuleType, humaneval: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes seconds, since filled functions are run."""
    try:
        Sandbox()
    except UnsupportedError:
        pytest.skip("gaps are checked in a sandbox, which needs Linux")
    tasks = [one for held in (False, True) for one in measure.drawn(12, 0, humaneval, held)]
    small = Scripted(reply=replies(tasks, lambda task: len(key(task.body)) % 2 == 0))
    models = {"small.gguf": small, "large.gguf": Scripted(reply=replies(tasks, lambda task: True))}
    asked = list[str]()

    @contextmanager
    def started(*command: str) -> Iterator[Any]:
        asked.append(command[0])
        if command[0] == "serve":
            yield measure.Server(models[command[2]].url.removesuffix("/v1"), os.getpid())
            return
        store = Store(None)
        router = make_router(read_config(Path(command[2])), store, lambda reading, body: {}, lambda line: None)
        with running(make_app(router, store, lambda line: None)) as url:
            yield measure.Server(url, os.getpid())

    monkeypatch.setattr(measure, "started", started)
    folder = tmp_path / "measured"
    words = ["--model", "small=small.gguf", "--model", "large=large.gguf", "--humaneval", str(humaneval)]
    words += ["--num", "12", "--folder", str(folder)]
    with scripted(*models.values()):
        monkeypatch.setattr(sys, "argv", ["measure.py", *words, "--load", "2"])
        measure.main()
        kept, served = (folder / "answers.jsonl").read_text(), len(asked)
        rows = [json.loads(line) for line in kept.splitlines()]
        report = (folder / "report.md").read_text()
        (folder / "answers.jsonl").write_text("".join(line + "\n" for line in kept.splitlines()[:-3]))
        monkeypatch.setattr(sys, "argv", ["measure.py", *words])
        measure.main()
    again = [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]
    assert len(again) == len(rows) and len(asked) == served + 3  # the servers and the router of the last way

    held = {way: [row for row in rows if (row["side"], row["way"]) == ("held", way)] for way in ("small", "large")}
    cascade = [row for row in rows if row["way"] == "cascade"]
    assert len(rows) == 2 * len(tasks) + 2 * len(cascade) and all(row["right"] for row in held["large"])
    assert 0 < sum(row["right"] for row in held["small"]) < len(held["small"])
    assert all(row["right"] for row in cascade)
    for row, alone in zip(cascade, held["small"], strict=True):
        assert (row["cascade"] == "accepted") == bool(alone["right"])
        assert row["backend"] == ("small" if alone["right"] else "large")
    assert all(f"## {kind}\n" in report for kind in ("line", "lines", "data", "label", "question", "all"))
    assert "## Deadlines" in report and "0 answers that are not what" in report and "| cascade | " in report


def test_tasks_that_are_held_out_are_other_ones(measure: ModuleType, humaneval: Path) -> None:
    fit, held = (measure.drawn(60, 0, humaneval, side) for side in (False, True))
    assert not {key(one.body) for one in fit} & {key(one.body) for one in held}
    assert [one.id for one in held] == [one.id for one in measure.drawn(60, 0, humaneval, True)]
    for task in held:
        said = json.dumps({"answers": {"label": {"choice": solution(task)}}}).encode()
        choice = {"text": solution(task), "message": {"content": solution(task)}}
        said = said if task.operation == "decisions" else json.dumps({"choices": [choice]}).encode()
        assert task.is_valid(said) and (task.kind in ("line", "lines") or task.grade(said) == 1)
        wrong = said.replace(solution(task).encode(), b"") if task.kind == "question" else said
        assert task.kind != "question" or task.grade(wrong) == 0
