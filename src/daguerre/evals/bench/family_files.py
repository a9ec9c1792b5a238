"""Random weights of published shapes, in the layout of their publishers and as llama.cpp's files, written with little
memory and kept in a folder, where the next measurement finds them.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from daguerre.errors import DataError, InputError, unknown
from daguerre.evals.bench.peers import llama_api
from daguerre.files import atomic_write
from daguerre.models.backends.disk import free_memory, gigabytes
from daguerre.models.gguf.writing import write_gguf
from daguerre.models.loading import load_folder
from daguerre.models.tokenizer import byte_of_character

SHARD_BYTES = 1 << 30
HEAD = 128
"""Width of a head of all these shapes."""


@dataclass(frozen=True, kw_only=True)
class FamilyShape:
    """Of a published config.json.

    block    the size of the blocks of a model with block context
    weights  the shape that has the same tensors, whose files are taken
    deep     the layers of the published model, where this one has fewer: time is extrapolated from two such shapes
    """

    width: int
    mlp: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int = 151_936
    block: int | None = None
    weights: str | None = None
    core: Literal["qwen3", "llada"] = "qwen3"
    deep: int | None = None


LLADA: dict[str, Any] = {"width": 4096, "mlp": 12_288, "heads": 32, "kv_heads": 32, "vocabulary": 126_464}
SMALL: dict[str, Any] = {"width": 256, "mlp": 768, "layers": 2, "heads": 4, "kv_heads": 2, "vocabulary": 2048}
FEW: dict[str, Any] = {"width": 256, "mlp": 768, "heads": 2, "kv_heads": 2, "vocabulary": 2048}
SHAPES: dict[str, FamilyShape] = {
    "qwen3-0.6b": FamilyShape(width=1024, mlp=3072, layers=28, heads=16, kv_heads=8),
    "qwen3-1.7b": FamilyShape(width=2048, mlp=6144, layers=28, heads=16, kv_heads=8),
    "sdar-1.7b": FamilyShape(width=2048, mlp=6144, layers=28, heads=16, kv_heads=8, block=8, weights="qwen3-1.7b"),
    "llada-8b-2-layers": FamilyShape(**LLADA, layers=2, core="llada", deep=32),
    "llada-8b-6-layers": FamilyShape(**LLADA, layers=6, core="llada", deep=32),
    "qwen3-tiny": FamilyShape(**SMALL),
    "sdar-tiny": FamilyShape(**SMALL, block=8, weights="qwen3-tiny"),
    "llada-1-tiny": FamilyShape(**FEW, layers=1, core="llada", deep=5),
    "llada-2-tiny": FamilyShape(**FEW, layers=2, core="llada", deep=5),
}
"""The tiny ones are no published models: they are for trying this out."""
PUBLISHED = tuple(name for name in SHAPES if not name.endswith("-tiny"))
WEIGHTS = {"bfloat16": "BF16", "int8": "Q8_0", "approximate_int4": "Q4_0"}
"""Types of weights, and what llama.cpp calls the equal ones."""
DEEP_WEIGHTS = "approximate_int4"
FILE_TYPES = {"BF16": 32, "Q8_0": 7, "Q4_0": 2}
"""llama.cpp's types of files, and its numbers of them."""
BYTES_A_WEIGHT = {"BF16": 2.0, "Q8_0": 34 / 32, "Q4_0": 18 / 32}
SPARE = 1 << 30
"""Bytes of memory beside the weights: what reading memory is timed on, caches, PyTorch."""


def shape_of(name: str) -> FamilyShape:
    """InputError for a name that is none."""
    if name not in SHAPES:
        raise unknown("shape", name, SHAPES)
    return SHAPES[name]


def config_of(name: str) -> dict[str, Any]:
    """A config.json as Qwen3 has it, SDAR, or LLaDA."""
    one = shape_of(name)
    if one.core == "llada":
        return _llada_config(one)
    kind = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
    if one.block is not None:
        kind = {"architectures": ["SDARForCausalLM"], "model_type": "sdar"}
    return {
        **kind,
        "vocab_size": one.vocabulary,
        "hidden_size": one.width,
        "intermediate_size": one.mlp,
        "num_hidden_layers": one.layers,
        "num_attention_heads": one.heads,
        "num_key_value_heads": one.kv_heads,
        "head_dim": HEAD,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "rope_theta": 1e6,
        "rope_scaling": None,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "sliding_window": None,
        "use_sliding_window": False,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "torch_dtype": "bfloat16",
        **({} if one.block is None else {"block_size": one.block, "mask_token_id": one.vocabulary - 267}),
    }


