"""Instructions with an only right result, and what their checker takes for right."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from daguerre.evals.edit_rules import MAX_LINES, MIN_LINES, RULES, EditTask, make_tasks
from daguerre.heldout import load_frozen


@pytest.fixture(scope="module")
def tasks() -> list[EditTask]:
    return make_tasks(load_frozen(), 2 * (len(RULES) + 1))


def test_each_rule_makes_as_many_tasks_and_always_the_same(tasks: list[EditTask]) -> None:
    assert Counter(task.rule for task in tasks) == dict.fromkeys((*RULES, "sort_imports"), 2)
    assert make_tasks(load_frozen(), len(tasks)) == tasks
    assert all(MIN_LINES <= task.text.count("\n") <= MAX_LINES for task in tasks)


def test_results_are_right_and_the_file_itself_is_not(tasks: list[EditTask]) -> None:
    for task in tasks:
        assert all(task.is_right(result) for result in task.results), task.rule
        assert not task.is_right(task.text), task.rule
        ast.parse(task.results[0])


def test_what_else_changes_makes_a_result_wrong(tasks: list[EditTask]) -> None:
    for task in tasks:
        lines = task.results[0].split("\n")
        kept = [n for n, line in enumerate(lines) if line in task.text.split("\n") and line.strip()]
        comment = next((n for n in kept if lines[n].lstrip().startswith("#")), None)
        quoted = next((n for n in kept if lines[n].count('"') == 2 and "'" not in lines[n]), None)
        damaged = [
            [*lines, "x = 1"],
            [*lines[: kept[-1]], *lines[kept[-1] + 1 :]],
            [line + " " if n == kept[-1] else line for n, line in enumerate(lines)],
            ["(", *lines],
        ]
        if comment is not None:
            damaged.append([*lines[:comment], *lines[comment + 1 :]])
        if quoted is not None:
            damaged.append([line.replace('"', "'") if n == quoted else line for n, line in enumerate(lines)])
        for wrong in damaged:
            assert not task.is_right("\n".join(wrong)), task.rule


def test_where_a_new_statement_stands_is_free() -> None:
    text = "import os\n\n\ndef f():\n    return 5\n"
    new = "import os\n\n\nLIMIT = 5\n\n\ndef f():\n    return LIMIT\n"
    task = EditTask("extract_constant", "a.py", text, "", (new,), ("LIMIT = 5",))
    assert task.is_right("LIMIT = 5\nimport os\n\ndef f():\n    return LIMIT\n")
    assert not task.is_right("import os\n\n\ndef f():\n    LIMIT = 5\n    return LIMIT\n")
    assert not task.is_right(new + "LIMIT = 5\n")
