"""Code that runs: which parts are taken out, what its doctests say of answers, and the shares."""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import json
from pathlib import Path

import pytest

from daguerre.errors import UnsupportedError
from daguerre.evals.infilling import BEAM
from daguerre.heldout import Document
from daguerre.model import Model
from daguerre.train.reinforce.sandbox import Sandbox

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    from running.cases import DoctestCase, Judge, Kind, find_cases, find_tests
    from running.scores import answers, judged, longest_expression, pass_at, score, writers

SOURCE = '''\
"""Shapes."""
from made.units import UNIT


def area(width, height):
    """Width by height.

    >>> area(2, 3)
    6
    """
    unused = [width, height]
    product = width * height * UNIT
    if product < 0:
        raise ValueError(product)
    return product


class Box:
    """A box of three sides.

    >>> Box(1, 2, 3).volume()
    6
    """

    def __init__(self, *sides):
        self.sides = sides

    def volume(self):
        first, second, third = self.sides
        return area(first, second) * third

    def other(self):
        return self.sides[::-1]
'''


@pytest.fixture(scope="module")
def document() -> Document:
    return Document("made", "1", "MIT", "made/shapes.py", hashlib.sha256(SOURCE.encode()).hexdigest(), SOURCE)


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Judge:
    folder = tmp_path_factory.mktemp("packages")
    package = folder / "made"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "units.py").write_text("UNIT = 1\n")
    (package / "shapes.py").write_text(SOURCE)
    try:
        return Judge(folder, Sandbox(seconds=60))
    except UnsupportedError as error:  # not every container lets a process limit itself
        pytest.skip(str(error))


def cases(document: Document, judge: Judge, kind: Kind) -> dict[str, DoctestCase]:
    return {case.part.strip(): case for case in find_cases([document], judge, kind, each=9, tries=99)}


def test_tests_are_those_of_the_function_or_of_its_class(document: Document) -> None:
    found = {test.name: test.docstring for test in find_tests(document)}
    assert list(found) == ["area", "Box.__init__", "Box.volume", "Box.other"]
    assert "area(2, 3)" in found["area"]
    assert "volume()" in found["Box.other"]
    assert {test.module for test in find_tests(document)} == {"made.shapes"}


def test_cases_are_the_parts_that_doctests_notice(document: Document, judge: Judge) -> None:
    lines, expressions = cases(document, judge, "line"), cases(document, judge, "expression")
    assert set(lines) == {
        "product = width * height * UNIT",
        "return product",
        "self.sides = sides",
        "first, second, third = self.sides",
        "return area(first, second) * third",
    }, "not `unused = ...`, `raise ...` or what `other` does"
    assert set(expressions) == {"width * height * UNIT", "area(first, second) * third"}, (
        "not `product < 0`, since `if None:` passes; `self.sides` is shown above"
    )
    for case in [*lines.values(), *expressions.values()]:
        assert case.with_part(case.part) == SOURCE
        assert case.before.endswith(case.prefix)
        assert case.after.startswith(case.suffix)


ANSWERS = {
    "    return height and product": True,
    "    return product + 1": False,
    "    return (product": False,
    "    import sys; sys.exit(0)": False,
    "    import os; os._exit(0)": False,
    "    print(1); return 0": False,
}
"""In place of `return product`, and whether they are right."""


def test_an_answer_is_right_if_the_doctests_pass(document: Document, judge: Judge, subtests: pytest.Subtests) -> None:
    case = cases(document, judge, "line")["return product"]
    for part, right in ANSWERS.items():
        with subtests.test(part):
            assert judge.passes(case, part) is right
    assert Judge(judge.folder, Sandbox(seconds=1)).passes(case, "    while True: pass") is False


def test_a_file_of_another_version_is_left_out(document: Document, judge: Judge, tmp_path: Path) -> None:
    assert not list(find_cases([document], Judge(tmp_path), "line"))


def test_pass_at_is_the_share_of_draws_with_a_right_one() -> None:
    verdicts = [True, True, False, False, False]
    for k in range(1, 6):
        draws = list(itertools.combinations(verdicts, k))
        assert pass_at(k, 5, 2) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_an_expression_without_its_suffix_ends_where_it_is_longest() -> None:
    assert longest_expression("f(a)[0] + b)\nx") == "f(a)[0] + b"
    assert longest_expression("a if b else c:") == "a if b else c"
    assert longest_expression(") + 1") == ""


def test_a_model_is_scored_in_every_mode(document: Document, judge: Judge, causal: Model) -> None:
    some = list(cases(document, judge, "line").values())[:2]
    for name, write in writers(causal).items():
        samples = 0 if name == BEAM else 3
        given = [answers(write, case, samples, 0.8, 0) for case in some]
        assert all(len(sampled) == samples for _, sampled in given)
        passed = [judged(judge, case, *both) for case, both in zip(some, given, strict=True)]
        found = score(name, some, [first for first, _ in given], passed, samples)
        assert (found.num, found.samples) == (2, samples)
        assert found.pass_1 is None or found.pass_n is None or found.pass_n >= found.pass_1
        assert (found.pass_1 is None) == (name == BEAM)
    known = score("truth", some, [case.part for case in some], [(True, 3), (True, 1)], 3)
    assert (known.greedy, known.exact, known.pass_n) == (1, 1, 1)
    assert known.pass_1 == pytest.approx(2 / 3)


def test_the_report_is_what_the_benchmark_writes_of_its_results_and_shows_its_note() -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "running_code.py"
    spec = importlib.util.spec_from_file_location("running_code", script)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = json.loads(module.RESULTS.read_text())
    page = module.page(found)
    assert page == module.RESULTS.with_suffix(".md").read_text()
    assert found["note"] and found["note"] in page
