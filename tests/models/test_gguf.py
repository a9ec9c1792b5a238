"""GGUF files: what is written is read back, and a few rows at a time are numbers."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import daguerre
from backends import BACKENDS, every_isa, needs_compiler
from commands import daguerre as command
from conftest import CONTEXTS, MakeModel, tiny_config
from daguerre.errors import CheckpointError, InputError, MissingExtra, UnsupportedError
from daguerre.model import Model
from daguerre.models import readers
from daguerre.models.backends import library
from daguerre.models.bits import TYPES, converted, floats, halves
from daguerre.models.core.build import make_backbone
from daguerre.models.core.config import Experts, ModelConfig, RopeScaling
from daguerre.models.core.rotary import frequencies
from daguerre.models.gguf import file as gguf_file
from daguerre.models.gguf import writing
from daguerre.models.gguf.file import GgufFile, numbers_of, slow_numbers
from daguerre.models.gguf.header import KINDS, read_header
from daguerre.models.gguf.pieces import LONG_FACTORS, SHORT_FACTORS, UNTIED, as_halves, as_pairs
from daguerre.models.gguf.rounding import PROJECTION
from daguerre.models.gguf.writing import write_gguf
from daguerre.models.loading import Loaded, load_folder, weights_hash
from daguerre.models.tokenizer import Tokenizer
from gguf_parts import in_parts
from made_gguf import DATA
from made_tokenizers import made
from models.test_hostile_gguf import rewritten
from published import CASES, ROWS, ours, seen_by

gguf = pytest.importorskip("gguf")
WRITTEN = {
    "llama": "llama",
    "llama 3, transformers 4": "llama",
    "llama, yarn, transformers 5, biases": "llama",
    "mistral": "llama",
    "mistral, windows": "llama",
    "gemma3, transformers 4": "gemma3",
    "phi3": "phi3",
    "phi3, longrope": "phi3",
    "stable diffcoder": "llama",
    "qwen2": "qwen2",
    "fast dllm": "qwen2",
    "qwen3": "qwen3",
    "a2d": "qwen3",
    "a2d, blocks": "qwen3",
    "coda": "qwen3",
    "sdar": "qwen3",
    "sdar, named blocks": "qwen3",
    "dream": "dream",
    "dreamon": "dream",
    "open dcoder": "dream",
    "a2d of qwen2": "dream",
    "llada": "llada",
    "llada, grouped and tied": "llada",
    "diffullama": "llada",
    "a2d of llama": "llada",
}
"""The cases that llama.cpp has an architecture for."""
TEXTS = ("def f(x):\n    return x + 12345\n", "It's  naïve, isn't it?\r\n\n\n  日本語 🙂", " <|mask|><tool_call>x")


def written(case: str, folder: Path, dtype: str = "f32") -> tuple[Loaded, Path]:
    loaded = load_folder(CASES[case].write(folder))
    write_gguf(loaded.backbone, loaded.tokenizer, folder / "m.gguf", dtype, loaded.family)
    return loaded, folder / "m.gguf"


def test_a_file_holds_what_the_publishers_folder_does(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for number, case in enumerate(WRITTEN):
        with subtests.test(case):
            (parent := tmp_path / str(number)).mkdir()
            model, path = written(case, parent)
            assert read_header(path).metadata["general.architecture"] == WRITTEN[case]
            again = load_folder(path)
            assert (again.family, again.decode) == (model.family, model.decode)
            assert same_config(again.backbone.config, model.backbone.config)
            theirs, ours = model.backbone.state_dict(), again.backbone.state_dict()
            assert theirs.keys() == ours.keys()
            assert all(torch.equal(theirs[name], ours[name]) for name in theirs)
            for text in TEXTS:
                assert again.tokenizer.encode(text) == model.tokenizer.encode(text)
            assert again.tokenizer.special_ids == model.tokenizer.special_ids


def test_a_header_is_read_once_a_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, path = written("qwen3", tmp_path)
    read = list[Path]()
    monkeypatch.setattr(readers, "read_header", lambda path: (read.append(path), read_header(path))[1])
    model = daguerre.load(path, dtype="float32", backend="torch")
    assert read == [path]
    model.generate("def", 2)
    assert read == [path]


def test_files_are_read_without_pytorch() -> None:
    code = f"""
