"""A budget holds in time and in memory, whatever the constraint, in the library and in what is before it."""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from daguerre.errors import InputError
from daguerre.models.tokenizer import Tokenizer
from daguerre.sampling.constraints import Budget, Limits, compile_regex, compile_schema, compiled
from daguerre.sampling.constraints.dfa import Dfa
from daguerre.sampling.constraints.regex import regex_dfa

SECONDS, SLACK = 0.3, 2.0
"""Of processor time. The bar is 10%; a machine that is busy, or a small budget, needs more."""
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
NESTED: Any = {"type": "string"}
for number in range(60):
    NESTED = {"not": {"properties": {"a": NESTED, f"b{number}": {"type": "integer"}}, "required": ["a"]}}
STRINGS = {f"p{i}": {"type": "string"} for i in range(3_000)}
SCHEMAS = {
    "enums": {"type": "object", "properties": {f"{i * 7919:x}": {"enum": [f"a{i}", i]} for i in range(11_000)}},
    "optional": {"type": "object", "properties": STRINGS},
    "counted": {"type": "object", "properties": STRINGS, "minProperties": 3, "maxProperties": 40},
    "one of": {
        "oneOf": [
            {"type": "object", "properties": {f"a{i}": {"minLength": i}, "b": {"maxLength": i}}, "required": ["b"]}
            for i in range(201)
        ]
    },
    "patterns": {"oneOf": [{"type": "string", "pattern": f"^a.{{{i % 9}}}|b{{{i}}}"} for i in range(201)]},
    "not": NESTED,
    "long names": {"properties": {f"{i}" + "x" * 3_000: {} for i in range(500)}},
    "long": {"const": "x" * 3_000_000},
    "items": {"type": "array", "minItems": 10**7},
    "one of, which all overlap": {
        "oneOf": [{"type": "object", "properties": {f"a{i}": {"type": "integer"}}} for i in range(201)]
    },
    "cases": {
        "anyOf": [{"anyOf": [{"properties": {f"{i} {j}": {}}} for j in range(8)]} for i in range(8)],
        "unevaluatedProperties": False,
    },
    "members that differ": {"type": "object", "minProperties": 1_000},
    "remainders": {"multipleOf": 123_456_789},
    "a large number": {"minimum": 10**5_000},
    "unique": {"type": "array", "uniqueItems": True, "contains": {"const": 1}, "items": {"enum": list(range(20))}},
    "constants": {"enum": [{f"a{i}": i} for i in range(11_000)]},
}
ALL = {f"d{i}": {"$ref": f"#/$defs/d{i}"} for i in range(14)}
SCHEMAS["each in each"] = {"$ref": "#/$defs/d0", "$defs": {n: {"type": "object", "properties": ALL} for n in ALL}}
for name in ALL:
    SCHEMAS["each in each"]["$defs"][name]["required"] = [name]
CONSTRAINTS: list[Any] = [*(("regex", one) for one in PATTERNS), *(("schema", one) for one in SCHEMAS)]


WIDE = Limits(cases=10**9, remainders=10**9, exponent=10**6, unique_sets=10**7)
"""Of reading, so that the budget alone ends it."""


def compiled_within(kind: str, name: str, budget: Budget) -> None:
    """Compile one of them, which may end in the error of a limit that says how it is raised."""
    tokenizer = Tokenizer.default("2k")
    try:
        if kind == "regex":
            compile_regex(PATTERNS[name], tokenizer, budget=budget)
        else:
            compile_schema(SCHEMAS[name], tokenizer, limits=WIDE, budget=budget)
        return
    except InputError as error:
        said = str(error)
    assert re.search(r"\d.*(budget=Budget|limits=Limits)\(\w+=\.\.\.\)", said)


@pytest.fixture(scope="module", autouse=True)
def ready() -> None:
    compile_regex("a", Tokenizer.default("2k"))


@pytest.fixture
def frozen() -> Iterator[None]:
    """The objects of other tests are no work of the collector's."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.parametrize(("kind", "name"), CONSTRAINTS)
def test_a_budget_of_time_holds(kind: str, name: str) -> None:
    began = time.thread_time()
    compiled_within(kind, name, Budget(seconds=SECONDS))

    assert time.thread_time() - began < SECONDS + SLACK


@pytest.mark.parametrize(("kind", "name"), CONSTRAINTS)
def test_a_budget_of_time_holds_within_a_tenth(kind: str, name: str, frozen: None) -> None:
    if compiled.library() is None:
        pytest.skip("the library cannot be compiled here")
    for _ in range(TRIES):  # other processes can slow down what lies between two looks at the clock
        began = time.thread_time()
        compiled_within(kind, name, Budget(seconds=LONG))
        if (took := time.thread_time() - began) < LONG * BAR:
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
from daguerre.sampling.constraints import Budget
from sampling.constraints import test_budgets as tests

def kilobytes(name):
    return next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if name in line)

tests.compiled_within("regex", "letters", Budget(seconds=0.01))
for kind, name in tests.CONSTRAINTS:
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    began = kilobytes("VmHWM")
    tests.compiled_within(kind, name, Budget(seconds=1, max_bytes=tests.MIB << 20))
    print(kilobytes("VmHWM") - began, kind, name)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_budget_of_memory_holds() -> None:
    if compiled.library() is None:
        pytest.skip("the library cannot be compiled here")
    found = run_python(MEASURED)

    peaks = [line.split(maxsplit=1) for line in found.splitlines()]
    assert len(peaks) == len(CONSTRAINTS)
    assert not [(peak, what) for peak, what in peaks if int(peak) > 1.1 * MIB * 1024 + 2048]


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


@pytest.mark.parametrize("pattern", ["a", "", "(a|bc){1,3}", "a*", "x[0-9]{2}", "é|ab|abc", "b(a|)*"])
def test_strings_and_the_shortest_are_those_of_the_reference(pattern: str) -> None:
    fast = regex_dfa(pattern, Budget())
    slow = Dfa(fast.table)

    for most in (1, 5, 200):
        found, expected = fast.strings(most, Budget()), slow.strings(most, Budget())
        assert (found and sorted(found)) == (expected and sorted(expected))
    assert len(fast.shortest()) == len(slow.shortest()) and fast.accepts(fast.shortest())
