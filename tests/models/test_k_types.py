"""Numbers in Q4_K and Q6_K, read by the package `gguf`."""

from __future__ import annotations

import numpy as np
import pytest

from daguerre.models.gguf.k_types import BLOCK, QUANTIZED, quantize_k

gguf = pytest.importorskip("gguf")
DRAWS = {
    "normal": lambda random: random.normal(size=(6, 512)),
    "heavy": lambda random: random.standard_t(2, size=(6, 512)),
    "positive": lambda random: random.exponential(size=(6, 512)),
    "negative": lambda random: -random.exponential(size=(6, 512)),
    "mostly zero": lambda random: random.normal(size=(6, 512)) * (random.random((6, 512)) < 0.05),
    "one": lambda random: np.full((1, 256), -0.7),
    "zero": lambda random: np.zeros((2, 256)),
}


def read(made: np.ndarray, kind: str) -> np.ndarray:
    out: np.ndarray = gguf.quants.dequantize(made, gguf.GGMLQuantizationType[kind])
    return out


def test_a_number_is_within_a_step_of_its_group(subtests: pytest.Subtests) -> None:
    for kind in QUANTIZED:
        for draw in DRAWS:
            with subtests.test(kind, draw=draw):
                rows = DRAWS[draw](np.random.default_rng(0)).astype(np.float32)
                made = quantize_k(rows, kind)
                assert made.shape == (
                    len(rows),
                    rows.shape[1] // BLOCK * gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1],
                )
                far = np.abs(read(made, kind) - rows)
                blocks, size = rows.reshape(-1, 1, BLOCK), 32 if kind == "Q4_K" else 16
                groups = rows.reshape(-1, BLOCK // size, size)
                # Q4_K: 16 values from the least to the greatest; scale and offset are rounded to 1/63 of the block's
                if kind == "Q4_K":
                    span = groups.max(-1) - np.minimum(groups.min(-1), 0)
                    step = span / 15 + (np.abs(blocks).max(-1) * 2) / 63
                else:
                    step = np.abs(groups).max(-1) / 32 + np.abs(blocks).max(-1) / 128
                assert (far.reshape(groups.shape) <= step[..., None] * 1.01 + 1e-6).all()


@pytest.mark.parametrize("kind", QUANTIZED)
def test_what_is_tried_is_better_than_the_greatest_number_alone(kind: str) -> None:
    rows = np.random.default_rng(1).normal(size=(40, 1024)).astype(np.float32)
    far = np.sqrt(((read(quantize_k(rows, kind), kind) - rows) ** 2).mean())
    groups = rows.reshape(-1, 32 if kind == "Q4_K" else 16)
    if kind == "Q4_K":
        low, unit = groups.min(1, keepdims=True), np.ptp(groups, axis=1)[:, None] / 15
        plain = low + unit * np.rint((groups - low) / unit)
    else:
        unit = np.abs(groups).max(1, keepdims=True) / 32
        plain = unit * np.rint(groups / unit).clip(-32, 31)
    assert far < np.sqrt(((plain - groups) ** 2).mean())


def test_numbers_that_have_such_a_form_hardly_change() -> None:
    """What was read from a file is written almost as it was."""
    rows = np.random.default_rng(2).normal(size=(8, 256)).astype(np.float32)
    for kind in QUANTIZED:
        once = read(quantize_k(rows, kind), kind)
        again = read(quantize_k(once, kind), kind)
        assert np.abs(once - again).max() < 0.02 * np.abs(rows).max()
