"""`quantize` in the block types of GGUF files: the numbers of an export in the same type."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import daguerre
from backends import needs_compiler
from conftest import MakeModel, tiny_config
from daguerre.model import Model
from daguerre.models.backends.native_backend import NativeBackend
from daguerre.models.bits import halves
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.build import make_backbone
from daguerre.models.denoiser import say_former
from daguerre.models.forward import Backend, Forward, Layout, Logits
from daguerre.models.gguf.file import GgufFile
from daguerre.models.gguf.header import read_header
from daguerre.models.gguf.rounding import NAMES
from daguerre.models.gguf.writing import write_gguf
from daguerre.models.model_weights import BackboneWeights
from daguerre.models.rounded_weights import RoundedWeights
from daguerre.models.tokenizer import Tokenizer

pytest.importorskip("gguf")
PLAIN: dict[str, Any] = {"context": "causal", "mask_id": None, "null_id": None, "qk_norm": False}
SHAPES: dict[str, dict[str, Any]] = {
    "whole blocks of 256": {"width": 256, "num_heads": 4, "num_kv_heads": 2, "mlp_width": 256, "tied": False},
    "of 32": {"width": 96, "num_heads": 4, "num_kv_heads": 2, "mlp_width": 256, "tied": True},
    "of neither": {"width": 72, "num_heads": 4, "num_kv_heads": 2, "mlp_width": 128, "tied": True},
}


def backbone(shape: str) -> Backbone:
    config = tiny_config(Tokenizer.default("2k"), num_layers=3, **SHAPES[shape])
    made = make_backbone(replace(config, **PLAIN))
    return made.initialize(1, zero_outputs=False).eval().requires_grad_(False)


@pytest.mark.parametrize("shape", SHAPES)
def test_matrices_are_those_of_an_export_in_the_same_type(shape: str, tmp_path: Path) -> None:
    made = backbone(shape)
    for name in NAMES:
        write_gguf(made, Tokenizer.default("2k"), tmp_path / f"{name}.gguf", name)
        whole = daguerre.load(tmp_path / f"{name}.gguf", dtype="float32", backend="torch").backbone.state_dict()
        weights = RoundedWeights(BackboneWeights(made), name)
        for layer in (None, *range(made.config.num_layers)):
            before = "" if layer is None else f"layers.{layer}."
            for inner, array in weights.part(layer).items():
                theirs = whole[before + inner].numpy()
                if not in_halves(theirs):
                    assert np.array_equal(array, theirs), (name, before + inner)


def in_halves(x: np.ndarray) -> bool:
    """Whether an export has it in half floats, since its rows are no whole number of blocks."""
    return x.ndim > 1 and x.shape[-1] % 32 > 0


def test_the_mix_has_more_bits_for_some_values_and_last_matrices(tmp_path: Path) -> None:
    write_gguf(backbone("whole blocks of 256"), Tokenizer.default("2k"), tmp_path / "a.gguf", "q4_k_m")
    file = GgufFile(read_header(tmp_path / "a.gguf"))
    more = {name for name, entry in file.entries.items() if entry.kind == "Q6_K"}
    assert more == {"output.weight", *(f"blk.2.{name}.weight" for name in ("attn_v", "ffn_down"))}


@needs_compiler
def test_a_files_numbers_are_rounded_before_they_become_bfloat16(tmp_path: Path) -> None:
    made, path = backbone("whole blocks of 256"), tmp_path / "a.gguf"
    write_gguf(made, Tokenizer.default("2k"), path, "f32")
    held = daguerre.load(path, dtype="bfloat16", backend="native").denoiser.weights
    part, exact = RoundedWeights(held, "q4_k").part(0), RoundedWeights(BackboneWeights(made), "q4_k").part(0)
    for name in ("attention.qkv.weight", "mlp.down.weight"):
        assert np.array_equal(part[name], halves(exact[name]))


@needs_compiler
def test_former_names_say_what_to_give_instead(make_model: MakeModel, caplog: pytest.LogCaptureFixture) -> None:
    say_former.cache_clear()
    one = make_model(seed=1)
    for quantize in ("int8", "approximate_int4", "int8", "q8_0"):
        Model(one.backbone, one.tokenizer, "native", quantize=quantize)  # type: ignore[arg-type]
    assert caplog.messages == [
        'quantize="int8" goes in the next release: give "q8_0"',
        'quantize="approximate_int4" goes in the next release: give "q4_k"',
    ]


@needs_compiler
def test_logits_are_those_of_the_exported_file(tmp_path: Path) -> None:
    for shape in ("whole blocks of 256", "of 32"):
        made = backbone(shape)
        for name in NAMES:
            write_gguf(made, Tokenizer.default("2k"), tmp_path / f"{name}.gguf", name)
            file = daguerre.load(tmp_path / f"{name}.gguf", dtype="float32", backend="native").denoiser.backend
            ours = NativeBackend(made, name)
            assert ours._packing.numbers == "stored" and ours.num_bytes == file.num_bytes  # type: ignore[attr-defined]
            assert np.array_equal(logits_of(ours), logits_of(file)), (shape, name)


def logits_of(backend: Backend) -> np.ndarray:
    """Of twelve tokens, without those of tokens that one of the two configs reserves."""
    rows = np.arange(12)
    layout = Layout(rows, (rows + 1).astype(np.int32), len(rows))
    (answer,) = backend.forward([Forward(rows + 100, layout, None, rows.astype(np.int32), Logits())])
    assert answer.logits is not None
    return answer.logits[:, 16:]
