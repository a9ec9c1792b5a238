"""Attention implementations against loops over single vectors, and against each other, forward and backward."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from daguerre.errors import InputError
from daguerre.models.core import attention
from daguerre.models.core.attention import ATTN_IMPLS, Block, attend, prepare, tiles

BATCH, HEADS, KV_HEADS, ROWS, HEAD = 2, 4, 2, 9, 6
CPU = torch.device("cpu")
each_impl = pytest.mark.parametrize("impl", ATTN_IMPLS)


def tensors(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((BATCH, HEADS, ROWS, HEAD), (BATCH, KV_HEADS, ROWS, HEAD), (BATCH, KV_HEADS, ROWS, HEAD))
    q, k, v = (torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes)
    return q, k, v


def two_blocks() -> list[Block]:
    """Five plain causal rows, then four with a random mask."""
    mask = torch.rand(BATCH, 1, 4, ROWS, generator=torch.Generator().manual_seed(1)) < 0.5
    mask[..., 5] = True
    return [(slice(0, 5), slice(0, 5), None), (slice(5, 9), slice(0, ROWS), mask)]


def by_loops(q: Tensor, k: Tensor, v: Tensor, blocks: list[Block]) -> Tensor:
    out = torch.zeros_like(q)
    for rows, keys, mask in blocks:
        for b in range(BATCH):
            for n in range(HEADS):
                kv = n // (HEADS // KV_HEADS)
                for r in range(rows.start, rows.stop):
                    seen = [
                        c for c in range(keys.stop) if (c <= r if mask is None else bool(mask[b, 0, r - rows.start, c]))
                    ]
                    scores = torch.stack([q[b, n, r] @ k[b, kv, c] / math.sqrt(HEAD) for c in seen])
                    weights = (scores - scores.max()).exp()
                    out[b, n, r] = sum(w * v[b, kv, c] for w, c in zip(weights / weights.sum(), seen, strict=True))
    return out


def run(impl: str, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attend(q, k, v, prepare(two_blocks(), q.dtype, impl, CPU), impl)


@each_impl
def test_an_implementation_equals_loops_over_single_vectors(impl: str) -> None:
    q, k, v = tensors()
    with torch.no_grad():
        assert torch.allclose(run(impl, q, k, v), by_loops(q, k, v, two_blocks()), atol=1e-12)


@pytest.mark.parametrize("tile", [1, 2, 4])
def test_tiles_are_those_of_the_whole(tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = tensors()
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(BATCH, HEADS, ROWS, HEAD, generator=generator, dtype=torch.float64)
    whole = run("matmul", q, k, v)
    wanted = torch.autograd.grad((whole * weight).sum(), (q, k, v))
    monkeypatch.setattr(attention, "TILE", tile)
    cut = run("matmul", q, k, v)
    found = torch.autograd.grad((cut * weight).sum(), (q, k, v))
    assert torch.allclose(cut, whole, atol=1e-12)
    assert all(torch.allclose(one, other, atol=1e-12) for one, other in zip(found, wanted, strict=True))


def test_a_tile_has_the_keys_that_its_rows_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "TILE", 2)
    found = list(tiles((slice(0, 5), slice(0, 5), None), CPU))
    assert [(rows, keys) for rows, keys, _ in found] == [
        (slice(0, 2), slice(0, 2)),
        (slice(2, 4), slice(0, 4)),
        (slice(4, 5), slice(0, 5)),
    ]
    assert found[1][2].tolist() == [[[[True, True, True, False], [True, True, True, True]]]]
    document = torch.tensor([0, 0, 0, 1, 1, 1])  # two texts that share a sequence
    mask = (document[:, None] == document)[None, None] & torch.ones(6, 6, dtype=torch.bool).tril()
    shifted = torch.cat([mask, mask.roll(1, -1)])  # and another example, which sees one key further right
    assert [keys for _, keys, _ in tiles((slice(4, 10), slice(0, 6), mask), CPU)] == [
        slice(0, 2),
        slice(0, 4),
        slice(3, 6),
    ]
    rows, keys, part = next(tiles((slice(4, 10), slice(0, 6), shifted), CPU))
    assert (rows, keys, part.shape) == (slice(4, 6), slice(0, 3), (2, 1, 2, 3))
    blind = prepare(
        [(slice(0, 2), slice(0, 6), torch.zeros(1, 1, 2, 6, dtype=torch.bool))], torch.float32, "matmul", CPU
    )
    q = torch.ones(1, 1, 2, 3)
    assert attend(q, *2 * [torch.ones(1, 1, 6, 3)], blind, "matmul").isfinite().all()


@each_impl
def test_the_gradient_of_an_implementation_is_that_of_finite_differences(impl: str) -> None:
    assert torch.autograd.gradcheck(lambda q, k, v: run(impl, q, k, v), tensors())


def test_implementations_have_equal_gradients() -> None:
    generator = torch.Generator().manual_seed(2)
    weight = torch.randn(BATCH, HEADS, ROWS, HEAD, generator=generator)
    gradients = []
    for impl in ATTN_IMPLS:
        q, k, v = tensors(torch.float32)
        gradients.append(torch.autograd.grad((run(impl, q, k, v) * weight).sum(), (q, k, v)))
    for first, second in zip(*gradients, strict=True):
        assert torch.allclose(first, second, atol=1e-5)


@each_impl
def test_autocast_keeps_bfloat16_forward_and_backward(impl: str) -> None:
    q, k, v = (x.detach().requires_grad_() for x in tensors(torch.bfloat16))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = run(impl, q, k, v)
    out.float().square().sum().backward()
    assert out.dtype == torch.bfloat16
    assert all(x.grad is not None and x.grad.dtype == torch.bfloat16 for x in (q, k, v))


def test_an_unknown_implementation_is_an_error_with_the_nearest_name() -> None:
    q, k, v = tensors()
    with pytest.raises(InputError, match="did you mean 'sdpa'"):
        attend(q, k, v, two_blocks(), "spda")
