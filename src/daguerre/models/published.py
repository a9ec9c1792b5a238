"""A published folder, or a GGUF file: what its files say, and the model that they hold.

Files are JSON, safetensors and vocabularies. Code that a folder contains, or that its config names, is never looked at.
A GGUF file says the same things in its metadata (`daguerre.models.gguf`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from daguerre.errors import CheckpointError, DataError, InputError, UnsupportedError
from daguerre.models.bundled import Adapter, read_bundled, with_adapter
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.config import ModelConfig
from daguerre.models.deferred import Deferred, backbone_without_weights, can_defer
from daguerre.models.families import find_family
from daguerre.models.families.base import Family, Published
from daguerre.models.families.reading import sampling_of, unsupported
from daguerre.models.gguf.facts import gguf_facts
from daguerre.models.gguf.header import is_gguf
from daguerre.models.gguf.parts import parts_of
from daguerre.models.json_files import read_json
from daguerre.models.lora import merge_adapter
from daguerre.models.published_tokenizer import PublishedTokenizer, added_of
from daguerre.models.published_weights import Progress, copy_weights, empty_backbone, find_tensors, fit, in_files
from daguerre.models.tokenizer_files import read_config, read_tokenizer

CONFIG, GENERATION = "config.json", "generation_config.json"
FAMILY_KEY = "daguerre_family"
"""The key of a `config.json` that names the family, where it was written here (`models.republish`)."""
SNAPSHOT = re.compile(r"models--([^/]+)--([^/]+)/snapshots/[^/]+$")
"""A folder of the hub's cache, which is named by a revision."""
OWN_KEYS = frozenset({"width", "num_layers", "num_heads"})
"""Keys of Daguerre's own layout, which no publisher has."""


def is_published(config: Mapping[str, Any]) -> bool:
    """Whether a `config.json` is in a publisher's layout, not in Daguerre's own."""
    return "weights_sha256" not in config and not config.keys() >= OWN_KEYS


def is_on_hub(folder: Path) -> bool:
    """Whether a folder is in the hub's cache."""
    return SNAPSHOT.search(folder.absolute().as_posix()) is not None


def name_of(folder: Path) -> str:
    """The name by which a folder is known: on the hub, if it is in the hub's cache, else its own."""
    found = SNAPSHOT.search(folder.absolute().as_posix())
    return f"{found[1]}/{found[2]}" if found else folder.absolute().name


@dataclass(frozen=True)
class Described:
    """A published folder, without its weights: its family, its config, and what its files say.

    decode    the published defaults of generation, as options of `daguerre.Decode`
    sampling  how an autoregressive model's publisher has answers drawn, likewise; empty where nothing is said
    """

    family: Family
    config: ModelConfig
    facts: Published
    decode: Mapping[str, Any]
    sampling: Mapping[str, Any]


def describe(folder: Path, *, family: str | None = None, tokenizer: PublishedTokenizer | None = None) -> Described:
    """What a folder holds, from its small files alone; `config.json` is enough."""
    facts = read_facts(folder, family)
    facts = facts if tokenizer is None else _with_tokenizer(facts, tokenizer)
    found = _family(folder, facts, family)
    return _described(folder, facts, found, read_bundled(found, folder, weights=False))


def family_name(folder: Path) -> str:
    """The name of a published folder's family."""
    return _family(folder, read_facts(folder), None).name


def _with_tokenizer(facts: Published, tokenizer: PublishedTokenizer) -> Published:
    tokens = {**facts.tokens, **tokenizer.added}
    return replace(facts, tokens=tokens, bos_id=tokenizer.bos_id, num_tokens=tokenizer.num_tokens)


def read_facts(folder: Path, family: str | None = None) -> Published:
    """What the JSON files of a folder say, or the metadata of a GGUF file, read as one of `family` if that is given."""
    if is_gguf(folder):
        return gguf_facts(folder, family)
    try:
        tokenizer = read_config(folder)
        tokens = {token["content"]: token["id"] for token in added_of(tokenizer)}
    except DataError as error:
        raise CheckpointError(f"{folder}: {error}") from None
    config = read_json(folder / CONFIG)
    return Published(
        config=config,
        generation=read_json(folder / GENERATION),
        tokenizer=tokenizer,
        tokens=tokens,
        name=name_of(folder),
        family=config.get(FAMILY_KEY),
    )


def _family(folder: Path, facts: Published, family: str | None) -> Family:
    """The family of a folder."""
    if not facts.config:
        raise CheckpointError(f"{folder} has no {CONFIG}, or an empty one: check the path")
    for key in ("quantization_config", "quantization"):
        if value := facts.config.get(key):
            method = value.get("quant_method", key) if isinstance(value, Mapping) else key
            raise unsupported(f"a checkpoint that is quantized ({method})")
    return find_family(facts.config, tokenizer=facts.tokenizer, name=facts.name, family=family or facts.family)


