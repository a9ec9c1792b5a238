"""Contract 3: a request's tokens depend on its own input, parameters and seed alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import pytest
import torch

from daguerre.model import Model
from daguerre.models.backbone import Backbone, product
from daguerre.models.layout import SETTLED, Layout, Rows
from daguerre.models.lean import LeanBackbone, Linear
from daguerre.models.native import NativeBackbone
from daguerre.result import Result
from executions import ALIKE, libraries_sum_alike

PROMPT = "def area(w, h):\n    return "
LARGE = {"width": 256, "mlp_width": 704}
"""Wide enough for torch to share a product between threads."""


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


@contextmanager
def threads(num: int) -> Iterator[None]:
    """`num` threads for a product, if it is large enough."""
    torch.set_num_threads(num)
    assert torch.get_num_threads() == num
    yield
    torch.set_num_threads(1)


def test_the_number_of_threads_of_a_product_changes_no_token(make_model: Any) -> None:
    model = make_model(**LARGE)
    results = []
    for num in (1, 2):
        with threads(num):
            results.append(ids(model.generate(PROMPT * 10, 24, temperature=1.0, threshold=0.5)))
    assert results[0] == results[1]


def layout(num_rows: int, num_open: int, batch: int) -> Layout:
    """Settled rows, then one open span."""
    position = torch.arange(num_rows).expand(batch, -1)
    span = torch.where(torch.arange(num_rows) < num_rows - num_open, SETTLED, 0).expand(batch, -1)
    return Layout(Rows.make(position, span), num_rows - num_open, plain=True)


Executor = Backbone | LeanBackbone | NativeBackbone
Executors = dict[tuple[str, torch.dtype], Callable[[], Executor]]


@pytest.fixture(scope="module")
def executors(make_model: Any) -> Executors:
    plain = {dtype: make_model(**LARGE).backbone.to(dtype) for dtype in (torch.float32, torch.bfloat16)}
    makers = {"native": NativeBackbone, "lean": LeanBackbone, "reference": lambda backbone: backbone}
    return {
        (name, dtype): cache(partial(make, backbone))  # type: ignore[arg-type]
        for name, make in makers.items()
        for dtype, backbone in plain.items()
    }


def logits(backbone: Executor, tokens: torch.Tensor, num_open: int) -> torch.Tensor:
    """Finite logits (B, R, V') of a forward without a cache."""
    with torch.inference_mode():
        out = backbone.logits(backbone(tokens, layout(tokens.shape[1], num_open, len(tokens))))
    return out[..., backbone.config.num_reserved :]


def draw(batch: int, num_rows: int) -> torch.Tensor:
    return torch.randint(16, 2048, (batch, num_rows), generator=torch.Generator().manual_seed(num_rows))


def check_equal(one: torch.Tensor, other: torch.Tensor, dtype: torch.dtype) -> None:
    """Bit for bit in bfloat16; in float32 within 1e-5, with the same most likely tokens."""
    assert one.std() > 1
    if dtype == torch.bfloat16:
        assert torch.equal(one, other)
    else:
        assert (one - other).abs().max() <= 1e-5
        assert torch.equal(one.argmax(-1), other.argmax(-1))


@pytest.mark.parametrize("execution", ALIKE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("num_open", [0, 16])
@pytest.mark.parametrize("num_rows", [17, 64, 200])
def test_a_row_of_a_batch_has_the_logits_it_has_alone(
    executors: Executors, execution: str, dtype: torch.dtype, num_rows: int, num_open: int, num_threads: int
) -> None:
    tokens, executor = draw(4, num_rows), executors[execution, dtype]()
    with threads(num_threads):
        together = logits(executor, tokens, num_open)
        alone = torch.cat([logits(executor, row[None], num_open) for row in tokens])
    check_equal(together, alone, dtype)


@libraries_sum_alike
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_product_has_the_same_bits_for_any_number_of_rows(dtype: torch.dtype, num_threads: int) -> None:
    random = torch.Generator().manual_seed(0)
    weight = (torch.randn(1408, 256, generator=random) / 16).to(dtype)
    rows = torch.randn(1024, 256, generator=random).to(dtype)
    packed = Linear(weight)
    with threads(num_threads):
        whole, whole_packed = product(rows, weight), packed(rows)
        for num in (*range(1, 34), 65, 131, 300):
            assert torch.equal(product(rows[None, :num], weight)[0], whole[:num])
            assert torch.equal(product(rows[-num:], weight), whole[-num:])
            assert torch.equal(packed(rows[:num]), whole_packed[:num])
            assert torch.equal(packed(rows[-num:]), whole_packed[-num:])


@libraries_sum_alike
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_inputs", [256, 704, 1024, 1032, 1408, 4096])
def test_a_product_has_the_same_bits_for_any_number_of_inputs(dtype: torch.dtype, num_inputs: int) -> None:
    """Of more than 1,024 the library sums one row in another order than two; in bfloat16 few show it."""
    random = torch.Generator().manual_seed(0)
    weight = (torch.randn(256, num_inputs, generator=random) / num_inputs**0.5).to(dtype)
    rows, add = (torch.randn(64, size, generator=random).to(dtype) for size in (num_inputs, 256))
    packed = Linear(weight)
    whole = product(rows, weight), packed(rows), packed(rows, add=add)
    for num_threads, nums in ((1, (1, 2, 3, 7, 17, 33)), (2, (1, 31))):
        with threads(num_threads):
            for num in nums:
                pieces = list(zip(rows.split(num), add.split(num), strict=True))
                assert torch.equal(torch.cat([product(x, weight) for x, _ in pieces]), whole[0])
                assert torch.equal(torch.cat([packed(x) for x, _ in pieces]), whole[1])
                assert torch.equal(torch.cat([packed(x, add=y) for x, y in pieces]), whole[2])


@pytest.mark.parametrize("execution", ALIKE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_rows", [17, 64, 200])
def test_one_thread_and_two_give_the_same_logits(
    executors: Executors, execution: str, dtype: torch.dtype, num_rows: int
) -> None:
    tokens, executor = draw(1, num_rows), executors[execution, dtype]()
    one = logits(executor, tokens, 16)
    with threads(2):
        two = logits(executor, tokens, 16)
    check_equal(one, two, dtype)