def _llada_config(one: FamilyShape) -> dict[str, Any]:
    return {
        "architectures": ["LLaDAModelLM"],
        "model_type": "llada",
        "vocab_size": one.vocabulary,
        "embedding_size": one.vocabulary,
        "d_model": one.width,
        "mlp_hidden_size": one.mlp,
        "n_layers": one.layers,
        "n_heads": one.heads,
        "n_kv_heads": one.kv_heads,
        "max_sequence_length": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "weight_tying": False,
        "eos_token_id": 0,
        "mask_token_id": one.vocabulary - 128,
        "torch_dtype": "bfloat16",
    }


def tensors_of(name: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the tensors."""
    one = shape_of(name)
    if one.core == "llada":
        yield from _llada_tensors(one)
        return
    width, heads, keys = one.width, one.heads * HEAD, one.kv_heads * HEAD
    yield "model.embed_tokens.weight", (one.vocabulary, width)
    for number in range(one.layers):
        layer = f"model.layers.{number}."
        yield f"{layer}input_layernorm.weight", (width,)
        for part, out in (("q", heads), ("k", keys), ("v", keys)):
            yield f"{layer}self_attn.{part}_proj.weight", (out, width)
        yield f"{layer}self_attn.o_proj.weight", (width, heads)
        yield f"{layer}self_attn.q_norm.weight", (HEAD,)
        yield f"{layer}self_attn.k_norm.weight", (HEAD,)
        yield f"{layer}post_attention_layernorm.weight", (width,)
        yield f"{layer}mlp.gate_proj.weight", (one.mlp, width)
        yield f"{layer}mlp.up_proj.weight", (one.mlp, width)
        yield f"{layer}mlp.down_proj.weight", (width, one.mlp)
    yield "model.norm.weight", (width,)


def _llada_tensors(one: FamilyShape) -> Iterator[tuple[str, tuple[int, ...]]]:
    width, before = one.width, "model.transformer."
    yield f"{before}wte.weight", (one.vocabulary, width)
    for number in range(one.layers):
        layer = f"{before}blocks.{number}."
        for part in ("q_proj", "k_proj", "v_proj", "attn_out"):
            yield f"{layer}{part}.weight", (width, width)
        for part in ("attn_norm", "ff_norm"):
            yield f"{layer}{part}.weight", (width,)
        for part in ("ff_proj", "up_proj"):
            yield f"{layer}{part}.weight", (one.mlp, width)
        yield f"{layer}ff_out.weight", (width, one.mlp)
    yield f"{before}ln_f.weight", (width,)
    yield f"{before}ff_out.weight", (one.vocabulary, width)


def num_parameters(name: str) -> int:
    """Of the shape."""
    return sum(int(np.prod(dims)) for _, dims in tensors_of(name))


def bfloat16(random: np.random.Generator, shape: tuple[int, ...]) -> bytes:
    """Random numbers of a tensor: around one for norms, of variance 1/width for matrices. They repeat."""
    num = int(np.prod(shape))
    drawn = random.standard_normal(min(num, (1 << 21) + int(random.integers(1 << 10))), dtype=np.float32)
    drawn = 1 + 0.1 * drawn if len(shape) == 1 else drawn * shape[-1] ** -0.5
    halves = (drawn.view(np.uint32) >> 16).astype(np.uint16)
    return np.resize(halves, num).tobytes()


def checkpoint(name: str, parent: Path) -> Path:
    """The folder of a shape below `parent`, written unless it is there."""
    folder = parent / name
    if not (folder / "config.json").exists():
        write_checkpoint(name, folder)
    return folder


def write_checkpoint(name: str, folder: Path) -> None:
    """Write a tokenizer, shards of weights, and at last config.json. Shapes of the same tensors share shards."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer(shape_of(name).vocabulary).save(str(folder / "tokenizer.json"))
    shared = shape_of(name).weights
    if shared is None:
        _write_weights(name, folder)
    else:
        for file in sorted(checkpoint(shared, folder.parent).glob("model*")):
            link = folder / file.name
            link.unlink(missing_ok=True)
            os.link(file, link)
    with atomic_write(folder / "config.json") as out:
        out.write(json.dumps(config_of(name)).encode())


def tokenizer(size: int) -> Tokenizer:
    """Bytes, and made words that no text is encoded to, as many tokens as the vocabulary has."""
    vocabulary = {character: index for index, character in enumerate(sorted(byte_of_character()))}
    vocabulary |= {f"w{index}": index for index in range(len(vocabulary), size)}
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    return inner


def _write_weights(name: str, folder: Path) -> None:
    shards: list[list[tuple[str, tuple[int, ...]]]] = [[]]
    size = 0
    for tensor, dims in tensors_of(name):
        num = 2 * int(np.prod(dims))
        if shards[-1] and size + num > SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append((tensor, dims))
        size += num
    random, places = np.random.default_rng(0), dict[str, str]()
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        places |= dict.fromkeys((tensor for tensor, _ in shard), file)
        write_shard(folder / file, shard, random)
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def write_shard(path: Path, shard: list[tuple[str, tuple[int, ...]]], random: np.random.Generator) -> None:
    """A safetensors file, one tensor at a time."""
    header, start = dict[str, Any](), 0
    for name, dims in shard:
        end = start + 2 * int(np.prod(dims))
        header[name] = {"dtype": "BF16", "shape": list(dims), "data_offsets": [start, end]}
        start = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, dims in shard:
            file.write(bfloat16(random, dims))


def weights_of(name: str, weights: Sequence[str]) -> list[str]:
    """The types that a shape is measured in: one of which few layers are measured, in 4 bits alone if that is asked
    for at all.
    """
    few = [kind for kind in weights if kind == DEEP_WEIGHTS]
    return few if few and shape_of(name).deep else list(weights)


def gguf_files(name: str, kinds: Sequence[str], parent: Path) -> dict[str, Path]:
    """llama.cpp's files of a shape, below `parent`, by its own quantizer, by their types of FILE_TYPES; those are
    written that are not there. A shape with block context has those of its tensors: llama.cpp computes it one token
    after the other.

    MissingExtra without llama-cpp-python or gguf.
    """
    llama_api()
    own = shape_of(name).weights or name
    files = {kind: parent / f"{own}-{kind}.gguf" for kind in kinds}
    whole = parent / f"{own}-BF16.gguf"
    new = [kind for kind, path in files.items() if not path.exists()]
    passing = "BF16" not in files and not whole.exists()
    if new and not whole.exists():
        write_gguf(load_folder(checkpoint(own, parent), torch.bfloat16).backbone, None, whole, "bf16")
    for kind in new:
        if kind != "BF16":
            quantize(whole, kind, files[kind])
    if passing:
        whole.unlink(missing_ok=True)
    return files


def quantize(whole: Path, kind: str, path: Path) -> None:
    """A file in another type, one of FILE_TYPES, by llama.cpp's quantizer."""
    api = llama_api()
    options, new = api.llama_model_quantize_default_params(), path.with_suffix(".part")
    options.ftype = FILE_TYPES[kind]
    if code := api.llama_model_quantize(str(whole).encode(), str(new).encode(), ctypes.byref(options)):
        raise DataError(f"llama.cpp could not write {kind} (code {code})")
    new.replace(path)


@dataclass(frozen=True)
class Room:
    """Bytes that a measurement takes, and bytes that are free; None where the system does not say.

    disk   of files that are kept
    spare  of one that is gone once others are made of it
    """

    disk: int
    spare: int
    memory: int
    free_disk: int
    free_memory: int | None

    @classmethod
    def of(cls, shapes: Sequence[str], weights: Sequence[str], parent: Path) -> Room:
        """weights: of WEIGHTS."""
        files, memory, spare = dict[Path, float](), 0.0, 0.0
        for name in shapes:
            kinds = [WEIGHTS[kind] for kind in weights_of(name, weights)]
            num, own = num_parameters(name), shape_of(name).weights or name
            files[parent / own / "config.json"] = 2.0 * num
            made = {parent / f"{own}-{kind}.gguf": BYTES_A_WEIGHT[kind] * num for kind in kinds}
            whole = parent / f"{own}-BF16.gguf"
            if whole not in made and not (whole.exists() or all(path.exists() for path in made)):
                spare = max(spare, 2.0 * num)
            files |= made
            memory = max(memory, 2.0 * num, *(2 * BYTES_A_WEIGHT[kind] * num for kind in kinds))
        disk = sum(size for path, size in files.items() if not path.exists())
        known = parent.absolute()
        while not known.exists():
            known = known.parent
        return cls(int(disk), int(spare), int(memory) + SPARE, shutil.disk_usage(known).free, free_memory())

    def check(self, parent: Path) -> None:
        """InputError where it does not fit."""
        needed = self.disk + self.spare
        if needed > self.free_disk:
            raise InputError(
                f"{parent} has {gigabytes(self.free_disk)} free, and {gigabytes(needed)} are needed: name another "
                "folder, or fewer shapes"
            )
        if self.free_memory is not None and self.memory > self.free_memory:
            raise InputError(
                f"{gigabytes(self.free_memory)} of memory are free, and {gigabytes(self.memory)} are needed: name "
                "smaller shapes, or other types of weights"
            )
