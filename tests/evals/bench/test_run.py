"""The parts of `daguerre bench` at a tiny shape, how they make a report, and what is refused."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from bench_shape import TINY
from conftest import MakeModel
from daguerre.decoding.request import Decode
from daguerre.errors import InputError
from daguerre.evals.bench import batch, context, infill, rows, run, worker
from daguerre.evals.bench.job import RANDOM
from daguerre.models import processor
from daguerre.models.backends.library import library
from daguerre.models.loading import save_model

SHAPE = asdict(TINY)


def quiet(what: str, done: int, total: int) -> None:
    """Progress that nobody watches."""


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch, make_model: MakeModel, tmp_path: Path) -> str:
    """Parts that measure little, and the folder of a tiny model for them."""
    monkeypatch.setattr(rows, "ROWS", (1, 8))
    monkeypatch.setattr(rows, "REQUESTS", (1, 2))
    monkeypatch.setattr(rows, "CONTEXT", 8)
    monkeypatch.setattr(rows, "MIN_SECONDS", 0)
    monkeypatch.setattr(batch, "REQUESTS", 3)
    monkeypatch.setattr(batch, "MAX_REPEATS", 2)
    monkeypatch.setattr(context, "NEW", 16)
    monkeypatch.setattr(infill, "PREFIX", 24)
    monkeypatch.setattr(infill, "SUFFIX", 8)
    monkeypatch.setattr(infill, "ALL", 48)
    one = make_model(seed=1)
    save_model(tmp_path / "model", one.backbone, one.tokenizer)
    return str(tmp_path / "model")


def test_the_cost_of_rows_is_measured(model: str) -> None:
    found = rows.measure({"shape": SHAPE, "model": model, "rounds": 1}, quiet)

    assert list(found["models"]) == [RANDOM, model]
    for of_model in found["models"].values():
        sides = of_model["sides"]
        assert {"native float32", "native bfloat16", "native int8", "torch float32"} <= set(sides)
        for name, side in sides.items():
            assert side["rows"] == ([1] if name.startswith("llama.cpp") else [1, 8])
            assert all(x > 0 for value in side.values() for x in value)
            assert side["times_one_row"][0] == 1
        assert sides["torch float32"]["times_torch"] == [1, 1]
        llama = {name for name in sides if name.startswith("llama.cpp")} | set(of_model["failed"])
        assert llama == {"llama.cpp F32", "llama.cpp BF16", "llama.cpp Q8_0"}
    assert [point["requests"] for point in found["concurrency"]] == [1, 2]


def test_many_requests_are_measured_beside_one(model: str) -> None:
    found = batch.measure({"shape": SHAPE, "model": model, "rounds": 1}, quiet)

    for of_model in found["models"].values():
        assert list(of_model["modes"]) == ["ar", "block 8"]
        for mode, figures in of_model["modes"].items():
            assert figures["new_tokens"] == TINY.new_tokens
            assert figures["batches"] == TINY.new_tokens // (1 if mode == "ar" else batch.FORCED)
            assert figures["same_text"]
            assert 0 < figures["python_ms"] < figures["step_ms"]


def test_a_bare_loop_computes_the_forwards_of_the_request_and_no_others(make_model: MakeModel) -> None:
    texts = [tuple(range(30, 62)), tuple(range(90, 122))]
    requests = batch.Requests.of(make_model(seed=1), texts, Decode(mode="ar", min_tokens=12))
    recorded, (took, tokens) = requests.recorded(), requests.alone()

    with batch.NativeClock() as clock:
        requests.bare(recorded)
    again = [requests.backend.forward(part) for part, lengths in recorded if not _truncate(part, lengths)]

    assert clock.calls == took.whole.batches == len(recorded) == len(tokens) == 12
    assert [int(answer.tokens[0]) for (answer,) in again if answer.tokens is not None] == tokens
    assert not isinstance(library().daguerre_forward, type(clock._timed))
    assert len({len(plan.canvas) for plan in requests.plans}) == batch.REQUESTS


def _truncate(part: batch.Batch, lengths: list[int]) -> None:
    for one, length in zip(part, lengths, strict=True):
        one.cache.truncate(length)  # type: ignore[union-attr]


def test_the_cost_of_a_context_is_measured(model: str) -> None:
    options = {"shape": SHAPE, "rounds": 1, "contexts": (16, 32), "kv_heads": (2, 4)}
    found = context.measure(options, quiet)["rows"]

    assert [(r["kv_heads"], r["context"], r["mode"]) for r in found] == [
        (heads, tokens, mode) for heads in (2, 4) for tokens in (16, 32) for mode in ("ar", "block 16")
    ]
    assert context.growth(found, "ar", 2) == found[2]["ms"] / found[0]["ms"]


def test_infilling_is_measured_with_both_sides_in_the_cache(model: str) -> None:
    found = infill.measure({"shape": SHAPE, "model": model, "rounds": 1}, quiet)

    assert [(f["model"], f["policy"]) for f in found] == [
        (RANDOM, "4 a forward"), (model, "4 a forward"), (model, "default policy"),
    ]  # fmt: skip
    assert [f["forwards"] for f in found][:2] == [4, 4]
    assert all(f["ms"] > 0 and f["places"] == 2 for f in found)


def test_a_part_takes_its_place_in_the_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(run, "busy_share", lambda: 0.0)
    monkeypatch.setitem(run.PARTS, "rows", lambda options, threads, progress: {"threads": threads})
    monkeypatch.setitem(run.PARTS, "infill", lambda options, threads, progress: [threads])
    out, options = tmp_path / "new" / "speed.json", run.BenchOptions(rounds=1, threads=(1,), shape=TINY)
    run.bench(["rows"], options, out=out)
    report = run.bench(["infill"], options, out=out)

    assert set(report) == {"rows", "infill"}
    assert report["rows"]["threads"] == {"1": {"threads": 1}}
    assert report["infill"]["settings"]["shape"] == SHAPE
    machine = report["infill"]["machine"]
    assert set(machine) >= {"processor", "torch", "commit"}
    assert machine["instruction_set"] == processor.instruction_set()
    assert machine["dtype"] in ("float32", "bfloat16")
    assert json.loads(out.read_text()) == json.loads(json.dumps(report))


def test_what_cannot_be_measured_is_refused_before_anything_is(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'rows'"):
        run.bench(["rosw"])
    with pytest.raises(InputError, match="rounds"):
        run.BenchOptions(rounds=0)
    with pytest.raises(InputError, match="threads must be from 1 to"):
        run.BenchOptions(threads=(4096,))
    for text, reason in (('{"bits": 1}', "not a report"), ('{"rows": {"machine": {}}}', "earlier version")):
        (tmp_path / "other.json").write_text(text)
        with pytest.raises(InputError, match=reason):
            run.bench(["rows"], run.BenchOptions(threads=(1,)), out=tmp_path / "other.json")


def test_a_lesser_instruction_set_is_for_pytorch_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(worker.TORCH_LIMITS) == set(processor.LEVELS)
    monkeypatch.setattr(processor, "chosen", lambda: "avx2")
    assert worker.environment(2)["ATEN_CPU_CAPABILITY"] == "avx2"
    monkeypatch.setattr(processor, "chosen", lambda: None)
    assert worker.environment(2) == {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}


def test_a_busy_machine_is_seen() -> None:
    share = run.busy_share(0.05)

    assert share is None or 0 <= share <= 1
