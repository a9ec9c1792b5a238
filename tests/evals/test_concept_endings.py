"""Texts that were cut off: whether they parse, and which concepts they use; prompts, and rates over continuations."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np
import pytest

from daguerre.concepts.endings import closed, parses, uses
from daguerre.concepts.labels import label
from daguerre.concepts.prompts import FilePrompt, before_statements, before_uses
from daguerre.concepts.taxonomy import taxonomy
from daguerre.errors import DataError, InputError
from daguerre.evals.concepts import injection, suppression
from daguerre.evals.concepts.injection import COMMENT, STEERED, measure_injection, with_comment
from daguerre.evals.concepts.partial_results import PartialResults
from daguerre.evals.concepts.suppression import CONSTRAINT, NONE, STEERING, measure_suppression
from daguerre.evals.concepts.writing import figures, labeled_texts
from daguerre.evals.workers import no_progress

NOTHING = PartialResults(None, {})

WHOLE = """import os


class Box(Base):
    def open(self, name, *, mode="r"):
        try:
            if name in {"a", 'b'} and mode != "r":
                return [os.path.join(name, part) for part in self.parts(
                    name, [1, 2, 3]
                )]
        except OSError as error:
            raise ValueError(f"no {name}") from error
        finally:
            self.done = True
        for one in self.all():
            yield one

    @property
    def size(self):
        \"\"\"How large

        it is.
        \"\"\"
        return -1 if self.done else 2


x = Box()
"""


def test_every_beginning_of_a_program_parses() -> None:
    """Wherever a program is cut off, it was the beginning of a program."""
    ast.parse(WHOLE)

    assert [end for end in range(len(WHOLE) + 1) if not parses(WHOLE[:end])] == []


NO_PROGRAMS = (
    "x = (1 +* 2)\n",
    "foo bar\n",
    "x = 'abc\ny = 2\n",
    "def f():\n    return 1\n   return 2\n",
    "x = [1)\n",
    "return x]\nx = 1\n",
    "def f():\nx = 1\n",
    "try:\n    x = 1\ny = 2\n",
    "for x i\nx = 1\n",
    "\0\n",
)


def test_what_cannot_become_a_program_does_not_parse(subtests: pytest.Subtests) -> None:
    for wrong in NO_PROGRAMS:
        with subtests.test(wrong):
            assert not parses(wrong)
            assert not parses("y = 1\n" + wrong + "z = 1")
            assert closed(wrong) is None


def test_the_last_line_is_not_judged() -> None:
    assert parses("x = 1\nfor x i")
    assert not parses("x = 1\nfor x i\n")
    assert parses("x = 'abc")


def test_most_beginnings_can_be_closed_and_what_is_added_is_short() -> None:
    ends = [end for end in range(1, len(WHOLE)) if closed(WHOLE[:end]) is not None]

    assert len(ends) > 0.45 * len(WHOLE)
    for end in ends:
        whole = closed(WHOLE[:end])
        assert whole is not None
        assert whole.startswith(WHOLE[:end].rstrip())
        ast.parse(whole)
    lines = [end + 1 for end, character in enumerate(WHOLE) if character == "\n"]
    assert len(set(lines) & set(ends)) >= len(lines) - 8  # but for decorators, strings and lists that are open


CLOSED: list[tuple[str, str | None]] = [
    ("def f(x):\n", "def f(x):\n    pass"),
    ("if x:\n    while y:", "if x:\n    while y:\n        pass"),
    ("print(a, [b, {c", "print(a, [b, {c}])"),
    ("try:\n    f()", "try:\n    f()\nfinally:\n    pass"),
    (
        "try:\n    try:\n        f(",
        "try:\n    try:\n        f()\n    finally:\n        pass\nfinally:\n    pass",
    ),
    ("def f(\n    x,\n):\n", "def f(\n    x,\n):\n    pass"),
    ("x = ", None),
    ('x = """abc', None),
    ("x = 'abc", None),
    ("@wraps\n", None),
    ("x = )", None),
]


def test_a_text_is_closed_by_brackets_and_bodies(subtests: pytest.Subtests) -> None:
    for text, expected in CLOSED:
        with subtests.test(text):
            assert closed(text) == expected


