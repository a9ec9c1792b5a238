"""Write a model as a folder that transformers reads: config.json, safetensors, the tokenizer, and a README.md.

What transformers computes is the autoregressive half of a model; the README says what is left out. Only models of
Llama's and Qwen's cores can be written, since transformers has no others of ours.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daguerre.errors import InputError, UnsupportedError
from daguerre.files import synced_write
from daguerre.models.bits import TYPES, NumberType, converted, number_type_of
from daguerre.models.core.config import ModelConfig
from daguerre.models.families.llama import llama_pieces
from daguerre.models.model_weights import ModelWeights, WrittenPieces, weights_of
from daguerre.models.published_tokenizer import PublishedTokenizer
from daguerre.models.scaling import published_scaling
from daguerre.models.shards import INDEX, WEIGHTS
from daguerre.models.tokenizer import Tokenizer
from daguerre.models.weights import SHARD_BYTES, formatted_arrays, split

if TYPE_CHECKING:
    import torch

    from daguerre.models.core.backbone import Backbone

ACTIVATIONS = {"silu": "silu", "gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh"}
CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
TOKENIZER_CLASS = "PreTrainedTokenizerFast"
SHAPE = "width num_layers num_heads num_kv_heads mlp_width max_positions head_width qk_norm qkv_bias out_bias mlp_bias"
MORE = "tied norm_eps activation rope_theta rope_scaling vocab_size eos_id end_ids bos_id pad_id reserved_ids"
LEFT = "context shift block_size anchor mask_id null_id expand_id draft_head draft_rank draft_matrices draft_acceptance"
LEFT += " draft_split draft_rows draft_tokens"
CARRIED = frozenset((SHAPE + " " + MORE + " " + LEFT + " masks_in_place concepts fim ends_loops").split())
"""Fields of a config that are written, or that concern what is left out; all others must have their defaults."""


def export(
    model: Backbone | ModelWeights,
    tokenizer: Tokenizer,
    folder: Path,
    dtype: str | torch.dtype = "bfloat16",
    shard_bytes: int = SHARD_BYTES,
) -> str:
    """Write a model into a new or empty folder, with its weights in `dtype`. Returns the name of transformers' class.

    UnsupportedError for a model that transformers has no class for; InputError for a folder that is not empty, or
    cannot be written.
    """
    weights = weights_of(model)
    kind, numbers = prepare(weights.config, folder), number_type_of(dtype)
    config = published_config(weights.config, kind) | {"torch_dtype": numbers}
    with written(folder):
        _write_tensors(folder, weights, numbers, shard_bytes)
        write_tokenizer(folder, tokenizer)
        write_file(folder / "README.md", readme(weights.config, CLASSES[kind]))
        write_file(folder / "generation_config.json", as_json(_generation(weights.config)))
        write_file(folder / "config.json", as_json(config))
    return CLASSES[kind]


def prepare(config: ModelConfig, folder: Path) -> str:
    """Make the folder, and return the `model_type` of transformers; with the errors of `export`, before any weights are
    read.
    """
    kind = class_of(config)
    make_folder(folder)
    return kind


def make_folder(folder: Path) -> None:
    """Make a folder. InputError for one that is not empty, or cannot be written."""
    with written(folder):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(f"{folder} is not an empty folder: give a new one")
        folder.mkdir(parents=True, exist_ok=True)


@contextmanager
def written(folder: Path) -> Iterator[None]:
    """InputError for what the system refuses to write."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"cannot write {folder} ({error.strerror or error}): make room, or give another folder"
        ) from None


def class_of(config: ModelConfig) -> str:
    """The `model_type` of transformers that computes a model. UnsupportedError, with the reason, where none does."""
    for entry in fields(config):
        value = getattr(config, entry.name)
        if entry.name not in CARRIED and value != entry.default:
            raise UnsupportedError(
                f"transformers has no Llama or Qwen with {entry.name}={value!r}: this model stays here"
            )
    kind = "qwen3" if config.qk_norm else "llama" if config.qkv_bias == config.out_bias else "qwen2"
    biases = config.qkv_bias, config.out_bias, config.mlp_bias
    if (kind != "llama" and config.mlp_bias) or (kind == "qwen2" and config.out_bias):
        raise UnsupportedError(f"transformers has no {CLASSES[kind]} with biases {biases}: this model stays here")
    if kind == "qwen3" and config.qkv_bias != config.out_bias:
        raise UnsupportedError(f"transformers has no {CLASSES[kind]} with biases {biases}: this model stays here")
    return kind


def published_config(config: ModelConfig, kind: str) -> dict[str, Any]:
    """The content of transformers' config.json."""
    return {
        "architectures": [CLASSES[kind]],
        "model_type": kind,
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "intermediate_size": config.mlp_width,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_width,
        "hidden_act": ACTIVATIONS[config.activation],
        "max_position_embeddings": config.max_positions,
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tied,
        "rope_theta": config.rope_theta,
        "rope_scaling": None if config.rope_scaling is None else published_scaling(config.rope_scaling),
        "bos_token_id": config.bos_id,
        "eos_token_id": config.eos_id,
        "pad_token_id": config.pad_id,
        **({"attention_bias": config.out_bias} if kind != "qwen2" else {}),
        **({"mlp_bias": config.mlp_bias} if kind == "llama" else {"use_sliding_window": False}),
    }