import sys
from daguerre.models.readers import reader_of
reader = reader_of({str(DATA / "qwen3-q6_k.gguf")!r})
reader.facts(), reader.tokenizer()
reader.tensors()["token_embd.weight"].read("float32")
print("torch" in sys.modules)
"""
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ran.stdout == "False\n"


def same_config(one: ModelConfig, other: ModelConfig) -> bool:
    """Whether all fields are equal, and rotary scaling gives the same frequencies."""
    both = [(frequencies(one, sliding=sliding), frequencies(other, sliding=sliding)) for sliding in (False, True)]
    alike = all(torch.allclose(a, b, rtol=1e-4) and abs(scale - too) < 1e-6 for (a, scale), (b, too) in both)
    return alike and dataclasses.replace(one, rope_scaling=None) == dataclasses.replace(other, rope_scaling=None)


def test_a_model_of_our_own_is_written_with_its_tokenizer(make_model: MakeModel, tmp_path: Path) -> None:
    model = make_model(draft_head=24)
    write_gguf(model.backbone, model.tokenizer, tmp_path / "m.gguf", "f32")
    again = daguerre.load(tmp_path / "m.gguf", dtype="float32", backend="torch")
    assert again.config.unpredictable_ids == tuple(i for i in model.config.unpredictable_ids if i != 3)
    for text in TEXTS[:2]:
        assert again.tokenizer.encode(text) == model.tokenizer.encode(text)
    ours, theirs = (each.generate("x = fo", 12, mode="ar", heal=False) for each in (model, again))
    assert [token.id for token in ours.tokens] == [token.id for token in theirs.tokens]


def test_a_model_of_no_family_is_read_back_as_one_that_is_alike(
    make_model: MakeModel, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for context in ["causal", "full", "full_unshifted", "block"]:
        for shape in [{}, {"qk_norm": False}, {"qk_norm": False, "qkv_bias": True}]:
            with subtests.test(context, **shape):
                model = make_model(**CONTEXTS[context], **shape)
                write_gguf(model.backbone, model.tokenizer, tmp_path / "m.gguf", "f32")
                again = load_folder(tmp_path / "m.gguf").backbone
                for name in ("context", "shift", "block_size", "vocab_size", "eos_id", "bos_id", "qkv_bias", "qk_norm"):
                    assert getattr(again.config, name) == getattr(model.config, name)
                assert again.config.mask_id == (None if context == "causal" else model.config.mask_id)
                tokens = np.arange(20, 20 + ROWS)
                seen = seen_by(model.config)
                assert torch.equal(
                    ours("torch", again, tokens, seen)[:, 16:], ours("torch", model.backbone, tokens, seen)[:, 16:]
                )


PLAIN = Experts(num=6, per_token=2, width=32)
NORMALIZED = dataclasses.replace(PLAIN, normalized=True)
GROUPED = Experts(
    num=6,
    per_token=2,
    width=32,
    shared_width=32,
    first_layer=1,
    score="sigmoid",
    bias=True,
    num_groups=3,
    kept_groups=2,
    normalized=True,
    scale=2.5,
)
MIXTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_moe": ("qwen3moe", {"experts": NORMALIZED, "mask_id": None, "null_id": None}),
    "sdar_moe": ("qwen3moe", {"experts": NORMALIZED, **CONTEXTS["block"]}),
    "rnd1": ("rnd1", {"experts": NORMALIZED, "context": "full"}),
    "llada_moe": ("llada-moe", {"experts": PLAIN, "context": "full", "shift": False}),
    "llada2": ("llada2", {"experts": GROUPED, "rope_share": 0.5, **CONTEXTS["block"]}),
}
"""llama.cpp's architecture of each family with experts, and its shape."""
ALIASES = {"llada2": "bailingmoe2"}
"""The architecture of llama.cpp's releases whose names one of its pull requests has."""


def mixture(make_model: MakeModel, facts: dict[str, Any]) -> Model:
    """A random model of this shape, whose experts have random biases, if any."""
    model = make_model(**{"width": 64, "num_heads": 4, "num_kv_heads": 2, **facts})
    for name, weight in model.backbone.state_dict().items():
        if name.endswith("expert_bias"):
            weight.normal_(0, 0.2, generator=torch.Generator().manual_seed(0))
    return model


