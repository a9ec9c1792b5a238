"""A budget holds in time and in memory, whatever the constraint, in the library and in what is before it."""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from daguerre.errors import InputError
from daguerre.models.tokenizer import Tokenizer
from daguerre.sampling.constraints import Budget, Limits, compile_regex, compile_schema, compiled
from daguerre.sampling.constraints.dfa import Dfa
from daguerre.sampling.constraints.regex import regex_dfa

SECONDS, FAILSAFE = 0.1, 20.0
"""Seconds of processor time. A compilation that its budget ends takes far less than FAILSAFE."""
LONG, BAR, TRIES = 2.0, 1.1, 3
"""A budget that is large enough for the bar itself."""
MIB = 24
TESTS = Path(__file__).parents[2]
PATTERNS = {
    "repeated": "(a{1,100}){1,100}",
    "repeated more": "(a{1,400}){1,400}",
    "any": "(.{1,100}|a){1,100}",
    "thrice": "(((a{1,50}){1,50}){1,50})",
    "overlapping": "((a|b|ab|ba|aab){1,40}|(a|ab|b){1,60}c?){1,40}",
    "optional": f"({''.join(f'{char}?' for char in 'abcdefghijklmnopqrstuvwxyz' * 6)}){{1,50}}",
    "alternatives": "|".join(f"x{i}y{{1,30}}z" for i in range(10_000)),
    "letters": "(\\p{L}{1,200}\\s?){1,50}",
}
STRINGS = {f"p{i}": {"type": "string"} for i in range(3_000)}


def nested() -> Any:
    schema: Any = {"type": "string"}
    for number in range(60):
        schema = {"not": {"properties": {"a": schema, f"b{number}": {"type": "integer"}}, "required": ["a"]}}
    return schema


def each_in_each() -> Any:
    every = {f"d{i}": {"$ref": f"#/$defs/d{i}"} for i in range(14)}
    held = {name: {"type": "object", "properties": every, "required": [name]} for name in every}
    return {"$ref": "#/$defs/d0", "$defs": held}


SCHEMAS: dict[str, Callable[[], Any]] = {
    "enums": lambda: {"type": "object", "properties": {f"{i * 7919:x}": {"enum": [f"a{i}", i]} for i in range(11_000)}},
    "optional": lambda: {"type": "object", "properties": STRINGS},
    "counted": lambda: {"type": "object", "properties": STRINGS, "minProperties": 3, "maxProperties": 40},
    "one of": lambda: {
        "oneOf": [
            {"type": "object", "properties": {f"a{i}": {"minLength": i}, "b": {"maxLength": i}}, "required": ["b"]}
            for i in range(201)
        ]
    },
    "patterns": lambda: {"oneOf": [{"type": "string", "pattern": f"^a.{{{i % 9}}}|b{{{i}}}"} for i in range(201)]},
    "not": nested,
    "long names": lambda: {"properties": {f"{i}" + "x" * 3_000: {} for i in range(500)}},
    "long": lambda: {"const": "x" * 3_000_000},
    "items": lambda: {"type": "array", "minItems": 10**7},
    "one of, which all overlap": lambda: {
        "oneOf": [{"type": "object", "properties": {f"a{i}": {"type": "integer"}}} for i in range(201)]
    },
    "cases": lambda: {
        "anyOf": [{"anyOf": [{"properties": {f"{i} {j}": {}}} for j in range(8)]} for i in range(8)],
        "unevaluatedProperties": False,
    },
    "members that differ": lambda: {"type": "object", "minProperties": 1_000},
    "remainders": lambda: {"multipleOf": 123_456_789},
    "a large number": lambda: {"minimum": 10**5_000},
    "unique": lambda: {
        "type": "array",
        "uniqueItems": True,
        "contains": {"const": 1},
        "items": {"enum": list(range(20))},
    },
    "constants": lambda: {"enum": [{f"a{i}": i} for i in range(11_000)]},
    "each in each": each_in_each,
}
CONSTRAINTS: list[Any] = [*(("regex", one) for one in PATTERNS), *(("schema", one) for one in SCHEMAS)]


@cache
def constraint_of(kind: str, name: str) -> Any:
    return PATTERNS[name] if kind == "regex" else SCHEMAS[name]()


WIDE = Limits(cases=10**9, remainders=10**9, exponent=10**6, unique_sets=10**7)
"""Of reading, so that the budget alone ends it."""


def compile_one(kind: str, name: str, budget: Budget) -> None:
    """Compile one of them."""
    constraint, tokenizer = constraint_of(kind, name), Tokenizer.default("2k")
    if kind == "regex":
        compile_regex(constraint, tokenizer, budget=budget)
    else:
        compile_schema(constraint, tokenizer, limits=WIDE, budget=budget)


def compiled_within(kind: str, name: str, **limits: Any) -> float:
    """Compile one of them, which may end in the error of a limit that says how it is raised; its processor time."""
    constraint_of(kind, name)
    began = time.thread_time()
    try:
        compile_one(kind, name, Budget(**limits))
    except InputError as error:
        took, said = time.thread_time() - began, str(error)
    else:
        return time.thread_time() - began
    assert re.search(r"\d.*(budget=Budget|limits=Limits)\(\w+=\.\.\.\)", said)
    return took


