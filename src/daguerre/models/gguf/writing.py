"""A model as a GGUF file, for llama.cpp: matrices in the type asked for, through the package `gguf`.

What llama.cpp computes is the backbone: with causal context the autoregressive half of a model, with full context its
rows over a whole canvas (architectures dream and llada, which its diffusion example decodes).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from daguerre.errors import InputError, MissingExtra, unknown
from daguerre.files import atomic_write
from daguerre.models.bits import floats
from daguerre.models.core.config import ModelConfig
from daguerre.models.core.frequencies import frequencies
from daguerre.models.families.base import Piece
from daguerre.models.gguf.facts import ARCHITECTURES, BLOCK, FAMILY, SHIFTED
from daguerre.models.gguf.file import BLOCK as NUMBERS
from daguerre.models.gguf.header import KINDS
from daguerre.models.gguf.pieces import UNTIED, as_pairs, gguf_pieces
from daguerre.models.gguf.rounding import NAMES, ROUNDED, counts_more, kind_in, rounded
from daguerre.models.gguf.values import LONG_FACTORS, ROPE_FACTORS, SHORT_FACTORS
from daguerre.models.gguf.writing_cores import add_experts, add_windows
from daguerre.models.gguf.writing_cores import arch_of as arch_of
from daguerre.models.gguf.writing_tokenizer import add_tokenizer
from daguerre.models.model_weights import ModelWeights, WrittenPieces, weights_of
from daguerre.models.tokenizer import Tokenizer

if TYPE_CHECKING:
    from daguerre.models.core.backbone import Backbone

DTYPES = ("f32", "f16", "bf16", *NAMES)
"""Types of matrices that are written; norms and biases are float32."""
FILE_TYPES = {
    "f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 7, "q5_0": 8, "q5_1": 9, "q4_k": 14, "q4_k_m": 15, "q5_k": 16,
    "q6_k": 18, "bf16": 32,
}  # fmt: skip
"""llama.cpp's numbers of files by the type of most matrices."""
COUNTING = re.compile(r"blk\.(\d+)\.(?:attn_v|ffn_down)\.weight")
"""Matrices that may have more bits in `rounding.MIX`, by the number of their layer."""
ALIKE: dict[tuple[str, bool], dict[str, str]] = {
    ("causal", True): {
        "llama": "llama",
        "qwen2": "qwen2",
        "qwen3": "qwen3",
        "qwen3moe": "qwen3_moe",
        "gemma3": "gemma3",
        "phi3": "phi3",
    },
    ("full", True): {"qwen3": "coda", "dream": "dream", "llada": "diffullama", "rnd1": "rnd1"},
    ("full", False): {"qwen3": "a2d", "dream": "a2d", "llada": "llada", "llada-moe": "llada_moe"},
    ("block", False): {
        "llama": "stable_diffcoder",
        "qwen2": "a2d_block",
        "qwen3": "sdar",
        "qwen3moe": "sdar_moe",
        "llada2": "llada2",
    },
}
"""For models of no family: the one that has their context and shift, by architecture, as which they are read back."""


@dataclass(frozen=True)
class Written:
    """What was written: llama.cpp's architecture, how many tensors of each type, and what to know about it."""

    arch: str
    kinds: dict[str, int]
    notes: tuple[str, ...]


def write_gguf(
    model: Backbone | ModelWeights,
    tokenizer: Tokenizer | None,
    path: Path,
    dtype: str = "bf16",
    family: str | None = None,
) -> Written:
    """Write a file that appears under its name only when whole. Without a tokenizer it takes ids and gives ids.

    UnsupportedError for a model that llama.cpp has no architecture for; InputError for an unknown type, or a place that
    cannot be written; MissingExtra without the package `gguf`.
    """
    weights = weights_of(model)
    config = weights.config
    arch = arch_of(config, family)
    check_dtype(dtype)
    family = family or ALIKE.get((config.context, config.shift), {}).get(arch)
    gguf = package()
    try:
        with atomic_write(path) as file, closing(gguf.GGUFWriter(file.name, arch)) as writer:
            _add_config(writer, gguf, config, arch, family, dtype)
            notes = [*_notes(config, family), *add_tokenizer(writer, tokenizer, config)]
            kinds = _write_tensors(writer, gguf, weights, dtype)
    except OSError as error:
        raise InputError(f"cannot write {path} ({error.strerror or error}): make room, or name another file") from None
    return Written(arch, kinds, tuple(notes))