@pytest.mark.parametrize("dtype", ["f32", "q8_0"])
def test_a_mixture_is_written_by_llama_cpps_names_and_read_back(
    make_model: MakeModel, tmp_path: Path, dtype: str, subtests: pytest.Subtests
) -> None:
    for family, (arch, facts) in MIXTURES.items():
        with subtests.test(family):
            model = mixture(make_model, facts)
            write_gguf(model.backbone, model.tokenizer, tmp_path / "m.gguf", dtype)
            header = read_header(tmp_path / "m.gguf")
            known_as = ALIASES.get(arch, arch).upper().replace("-", "_")
            tensors = gguf.MODEL_TENSORS[gguf.MODEL_ARCH[known_as]]
            known = {gguf.TENSOR_NAMES[tensor] for tensor in tensors}
            assert header.metadata["general.architecture"] == arch
            names = [re.sub(r"\.(weight|bias)$", "", name) for name in header.entries]
            assert {re.sub(r"blk\.\d+", "blk.{bid}", name) for name in names} <= known
            assert header.entries["blk.1.ffn_down_exps.weight"].shape == (6, 64, 32)
            assert ("output.weight" in header.entries) == (arch in UNTIED)  # llama.cpp needs it there, tied or not
            again = load_folder(tmp_path / "m.gguf")
            assert again.family == family
            for name in ("context", "shift", "block_size", "experts", "mask_id", "qk_norm", "rope_share"):
                assert getattr(again.backbone.config, name) == getattr(model.config, name)
            ours, theirs = again.backbone.state_dict(), model.backbone.state_dict()
            for name, weight in theirs.items():
                assert torch.equal(ours[name], weight) == (dtype == "f32" or weight.ndim < 2 or "router" in name)
                assert (ours[name] - weight).abs().max() < 0.02 * weight.abs().max()


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_file_of_a_llada2_has_its_logits(make_model: MakeModel, tmp_path: Path, backend: str) -> None:
    model = mixture(make_model, MIXTURES["llada2"][1])
    said = write_gguf(model.backbone, model.tokenizer, tmp_path / "m.gguf", "f32")
    assert any("no architecture llada2" in note for note in said.notes)
    assert not any("causal" in note for note in said.notes)
    again = load_folder(tmp_path / "m.gguf").backbone
    tokens, seen = np.random.default_rng(0).integers(20, 250, ROWS), seen_by(model.config)
    wanted = ours("torch", model.backbone, tokens, seen)
    assert torch.allclose(ours(backend, again, tokens, seen), wanted, atol=0 if backend == "torch" else 1e-4)
    assert wanted.isfinite().any() and len({*wanted.argmax(1).tolist()}) > 4


LLADA2_FILES: dict[str, tuple[dict[str, Any], str]] = {
    "named after 2.1": ({"general.name": "LLaDA2.1 Mini"}, "llada21"),
    "named after 2.0": ({"general.name": "LLaDA2.0 Mini Preview"}, "llada2"),
    "converted for one shared expert by its number": (
        {"llada2.expert_shared_feed_forward_length": [], "llada2.rope.scaling.type": "none"},
        "llada2",
    ),
}
"""What converters of others write otherwise, and the family that it is."""
NO_LLADA2_FILES: dict[str, tuple[dict[str, Any], str]] = {
    "softmax": ({"llada2.expert_gating_func": 1}, "expert_gating_func"),
    "weights as they are": ({"llada2.expert_weights_norm": False}, "expert_weights_norm"),
    "layers that predict further tokens": ({"llada2.nextn_predict_layers": 1}, "nextn_predict_layers"),
    "a shared expert of another width": ({"llada2.expert_shared_feed_forward_length": 40}, "another width"),
}