def _generation(config: ModelConfig) -> dict[str, Any]:
    """Greedy generation that ends where ours does, and draws no token that ours never draws in a continuation."""
    never = sorted({*config.unpredictable_ids, *config.ends} - {config.eos_id, *config.end_ids})
    values = {"do_sample": False, "eos_token_id": [config.eos_id, *config.end_ids], "pad_token_id": config.pad_id}
    values |= {} if config.bos_id is None else {"bos_token_id": config.bos_id}
    return values | ({"suppress_tokens": never} if never else {})


def write_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    """The tokenizer, in a class of transformers that follows the file."""
    if isinstance(tokenizer, PublishedTokenizer):
        config = {name: value for name, value in tokenizer.config.items() if name != "auto_map"}
        write_file(folder / "tokenizer.json", tokenizer.to_bytes())
    else:
        names = {f"{name}_token": f"<{name}>" for name in ("pad", "bos", "eos")}
        config = {**names, "clean_up_tokenization_spaces": False}
        write_file(folder / "tokenizer.json", _with_bos(json.loads(tokenizer.to_bytes()), tokenizer.bos_id))
    write_file(folder / "tokenizer_config.json", as_json({**config, "tokenizer_class": TOKENIZER_CLASS}))


def _with_bos(content: dict[str, Any], bos_id: int) -> bytes:
    """Our tokenizer.json, with <bos> before every text, as all our canvases begin."""
    bos, text = {"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    other = {"Sequence": {"id": "B", "type_id": 1}}
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [bos, text],
        "pair": [bos, text, other],
        "special_tokens": {"<bos>": {"id": "<bos>", "ids": [bos_id], "tokens": ["<bos>"]}},
    }
    return as_json(content)


def _write_tensors(folder: Path, weights: ModelWeights, numbers: NumberType, shard_bytes: int) -> None:
    """The weights under Llama's names, without those that transformers has no place for: one file, or several and an
    index; the content of one is in memory at a time.
    """
    pieces = {piece.name: piece for piece in llama_pieces(weights.config) if not piece.copy}
    published, weight_map = WrittenPieces(weights), dict[str, str]()
    sizes = {name: math.prod(published.shape(piece)) * TYPES[numbers].itemsize for name, piece in pieces.items()}
    shards = split(sizes, shard_bytes)
    for number, names in enumerate(shards, 1):
        file = WEIGHTS if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        arrays = {name: converted(published.read(pieces[name]), numbers) for name in names}
        write_file(folder / file, formatted_arrays(arrays))
        weight_map |= dict.fromkeys(names, file)
    if len(shards) > 1:
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map}
        write_file(folder / INDEX, as_json(index))


def readme(config: ModelConfig, kind: str) -> str:
    """What transformers can do with the folder, and what is left out."""
    filler = None if config.null_id == config.eos_id else config.null_id
    left = [
        *(["masked rows, and with them infilling, edits and decoding in blocks"] if config.mask_id is not None else []),
        *([f"the gap filler (token {filler}), which only ends gaps"] if filler is not None else []),
        *([f"gaps that grow (token {config.expand_id})"] if config.expand_id is not None else []),
        *(["the draft head, and with it self-speculation"] if config.draft_head else []),
        *([f"low-rank weights of rank {config.draft_rank} for masked rows of drafts"] if config.draft_rank else []),
        *(["the concept heads, which `daguerre export --saelens` writes"] if config.concepts else []),
    ]
    use = f"`AutoModelForCausalLM.from_pretrained(FOLDER)` reads this folder as {kind}."
    causal = (
        "transformers computes the autoregressive half of the model: its greedy generation gives the tokens of mode "
        "`ar`. Tokens that are never drawn are in `suppress_tokens` of generation_config.json."
        if config.can_draft
        else f"The model was trained with {config.context} context and {'a' if config.shift else 'no'} shift. "
        f"transformers gives its logits only with {_how(config)}; what `generate` writes means nothing."
    )
    start = "" if config.bos_id is None else f" Every text begins with token {config.bos_id}, which the tokenizer adds."
    listed = "".join(f"* {what}\n" for what in left)
    rest = f"\nLeft out, since transformers has no place for it:\n\n{listed}" if left else ""
    return f"# A model of Daguerre, for transformers\n\n{use}{start}\n\n{causal}\n{rest}"


def _how(config: ModelConfig) -> str:
    if config.context == "reordered":
        return "known tokens first, masks last, and `position_ids` of where they stand"
    return "a 4-D `attention_mask` of that context"


def as_json(values: Any) -> bytes:
    """The content of a file of JSON."""
    return (json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode()


def write_file(path: Path, content: bytes | str) -> None:
    """Write a file, and have it on the disk."""
    with synced_write(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)
