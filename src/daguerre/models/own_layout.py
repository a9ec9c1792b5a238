"""Folders in Daguerre's own layout: config.json, model.safetensors, tokenizer.json and, for a model with concept heads,
concepts.json, read strictly and written atomically.

`config.json` has the fields of `ModelConfig`, `weights_sha256` (hash of model.safetensors, or of the index of several
such files), `tokenizer_sha256` and, if given, `extra` (free JSON).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daguerre.errors import CheckpointError, DataError
from daguerre.files import sync_folder, synced_write
from daguerre.models.bits import NumberType
from daguerre.models.catalog import FILE as CONCEPTS
from daguerre.models.catalog import Catalog, read_catalog
from daguerre.models.core.config import ModelConfig
from daguerre.models.core.parameters import parameter_shapes
from daguerre.models.families.base import Piece
from daguerre.models.json_files import read_json
from daguerre.models.lora import merged
from daguerre.models.lora_names import names_in
from daguerre.models.model_weights import FileWeights, ModelWeights, torch_type
from daguerre.models.readers import CONFIG as CONFIG
from daguerre.models.readers import HINT
from daguerre.models.shards import INDEX, WEIGHTS, Stored, check_layers
from daguerre.models.sources import Loaded, ModelSource, Progress
from daguerre.models.tokenizer import Tokenizer
from daguerre.models.tokenizer_files import TOKENIZER
from daguerre.models.weights import SHARD_BYTES, remove_other_weights, sha256_of, stored_in, write_weights

if TYPE_CHECKING:
    import torch

    from daguerre.models.core.backbone import Backbone

KINDS = ("F64", "F32", "F16", "BF16")
"""Types of stored numbers that are read, as safetensors names them."""


def save_model(
    folder: str | os.PathLike[str],
    backbone: Backbone,
    tokenizer: Tokenizer,
    dtype: str | torch.dtype = "bfloat16",
    extra: dict[str, Any] | None = None,
    shard_bytes: int = SHARD_BYTES,
    catalog: Catalog | None = None,
) -> Path:
    """Write a model folder, replacing an existing model; other files of the folder are left alone.

    Weights are stored in `dtype`, in several files if larger than `shard_bytes`; `extra` must be JSON; `catalog` has
    the names of the concepts of a model with concept heads. Files are written under temporary names, synced, then
    renamed, the weights first and `config.json` last: if this is interrupted, the folder still holds one complete
    model, old or new.
    """
    target = Path(folder)
    _check_vocabulary(backbone.config, tokenizer, target)
    target.mkdir(parents=True, exist_ok=True)
    _finish_renames(target)
    name, weights = write_weights(target, backbone.state_dict(), torch_type(dtype), shard_bytes)
    values: dict[str, Any] = {
        **backbone.config.to_dict(),
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
        "tokenizer_sha256": tokenizer.sha256,
    }
    if extra is not None:
        values["extra"] = extra
    config = (json.dumps(values, indent=2) + "\n").encode()
    names = {} if catalog is None else {CONCEPTS: catalog.to_bytes()}
    contents = {name: weights, TOKENIZER: tokenizer.to_bytes(), **names, CONFIG: config}
    for file_name, content in contents.items():
        with synced_write(_temporary(target / file_name)) as file:
            file.write(content)
    for file_name in contents:
        _temporary(target / file_name).replace(target / file_name)
    sync_folder(target)
    remove_other_weights(target, name)
    return target


class OwnSource(ModelSource):
    """A folder in Daguerre's own layout. CheckpointError for what is wrong with it."""

    is_published = False
    family_name = None

    def __init__(self, folder: Path) -> None:
        self.path = folder

    def config(self) -> ModelConfig:
        return _config_of(parse_config(self.path / CONFIG), self.path / CONFIG)

    def tokenizer(self) -> Tokenizer | None:
        if not (self.path / TOKENIZER).exists():
            return None
        tokenizer = _load_tokenizer(self.path / TOKENIZER)
        _check_vocabulary(self.config(), tokenizer, self.path)
        return tokenizer

    def weights_hash(self) -> str:
        return str(parse_config(self.path / CONFIG).get("weights_sha256"))

    def load(
        self,
        numbers: NumberType,
        device: str = "cpu",
        *,
        adapter: Path | None = None,
        progress: Progress | None = None,
        defer: bool = False,
    ) -> Loaded:
        weights, config, values = _read_config(self.path)
        tokenizer = _read_tokenizer(self.path, config, values)
        stored = stored_in(weights)
        check_layers(config, len(stored), weights)
        _check_tensors(config, stored, weights)
        pieces = [Piece(name, name) for name in stored]
        held: ModelWeights = (files := FileWeights(config, numbers, pieces, stored, progress, device))
        if adapter is not None:
            names = names_in(config, None)
            held = merged(files, names.pieces, adapter, names.prefix)
        if not defer:
            held.module()
        return Loaded(weights=held, tokenizer=tokenizer, source=self, concepts=_read_own_catalog(self.path, config))