def test_files_of_llada2_that_others_converted_are_read(
    make_model: MakeModel, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    model = mixture(make_model, MIXTURES["llada2"][1])
    write_gguf(model.backbone, model.tokenizer, tmp_path / "m.gguf", "f32")
    theirs: dict[str, Any] = {
        "daguerre.family": [],
        "daguerre.block_size": [],
        "tokenizer.ggml.mask_token_id": model.config.mask_id,
    }
    for name, (values, family) in LLADA2_FILES.items():
        with subtests.test(name):
            again = load_folder(rewritten(tmp_path / "m.gguf", theirs | values))
            assert again.family == family
            read = again.backbone.config
            assert (read.experts, read.rope_share, read.block_size, read.mask_id) == (GROUPED, 0.5, 32, 3)
    for name, (values, said) in NO_LLADA2_FILES.items():
        with subtests.test(name), pytest.raises(UnsupportedError, match=said):
            load_folder(rewritten(tmp_path / "m.gguf", theirs | values))
    with pytest.raises(UnsupportedError, match=r"LLaDA2\.2"):
        load_folder((tmp_path / "m.gguf").rename(tmp_path / "LLaDA2.2-flash-Q8_0.gguf"))


@needs_compiler
@pytest.mark.parametrize(("family", "mode"), [("qwen3_moe", "ar"), ("llada2", "block")])
def test_experts_of_a_file_are_on_the_disk_where_that_is_asked_for(
    make_model: MakeModel, tmp_path: Path, family: str, mode: Any
) -> None:
    model = mixture(make_model, MIXTURES[family][1])
    write_gguf(model.backbone, model.tokenizer, tmp_path / "m.gguf", "q4_0")
    texts = []
    for quantize in (None, "approximate_int4"):
        for place in ("memory", "disk"):
            made = daguerre.load(tmp_path / "m.gguf", quantize=quantize, experts=place)
            texts.append([token.id for token in made.generate("x = ", 12, mode=mode, heal=False).tokens])
    assert texts[0] == texts[1] and texts[2] == texts[3]


def test_a_mixture_that_llama_cpp_does_not_have_is_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for change in (
        {"first_layer": 1},
        {"shared_width": 8},
        {"score": "sigmoid"},
        {"scale": 2.0},
        {"normalized": False},
    ):
        with subtests.test(**change):
            config = tiny_config(Tokenizer.default("2k"), experts=dataclasses.replace(NORMALIZED, **change))
            with pytest.raises(UnsupportedError, match=r"experts=Experts\(num=6"):
                writing.arch_of(config)


def test_a_model_that_nothing_is_like_says_so(make_model: MakeModel, tmp_path: Path) -> None:
    model = make_model(**CONTEXTS["causal_unshifted"])
    said = write_gguf(model.backbone, model.tokenizer, tmp_path / "m.gguf").notes
    assert "no family has causal context and shift=False: Daguerre cannot read this file back" in said


def test_a_file_becomes_a_folder_for_transformers(tmp_path: Path) -> None:
    model, path = written("qwen2", tmp_path)
    ran = command("export", path, "--out", tmp_path / "out", "--dtype", "float32")
    assert ran.returncode == 0
    theirs, again = model.backbone.state_dict(), load_folder(tmp_path / "out").backbone.state_dict()
    assert all(torch.equal(theirs[name], again[name]) for name in theirs)


def test_numbers_are_those_that_the_package_makes_of_the_stored_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    for number, dtype in enumerate(writing.DTYPES):
        with subtests.test(dtype), monkeypatch.context() as patch:
            (parent := tmp_path / str(number)).mkdir()
            width, inner = (256, 512) if "_k" in dtype else (64, 96)
            shape = tiny_config(Tokenizer.default("2k"), width=width, num_heads=2, mlp_width=inner)
            write_gguf(make_backbone(shape).initialize(1), Tokenizer.default("2k"), parent / "m.gguf", dtype)
            made = {tensor.name: tensor for tensor in gguf.GGUFReader(parent / "m.gguf").tensors}
            most = 3 * width + 8
            patch.setattr(gguf_file, "BLOCK", most)  # three rows
            file = GgufFile(read_header(parent / "m.gguf"))
            assert file.keys() == made.keys()
            for name, tensor in made.items():
                wanted = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
                assert np.array_equal(file.floats(name), wanted)
                assert np.array_equal(floats(file.array(name)), wanted)
                for numbers in TYPES:
                    assert np.array_equal(file.read(name, numbers), converted(wanted.astype(np.float32), numbers))
                    with patch.context() as without:
                        without.setattr(library, "library", no_compiler)
                        assert np.array_equal(file.read(name, numbers), converted(wanted.astype(np.float32), numbers))
            kinds = {entry.kind for entry in read_header(parent / "m.gguf").entries.values()}
            most = dtype.removesuffix("_m").upper()
            assert kinds == {"F32", most, PROJECTION.get(most, most)}


def test_rows_that_are_no_whole_number_of_blocks_have_a_type_of_shorter_ones(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for width, kind, projection in [(64, "Q5_0", "Q8_0"), (24, "F16", "F16")]:
        with subtests.test(kind):
            shape = tiny_config(Tokenizer.default("2k"), width=width, num_heads=2, mlp_width=256)
            write_gguf(make_backbone(shape).initialize(1), Tokenizer.default("2k"), tmp_path / "m.gguf", "q4_k")
            entries = read_header(tmp_path / "m.gguf").entries
            assert entries["token_embd.weight"].kind == projection and entries["blk.0.attn_q.weight"].kind == kind
            assert entries["blk.0.ffn_down.weight"].kind == "Q4_K"


def no_compiler() -> None:
    raise UnsupportedError("no compiler")


def test_no_matrix_is_in_float32_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = make_backbone(tiny_config(Tokenizer.default("2k"), width=64, num_heads=2, mlp_width=96))
    write_gguf(backbone.initialize(1), Tokenizer.default("2k"), tmp_path / "m.gguf", "q8_0")
    sizes = list[int]()
    monkeypatch.setattr(gguf_file, "BLOCK", 640)
    monkeypatch.setattr(library, "library", no_compiler)
    monkeypatch.setattr(
        gguf_file, "slow_numbers", lambda blocks, kind: (made := slow_numbers(blocks, kind), sizes.append(made.size))[0]
    )
    loaded = load_folder(tmp_path / "m.gguf", torch.bfloat16)
    assert loaded.backbone.embedding.weight.dtype == torch.bfloat16
    assert max(sizes) <= 640
    assert sum(sizes) == sum(tensor.numel() for tensor in loaded.backbone.parameters())


@every_isa
def test_types_have_the_sizes_that_the_package_says_and_its_numbers(isa: str, subtests: pytest.Subtests) -> None:
    for kind in KINDS:
        with subtests.test(kind):
            number = gguf.GGMLQuantizationType[kind]
            assert KINDS[kind].number == number
            assert (KINDS[kind].block, KINDS[kind].num_bytes) == gguf.GGML_QUANT_SIZES[number]
            random = np.random.default_rng(0)
            blocks = random.integers(0, 60, (3, 2 * KINDS[kind].num_bytes), np.uint8)  # below the bytes of infinities
            found, wanted = slow_numbers(blocks, kind), gguf.quants.dequantize(blocks, number)
            assert found.shape == (3, 2 * KINDS[kind].block)
            assert np.array_equal(floats(found), wanted)
            assert np.array_equal(numbers_of(blocks, kind, "float32"), wanted)
            assert np.array_equal(numbers_of(blocks, kind, "bfloat16"), halves(wanted))


@every_isa
def test_bfloat16_has_the_smallest_numbers_and_what_is_none(isa: str) -> None:
    odd = np.array([0, 1, 0x18000, 0x80008001, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF], np.uint32)
    stored = odd.view(np.uint8)[None]
    wanted = [[0, 0, 2, 0x8001, 0x7F80, 0x7F80, 0x7FC0, 0x7FC0, 0x7FC0]]
    assert numbers_of(stored, "F32", "bfloat16").tolist() == halves(odd.view(np.float32)[None]).tolist() == wanted
    assert np.array_equal(numbers_of(stored, "F32", "float32").view(np.uint32)[0], odd)
    assert np.array_equal(numbers_of(stored, "BF16", "bfloat16"), stored.view(np.uint16))


def test_queries_are_ordered_as_llama_cpp_does() -> None:
    rows = torch.arange(24).reshape(12, 2)  # two heads of six numbers
    assert as_pairs(rows, 2)[:6, 0].tolist() == [0, 6, 2, 8, 4, 10]
    assert torch.equal(as_halves(as_pairs(rows, 2), 2), rows)


def test_llama_3s_scaling_is_read_from_its_divisors(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for factor, original, low, high in [(8.0, 8192, 1.0, 4.0), (32.0, 8192, 1.0, 4.0), (4.0, 64, 1.5, 2.0)]:
        with subtests.test(factor=factor, original=original):
            scaling = RopeScaling(
                kind="llama3", factor=factor, original_positions=original, low_freq_factor=low, high_freq_factor=high
            )
            shape = {"width": 128, "num_heads": 2, "qk_norm": False, "rope_theta": 500_000.0, "rope_scaling": scaling}
            backbone = make_backbone(tiny_config(Tokenizer.default("2k"), **shape))
            write_gguf(backbone.initialize(0), Tokenizer.default("2k"), tmp_path / "m.gguf")
            again = load_folder(tmp_path / "m.gguf").backbone.config
            (found,), (want,) = (writing.rope_factors(one).values() for one in (again, backbone.config))
            assert np.allclose(found, want, rtol=1e-4)


def test_the_scaling_of_phi3_may_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the name that the package gguf has for it; what it divides by are tensors with the package's names."""
    names = [
        gguf.TENSOR_NAMES[kind] for kind in (gguf.MODEL_TENSOR.ROPE_FACTORS_LONG, gguf.MODEL_TENSOR.ROPE_FACTORS_SHORT)
    ]
    assert [f"{name}.weight" for name in names] == [LONG_FACTORS, SHORT_FACTORS]
    _, path = written("phi3, longrope", tmp_path)
    scaled = gguf.GGUFWriter.add_rope_scaling_attn_factors

    def named(writer: Any, value: float) -> None:
        scaled(writer, value)
        writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)

    monkeypatch.setattr(gguf.GGUFWriter, "add_rope_scaling_attn_factors", named)
    (tmp_path / "again").mkdir()
    _, again = written("phi3, longrope", tmp_path / "again")
    assert again.read_bytes() != path.read_bytes() and b"longrope" in again.read_bytes()
    assert same_config(load_folder(again).backbone.config, load_folder(path).backbone.config)


def test_a_tokenizer_is_written_by_llama_cpps_name_and_read_back(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for kind, pre in [
        ("byte_level", "llama-bpe"),
        ("qwen2", "qwen2"),
        ("vocab_and_merges", "qwen2"),
        ("tiktoken", "llama-bpe"),
        ("tekken", "tekken"),
    ]:
        with subtests.test(kind):
            tokenizer = made(kind)
            path = of_tokenizer(tokenizer, tmp_path)
            metadata = read_header(path).metadata
            assert (metadata["tokenizer.ggml.model"], metadata["tokenizer.ggml.pre"]) == ("gpt2", pre)
            assert "tokenizer.huggingface.json" not in metadata
            check_tokenizer(load_folder(path).tokenizer, tokenizer)


def test_a_tokenizer_that_llama_cpp_does_not_read_so_is_written_as_it_is(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for kind in ["llama2", "mistral", "gemma", "unigram"]:
        with subtests.test(kind):
            tokenizer = made(kind)
            path = of_tokenizer(tokenizer, tmp_path)
            assert read_header(path).metadata["tokenizer.ggml.model"] == "none"
            check_tokenizer(load_folder(path).tokenizer, tokenizer)


def of_tokenizer(tokenizer: Any, folder: Path, **facts: Any) -> Path:
    eos = tokenizer.eos_id or 1
    tokens = {"vocab_size": tokenizer.vocab_size, "eos_id": eos, "pad_id": eos, "bos_id": tokenizer.bos_id}
    others = {"mask_id": None, "null_id": None, "reserved_ids": (), **facts}
    config = dataclasses.replace(tiny_config(Tokenizer.default("2k")), **tokens, **others)
    write_gguf(make_backbone(config).initialize(0), tokenizer, folder / "m.gguf")
    return folder / "m.gguf"


def check_tokenizer(found: Any, tokenizer: Any) -> None:
    for text in TEXTS:
        assert found.encode(text) == tokenizer.encode(text)
        assert found.encode_plain(text) == tokenizer.encode_plain(text)
    assert found.bos_id == tokenizer.bos_id
    assert found.special_ids == tokenizer.special_ids
    assert [found.token_bytes(i) for i in range(600)] == [tokenizer.token_bytes(i) for i in range(600)]


def test_a_chat_template_comes_along(tmp_path: Path) -> None:
    folder = CASES["qwen2"].write(tmp_path)
    facts = json.loads((folder / "tokenizer_config.json").read_text())
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps(facts | {"chat_template": template}))
    loaded = load_folder(folder)
    write_gguf(loaded.backbone, loaded.tokenizer, tmp_path / "m.gguf", "f16", loaded.family)
    again: Any = load_folder(tmp_path / "m.gguf").tokenizer
    assert again.chat_template.render([{"role": "user", "content": "hi"}]) == "user: hi<|endoftext|>"


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"norm": "layer"}, "norm='layer'"),
    ({"activation": "gelu_tanh"}, "activation='gelu_tanh'"),
    ({"out_bias": True}, "biases"),
    ({"qk_norm": False, "mlp_bias": True}, "biases"),
    ({"context": "reordered", "shift": False}, "context='reordered'"),
    ({"rope_scaling": RopeScaling(kind="llama3", factor=8.0, original_positions=64)}, "architecture qwen3"),
]


