"""From a log with texts and grades to a fitted model, and from that to other decisions, over real sockets."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from daguerre.errors import DataError
from daguerre.router import quality_fit
from daguerre.router.log import replay
from daguerre.router.quality_fit import fit_quality
from daguerre.router.quality_rows import read_outcomes
from router.test_proxy import SAY, ask, routed
from router.test_shadow import shadows
from scripted_backends import Reply, Scripted, answer

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
UNSURE = "I do not know"
FORMAT = {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}}


def asking(number: int) -> dict[str, object]:
    """A question that the weak backend can answer where the number is even."""
    text = f"Add {number} and {number + 1}." if number % 2 else f"Which word comes after the word number {number}?"
    return SAY | FORMAT | {"messages": [{"role": "user", "content": text}]}


def test_what_graded_shadows_teach_decides_later_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With fewer graded answers than a backend needs by default."""
    monkeypatch.setattr(quality_fit, "_enough", partial(quality_fit._enough, least=60))
    monkeypatch.setattr(quality_fit, "NUMBER", 20)

    def weak(body: dict[str, object]) -> Reply:
        easy = "word" in json.dumps(body["messages"])
        return Reply(body=answer('{"n": 1}' if easy else UNSURE))

    one, two = Scripted(reply=weak), Scripted(reply=lambda body: Reply(body=answer('{"n": 2}')))
    shadow = {"share": 1.0, "most_in_flight": 64, "backend": "b"}
    judge = Scripted(reply=lambda body: Reply(body=answer(f'{{"score": {0 if UNSURE in json.dumps(body) else 10}}}')))
    grader = {"kind": "judge", "judge": "c"}
    with routed(one, two, judge, shadow=shadow, grader=grader, server={"log_text": True}) as (url, log):
        for number in range(70):
            ask(url, asking(number))
        shadows(log, 70)
        path = log.write(tmp_path / "log.jsonl")
    found = fit_quality(read_outcomes(path), folds=2, seed=0)
    assert found.backends == ("a",), "of the other there is no wrong answer to learn from"
    found.save(tmp_path / "quality.npz")
    using: dict[str, Any] = {"quality_model": str(tmp_path / "quality.npz"), "steps": {"plan": {"quality": 0.6}}}
    with routed(one, two, each={"b": {"quality": {"plan": 0.9}}}, **using) as (url, log):
        chosen = [ask(url, asking(number)).headers["x-route-backend"] for number in range(300, 320)]
        lines = log.of_requests(20)
    assert chosen == ["a", "b"] * 10
    assert all(set(line["features"]["quality"]) == {"a"} for line in lines)
    assert lines[0]["decision"]["rule"] == "cost" and lines[1]["decision"]["rule"] == "quality"
    assert replay(log.write(tmp_path / "second.jsonl")).differing == ()


def test_a_file_that_is_no_model_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "q.npz").write_bytes(b"nothing")
    with pytest.raises(DataError, match="route fit"), routed(Scripted(), quality_model=str(tmp_path / "q.npz")):
        pass
