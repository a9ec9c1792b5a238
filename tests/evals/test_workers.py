"""Examples in processes: the same results in the same order."""

from __future__ import annotations

import os
from functools import partial

import pytest
import torch

from daguerre.errors import DataError
from daguerre.evals.workers import map_examples


def square(number: int) -> tuple[int, int, int]:
    return number**2, torch.get_num_threads(), os.getpid()


def test_results_come_in_the_order_of_the_items_from_processes_of_one_thread(preloaded: None) -> None:
    steps: list[tuple[int, int]] = []

    results = map_examples(square, range(40), 2, lambda done, total: steps.append((done, total)))

    assert [result[0] for result in results] == [number**2 for number in range(40)]
    assert {threads for _, threads, _ in results} == {1}
    assert os.getpid() not in {process for *_, process in results}
    assert (steps[0], steps[-1]) == ((0, 40), (40, 40))
    assert len(steps) > 2


def test_one_worker_is_this_process() -> None:
    steps: list[int] = []

    assert map_examples(lambda number: -number, [3, 1], 1, lambda done, total: steps.append(done)) == [-3, -1]
    assert steps == [0, 1, 2]
    assert map_examples(square, [], 2) == []


def test_a_process_that_is_killed_is_an_error_in_one_line(preloaded: None) -> None:
    with pytest.raises(DataError, match="fewer workers"):
        map_examples(partial(os._exit), [1, 1], 2)
