"""Matrices packed by the native library have the bits of those packed by PyTorch."""

from __future__ import annotations

import ctypes

import pytest
import torch

from backends import every_isa
from daguerre.models.backends.panels import PackedMatrix, Packing
from daguerre.models.model_weights import array_of
from oracles.packed import slow_linear

SHAPES = ((1, 1), (3, 5), (64, 64), (70, 130), (200, 300))


def made(packing: Packing, linear: object) -> list[torch.Tensor]:
    """What a packed matrix points to: words, and for int8 scales and offsets."""
    (matrix,) = packing.made
    assert isinstance(matrix, PackedMatrix)
    held = {x.ctypes.data: torch.from_numpy(x) for x in matrix.arrays if x is not None}
    names = ("weight", "scale", "offset")
    return [held[address] for name in names if (address := getattr(linear, name)) is not None]


def weights(shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
    """Random weights with rows of zeros, tiny and huge ones, and two that are as large with either sign."""
    weight = torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))) * 0.02
    for row, factor in ((1, 0.0), (2, 1e-6), (4, 1e-9), (5, 3e6), (7, 1e-30)):
        weight[row : row + 1] *= factor
    weight[3:4, 1:2], weight[3:4, 4:5] = 0.5, -0.5
    return weight.to(dtype)


@every_isa
def test_a_packed_matrix_equals_the_slow_one(isa: str, subtests: pytest.Subtests) -> None:
    for numbers in ("float32", "bfloat16", "int8", "int4"):
        with subtests.test(numbers):
            for shape in SHAPES:
                for dtype in (torch.float32, torch.bfloat16):
                    weight = weights(shape, dtype)
                    for narrow in (False, True):
                        packing = Packing(numbers)
                        got = made(packing, packing.linear(lambda: (array_of(weight), None), narrow))  # noqa: B023
                        want = slow_linear(weight, numbers, narrow)
                        assert len(got) == len(want)
                        for one, other in zip(got, want, strict=True):
                            assert torch.equal(one, other), (shape, dtype, narrow)


def test_a_view_and_another_type_are_packed_as_they_look() -> None:
    weight = weights((70, 130), torch.float32)[8:]
    for given in (weight.numpy().T, weight.half().numpy(), weight.numpy()[::2]):
        packing = Packing("int8")
        linear = packing.linear(lambda: (given, None))  # noqa: B023
        assert all(map(torch.equal, made(packing, linear), slow_linear(torch.from_numpy(given), "int8")))
        assert ctypes.sizeof(linear) and packing.num_bytes > given.size
