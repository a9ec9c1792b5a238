"""Contract 3: a request's tokens depend on its own input, parameters and seed alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch

from daguerre.model import Model
from daguerre.result import Result

PROMPT = "def area(w, h):\n    return "


def ids(result: Result) -> list[int]:
    return [token.id for token in result.tokens]


def test_a_sample_does_not_depend_on_how_many_are_asked(causal: Model) -> None:
    few = causal.generate(PROMPT, 16, n=2, temperature=1.0, seed=5).choices
    many = causal.generate(PROMPT, 16, n=4, temperature=1.0, seed=5).choices
    assert [ids(r) for r in few] == [ids(r) for r in many[:2]]
    assert len({tuple(ids(r)) for r in many}) > 1


def test_threads_running_side_by_side_change_nothing(models: dict[str, Model]) -> None:
    jobs = [(name, seed) for name in models for seed in range(3)]

    def one(job: tuple[str, int]) -> list[int]:
        name, seed = job
        return ids(models[name].generate(PROMPT, 12, temperature=1.0, seed=seed, threshold=0.5))

    alone = [one(job) for job in jobs]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(one, jobs)) == alone


def test_the_number_of_threads_of_a_product_changes_no_token(causal: Model) -> None:
    one = ids(causal.generate(PROMPT, 24, temperature=1.0, threshold=0.5))
    torch.set_num_threads(2)
    try:
        two = ids(causal.generate(PROMPT, 24, temperature=1.0, threshold=0.5))
    finally:
        torch.set_num_threads(1)
    assert one == two
