"""Rounding to the block types of GGUF files: the native library beside its slow reference, and what the types hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from backends import every_isa
from daguerre.errors import UnsupportedError
from daguerre.models.backends import library as interface
from daguerre.models.gguf import rounding
from daguerre.models.gguf.file import slow_numbers
from daguerre.models.gguf.header import KINDS
from daguerre.models.gguf.rounding import ROUNDED, counts_more, kind_in, rounded, slow_rounded

gguf = pytest.importorskip("gguf")
Draw = Callable[[np.random.Generator], np.ndarray]
DRAWS: dict[str, Draw] = {
    "normal": lambda random: random.normal(size=(6, 512)),
    "heavy": lambda random: random.standard_t(2, size=(6, 512)),
    "positive": lambda random: random.exponential(size=(6, 512)),
    "negative": lambda random: -random.exponential(size=(6, 512)),
    "mostly zero": lambda random: random.normal(size=(6, 512)) * (random.random((6, 512)) < 0.05),
    "one": lambda random: np.full((1, 256), -0.7),
    "zero": lambda random: np.zeros((2, 256)),
    "tiny": lambda random: random.normal(size=(6, 512)) * 10.0 ** random.integers(-18, -5, (6, 1)),
    "huge": lambda random: random.normal(size=(6, 512)) * 10.0 ** random.integers(3, 8, (6, 1)),
    "zero groups": lambda random: random.normal(size=(6, 512)) * np.repeat(random.random((6, 32)) < 0.5, 16, axis=1),
    "a small group": lambda random: random.normal(size=(6, 512)) * np.repeat([1, 1e-4] * 16, 16),
    "halves": lambda random: random.integers(-8, 9, (6, 512)) / 2,
}


def drawn(name: str) -> np.ndarray:
    """Float32 rows. Zeros are positive: of two signs llama.cpp and the package `gguf` take different ones."""
    return DRAWS[name](np.random.default_rng(0)).astype(np.float32) + np.float32(0)


@pytest.mark.parametrize("kind", ROUNDED)
@every_isa
def test_the_native_library_makes_the_bytes_of_its_slow_reference(
    isa: str, kind: str, subtests: pytest.Subtests
) -> None:
    for name in DRAWS:
        with subtests.test(name):
            rows = drawn(name)
            assert (rounded(rows, kind) == slow_rounded(rows, kind)).all()


@pytest.mark.parametrize("kind", ROUNDED)
def test_a_number_is_within_a_step_of_its_group(kind: str, subtests: pytest.Subtests) -> None:
    """Of a group's range or greatest number; scales of K types are themselves rounded to 6 or 8 bits of the block's."""
    codes = 2 ** int(kind[1])
    for name in ("normal", "heavy", "positive", "negative", "mostly zero", "one", "zero", "a small group"):
        with subtests.test(name):
            rows = drawn(name)
            far = np.abs(slow_numbers(rounded(rows, kind), kind) - rows)
            size = 16 if kind == "Q6_K" else 32
            groups, blocks = rows.reshape(len(rows), -1, size), np.repeat(rows.reshape(-1, 256), 256 // size, 0)
            span = np.maximum(groups.max(-1), 0) - np.minimum(groups.min(-1), 0)
            step = span / (codes - 1) if kind[3] in "1K" and kind != "Q6_K" else 2 * np.abs(groups).max(-1) / codes
            if kind.endswith("K"):
                step = step + 2 * np.abs(blocks).max(-1).reshape(step.shape) / (128 if kind == "Q6_K" else 63)
            assert (far.reshape(groups.shape) <= 1.01 * step[..., None] + 1e-6).all()


@pytest.mark.parametrize("kind", ["Q4_K", "Q5_K", "Q6_K"])
def test_what_is_tried_is_better_than_the_greatest_number_alone(kind: str) -> None:
    rows = np.random.default_rng(1).normal(size=(40, 1024)).astype(np.float32)
    far = np.sqrt(((slow_numbers(rounded(rows, kind), kind) - rows) ** 2).mean())
    groups = rows.reshape(-1, 16 if kind == "Q6_K" else 32)
    if kind == "Q6_K":
        unit = np.abs(groups).max(1, keepdims=True) / 32
        plain = unit * np.rint(groups / unit).clip(-32, 31)
    else:
        low, unit = groups.min(1, keepdims=True), np.ptp(groups, axis=1)[:, None] / (2 ** int(kind[1]) - 1)
        plain = low + unit * np.rint((groups - low) / unit)
    assert far < np.sqrt(((plain - groups) ** 2).mean())


def test_without_the_native_library_the_slow_reference_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise UnsupportedError("no compiler")

    rows = drawn("normal")
    wanted = rounded(rows, "Q4_K")
    monkeypatch.setattr(interface, "library", missing)
    monkeypatch.setattr(rounding, "quantize_k", lambda rows, kind: wanted + 0)
    assert (rounded(rows, "Q4_K") == wanted).all()


def test_types_of_matrices_are_those_of_llama_cpps_published_files() -> None:
    """Q4_K_M of a model of 24 layers of width 896, whose last matrices of MLPs have rows of 4,864 numbers."""
    found = Counter[str | None]()
    for layer in range(24):
        counts = counts_more(layer, 24)
        found.update(kind_in("q4_k_m", 896) for _ in range(5))
        found[kind_in("q4_k_m", 896, counts=counts)] += 1
        found[kind_in("q4_k_m", 4864, counts=counts)] += 1
    found[kind_in("q4_k_m", 896, projects=True)] += 1
    assert found == {"Q5_0": 132, "Q8_0": 13, "Q4_K": 12, "Q6_K": 12}
    assert kind_in("q4_k", 256, projects=True) == "Q6_K" and kind_in("q4_k", 80) is None
    assert {kind for kind in KINDS if kind.startswith("Q")} - {"Q2_K", "Q3_K"} == set(ROUNDED)
