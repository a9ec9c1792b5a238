"""The number of threads: what may be asked, and how "auto" decides."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from daguerre.errors import InputError
from daguerre.model import Model, load
from daguerre.models.threads import candidates, check_threads, fastest, use_threads


@pytest.fixture
def restored() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_candidates_are_powers_of_two_and_all_there_are() -> None:
    assert [candidates(n) for n in (1, 2, 3, 6, 8)] == [[1], [1, 2], [1, 2, 3], [1, 2, 4, 6], [1, 2, 4, 8]]


@pytest.mark.parametrize(
    ("seconds", "best"),
    [({1: 4.0, 2: 2.0, 4: 1.0}, 4), ({1: 4.0, 2: 3.9, 4: 1.0}, 1), ({1: 4.0, 2: 2.0, 4: 2.5}, 2), ({1: 3.0}, 1)],
)
def test_more_threads_are_taken_only_for_a_gain(seconds: dict[int, float], best: int) -> None:
    assert fastest(sorted(seconds), seconds.__getitem__) == best


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, "many"])
def test_what_is_no_number_of_threads_is_refused(threads: object) -> None:
    with pytest.raises(InputError, match='from 1 up, "auto" or None'):
        check_threads(threads, "cpu")


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