def test_what_llama_cpp_has_no_architecture_for_is_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for facts, said in REFUSED:
        with subtests.test(said):
            backbone = make_backbone(tiny_config(Tokenizer.default("2k"), **facts))
            with pytest.raises(UnsupportedError, match=said) as caught:
                write_gguf(backbone, Tokenizer.default("2k"), tmp_path / "m.gguf")
            assert "\n" not in str(caught.value)
            assert not [*tmp_path.iterdir()]


def test_a_file_that_cannot_be_written_leaves_nothing(
    make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    model = make_model()
    monkeypatch.setattr(writing, "stored", full)
    with pytest.raises(InputError, match=r"cannot write .* \(No space left on device\): make room"):
        write_gguf(model.backbone, model.tokenizer, tmp_path / "m.gguf")
    assert not [*tmp_path.iterdir()]
    with pytest.raises(InputError, match="unknown dtype 'q3_k'"):
        write_gguf(model.backbone, model.tokenizer, tmp_path / "m.gguf", "q3_k")


def test_without_the_package_the_command_to_install_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, path = written("llada", tmp_path, "q8_0")
    monkeypatch.setitem(sys.modules, "gguf", None)
    if shutil.which("g++") or shutil.which("clang++"):
        assert load_folder(path).backbone  # by the native library
    monkeypatch.setattr(library, "library", no_compiler)
    with pytest.raises(MissingExtra, match=r"daguerre\[gguf\]"):
        load_folder(path)


def test_a_mask_without_a_family_asks_which_it_is(tmp_path: Path) -> None:
    _, path = written("sdar", tmp_path)
    path.write_bytes(path.read_bytes().replace(b"daguerre.family", b"daguerre.someth"))
    assert load_folder(path).family == "sdar"  # which has blocks
    path.write_bytes(path.read_bytes().replace(b"daguerre.block_size", b"daguerre.block_some"))
    with pytest.raises(InputError, match="does not say which of qwen3, sdar, a2d, a2d_block, coda it is"):
        load_folder(path)
    assert load_folder(path, family="sdar").backbone.config.block_size == 4
    with pytest.raises(InputError, match="is not of family 'llada', but of qwen3"):
        load_folder(path, family="llada")


def test_a_mask_that_no_key_names_is_found_by_its_text(tmp_path: Path) -> None:
    tokenizer = made("qwen2")
    dream = {"context": "full", "qk_norm": False, "qkv_bias": True, "mask_id": tokenizer.mask_id}
    path = of_tokenizer(tokenizer, tmp_path, **dream)
    path.write_bytes(path.read_bytes().replace(b"ggml.mask_token_id", b"ggml.some_token_id"))
    assert load_folder(path).backbone.config.mask_id == tokenizer.mask_id


def test_a_tokenizer_can_be_named_in_place_of_the_files(tmp_path: Path) -> None:
    tokenizer = made("qwen2")
    path = of_tokenizer(tokenizer, tmp_path)
    path.write_bytes(path.read_bytes().replace(b"gpt2", b"bert"))
    with pytest.raises(UnsupportedError, match=r"of the kind 'bert' .*, and gpt2, llama, gemma4 are read; name"):
        load_folder(path)
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "tokenizer.json").write_bytes(tokenizer.to_bytes())
    again = load_folder(path, tokenizer=tmp_path / "words")
    assert again.tokenizer.encode(TEXTS[0]) == tokenizer.encode(TEXTS[0])
    path.write_bytes(path.read_bytes().replace(b"bert", b"gpt2").replace(b"qwen2", b"qwenX"))
    with pytest.raises(UnsupportedError, match=r"architecture 'qwenX'|splits texts as 'qwenX' does"):
        load_folder(path)


