"""The long run of the library finds what it looks for: memory that grows, answers that differ, errors."""

from __future__ import annotations

import gc
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

import daguerre
from daguerre.sampling import constrained
from daguerre.sampling.constraints import programme

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "soak_library.py"


@pytest.fixture(scope="module")
def soak() -> ModuleType:
    """The script."""
    spec = importlib.util.spec_from_file_location("soak_library", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["soak_library"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_every_kind_of_call_has_the_same_answer_twice_and_no_error(soak: ModuleType) -> None:
    model, seen = daguerre.load(), soak.LibrarySeen()
    for _ in range(2):
        for kind in soak.KINDS:
            soak.call(model, kind, 1, seen)

    assert seen.wrong == []
    assert seen.counts.total() == 2 * len(soak.KINDS)
    assert len(seen.answers) == len(soak.KINDS) - 1  # patterns that are new have no answer to compare with


def test_an_error_and_another_answer_are_found(soak: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(("one", "one", "two"))
    monkeypatch.setitem(soak.KINDS, "ar", lambda *given: next(answers))
    seen = soak.LibrarySeen()
    for _ in range(4):
        soak.call(None, "ar", 3, seen)

    assert seen.wrong == ["ar, seed 3: another answer than before", "ar, seed 3: StopIteration: "]


def test_a_leak_is_found_and_a_single_jump_is_none(soak: ModuleType) -> None:
    def grown(bytes_a_call: float, jump: int = 0) -> float:
        return float(soak.slope([(n, int(1e8 + bytes_a_call * n + jump * (n > 950))) for n in range(10, 1010, 10)]))

    assert grown(0) == 0
    assert grown(0, jump=5_000_000) == 0
    assert grown(250) == pytest.approx(250, abs=1)
    seen = soak.LibrarySeen(memory=[(done, 1000 * done) for done in range(10)])
    seen.counts.update(ar=10)
    report = soak.report_of(seen, 1.0, "")
    assert report["num_wrong"] == 1
    assert "memory grows by 1000 bytes" in soak.markdown(report)


def test_what_generations_keep_does_not_grow(soak: ModuleType) -> None:
    """A short form of the run: objects of the interpreter, which are counted exactly, where memory is not. What is kept
    up to a number, which a short run does not reach, is given up first.
    """
    model, seen = daguerre.load(), soak.LibrarySeen()

    def objects() -> int:
        for kind in soak.KINDS:
            soak.call(model, kind, 0, seen)
        for one in gc.get_objects():
            if type(one).__name__ == "_lru_cache_wrapper" and one.__module__.startswith("daguerre"):
                if one.cache_info().maxsize is not None:
                    one.cache_clear()
        constrained._compiled.cache_clear()
        programme._completions.cache_clear()
        gc.collect()
        return len(gc.get_objects())

    first, second, third, fourth = (objects() for _ in range(4))
    assert seen.wrong == []
    assert fourth - second <= len(soak.KINDS) // 2, (first, second, third, fourth)