def package() -> Any:
    """The package `gguf`."""
    try:
        import gguf
    except ImportError:
        raise MissingExtra("gguf", "gguf") from None
    return gguf


def check_dtype(dtype: str) -> None:
    """InputError for what is no type of DTYPES."""
    if dtype not in DTYPES:
        raise unknown("dtype", dtype, DTYPES)


def _notes(config: ModelConfig, family: str | None) -> Iterator[str]:
    """What llama.cpp does not do as the model does."""
    if family is None:
        yield f"no family has {config.context} context and shift={config.shift}: Daguerre cannot read this file back"
    if config.windows is not None and family != "gemma3":
        yield "llama.cpp computes it without windows: the same as far as a window reaches, and other text behind"
    if config.experts is not None and config.experts.score == "sigmoid":
        yield "llama.cpp's releases have no architecture llada2: its pull request 17454 does; Daguerre reads it back"
    elif config.context == "block":
        yield "llama.cpp computes it with causal context; Daguerre reads it back with blocks"
    if config.context == "causal" and config.mask_id is not None:
        yield "llama.cpp computes the autoregressive half: infilling and drafts stay here"
    if config.concepts is not None:
        yield "the concept heads stay here"


def _add_config(writer: Any, gguf: Any, config: ModelConfig, arch: str, family: str | None, dtype: str) -> None:
    writer.add_name(family or "daguerre")
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_positions)
    writer.add_embedding_length(config.width)
    writer.add_block_count(config.num_layers)
    writer.add_feed_forward_length(config.mlp_width)
    if config.experts is not None:
        add_experts(writer, gguf, config.experts)
    if config.windows is not None:
        add_windows(writer, config.windows, config.num_layers)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_width)
    writer.add_value_length(config.head_width)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_file_type(FILE_TYPES[dtype])
    if dtype in NAMES:
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    _add_rotary(writer, gguf, config)
    if config.context == "full":
        writer.add_causal_attention(False)
    if config.context == "full" or arch in SHIFTED:
        writer.add_diffusion_shift_logits(config.shift)
    if family is not None and family in ARCHITECTURES[arch]:
        writer.add_string(FAMILY, family)
    if config.block_size is not None:
        writer.add_uint32(BLOCK, config.block_size)
    if config.context != "causal" and config.mask_id is not None:
        writer.add_mask_token_id(config.mask_id)


def _add_rotary(writer: Any, gguf: Any, config: ModelConfig) -> None:
    scaling = config.rope_scaling
    writer.add_rope_dimension_count(config.rotary_width)
    writer.add_rope_freq_base(config.rope_theta)
    if scaling is None:
        return
    if scaling.kind == "llama3":  # a tensor: `rope_factors`
        writer.add_rope_scaling_orig_ctx_len(scaling.original_positions)
        return
    if scaling.kind == "longrope":  # two tensors
        writer.add_rope_scaling_orig_ctx_len(scaling.original_positions)
        writer.add_rope_scaling_attn_factors(frequencies(config)[1])
        return
    writer.add_rope_scaling_type(gguf.RopeScalingType(scaling.kind))
    writer.add_rope_scaling_factor(scaling.factor)
    if scaling.kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(scaling.original_positions)
        writer.add_rope_scaling_yarn_beta_fast(scaling.beta_fast)
        writer.add_rope_scaling_yarn_beta_slow(scaling.beta_slow)
        if scaling.attention_factor is not None:
            log = 0.1 * math.log(scaling.factor) + 1 if scaling.factor > 1 else 1.0
            writer.add_rope_scaling_attn_factors(scaling.attention_factor / log)


