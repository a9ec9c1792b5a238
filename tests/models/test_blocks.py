"""Matrices in GGUF's blocks: their rows come back, and products have the bits of the slow reference."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

pytest.importorskip("gguf")

from backends import every_isa, needs_compiler
from daguerre.models.backends.library import library
from daguerre.models.backends.panels import COLUMNS, PRODUCTS, QUARTER, PackedMatrix, packed
from daguerre.models.block_rows import BlockRows, in_q8_0
from daguerre.models.gguf.header import KINDS
from oracles.blocks import MINIMA, SCALES, numbers, product, rounded_rows

BLOCK_KINDS = [*SCALES]
ODD = (0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x7BFF, 0xFBFF, 0x3C00)
"""16-bit floats: zeros, subnormal, the least and the largest ones."""


def made_blocks(kind: str, num_out: int, num_in: int, seed: int = 0) -> np.ndarray:
    """Stored bytes (O, bytes) of random codes; scales are random, of either sign, and in the first rows odd ones. The
    last two rows have the least and the largest codes, and scales of groups.
    """
    about, rng = KINDS[kind], np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (num_out, num_in // about.block, about.num_bytes), np.uint8)
    blocks[-2:] = np.array([0, 255], np.uint8)[:, None, None]
    for at in (SCALES[kind], MINIMA.get(kind)):
        if at is not None:
            halves = (rng.standard_normal(blocks.shape[:2]) * 0.01).astype(np.float16).view(np.uint16)
            halves[: len(ODD)] = rng.permutation(ODD)[: len(halves)][:, None]
            blocks[..., at : at + 2] = halves[..., None].view(np.uint8)
    return blocks.reshape(num_out, -1)


def rows_of(kind: str, blocks: np.ndarray) -> BlockRows:
    num_in = blocks.shape[1] // KINDS[kind].num_bytes * KINDS[kind].block
    return BlockRows.of(blocks, kind, (len(blocks), num_in))


def native(matrix: PackedMatrix, x: np.ndarray, threads: int = 1) -> np.ndarray:
    """The native product of rows with a packed matrix, (R, panels * COLUMNS)."""
    rows = np.ascontiguousarray(np.pad(x, ((0, 0), (0, -x.shape[1] % COLUMNS))), np.float32)
    out = np.empty((len(x), matrix.panels * COLUMNS), np.float32)
    given = ctypes.byref(matrix.struct), PRODUCTS["stored"], rows.ctypes.data, *rows.shape, out.ctypes.data, threads
    assert library().daguerre_product(*given) == 0
    return out


def unpacked(matrix: PackedMatrix, num_out: int, num_in: int) -> np.ndarray:
    """The rows of a packed matrix."""
    made = np.empty((num_out, -(-num_in // COLUMNS) * COLUMNS), np.float32)
    for number, row in enumerate(made):
        assert library().daguerre_unpack_row(ctypes.byref(matrix.struct), number, row.ctypes.data) == 0
    return made[:, :num_in]


def some_rows(num: int, num_in: int) -> np.ndarray:
    """Random rows, one of zeros among them, and some with numbers that are large, tiny, or smaller than any scale."""
    x = np.random.default_rng(num_in).standard_normal((num, num_in)).astype(np.float32)
    x[1 % num], x[2 % num, 0], x[3 % num, :40], x[4 % num] = 0, 4000, 1e-35, 1e-20
    x[5 % num] = np.where(x[5 % num] < 0, -1, 1)  # the largest codes
    return x


@every_isa
def test_products_have_the_bits_of_the_reference(isa: str, subtests: pytest.Subtests) -> None:
    """For any number of rows and threads. Where the processor does not multiply and add in one step they are near."""
    for kind in BLOCK_KINDS:
        for num_in in (256, 768) if KINDS[kind].block == 256 else (32, 96, 320):
            with subtests.test(kind, num_in=num_in):
                blocks, x = made_blocks(kind, 70, num_in), some_rows(37, num_in)
                matrix = packed(rows_of(kind, blocks), None, "stored")
                want, got = product(x, blocks, kind), native(matrix, x)
                assert not got[:, 70:].any()
                if isa == "any":
                    size = np.abs(x).max() * np.abs(numbers(blocks, kind)).sum(1)
                    assert (np.abs(got[:, :70] - want) <= 1e-6 * size).all()
                else:
                    assert np.array_equal(got[:, :70], want)
                for num in (*range(1, 14), 16, 17, 31, 32, 33):
                    assert np.array_equal(native(matrix, x[:num]), got[:num])
                assert np.array_equal(native(matrix, x, threads=3), got)


@every_isa
def test_rows_come_back(isa: str, subtests: pytest.Subtests) -> None:
    """Packing loses nothing: the package `gguf` makes the same numbers of the file's bytes."""
    for kind in BLOCK_KINDS:
        with subtests.test(kind):
            blocks = made_blocks(kind, 40, 512)
            matrix = packed(rows_of(kind, blocks), None, "stored")
            assert np.array_equal(unpacked(matrix, 40, 512), numbers(blocks, kind))