def test_the_sampling_that_a_file_names_is_that_of_chats(tmp_path: Path) -> None:
    _, path = written("qwen3", tmp_path)
    named = {"temp": 0.7, "top_k": 20, "top_p": 0.8, "min_p": 0.05, "penalty_repeat": 1.1}
    values = {f"general.sampling.{key}": value for key, value in named.items()}
    recommending = daguerre.load(rewritten(path, values))
    assert recommending.recommends_sampling and not daguerre.load(path).recommends_sampling
    expected = {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "min_p": 0.05, "repetition_penalty": 1.1}
    assert recommending.chat_sampling == expected


def test_several_chat_templates_keep_their_names(tmp_path: Path) -> None:
    folder = CASES["qwen3"].write(tmp_path)
    facts = json.loads((folder / "tokenizer_config.json").read_text())
    templates = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    (folder / "tokenizer_config.json").write_text(json.dumps(facts | {"chat_template": templates}))
    loaded = load_folder(folder)
    write_gguf(loaded.backbone, loaded.tokenizer, tmp_path / "m.gguf", "f16", loaded.family)
    again: Any = load_folder(tmp_path / "m.gguf").tokenizer
    assert again.chat_template.sources == {"default": "plain", "tool_use": "tools"}


SAID = "2 tensors of F16, 11 tensors of F32, 14 tensors of Q8_0"
"""Rows of 56 numbers are no whole blocks."""