def _read_own_catalog(folder: Path, config: ModelConfig) -> Catalog | None:
    """Names of the concepts of a folder's model; None for one without concept heads."""
    if config.concepts is None:
        return None
    renaming = _temporary(folder / CONCEPTS).exists() and _holds_new_weights(folder)
    return read_catalog(_temporary(folder / CONCEPTS) if renaming else folder / CONCEPTS, config.concepts)


def _holds_new_weights(folder: Path) -> bool:
    """Whether the last save was interrupted after it had renamed the weights."""
    with suppress(CheckpointError):
        return parse_config(_temporary(folder / CONFIG)).get("weights_sha256") in _hashes(folder)
    return False


def read_extra(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The `extra` that was given to `save_model`; empty if there was none."""
    return dict(parse_config(Path(folder) / CONFIG).get("extra") or {})


def _temporary(path: Path) -> Path:
    return path.with_name(path.name + ".tmp")


def _finish_renames(folder: Path) -> None:
    """Complete an earlier save that was interrupted between its renames, before new temporary files are written."""
    if not _temporary(folder / CONFIG).exists():
        return
    if _holds_new_weights(folder):
        for name in (TOKENIZER, CONCEPTS, CONFIG):
            if _temporary(folder / name).exists():
                _temporary(folder / name).replace(folder / name)


def _unreadable(path: Path, error: OSError) -> CheckpointError:
    reason = error.strerror or type(error).__name__
    return CheckpointError(f"cannot read {path} ({reason}): {HINT}")


def parse_config(path: Path) -> dict[str, Any]:
    """The content of a `config.json`. CheckpointError, in one line, where it cannot be read."""
    return read_json(path, hint=HINT, required=True)


def _hashes(source: Path) -> dict[str, Path]:
    """The files that may hold a folder's weights, by their hash."""
    found = [source / name for name in (INDEX, WEIGHTS) if (source / name).exists()] or [source / WEIGHTS]
    try:
        return {sha256_of(path): path for path in found}
    except OSError as error:
        raise _unreadable(found[0], error) from None


def _read_config(source: Path) -> tuple[Path, ModelConfig, dict[str, Any]]:
    """The weights file and the config that belongs to it, which has a temporary name if a save was interrupted."""
    path, hashes = source / CONFIG, _hashes(source)
    if _temporary(path).exists():
        with suppress(CheckpointError):
            path = _temporary(path) if parse_config(_temporary(path)).get("weights_sha256") in hashes else path
    values = parse_config(path)
    if not isinstance(values.get("weights_sha256"), str):
        raise CheckpointError(f"{path} has no weights_sha256: save the model again with `save_model`")
    weights = hashes.get(values["weights_sha256"])
    if weights is None:
        raise CheckpointError(
            f"{next(iter(hashes.values()))} is truncated or altered: its hash is not the one in {CONFIG}; copy it again"
        )
    return weights, _config_of(values, path), values


def _config_of(values: dict[str, Any], path: Path) -> ModelConfig:
    others = {"weights_sha256", "tokenizer_sha256", "extra"}
    try:
        return ModelConfig.from_dict({k: v for k, v in values.items() if k not in others}, str(path))
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{path} has an invalid value ({error}): copy it again") from None


def _read_tokenizer(source: Path, config: ModelConfig, values: dict[str, Any]) -> Tokenizer:
    """The tokenizer that belongs to the config, which has a temporary name if a save was interrupted."""
    tokenizer = _load_tokenizer(source / TOKENIZER)
    expected = values.get("tokenizer_sha256", tokenizer.sha256)
    if tokenizer.sha256 != expected and _temporary(source / TOKENIZER).exists():
        with suppress(CheckpointError):
            tokenizer = _load_tokenizer(_temporary(source / TOKENIZER))
    _check_vocabulary(config, tokenizer, source)
    if tokenizer.sha256 != expected:
        raise CheckpointError(f"{source / TOKENIZER} is not the vocabulary this model was trained with: copy it again")
    return tokenizer


def _load_tokenizer(path: Path) -> Tokenizer:
    try:
        return Tokenizer.load(path)
    except DataError as error:
        raise CheckpointError(str(error)) from None


def _check_vocabulary(config: ModelConfig, tokenizer: Tokenizer, folder: Path) -> None:
    if tokenizer.vocab_size != config.vocab_size:
        raise CheckpointError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} tokens and the model {config.vocab_size}: "
            "use the tokenizer.json that the model was trained with"
        )


def _check_tensors(config: ModelConfig, found: Mapping[str, Stored], path: Path) -> None:
    expected = parameter_shapes(config)
    missing, extra = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    if missing or extra:
        what = (
            f"lacks {len(missing)} tensors, first {missing[0]!r}"
            if missing
            else f"has an unexpected tensor {extra[0]!r}"
        )
        raise CheckpointError(f"{path} {what}: its config.json is of another model; copy the folder again")
    for name, shape in expected.items():
        has, kind = found[name].shape, found[name].kind
        if has != shape:
            raise CheckpointError(
                f"{path}: {name!r} has shape {has} and config.json requires {shape}: copy the folder again"
            )
        if kind not in KINDS:
            raise CheckpointError(f"{path}: {name!r} holds {kind}, not floating point: copy it again")
