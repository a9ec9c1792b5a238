"""4-bit weights in groups: how they are rounded, and products against the slow reference."""

from __future__ import annotations

import copy
import ctypes
from typing import Any

import numpy as np
import pytest
import torch

from backends import every_isa, needs_compiler
from daguerre import load
from daguerre.models.backends.library import library
from daguerre.models.backends.native_backend import NativeBackend
from daguerre.models.backends.panels import COLUMNS, PRODUCTS, Packing
from daguerre.models.backends.torch_backend import TorchBackend
from daguerre.models.model_weights import array_of
from forwards import error, logits_of
from oracles.packed import grouped_product, ungrouped
from oracles.rounding import IN_GROUP, grouped

SHAPES = ((3, 5), (70, 130), (64, 64), (200, 300), (65, 1100))
"""Outputs and inputs; most fill no panel and no chunk, and the last one more chunks than tiles take at once."""


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def product(x: torch.Tensor, weight: torch.Tensor, threads: int = 1) -> torch.Tensor:
    """The native product of rows with a matrix in 4 bits."""
    packing = Packing("int4")
    matrix = packing.linear(lambda: (array_of(weight), None))
    rows = torch.nn.functional.pad(x, (0, -x.shape[1] % COLUMNS)).contiguous()
    out = np.empty((len(x), matrix.panels * COLUMNS), dtype=np.float32)
    given = ctypes.byref(matrix), PRODUCTS["int4"], rows.data_ptr(), *rows.shape, out.ctypes.data, threads
    assert library().daguerre_product(*given) == 0
    assert not out[:, len(weight) :].any()
    return torch.from_numpy(out)[:, : len(weight)]


@every_isa
def test_products_equal_the_reference(isa: str, subtests: pytest.Subtests) -> None:
    """To the bit where the processor multiplies and adds in one step, else to the rounding of sums; for any number of
    rows, with rows of zeros and rows of one large number among them.
    """
    for shape in SHAPES:
        with subtests.test(shape=shape):
            weight, x = random(*shape) * 0.02, random(41, shape[1], seed=1)
            weight[1] *= -50
            weight[2, :40] = 0
            x[3] = 0
            x[4, 0] = 4000
            want = grouped_product(x, *grouped(weight))
            got = product(x, weight)
            if isa == "any":
                assert (got - want).abs().max() <= 1e-6 * x.abs().max() * weight.abs().sum(1).max()
            else:
                assert torch.equal(got, want)
            for num in (*range(1, 18), 24, 25, 32, 33):
                assert torch.equal(product(x[:num], weight), got[:num])
            assert torch.equal(product(x, weight, threads=3), got)


def test_a_weight_is_near_its_code() -> None:
    """Within half a step of its group, an eighth of the largest; at the end that has no code within a whole one."""
    weight = random(40, 100) * 0.02
    codes, scales = grouped(weight)
    assert codes.shape == (40, 4, IN_GROUP) and int(codes.max()) == 15 and int(codes.min()) == 0
    back = ungrouped(codes, scales, 100)
    steps = scales.float().abs().repeat_interleave(IN_GROUP, 1)[:, :100]
    inside = weight.abs() < 7.5 * steps
    assert ((back - weight).abs() <= steps * torch.where(inside, 0.501, 1.01)).all()
    assert inside.float().mean() > 0.9


def test_groups_that_16_bit_scales_cannot_tell_from_zero_are_zero() -> None:
    weight = torch.full((2, 64), 1e-9)
    weight[1, 40] = 1e9
    codes, scales = grouped(weight)
    back = ungrouped(codes, scales, 64)
    assert torch.equal(codes[0], torch.full_like(codes[0], 8)) and not back[0].any()
    assert back[1, 40] == 8 * torch.finfo(torch.float16).max and torch.isfinite(back).all()


def rounded_matrices(backbone: Any) -> Any:
    """A backbone whose layers have the numbers of 4-bit matrices."""
    out = copy.deepcopy(backbone)
    with torch.no_grad():
        for layer in out.layers:
            for linear in (layer.attention.qkv, layer.attention.out, layer.mlp.gate_up, layer.mlp.down):
                linear.weight.copy_(ungrouped(*grouped(linear.weight), linear.in_features))
    return out


@needs_compiler
def test_a_model_computes_with_its_rounded_matrices() -> None:
    """What is left is the rounding of rows: less than a third of that of the matrices."""
    backbone = load(dtype="float32").backbone
    exact, rounded = (logits_of(TorchBackend(one)) for one in (backbone, rounded_matrices(backbone)))
    got = logits_of(NativeBackend(backbone, "approximate_int4"))
    assert error(got, exact) > 0.01
    assert error(got, rounded) < error(rounded, exact) / 3