def test_commands_write_and_describe_files(tmp_path: Path) -> None:
    folder = CASES["dream"].write(tmp_path)
    ran = command("export", folder, "--gguf", tmp_path / "m.gguf", "--dtype", "q8_0", "--family", "dream")
    assert (ran.returncode, ran.stdout) == (0, f"{tmp_path / 'm.gguf'}  dream: {SAID}\n")
    facts = json.loads(command("inspect", tmp_path / "m.gguf", "--json").stdout)
    assert (facts["family"], facts["context"], facts["mask_id"]) == ("dream", "full", 259)
    assert facts["stored"] == {"F16": 2, "F32": 11, "Q8_0": 14}
    again = command("export", folder, "--gguf", tmp_path / "m.gguf")
    assert (again.returncode, "is there already" in again.stderr) == (2, True)
    both = command("export", folder, "--gguf", tmp_path / "n.gguf", "--out", tmp_path / "o")
    assert (both.returncode, "leave out --out" in both.stderr) == (2, True)
    ran = command("generate", "x = ", "--model", tmp_path / "m.gguf", "--max-tokens", "3")
    assert ran.returncode == 0


def test_a_file_in_parts_is_read_by_the_name_of_any(tmp_path: Path) -> None:
    _, whole = written("dream", tmp_path, "q8_0")
    parts = in_parts(whole, 10)
    assert len(parts) == 3
    plain, first = load_folder(whole), load_folder(parts[0])
    assert first.family == plain.family and first.tokenizer.encode(TEXTS[0]) == plain.tokenizer.encode(TEXTS[0])
    for name, tensor in load_folder(parts[2]).backbone.state_dict().items():
        assert torch.equal(tensor, plain.backbone.state_dict()[name])
    assert weights_hash(parts[0]) == weights_hash(parts[1]) != weights_hash(whole)
    facts = json.loads(command("inspect", parts[1], "--json").stdout)
    assert facts["stored"] == {"F16": 2, "F32": 11, "Q8_0": 14}

    swapped = tmp_path / "s-00001-of-00003.gguf", tmp_path / "s-00002-of-00003.gguf", tmp_path / "s-00003-of-00003.gguf"
    for out, part in zip(swapped, (parts[0], parts[2], parts[1]), strict=True):
        out.write_bytes(part.read_bytes())
    with pytest.raises(CheckpointError, match=r"s-00002-of-00003\.gguf is no part 2 of 3"):
        load_folder(swapped[0])
    renamed = parts[1].rename(tmp_path / "renamed.gguf")
    with pytest.raises(CheckpointError, match=r"parts-00002-of-00003\.gguf is missing"):
        load_folder(parts[0])
    with pytest.raises(CheckpointError, match="one of 3 parts, and its name does not say which"):
        load_folder(renamed)