@needs_compiler
def test_a_matrix_has_rows_of_several_types_in_any_order() -> None:
    """As queries, keys and values in one matrix, whose quarters have a type each or, where they meet, are widened."""
    kinds, sizes = ("Q4_K", "Q6_K", "Q5_0", "Q8_0", "Q3_K"), (40, 48, 16, 8, 20)
    parts = [made_blocks(kind, size, 256, seed) for seed, (kind, size) in enumerate(zip(kinds, sizes, strict=True))]
    starts = np.cumsum([0, *sizes])
    index = [slice(*edges) for edges in zip(starts[:-1], starts[1:], strict=True)]
    joined = BlockRows.joined((132, 256), list(zip(index, map(rows_of, kinds, parts), strict=True)))
    order = np.concatenate([np.arange(40)[::-1], np.arange(40, 132)])
    rows = joined.changed(lambda x: np.pad(x[order], (0, 4)))
    want = np.concatenate([*map(numbers, parts, kinds)])[order]
    assert np.array_equal(joined.numbers()[order], want) and np.array_equal(rows.numbers()[:132], want)
    bias = np.random.default_rng(1).standard_normal(136).astype(np.float32)
    matrix = packed(rows, bias, "stored")
    assert matrix.quarters is not None
    assert [*matrix.quarters[:9, 1]] == [12, 12, -1, 14, 14, -1, -1, -1, -1]
    assert np.array_equal(unpacked(matrix, 132, 256), want) and not unpacked(matrix, 136, 256)[132:].any()
    x = some_rows(9, 256)
    codes, scales = rounded_rows(x, 256)
    exact = (codes * np.repeat(scales, 32, axis=1)).astype(np.float64) @ want.T.astype(np.float64)
    size = np.abs(x).max() * np.abs(want).sum(1) + 1
    got = native(matrix, x)
    assert (np.abs(got[:, :132] - bias[:132] - exact) <= 1e-6 * size).all()
    assert np.array_equal(got[:, 132:136], np.broadcast_to(bias[132:], (9, 4)))
    first = packed(rows_of("Q4_K", parts[0]), None, "stored")
    assert np.array_equal(native(first, x)[:, :40], product(x, parts[0], "Q4_K"))


@needs_compiler
def test_a_packed_matrix_is_as_large_as_the_file() -> None:
    """But for Q6_K, whose scale takes a word of its own, and for types that are widened."""
    for kind in set(BLOCK_KINDS) - {"Q2_K", "Q3_K"}:
        blocks = made_blocks(kind, 2 * QUARTER * 4, 512)
        size = packed(rows_of(kind, blocks), None, "stored").weight.nbytes
        assert size == blocks.nbytes + (blocks.nbytes // 210 * 2 if kind == "Q6_K" else 0)


@needs_compiler
def test_float_rows_in_q8_0_are_within_half_a_step() -> None:
    matrix = np.random.default_rng(0).standard_normal((5, 40)).astype(np.float32)
    matrix[1] = 0
    got = in_q8_0(matrix)
    assert got.shape == (5, 64) and not got.numbers()[:, 40:].any() and not got.numbers()[1].any()
    steps = np.abs(matrix).max(1, keepdims=True) / 127
    assert (np.abs(got.numbers()[:, :40] - matrix) <= 0.51 * steps + 127 * 2.0**-11 * steps).all()