@pytest.fixture(scope="module", autouse=True)
def ready() -> None:
    compile_regex("a", Tokenizer.default("2k"))


@pytest.fixture
def frozen() -> Iterator[None]:
    """The objects of other tests, and the constraints themselves, are no work of the collector's."""
    for kind, name in CONSTRAINTS:
        constraint_of(kind, name)
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def test_a_budget_of_time_holds(subtests: pytest.Subtests) -> None:
    """Those that nothing else ends are ended by the clock, at once where there is no time."""
    by_the_clock = 0
    for kind, name in CONSTRAINTS:
        with subtests.test(name, kind=kind):
            assert compiled_within(kind, name, seconds=SECONDS) < FAILSAFE
            with pytest.raises(InputError) as caught:
                compile_one(kind, name, Budget(seconds=0.0))
            by_the_clock += "took longer than 0 s" in str(caught.value)
    assert by_the_clock > len(CONSTRAINTS) // 2


@pytest.mark.parametrize(("kind", "name"), CONSTRAINTS)
def test_a_budget_of_time_holds_within_a_tenth(kind: str, name: str, frozen: None) -> None:
    if compiled.library() is None:
        pytest.skip("the library cannot be compiled here")
    for _ in range(TRIES):  # other processes can slow down what lies between two looks at the clock
        if (took := compiled_within(kind, name, seconds=LONG)) < LONG * BAR:
            return
    raise AssertionError(f"{took:.2f} s of a budget of {LONG:g}, and no less in {TRIES} tries")


def run_python(code: str) -> str:
    """What a program says that may import the tests, in a process of its own."""
    paths = os.pathsep.join([*map(str, (TESTS, TESTS.parent / "src")), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    ).stdout


MEASURED = """
import gc, sys
from pathlib import Path
from sampling.constraints import test_budgets as tests

def kilobytes(name):
    return next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if name in line)

tests.compiled_within("regex", "letters", seconds=0.01)
for kind, name in tests.CONSTRAINTS:
    tests.constraint_of(kind, name)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    began = kilobytes("VmHWM")
    tests.compiled_within(kind, name, seconds=1, max_bytes=tests.MIB << 20)
    print(kilobytes("VmHWM") - began, kind, name)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_budget_of_memory_holds() -> None:
    if compiled.library() is None:
        pytest.skip("the library cannot be compiled here")
    for _ in range(TRIES):  # how much is kept between two allocations differs by megabytes from run to run
        peaks = [line.split(maxsplit=1) for line in run_python(MEASURED).splitlines()]
        assert len(peaks) == len(CONSTRAINTS)
        if not (over := [(peak, what) for peak, what in peaks if int(peak) > 1.1 * MIB * 1024 + 2048]):
            return
    raise AssertionError(f"kilobytes of a budget of {MIB} MiB: {over}, and no less in {TRIES} tries")


def test_what_is_compiled_and_dropped_is_freed(tokenizer: Tokenizer) -> None:
    made = compiled.library()
    if made is None:
        pytest.skip("the library cannot be compiled here")

    def held_after(number: int) -> int:
        compile_schema({"type": "object", "properties": {f"p{number}": {"maxLength": number % 9}}}, tokenizer)
        compile_regex(f"x{number}(a|b)" + "{1,9}", tokenizer)
        with suppress(InputError):  # what ends early is freed, too
            compile_regex(f"({number}a{{1,60}}){{1,60}}", tokenizer, budget=Budget(max_states=500))
        gc.collect()
        return int(made.memory_held())

    assert held_after(0) == held_after(1) == held_after(20)


def test_memory_is_given_back_and_a_large_enough_budget_changes_nothing() -> None:
    tokenizer, schema = Tokenizer.default("2k"), json.loads('{"type":"object","properties":{"a":{"maxLength":40}}}')
    budgets = [Budget(max_bytes=32 << 20) for _ in range(20)]

    assert len({compile_schema(schema, tokenizer, budget=budget).num_states for budget in budgets}) == 1
    with pytest.raises(InputError, match="more than 0 MiB of memory"):
        compile_schema(schema, tokenizer, budget=Budget(max_bytes=1 << 16))


SHORT = ["a", "", "(a|bc){1,3}", "a*", "x[0-9]{2}", "é|ab|abc", "b(a|)*"]


def test_strings_and_the_shortest_are_those_of_the_reference(subtests: pytest.Subtests) -> None:
    for pattern in SHORT:
        with subtests.test(pattern):
            fast = regex_dfa(pattern, Budget())
            slow = Dfa(fast.table)

            for most in (1, 5, 200):
                found, expected = fast.strings(most, Budget()), slow.strings(most, Budget())
                assert (found and sorted(found)) == (expected and sorted(expected))
            assert len(fast.shortest()) == len(slow.shortest()) and fast.accepts(fast.shortest())
