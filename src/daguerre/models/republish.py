"""A published model whose weights were changed, written back in its publisher's layout: the same files, names and
types of tensors, so that it is read as before, here and elsewhere. The model of a GGUF file is written as a folder, in
the layout that its family has there.

Two keys are added to config.json that names of folders may have said before: the size of a block, and the family.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from daguerre.errors import UnsupportedError
from daguerre.files import synced_write
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.config import ModelConfig
from daguerre.models.export import write_tokenizer
from daguerre.models.families import FAMILIES
from daguerre.models.families.base import changed_back
from daguerre.models.json_files import read_json
from daguerre.models.published import PublishedSource
from daguerre.models.published_weights import without_prefix
from daguerre.models.readers import CONFIG, FAMILY_KEY, GENERATION, reader_of
from daguerre.models.scaling import published_scaling
from daguerre.models.shards import INDEX, WEIGHTS
from daguerre.models.weights import SHARD_BYTES, formatted, split

WEIGHTS_OF = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf", "*.msgpack", "*.h5", "*.onnx", "*.index.json")
"""Names of files that hold weights, or say where they are."""
ADAPTER = "adapter_config.json"
"""The file by which the folder of a bundled adapter is known, whose weights are kept as they are."""
STORED = "tensors.json"
"""The file that has the names and types of the published tensors."""
KINDS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
BLOCK_KEYS = {"fast_dllm": "bd_size", "steerling": "diff_block_size"}
"""The keys of families that do not name the size of a block `block_size`."""


def keep_origin(source: Path, folder: Path) -> None:
    """Copy what a published folder has besides weights, and say of those what `write_back` needs."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    found = PublishedSource(reader_of(source))
    described, tokenizer = found.described, found.tokenizer()
    if found.reader.is_file:
        if tokenizer is not None:
            write_tokenizer(folder, tokenizer)
        if found.facts.generation:
            _write_json(folder / GENERATION, dict(found.facts.generation))
        kinds = {piece.name: "BF16" for piece in found.family.pieces(described.config) if not piece.copy}
    else:
        _copy_small_files(source, folder)
        kinds = {name: tensor.kind for name, tensor in found.reader.tensors().items()}
    _write_json(folder / CONFIG, _marked(dict(found.facts.config), found.family.name, described.config))
    _write_json(folder / STORED, kinds)


def _copy_small_files(source: Path, folder: Path) -> None:
    """Copy what is beside the weights, and an adapter that the folder brings along."""
    for path in (path for path in source.rglob("*") if path.is_file()):
        is_adapter = path.parent != source and (path.parent / ADAPTER).is_file()
        if is_adapter or not any(path.match(pattern) for pattern in WEIGHTS_OF):
            target = folder / path.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


def scale_origin(folder: Path, config: ModelConfig) -> None:
    """Write the scaled positions of a model into the config.json that `keep_origin` kept, where it has others.
    UnsupportedError for a family whose config.json cannot say it.
    """
    before = _positions(PublishedSource(reader_of(folder)).config())
    if before == _positions(config):
        return
    values = read_json(folder / CONFIG)
    if "max_position_embeddings" in values:
        scaled: dict[str, object] = {"max_position_embeddings": config.max_positions}
        rotary = {} if config.rope_scaling is None else published_scaling(config.rope_scaling)
        if "rope_parameters" in values:
            scaled["rope_parameters"] = {"rope_type": "default", "rope_theta": config.rope_theta, **rotary}
        else:
            scaled |= {"rope_theta": config.rope_theta, "rope_scaling": rotary or None}
        _write_json(folder / CONFIG, {**values, **scaled})
    if _positions(PublishedSource(reader_of(folder)).config()) != _positions(config):
        raise UnsupportedError(
            "rope_scaling: the config.json of this family has no place for scaled positions, so the trained model "
            "could not be written: leave it out"
        )


def _positions(config: ModelConfig) -> tuple[object, ...]:
    return config.max_positions, config.rope_theta, config.rope_scaling


def write_back(origin: Path, folder: Path, backbone: Backbone, shard_bytes: int = SHARD_BYTES) -> Path:
    """Write a model into a folder, in the layout of the published one of which `keep_origin` kept the files. Its config
    differs from that one's, if at all, in the size of blocks and in the tokens that end a text.

    Files are written under their names, weights first and config.json last; a folder without one is no model.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).unlink(missing_ok=True)
    for old in (path for pattern in WEIGHTS_OF for path in folder.glob(pattern)):
        old.unlink()
    kinds = read_json(origin / STORED)
    family = str(read_json(origin / CONFIG)[FAMILY_KEY])
    tensors = published_tensors(family, backbone, list(kinds))
    _write_tensors(folder, tensors, KINDS[Counter(kinds[name] for name in tensors).most_common(1)[0][0]], shard_bytes)
    for path in (path for path in origin.rglob("*") if path.is_file()):
        if path.name not in (CONFIG, GENERATION, STORED) or path.parent != origin:
            target = folder / path.relative_to(origin)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    config, generation = backbone.config, read_json(origin / GENERATION)
    if config.end_ids:
        generation["eos_token_id"] = [config.eos_id, *config.end_ids]
    if generation:
        _write_json(folder / GENERATION, generation)
    _write_json(folder / CONFIG, _marked(read_json(origin / CONFIG), family, config))
    return folder


def published_tensors(family: str, backbone: Backbone, stored: list[str]) -> dict[str, Tensor]:
    """The weights of a model under the names that its publisher gave them; `stored` are those that there are."""
    entry, parts, out = FAMILIES[family], backbone.state_dict(), dict[str, Tensor]()
    pieces = without_prefix(entry, entry.pieces(backbone.config), stored)
    for piece in (piece for piece in pieces if piece.name in set(stored)):
        out[piece.name] = changed_back(piece, parts[piece.target][piece.index])
    return out


def _marked(values: dict[str, object], family: str, config: ModelConfig) -> dict[str, object]:
    """The content of config.json, with what the name of a folder may say."""
    block = {BLOCK_KEYS.get(family, "block_size"): config.block_size} if config.block_size else {}
    return {**values, **block, FAMILY_KEY: family}


def _write_tensors(folder: Path, tensors: dict[str, Tensor], dtype: torch.dtype, shard_bytes: int) -> None:
    sizes = {name: tensor.numel() * dtype.itemsize for name, tensor in tensors.items()}
    shards = split(sizes, shard_bytes)
    weight_map = dict[str, str]()
    for file, names in _named(shards):
        with synced_write(folder / file) as content:
            content.write(formatted(tensors, names, dtype))
        weight_map |= dict.fromkeys(names, file)
    if len(shards) > 1:
        _write_json(folder / INDEX, {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map})


def _named(shards: list[list[str]]) -> Iterator[tuple[str, list[str]]]:
    for number, names in enumerate(shards, 1):
        yield WEIGHTS if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors", names


def _write_json(path: Path, values: object) -> None:
    with synced_write(path) as file:
        file.write((json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode())