USES = [
    ("bare_except", "try:\n    f()\n", "except:\n    pass\n", True),
    ("bare_except", "try:\n    f()\n", "except:", True),  # without a body
    ("bare_except", "try:\n    f()\n", "except OSError:\n    pass\n", False),
    ("bare_except", "try:\n    f()\nexcept:\n    ", "g()\n", False),  # of the prompt
    ("eval_exec", "def f(x):\n    return ", "eval(x)", True),
    ("eval_exec", "def f(x):\n    return ", "eval(x, {", True),
    ("eval_exec", "def f(x):\n    return ", "x\n\n\neval = ", False),
    ("eval_exec", "def f(x):\n    return ", "'eval(x)'\n", False),
    ("for_loop", "def f(x):\n    ", "y = 1\n    for a in x:\n        print(a)\n    for", True),
    ("for_loop", "def f(x):\n    ", "y = 1\n    for", False),
    ("pass_statement", "def f(x):\n    ", "if x:", False),  # what closes the text does not count
    ("try_block", "def f(x):\n    ", "try:\n        x = 1\n", True),
    ("comment", "x = 1\n", "# so\n", True),
    ("return_statement", "def f():\n    return 1\n\ndef g():\n    ", "x = 1\n", False),
    ("assert_statement", "x = 1\n", "foo bar\nassert x\n", False),  # nothing closes it
]
"""Concepts, prompts, continuations, and whether these use the concept."""


def test_uses_are_those_of_the_continuation(subtests: pytest.Subtests) -> None:
    for concept, prompt, continuation, expected in USES:
        with subtests.test(concept, prompt=prompt, continuation=continuation):
            assert uses(taxonomy().named(concept), prompt, continuation) is expected


def test_prompts_end_just_before_uses_and_go_around_the_files() -> None:
    one, two = "a = 1\nassert a\nassert a + 1\nassert a + 2\n", "def f(x):\n    assert x\n"
    texts = labeled_texts([one, two, one, "x = (\n"])

    found = before_uses(texts, taxonomy().named("assert_statement"), 3)

    assert [number for number, _, _ in texts] == [0, 1]  # each once, and what parses
    assert found == [
        FilePrompt(0, "a = 1\n"),
        FilePrompt(1, "def f(x):\n    "),
        FilePrompt(0, "a = 1\nassert a\n"),
    ]


def test_prompts_for_injection_end_before_statements_of_functions() -> None:
    texts = labeled_texts([WHOLE, "x = 1\n", "def f(x):\n    y = 1; z = 2\n    return x\n"])

    found = before_statements(texts, 5, 0)

    assert {prompt.file for prompt in found} == {0, 2}
    for prompt in found:
        last = prompt.text.rpartition("\n")[2]
        assert last and not last.strip()
        assert parses(prompt.text)
        assert prompt.text != "def f(x):\n    "  # not the first of a body
    assert FilePrompt(2, "def f(x):\n    y = 1; z = 2\n    ") in found
    commented = with_comment("def f(x):\n    y = 1\n    ", taxonomy().named("for_loop"))
    assert commented.startswith("def f(x):\n    y = 1\n    # for loop: ")
    assert commented.endswith("\n    ")
    ast.parse(commented + "pass\n")


class Scripted:
    """Writes what a test has written: by default every other continuation asserts something."""

    def __init__(self, leak: int = 0) -> None:
        self.calls: list[tuple[str, int, int, dict[str, Any]]] = []
        self.leak = leak

    def __call__(self, prompt: str, num: int, seed: int, **controls: Any) -> list[str]:
        self.calls.append((prompt, num, seed, controls))
        if "forbid_exactly" in controls:
            return ["x = 2\n"] * num
        if "forbid" in controls:
            return ["assert x\n"] * self.leak + ["x = )\n"] * (num - self.leak)
        if "steer" in controls:
            return (["assert x\n", "x = )\n"] * num)[:num]
        return (["assert x\n", "x = 1\n"] * num)[:num]


def test_suppression_counts_uses_of_what_is_forbidden() -> None:
    texts = labeled_texts([f"x = {number}\nassert x\n" for number in range(30)])
    write = Scripted(leak=1)
    concept = taxonomy().named("assert_statement")

    part = measure_suppression(texts, [concept], write, 240, NOTHING, no_progress)

    (row,) = part["rows"]
    assert row["tried"] == row["prompts"] == 30
    assert row["has_bar"]
    plain, steered, weakly, strongly, constrained = row["ways"]
    others = ["steering, 5 logits", "steering, 20 logits"]
    assert [way["way"] for way in row["ways"]] == [NONE, STEERING, *others, CONSTRAINT]
    assert weakly["generations"] == strongly["generations"] == 60
    assert steered["generations"] == constrained["generations"] == 240
    assert (plain["rate"], plain["parses"], plain["generations"]) == (0.5, 1.0, 60)
    assert (steered["rate"], steered["parses"]) == (0.125, 0.125)
    assert (constrained["rate"], constrained["parses"]) == (0.0, 1.0)
    selecting = {seed for _, num, seed, _ in write.calls if num == 20}
    assert selecting.isdisjoint(seed for _, num, seed, _ in write.calls if num < 20)
    assert {str(controls) for *_, controls in write.calls} == {
        "{}",
        "{'forbid': ['assert_statement']}",
        "{'steer': [{'kind': 'forbid', 'concepts': ['assert_statement'], 'strength': 5.0}]}",
        "{'steer': [{'kind': 'forbid', 'concepts': ['assert_statement'], 'strength': 20.0}]}",
        "{'forbid': ['assert_statement'], 'forbid_exactly': True}",
    }