def _described(folder: Path, facts: Published, family: Family, adapter: Adapter) -> Described:
    facts, where = replace(facts, adapter=adapter.config), folder if is_gguf(folder) else folder / CONFIG
    try:
        config = _without(family.read(facts), facts.never)
        return Described(family, config, facts, family.decode, _sampling(family, config, facts))
    except UnsupportedError as error:
        raise UnsupportedError(f"{facts.name} ({family.name}): {error}") from None
    except (CheckpointError, InputError) as error:
        raise CheckpointError(f"{where} cannot be read as {family.name}: {error}") from None
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise CheckpointError(
            f"{where} cannot be read as {family.name}: a value is of a wrong kind ({reason}); copy it again"
        ) from error


def _without(config: ModelConfig, never: tuple[int, ...]) -> ModelConfig:
    """A config whose model does not predict these tokens, either."""
    new = {*never} - {*config.ends, *config.reserved_ids}
    return replace(config, reserved_ids=(*config.reserved_ids, *new)) if new else config


def _sampling(family: Family, config: ModelConfig, facts: Published) -> Mapping[str, Any]:
    """What generation_config.json, or the same keys of a GGUF file, say of an autoregressive model.

    Models that denoise are decoded by scripts of their publishers, which name values of their own and do not read that
    file: it is often the one of the autoregressive model that they were made of.
    """
    return sampling_of(facts.generation) if config.mask_id is None and not family.decode else {}


def load_published(
    folder: Path,
    dtype: torch.dtype,
    device: torch.device | str,
    *,
    family: str | None = None,
    adapter: Path | None = None,
    tokenizer: Path | None = None,
    progress: Progress | None = None,
    defer: bool = False,
) -> tuple[Described, Backbone, PublishedTokenizer]:
    """The model of a published folder or a GGUF file, in `dtype` on `device`, with an adapter merged if one is given.

    tokenizer   the folder of a tokenizer that is taken in place of the checkpoint's
    defer       weights stay in their files until they are packed, where the model allows that (`models.deferred`)

    CheckpointError, in one line, for files that are missing, damaged or not of one model; UnsupportedError for a model
    that cannot be computed.
    """
    facts = read_facts(folder, family)
    plain = _family(folder, facts, family)
    bundled = read_bundled(plain, folder)
    found = with_adapter(plain, bundled)
    words, stored = _tokenizer(folder, tokenizer, found), find_tensors(folder)
    shapes = facts.shapes or {name: tensor.shape for name, tensor in stored.items()}
    facts = replace(_with_tokenizer(facts, words), shapes=shapes)
    described = _described(folder, facts, found, bundled)
    try:
        words = words.sized(described.config.vocab_size)
        words.eos_id = described.config.eos_id  # which the tokenizer's own files may not name
    except DataError as error:
        raise CheckpointError(f"{folder}: {error}") from None
    stored |= bundled.stored
    pieces = fit(in_files(found, folder), described.config, stored, folder)
    if defer and adapter is None and can_defer(described.config):
        backbone = backbone_without_weights(described.config, dtype)
        backbone.deferred = Deferred(pieces, stored, progress)
        return described, backbone, words
    backbone = empty_backbone(described.config, dtype, device)
    copy_weights(backbone, pieces, stored, progress)
    if adapter is not None:
        merge_adapter(backbone, found.pieces(described.config) if is_gguf(folder) else pieces, adapter, found.prefix)
    return described, backbone, words


def _tokenizer(folder: Path, other: Path | None, family: Family) -> PublishedTokenizer:
    """The tokenizer of the other folder, if there is one, else of this one."""
    found = read_tokenizer(folder) if other is None else given_tokenizer(other, folder)
    if found is not None:
        return found
    instead = f", such as {family.tokenizer!r}" if family.tokenizer else ""
    raise CheckpointError(
        f"{folder} has no tokenizer: copy the whole folder, or say which tokenizer the model was trained with{instead}"
    )


def given_tokenizer(folder: Path, checkpoint: Path) -> PublishedTokenizer:
    """The tokenizer of a folder that the user named, for a checkpoint. CheckpointError where it has none."""
    found = read_tokenizer(folder, names=checkpoint)
    if found is None:
        raise CheckpointError(f"{folder} has no tokenizer: give a folder with tokenizer.json")
    return found


def files_hash(folder: Path) -> str:
    """A hash that tells a folder's weights from others without reading them: of the names by which the hub's cache
    keeps files, which are hashes of their contents; of other files, of sizes and times of change.
    """
    digest = hashlib.sha256()
    for path in parts_of(folder) if is_gguf(folder) else sorted(folder.glob("*.safetensors")):
        blob, about = path.resolve().name, path.stat()
        kept = blob if re.fullmatch("[0-9a-f]{64}", blob) else f"{about.st_size} {about.st_mtime_ns}"
        digest.update(f"{path.name} {kept}\n".encode())
    return digest.hexdigest()
