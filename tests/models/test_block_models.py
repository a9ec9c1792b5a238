"""Models whose matrices are multiplied in the blocks of their GGUF files, each in its own type."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("gguf")

import daguerre
from backends import needs_compiler
from conftest import MakeModel
from daguerre.models.backends import kept_weights, native_backend
from daguerre.models.backends.kept_weights import KeptPacking
from daguerre.models.backends.library import library
from daguerre.models.backends.native_backend import NativeBackend
from daguerre.models.block_rows import is_block_kind
from daguerre.models.gguf.file import GgufFile
from daguerre.models.gguf.writing import write_gguf
from daguerre.models.model_weights import FileWeights
from forwards import error, logits_of
from made_gguf import DATA
from models.test_gguf import MIXTURES, mixture
from oracles.blocks import rounded_rows

pytestmark = needs_compiler
TYPES = {
    "dream-q4_0": ("Q4_0", "Q6_K"),
    "llada-q4_k": ("Q4_K", "Q6_K"),
    "llama-q4_k": ("Q4_K", "Q6_K"),
    "qwen2-q8_0": ("Q8_0",),
    "qwen3-q6_k": ("Q6_K",),
}
"""The types of blocks in llama.cpp's files."""


def rounded(x: torch.Tensor) -> torch.Tensor:
    """Rows as products with blocks round them."""
    rows = x.detach().numpy().reshape(-1, x.shape[-1])
    codes, scales = rounded_rows(rows, x.shape[-1])
    return torch.from_numpy(codes * np.repeat(scales, 32, axis=1)).view(x.shape)


def with_rounded_rows(path: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Logits of PyTorch, of dequantized matrices and rounded rows; routers, float32 in files, read rows as they are."""
    linear = torch.nn.functional.linear
    model = daguerre.load(path, dtype="float32", backend="torch")
    num = model.config.experts.num if model.config.experts else None

    def product(x: torch.Tensor, weight: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        return linear(x if len(weight) == num else rounded(x), weight, *more)

    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.functional, "linear", product)
        return logits_of(model.denoiser.backend)


def test_no_block_is_widened_and_answers_are_those_of_rounded_rows(
    monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    """But for the order of sums, which turns a few codes of rows into their neighbors."""
    read = GgufFile.read

    def checked(self: GgufFile, name: str, *how: str) -> np.ndarray:
        assert not is_block_kind(self.entries[name].kind), f"{name} is widened"
        return read(self, name, *how)  # type: ignore[arg-type]

    for name, types in TYPES.items():
        with subtests.test(name):
            path = DATA / f"{name}.gguf"
            want = with_rounded_rows(path, monkeypatch)
            with monkeypatch.context() as patch:
                patch.setattr(GgufFile, "read", checked)
                model = daguerre.load(path, dtype="float32", backend="native")
                got = logits_of(model.denoiser.backend)
            assert model.denoiser.block_types == types and ", ".join(types) in repr(model)
            weights = model.denoiser.weights
            assert isinstance(weights, FileWeights) and weights.made is None
            assert error(got, want) < 0.002


@pytest.mark.parametrize("dtype", ["q8_0", "q4_k"])
def test_experts_are_multiplied_in_their_blocks(
    make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests, dtype: str
) -> None:
    for family, (_, facts) in MIXTURES.items():
        with subtests.test(family):
            made = mixture(make_model, facts)
            path = tmp_path / f"{family}.gguf"
            write_gguf(made.backbone, made.tokenizer, path, dtype)
            want = with_rounded_rows(path, monkeypatch)
            model = daguerre.load(path, dtype="float32", backend="native")
            assert model.denoiser.block_types
            assert error(logits_of(model.denoiser.backend), want) < 0.01


def test_the_blocks_that_were_packed_are_mapped_by_the_next_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library()  # which is in the user's cache
    monkeypatch.setenv("DAGUERRE_CACHE", str(tmp_path))
    for name in ("LEAST", "FREE"):
        monkeypatch.setattr(kept_weights, name, 0)
    threads = []
    keep = kept_weights.keep
    monkeypatch.setattr(native_backend, "keep", lambda *values: threads.append(keep(*values)))
    first = daguerre.load(DATA / "llada-q4_k.gguf").denoiser.backend
    threads[0].join()
    second = daguerre.load(DATA / "llada-q4_k.gguf").denoiser.backend
    assert isinstance(first, NativeBackend) and isinstance(second, NativeBackend)
    assert isinstance(second._packing, KeptPacking) and second.block_types == first.block_types
    assert np.array_equal(logits_of(second), logits_of(first))


def test_a_copy_in_another_process_has_the_same_answers() -> None:
    model = daguerre.load(DATA / "llada-q4_k.gguf", progress=lambda done, total: None)
    copied = pickle.loads(pickle.dumps(model.denoiser))
    assert copied.block_types == ("Q4_K", "Q6_K")
    assert np.array_equal(logits_of(copied.backend), logits_of(model.denoiser.backend))


def test_weights_that_change_are_packed_as_numbers() -> None:
    model = daguerre.load(DATA / "qwen2-q8_0.gguf", dtype="float32")
    stored = logits_of(model.denoiser.backend)
    with torch.no_grad():
        model.backbone.embedding.weight.mul_(1.0)
    changed = logits_of(model.denoiser.backend)
    assert model.denoiser.block_types == () and 0 < error(stored, changed) < 0.05