def test_prompts_are_kept_where_four_of_twenty_use_the_concept() -> None:
    texts = labeled_texts([f"x = {number}\nassert x\n" for number in range(8)])

    def write(prompt: str, num: int, seed: int, **controls: Any) -> list[str]:
        hits = int(prompt.split()[2])
        return (["assert x\n"] * hits + ["x = 1\n"] * num)[:num]

    tried = before_uses(texts, taxonomy().named("assert_statement"), 100)
    found = suppression.kept_prompts(tried, taxonomy().named("assert_statement"), write, 0)

    assert [prompt.file for prompt in found] == [4, 5, 6, 7]
    part = measure_suppression(texts, [taxonomy().named("assert_statement")], write, 8, NOTHING, no_progress)
    assert not part["rows"][0]["has_bar"]
    none = measure_suppression(texts, [taxonomy().named("while_loop")], write, 8, NOTHING, no_progress)
    assert none["rows"][0]["ways"] == []


def test_a_concept_without_a_constraint_says_so() -> None:
    texts = labeled_texts(["x = 1\nassert x\n"])

    def write(prompt: str, num: int, seed: int, **controls: Any) -> list[str]:
        if "forbid_exactly" in controls:
            raise InputError("no text is in every instance")
        return ["assert x\n"] * num

    (row,) = measure_suppression(texts, [taxonomy().named("assert_statement")], write, 4, NOTHING, no_progress)["rows"]

    assert CONSTRAINT not in [way["way"] for way in row["ways"]]
    assert row["no_constraint"] == "no text is in every instance"


def test_generations_are_spread_evenly_over_prompts() -> None:
    write = Scripted()
    prompts = [FilePrompt(number, f"x = {number}\n") for number in range(7)]

    found = figures(prompts, taxonomy().named("assert_statement"), write, 10, 3, {})

    assert [num for _, num, _, _ in write.calls] == [1, 1, 2, 1, 2, 1, 2]
    assert found["generations"] == 10
    assert found["used"] == 7


def test_injection_compares_steering_with_a_comment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(injection, "PROMPTS", 6)
    monkeypatch.setattr(injection, "TUNING", 3)
    monkeypatch.setattr(injection, "STRENGTHS", (1.0, 5.0))
    texts = labeled_texts([f"def f(x):\n    y = {number}\n    return x\n" for number in range(9)])

    def write(prompt: str, num: int, seed: int, **controls: Any) -> list[str]:
        strength = controls["steer"][0]["strength"] if controls else 0
        if strength == 5:
            return ["assert x\n"] * num
        return ["assert y\n" if "# assert" in prompt and one % 3 == 0 else "return y\n" for one in range(num)]

    part = measure_injection(texts, [taxonomy().named("assert_statement")], write, 18, NOTHING, no_progress)

    (row,) = part["rows"]
    assert (part["prompts"], part["tuning"]) == (6, 3)
    assert row["strength"] == 5
    assert [row["ways"][way]["rate"] for way in (NONE, STEERED, COMMENT)] == [0.0, 1.0, pytest.approx(1 / 3)]
    assert part["means"][STEERED] == {"rate": 1.0, "parses": 1.0}
    with pytest.raises(DataError, match="injection needs more"):
        measure_injection(labeled_texts(["x = 1\n"]), [], write, 4, NOTHING, no_progress)


def test_all_concepts_that_are_measured_are_in_the_taxonomy() -> None:
    names = [one.name for one in suppression.forbidden_concepts()]

    assert len(set(names)) == len(names)
    assert {one.name for one in taxonomy().concepts if one.group == "risk"} <= set(names)
    assert [one.name for one in injection.asked_concepts()] == list(injection.ASKED)
    text = "def f(x):\n    assert x\n    return x\n"
    assert np.array_equal(label(text, [taxonomy().named("assert_statement")]).spans[:, 1], [14])
