"""The number of threads: what may be asked, and how "auto" decides."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from daguerre.errors import InputError
from daguerre.model import Model, load
from daguerre.models.threads import Threads, candidates, check_threads, fastest, use_threads


@pytest.fixture
def restored() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_candidates_are_powers_of_two_and_all_there_are() -> None:
    assert [candidates(n) for n in (1, 2, 3, 6, 8)] == [[1], [1, 2], [1, 2, 3], [1, 2, 4, 6], [1, 2, 4, 8]]


def test_more_threads_are_taken_only_for_a_gain(subtests: pytest.Subtests) -> None:
    for seconds, best in [
        ({1: 4.0, 2: 2.0, 4: 1.0}, 4),
        ({1: 4.0, 2: 3.9, 4: 1.0}, 1),
        ({1: 4.0, 2: 2.0, 4: 2.5}, 2),
        ({1: 3.0}, 1),
    ]:
        with subtests.test(seconds=seconds):
            assert fastest(sorted(seconds), seconds.__getitem__) == best


def test_what_is_no_number_of_threads_is_refused(subtests: pytest.Subtests) -> None:
    for threads in [0, -1, 1.5, True, "many"]:
        with subtests.test(threads=threads), pytest.raises(InputError, match='from 1 to 1,024, or "auto", or None'):
            Threads(none=True)("threads", threads)


def test_threads_belong_to_the_cpu() -> None:
    check_threads(None, "cuda")
    with pytest.raises(InputError, match="leave out threads"):
        check_threads(2, "cuda")


@pytest.mark.usefixtures("restored")
def test_load_changes_the_number_only_when_asked() -> None:
    load()
    assert torch.get_num_threads() == 1
    load(threads=2)
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("restored")
def test_auto_sets_what_it_returns(causal: Model) -> None:
    num = use_threads("auto", causal.denoiser.backend)
    assert num == torch.get_num_threads() >= 1


WORKERS = """
import os, time
import torch
from daguerre.models.threads import release_threads

torch.set_num_threads(3)
num = lambda: len(os.listdir("/proc/self/task"))
counts = [num()]
def settled():  # a thread that has ended is listed for a moment
    limit = time.monotonic() + 30
    while num() > counts[0] and time.monotonic() < limit:
        time.sleep(0.01)
    return num()
for _ in range(2):
    torch.ones(1 << 22).add_(1)
    counts.append(num())
    release_threads()
    counts.append(settled())
print(counts)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts the threads of a process as Linux says them")
def test_workers_end_when_they_are_given_back_and_start_again() -> None:
    done = subprocess.run([sys.executable, "-c", WORKERS], check=True, capture_output=True, text=True)
    before, during, after, again, last = json.loads(done.stdout)
    assert during == again == before + 2
    assert after == last == before
