"""A LoRA adapter as a GGUF file, which llama.cpp adds to the model that it was trained on (`llama-cli --lora FILE`)."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from daguerre.errors import InputError, UnsupportedError, unknown
from daguerre.files import atomic_write
from daguerre.models.core.config import ModelConfig
from daguerre.models.families.base import Piece
from daguerre.models.gguf.header import KINDS
from daguerre.models.gguf.pieces import as_pairs, gguf_pieces
from daguerre.models.gguf.writing import arch_of, package, stored
from daguerre.models.lora import Adapter, read_adapter
from daguerre.models.lora_names import AdapterNames
from daguerre.models.shards import some

DTYPES = ("f32", "f16", "bf16")
"""Types of factors that are written."""


def write_adapter(config: ModelConfig, published: AdapterNames, adapter: Path, path: Path, dtype: str = "f32") -> int:
    """Write an adapter's factors into a file that appears under its name only when whole; how many pairs there are.

    llama.cpp multiplies products by alpha / rank. Where that is not an adapter's scale for one alpha, as with another
    rank or alpha for some matrices, scales are multiplied into the factors B, and alpha is 0, which stands for 1.

    UnsupportedError for a model that llama.cpp has no architecture for, and for what it cannot add: factors of an
    embedding, and tensors that are whole. InputError for an unknown type, or a place that cannot be written.
    """
    arch = arch_of(config, published.family)
    if dtype not in DTYPES:
        raise unknown("dtype", dtype, DTYPES)
    gguf = package()
    names = {(piece.target, str(piece.index)): piece for piece in gguf_pieces(config, arch) if not piece.copy}
    content = read_adapter(adapter, published.pieces, published.prefix, config)
    _check(adapter, content)
    pairs = [(names[_place(content.by_name[name])], *_factors(content, name)) for name in content.matrices]
    alphas = {scale * len(a) for _, a, _, scale in pairs}
    alpha = alphas.pop() if len(alphas) == 1 else 0.0
    try:
        with atomic_write(path) as file, closing(gguf.GGUFWriter(file.name, arch)) as writer:
            writer.add_type(gguf.GGUFType.ADAPTER)
            writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
            writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, alpha)
            for piece, a, b, scale in pairs:
                rows = b if piece.change is None else as_pairs(b, _heads(config, piece))
                _add(writer, gguf, f"{piece.name}.lora_a", a, dtype)
                _add(writer, gguf, f"{piece.name}.lora_b", rows if alpha else scale * rows, dtype)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
    except OSError as error:
        raise InputError(f"cannot write {path} ({error.strerror or error}): make room, or name another file") from None
    return len(pairs)


def _check(adapter: Path, content: Adapter) -> None:
    """UnsupportedError for what llama.cpp has no place for."""
    embeddings = [name for name, matrix in content.matrices.items() if matrix.embedding]
    if embeddings or content.whole:
        what = some([*embeddings, *content.whole])
        raise UnsupportedError(
            f"{adapter} changes {what}, and llama.cpp adds factors to matrices alone: export the merged model instead"
        )


def _place(piece: Piece) -> tuple[str, str]:
    return piece.target, str(piece.index)


def _factors(content: Adapter, name: str) -> tuple[np.ndarray, np.ndarray, float]:
    a, b = content.factors(name)
    return a, b, content.scale(name, len(a))


def _heads(config: ModelConfig, piece: Piece) -> int:
    return config.num_heads if "attn_q" in piece.name else config.num_kv_heads


def _add(writer: Any, gguf: Any, name: str, factor: np.ndarray, dtype: str) -> None:
    kind = dtype.upper()
    number = gguf.GGMLQuantizationType(KINDS[kind].number)
    content = np.ascontiguousarray(stored(factor, kind))
    writer.add_tensor(name, content.view(np.float32) if kind == "F32" else content, raw_dtype=number)
