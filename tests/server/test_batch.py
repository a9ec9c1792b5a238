"""`daguerre batch`: killed and run again, nothing is done twice and nothing is missing."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from commands import Running
from daguerre.errors import DataError, EngineError
from daguerre.model import Model
from daguerre.server import batch as batches
from daguerre.server.batch import BatchWriter, answer_file, read_answers, read_requests
from daguerre.server.models import ModelPool
from server.processes import run


def request(number: int, **body: Any) -> dict[str, Any]:
    body = {"prompt": f"def f{number}(", "max_tokens": 6, **body}
    return {"custom_id": f"r{number}", "method": "POST", "url": "/v1/completions", "body": body}


def write(path: Path, requests: list[Any]) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in requests))
    return path


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def answer(tiny: Model, tmp_path: Path) -> Callable[..., tuple[int, int]]:
    """answer(requests): write them to a file, and the answers to `tmp_path / "out"`."""

    def answer(requests: list[Any], together: int = 16, **limits: Any) -> tuple[int, int]:
        limits = {"max_waiting": 1 << 30, **limits}
        pool = ModelPool({"tiny": lambda: tiny}, **limits)
        asked = write(tmp_path / "in", requests)
        with closing(pool):
            return answer_file(pool, asked, tmp_path / "out", together, lambda done, total: None)

    return answer


def test_every_request_has_one_answer_that_it_has_alone(
    answer: Callable[..., Any], tiny: Model, tmp_path: Path
) -> None:
    wrong = [request(40, temperature=9), request(41) | {"url": "/v1/nothing"}]
    assert answer([*(request(number) for number in range(20)), *wrong]) == (22, 2)
    found = {one["custom_id"]: one for one in lines(tmp_path / "out")}
    assert len(lines(tmp_path / "out")) == len(found) == 22
    for number in range(20):
        text = found[f"r{number}"]["response"]["body"]["choices"][0]["text"]
        assert text == tiny.generate(f"def f{number}(", 6).text
    for name, status in (("r0", 200), ("r40", 400), ("r41", 404)):
        assert found[name]["response"]["status_code"] == status and found[name]["error"] is None
    assert found["r0"]["id"] == "batch_" + found["r0"]["response"]["request_id"]


def test_requests_share_steps(answer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []
    close = ModelPool.close

    def note(pool: ModelPool, drain: float = 0.0) -> None:
        steps.extend(one.engine.stats().steps for one in pool.loaded)
        close(pool, drain)

    monkeypatch.setattr(ModelPool, "close", note)
    requests = [request(number, daguerre={"mode": "ar", "min_tokens": 6}) for number in range(32)]
    answer(requests, together=32)
    assert steps[0] < 32 * 6 / 4


def test_more_choices_than_there_are_places_are_answered_too(answer: Callable[..., Any]) -> None:
    assert answer([request(number, n=6) for number in range(8)], together=8, max_running=4) == (8, 0)


def test_a_run_goes_on_where_the_last_one_was_cut_off(answer: Callable[..., Any], tmp_path: Path) -> None:
    requests = [request(number) for number in range(6)]
    answer(requests)
    whole = (tmp_path / "out").read_bytes().splitlines(keepends=True)
    (tmp_path / "out").write_bytes(b"".join(whole[:4]) + whole[4][:30])
    assert answer(requests) == (2, 0)
    again = (tmp_path / "out").read_bytes().splitlines(keepends=True)
    assert again[:4] == whole[:4]
    assert {json.loads(line)["custom_id"] for line in again} == {f"r{number}" for number in range(6)}
    assert answer(requests) == (0, 0)


def test_a_batch_that_was_killed_goes_on_and_nothing_is_done_twice(tmp_path: Path) -> None:
    asked = write(tmp_path / "in", [request(number, max_tokens=32) for number in range(40)])
    out = tmp_path / "out"
    with open(os.devnull, "r+b") as nothing:
        files = (nothing.fileno(), nothing.fileno(), nothing.fileno())
        process = Running(("batch", asked, out, "--max-running", "4"), files)
        while process.poll() is None and (not out.exists() or out.read_bytes().count(b"\n") < 5):
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    before = read_answers(out)
    first = out.read_bytes()
    assert 5 <= len(before) < 40
    done = run("batch", asked, out, "--max-running", "4")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{40 - len(before)} requests answered, 0 of them with an error")
    assert out.read_bytes().startswith(first)
    assert sorted(one["custom_id"] for one in lines(out)) == sorted(f"r{number}" for number in range(40))


def test_a_line_that_is_no_request_is_named_before_anything_is_done(tmp_path: Path) -> None:
    wrong = (
        (["{"], "line 1 .* is no request"),
        (['{"custom_id": "a", "url": "/v1/completions", "body": []}'], "line 1 .* is no request"),
        ([json.dumps(request(1)), "", json.dumps(request(1))], "line 3 .* came before"),
        ([json.dumps(request(1, stream=True))], "asks for a stream"),
        (["[" * 100_000], "line 1 .* is no request"),
    )
    path = tmp_path / "in"
    for given, says in wrong:
        path.write_text("\n".join(given))
        with pytest.raises(DataError, match=says):
            read_requests(path)


def test_a_file_that_has_no_answers_is_left_as_it_is(answer: Callable[..., Any], tmp_path: Path) -> None:
    for content in (b"some text\n", b"no end of line", json.dumps(request(1)).encode() + b"\n"):
        (tmp_path / "out").write_bytes(content)
        with pytest.raises(DataError, match="is no answer of a batch"):
            answer([request(1)])
        assert (tmp_path / "out").read_bytes() == content
    (tmp_path / "out").unlink()
    (tmp_path / "out").symlink_to(tmp_path / "in")
    with pytest.raises(DataError, match="is the file of requests"):
        answer([request(1)])


def test_two_runs_do_not_write_one_file(answer: Callable[..., Any], tmp_path: Path) -> None:
    with (tmp_path / "out").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="another batch writes"):
            answer([request(1)])


def test_a_full_disk_is_one_line_and_the_next_run_goes_on(
    answer: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, requests = BatchWriter.write, [request(number) for number in range(6)]

    def full(writer: BatchWriter, line: dict[str, Any]) -> None:
        if len(lines(tmp_path / "out")) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(writer, line)

    monkeypatch.setattr(BatchWriter, "write", full)
    with pytest.raises(DataError, match="No space left on device; run again"):
        answer(requests, together=2)
    monkeypatch.undo()
    assert answer(requests) == (3, 0)


def test_where_the_model_stops_what_is_left_is_not_answered(
    answer: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = batches.call

    async def stopped(app: Any, path: str, body: bytes) -> Any:
        if b"def f3(" in body:
            return 503, {}, {"error": {"message": "the engine has stopped"}}
        return await real(app, path, body)

    monkeypatch.setattr(batches, "call", stopped)
    with pytest.raises(EngineError, match="the engine has stopped; run it again"):
        answer([request(number) for number in range(6)], together=1)
    assert len(lines(tmp_path / "out")) == 3
    monkeypatch.undo()
    assert answer([request(number) for number in range(6)]) == (3, 0)


def test_progress_counts_the_answers_that_are_there(tiny: Model, tmp_path: Path) -> None:
    asked, seen = write(tmp_path / "in", [request(number) for number in range(3)]), list[tuple[int, int]]()
    for _ in range(2):
        with closing(ModelPool({"tiny": lambda: tiny}, max_waiting=8)) as pool:
            answer_file(pool, asked, tmp_path / "out", 1, lambda done, total: seen.append((done, total)))
    assert seen == [(0, 3), (1, 3), (2, 3), (3, 3), (3, 3)]