def test_another_architecture_is_named(tmp_path: Path) -> None:
    _, path = written("llada", tmp_path)
    path.write_bytes(path.read_bytes().replace(b"llada", b"gemma"))
    with pytest.raises(
        UnsupportedError, match="architecture 'gemma', and llama, qwen2, qwen3, dream, llada, gemma3, phi3"
    ):
        load_folder(path)


def test_a_file_that_is_not_there_is_no_name_on_a_hub() -> None:
    with pytest.raises(CheckpointError, match=r"there is no file models/m\.gguf: check the path"):
        daguerre.load("models/m.gguf")


def test_what_the_core_does_not_compute_is_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for add, said in [
        (lambda writer: writer.add_causal_attention(False), "llama.attention.causal is false without a mask"),
        (lambda writer: writer.add_expert_count(8), "llama.expert_count=8 is not supported"),
        (lambda writer: writer.add_sliding_window(64), "llama.attention.sliding_window=64 is not supported"),
        (lambda writer: writer.add_rope_dimension_count(4), "llama.rope.dimension_count is not 8"),
        (lambda writer: writer.add_head_count_kv([1, 2]), "attention.head_count_kv of single layers"),
    ]:
        with subtests.test(said):
            writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
            writer.add_embedding_length(32)
            writer.add_head_count(4)
            writer.add_block_count(2)
            writer.add_feed_forward_length(64)
            writer.add_context_length(64)
            writer.add_eos_token_id(1)
            add(writer)
            writer.add_tensor("token_embd.weight", np.zeros((8, 32), np.float32))
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
            writer.close()
            with pytest.raises(UnsupportedError, match=said):
                load_folder(tmp_path / "m.gguf")


def test_an_empty_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"")
    with pytest.raises(CheckpointError, match="is empty"):
        load_folder(tmp_path / "m.gguf")
