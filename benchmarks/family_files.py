"""Random weights of published shapes, in the layout of their publishers, written with little memory.

python benchmarks/family_files.py qwen3-0.6b FOLDER
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from daguerre.models.tokenizer import byte_of_character

SHARD_BYTES = 1 << 30
SHAPES: dict[str, dict[str, int]] = {
    "qwen3-0.6b": {"width": 1024, "mlp": 3072, "layers": 28, "heads": 16, "kv_heads": 8},
    "qwen3-1.7b": {"width": 2048, "mlp": 6144, "layers": 28, "heads": 16, "kv_heads": 8},
    "small": {"width": 256, "mlp": 768, "layers": 4, "heads": 4, "kv_heads": 2},
}
"""Of the config.json of these models; heads are 128 wide. "small" is for trying this out."""
VOCABULARY, HEAD = 151_936, 128


def config_of(shape: str) -> dict[str, Any]:
    """A config.json as Qwen3 has it."""
    one = SHAPES[shape]
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": VOCABULARY,
        "hidden_size": one["width"],
        "intermediate_size": one["mlp"],
        "num_hidden_layers": one["layers"],
        "num_attention_heads": one["heads"],
        "num_key_value_heads": one["kv_heads"],
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
    }


def tensors_of(shape: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the tensors."""
    one = SHAPES[shape]
    width, heads, keys = one["width"], one["heads"] * HEAD, one["kv_heads"] * HEAD
    yield "model.embed_tokens.weight", (VOCABULARY, width)
    for number in range(one["layers"]):
        layer = f"model.layers.{number}."
        yield f"{layer}input_layernorm.weight", (width,)
        for name, out in (("q", heads), ("k", keys), ("v", keys)):
            yield f"{layer}self_attn.{name}_proj.weight", (out, width)
        yield f"{layer}self_attn.o_proj.weight", (width, heads)
        yield f"{layer}self_attn.q_norm.weight", (HEAD,)
        yield f"{layer}self_attn.k_norm.weight", (HEAD,)
        yield f"{layer}post_attention_layernorm.weight", (width,)
        yield f"{layer}mlp.gate_proj.weight", (one["mlp"], width)
        yield f"{layer}mlp.up_proj.weight", (one["mlp"], width)
        yield f"{layer}mlp.down_proj.weight", (width, one["mlp"])
    yield "model.norm.weight", (width,)


def bfloat16(random: np.random.Generator, shape: tuple[int, ...]) -> bytes:
    """Random numbers of a tensor: around one for norms, of variance 1/width for matrices. They repeat."""
    num = int(np.prod(shape))
    drawn = random.standard_normal(min(num, (1 << 21) + int(random.integers(1 << 10))), dtype=np.float32)
    drawn = 1 + 0.1 * drawn if len(shape) == 1 else drawn * shape[-1] ** -0.5
    halves = (drawn.view(np.uint32) >> 16).astype(np.uint16)
    return np.resize(halves, num).tobytes()


def write_checkpoint(shape: str, folder: Path) -> None:
    """config.json, a small tokenizer, and shards of weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_of(shape)))
    vocabulary = {character: index for index, character in enumerate(sorted(byte_of_character()))}
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.save(str(folder / "tokenizer.json"))
    shards: list[list[tuple[str, tuple[int, ...]]]] = [[]]
    size = 0
    for name, dims in tensors_of(shape):
        num = 2 * int(np.prod(dims))
        if shards[-1] and size + num > SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append((name, dims))
        size += num
    random, places = np.random.default_rng(0), dict[str, str]()
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        places |= dict.fromkeys((name for name, _ in shard), file)
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


if __name__ == "__main__":
    write_checkpoint(sys.argv[1], Path(sys.argv[2]))


def report(out: Path | None, found: dict[str, Any], text: str) -> None:
    """Print a table, and write the figures beside it as JSON."""
    if out is not None:
        out.with_name(f"{out.name}.json").write_text(json.dumps(found, indent=1) + "\n")
        out.with_name(f"{out.name}.md").write_text(text)
    print(text, end="")