def _write_tensors(writer: Any, gguf: Any, weights: ModelWeights, dtype: str) -> dict[str, int]:
    """Write one tensor after another, so that one of them at a time is in memory a second time."""
    config, published = weights.config, WrittenPieces(weights)
    pieces = [piece for piece in gguf_pieces(config, writer.arch) if not piece.copy or writer.arch in UNTIED]
    kinds = {piece.name: _kind(piece, published.shape(piece), dtype, config) for piece in pieces}
    factors = rope_factors(config)
    for name, numbers in factors.items():
        writer.add_tensor_info(name, numbers.shape, numbers.dtype, numbers.nbytes)
    for piece in pieces:
        shape, name = published.shape(piece), kinds[piece.name]
        num_bytes = math.prod(shape) // KINDS[name].block * KINDS[name].num_bytes
        number = gguf.GGMLQuantizationType(KINDS[name].number)
        writer.add_tensor_info(piece.name, shape, np.dtype(np.float32), num_bytes, raw_dtype=number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for numbers in factors.values():
        writer.write_tensor_data(numbers)
    for piece in pieces:
        tensor = published.read(piece)
        if piece.change is not None:
            tensor = as_pairs(tensor, config.num_heads if "attn_q" in piece.name else config.num_kv_heads)
        writer.write_tensor_data(stored(tensor, kinds[piece.name]))
    return dict(Counter(kinds.values()))


def _kind(piece: Piece, shape: tuple[int, ...], dtype: str, config: ModelConfig) -> str:
    """The type in which a tensor is written: norms, biases and routers as F32, matrices as `kind_in` says, or as F16
    where their rows are no whole number of blocks.
    """
    if len(shape) < 2 or piece.target.endswith("router.weight"):
        return "F32"
    if dtype not in NAMES:
        return dtype.upper()
    projects = piece.name == ("token_embd.weight" if config.tied else "output.weight") or piece.copy
    place = COUNTING.fullmatch(piece.name)
    counts = place is not None and counts_more(int(place[1]), config.num_layers)
    return kind_in(dtype, shape[-1], projects=projects, counts=counts) or "F16"


def stored(tensor: np.ndarray, kind: str) -> np.ndarray:
    """The bytes of a tensor in a type, made a few rows at a time."""
    gguf = package()
    number = gguf.GGMLQuantizationType(KINDS[kind].number)
    if tensor.ndim < 2:
        return np.ascontiguousarray(floats(tensor))
    tensor = tensor.reshape(-1, tensor.shape[-1])
    row_bytes = tensor.shape[-1] // KINDS[kind].block * KINDS[kind].num_bytes
    out = np.empty((len(tensor), row_bytes), np.uint8)
    step = max(1, NUMBERS // tensor.shape[-1])
    for start in range(0, len(tensor), step):
        rows = np.ascontiguousarray(floats(tensor[start : start + step]))
        if kind in ROUNDED:
            out[start : start + step] = rounded(rows, kind)
        else:
            out[start : start + step] = gguf.quants.quantize(rows, number).view(np.uint8).reshape(len(rows), -1)
    return out


def rope_factors(config: ModelConfig) -> dict[str, np.ndarray]:
    """What llama.cpp divides frequencies by: tensors of Llama 3's scaling and of longrope, by name."""
    scaling = config.rope_scaling
    if scaling is not None and scaling.kind == "longrope":
        lists = ((LONG_FACTORS, scaling.long), (SHORT_FACTORS, scaling.short))
        return {name: np.array(numbers, np.float32) for name, numbers in lists}
    if scaling is None or scaling.kind != "llama3":
        return {}
    plain = config.rope_theta ** -(np.arange(0, config.rotary_width, 2, dtype=np.float64) / config.rotary_width)
    return {ROPE_FACTORS: (plain / frequencies(config)[0]).astype(np.float32)}
