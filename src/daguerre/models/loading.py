"""Models by name: the default one, folders in Daguerre's own layout and in that of publishers, GGUF files, and names on
a hub.

Nothing in a folder is ever executed. `daguerre.models.own_layout` and `daguerre.models.published` read the two layouts.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from daguerre.errors import CheckpointError, InputError, shown
from daguerre.models.backends.disk import gigabytes
from daguerre.models.catalog import FILE as CONCEPTS
from daguerre.models.catalog import Catalog, read_catalog
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.config import ModelConfig
from daguerre.models.gguf.header import is_gguf
from daguerre.models.gguf.parts import size_of
from daguerre.models.hub import is_name, pull, pull_tokenizer
from daguerre.models.json_files import read_json
from daguerre.models.lora import CONFIG as ADAPTER
from daguerre.models.lora import merge_adapter
from daguerre.models.lora_names import Published, published_as
from daguerre.models.own_layout import CONFIG as CONFIG
from daguerre.models.own_layout import load_own, parse_config, read_config, read_own_catalog
from daguerre.models.own_layout import read_extra as read_extra
from daguerre.models.own_layout import save_model as save_model
from daguerre.models.published import describe, files_hash, is_on_hub, is_published, load_published
from daguerre.models.published_weights import Progress
from daguerre.models.scaling import Extension
from daguerre.models.tokenizer import Tokenizer
from daguerre.models.tokenizer_files import TEKKEN, TIKTOKEN, TOKENIZER, read_tokenizer
from daguerre.models.weights import WEIGHTS as WEIGHTS

DEFAULT_MODEL = "default"
ADVISED, BETWEEN = 0.75, 6.7
"""Of the bits that a weight takes in memory those of a file, below which `advise` speaks; and the bits of a file's
weight between those that it says "approximate_int4" for and "int8": Q6_K has 6.6.
"""
LOG = logging.getLogger("daguerre")
PACKAGED = {DEFAULT_MODEL: "default", "concepts": "concepts-model"}
"""The models of the package: their names, and their folders in `assets`."""


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A model that was loaded from a folder.

    family   the name in `daguerre.models.families.FAMILIES`; None for Daguerre's own layout
    decode   the published defaults of generation, as options of `daguerre.Decode`
    concepts names of the concepts of a model with concept heads; None for any other
    """

    backbone: Backbone
    tokenizer: Tokenizer
    folder: Path
    family: str | None = None
    decode: Mapping[str, Any] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    concepts: Catalog | None = None


def load_folder(
    folder: str | os.PathLike[str],
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    *,
    family: str | None = None,
    adapter: str | os.PathLike[str] | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    rope_scaling: Extension | None = None,
    progress: Progress | None = None,
    defer: bool = False,
) -> Loaded:
    """Read a folder in Daguerre's layout or in that of a publisher, or a GGUF file: the backbone in `dtype` on
    `device`, ready for inference, and its tokenizer.

    family     the name of a family, where the files do not say it
    adapter    the folder of a LoRA adapter, which is merged
    tokenizer  the folder of the tokenizer, for a checkpoint that has none
    rope_scaling  how its positions are scaled, and become more
    progress   called with the bytes that were read, and all
    defer      weights of a published folder stay in their files until they are packed (`daguerre.models.deferred`)

    CheckpointError, in one line, when a file is missing, truncated or altered, when a tensor is missing, unexpected or
    of another shape, or when the tokenizer is of another vocabulary; UnsupportedError for a model or an adapter that
    cannot be computed.
    """
    loaded = _load(folder, dtype, device, family, adapter, tokenizer, progress, defer)
    if rope_scaling is not None:
        loaded.backbone.config = rope_scaling(loaded.backbone.config)
    return loaded


def _load(
    folder: str | os.PathLike[str],
    dtype: torch.dtype,
    device: torch.device | str,
    family: str | None,
    adapter: str | os.PathLike[str] | None,
    tokenizer: str | os.PathLike[str] | None,
    progress: Progress | None,
    defer: bool,
) -> Loaded:
    source = named_path(folder, "a model")
    beside = None if adapter is None else named_path(adapter, "an adapter")
    if is_published_folder(source, family=family, tokenizer=tokenizer):
        words_in = None if tokenizer is None else named_path(tokenizer, "a tokenizer")
        described, backbone, words = load_published(
            source, dtype, device, family=family, adapter=beside, tokenizer=words_in, progress=progress, defer=defer
        )
        name, decode = described.family.name, described.decode
        shape = backbone.config.concepts
        names = None if shape is None else read_catalog(source / CONCEPTS, shape)
        return Loaded(
            backbone=backbone,
            tokenizer=words,
            folder=source,
            family=name,
            decode=decode,
            sampling=described.sampling,
            concepts=names,
        )
    own_backbone, own_words = load_own(source, dtype, device)
    if beside is not None:
        known = published_as(own_backbone.config, None)
        merge_adapter(own_backbone, known.pieces, beside, known.prefix)
    names = read_own_catalog(source, own_backbone.config)
    return Loaded(backbone=own_backbone, tokenizer=own_words, folder=source, concepts=names)


def named_path(name: str | os.PathLike[str], what: str) -> Path:
    """The path that a name may be, with "~" for the home folder. InputError for what is no name, or cannot be one."""
    if not isinstance(name, str | os.PathLike):
        raise InputError(f"{what} is given by its name or folder, not by {shown(name)}")
    try:
        path = Path(name).expanduser()
        path.stat()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return path  # which is said by whoever reads it
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{what} cannot be in {os.fspath(name)!r:.80} ({reason}): check the path") from None
    return path


def is_published_folder(folder: Path, **options: Any) -> bool:
    """Whether a folder is in a publisher's layout, or a GGUF file. CheckpointError where it holds no model; InputError
    for one of the `options` that is not None, where it is in Daguerre's own layout, which has none of them.
    """
    if is_gguf(folder) or is_published(_values(folder)):
        return True
    for option, value in options.items():
        if value is not None:
            raise InputError(f"{option} is for published checkpoints, and {folder} is Daguerre's own: leave it out")
    return False


def config_of(folder: Path, family: str | None = None) -> ModelConfig:
    """The config of a folder in either layout, without its weights."""
    if not is_published_folder(folder, family=family):
        return read_config(folder)
    return describe(folder, family=family, tokenizer=read_tokenizer(folder)).config


def names_of(folder: Path, family: str | None = None) -> tuple[ModelConfig, Published]:
    """The config of a folder in either layout, and the names by which an adapter has its matrices, without weights."""
    if not is_published_folder(folder, family=family):
        config = read_config(folder)
        return config, published_as(config, None)
    described = describe(folder, family=family, tokenizer=read_tokenizer(folder))
    return described.config, published_as(described.config, described.family.name)


def advise(loaded: Loaded, bits: int) -> None:
    """Say which `quantize` takes about the memory of a GGUF file whose quantized weights become numbers of so many
    bits.
    """
    weights = loaded.backbone.num_parameters
    if not is_gguf(loaded.folder) or 8 * size_of(loaded.folder) > ADVISED * bits * weights:
        return
    stored = 8 * size_of(loaded.folder) / weights
    better, less = ("int8", 8) if stored > BETWEEN else ("approximate_int4", 4.5)
    LOG.warning(
        'the file has %.1f bits a weight, which take %s as %d bits: quantize="%s" takes about %s, is faster, and '
        "rounds once more",
        *(stored, gigabytes(bits * weights / 8), bits, better, gigabytes(less * weights / 8)),
    )


def load_model(
    folder: str | os.PathLike[str], dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> tuple[Backbone, Tokenizer]:
    """The backbone and the tokenizer of a folder; see `load_folder`."""
    loaded = load_folder(folder, dtype, device)
    return loaded.backbone, loaded.tokenizer


def usable_device(name: str) -> torch.device:
    """The device of that name. InputError if it cannot be used here."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"device {shown(name)} cannot be used ({reason[:100]}): try 'cpu'") from None
    if device.type == "cpu" and device.index:
        raise InputError(f"device {name!r} cannot be used (there is one CPU, whatever its cores): try 'cpu'")
    return device


def model_folder(
    name: str | os.PathLike[str] = DEFAULT_MODEL,
    revision: str | None = None,
    *,
    family: str | None = None,
    weights: bool = True,
    what: str = "a model",
) -> Path:
    """The folder of a model, or its GGUF file: a name of PACKAGED is that of one in the package; a path is a folder or
    a file; any other name with one slash is that of a model on a hub, at `revision`, which is downloaded if it is not
    in the cache (`daguerre.models.hub.pull`), without its `weights` if they are not needed.

    A folder never touches the network. CheckpointError if there is no such folder, if the package does not have the
    model, or if the hub's cannot be had; InputError for a revision of a folder.
    """
    path, packaged = named_path(name, what), isinstance(name, str) and name in PACKAGED
    if path.suffix == ".gguf" and not path.exists():
        raise CheckpointError(f"there is no file {os.fspath(name)}: check the path")
    if isinstance(name, str) and not packaged and not path.exists() and is_name(name):
        return pull(name, revision, family=family, weights=weights)
    if revision is not None:
        given = f"revision={shown(revision)}"
        raise InputError(f"{given} is for names on a hub, and {os.fspath(name)!r} is none: leave it out")
    if not packaged:
        if is_gguf(path):
            return path
        if path.is_file():
            raise CheckpointError(
                f"{os.fspath(name)} is a file, and a model is a folder or a GGUF file: give its folder"
            )
        if not path.is_dir():
            purpose = "" if what == "a model" else f" for {what}"
            raise CheckpointError(
                f"there is no folder {os.fspath(name)}{purpose}: check the path; names on a hub are owner/repository"
            )
        return path
    path = Path(str(resources.files("daguerre") / "assets" / PACKAGED[str(name)]))
    if not (path / CONFIG).is_file():
        raise CheckpointError(
            f"the model {name!r} is not in this installation: install the daguerre wheel, or train a model and load "
            "its folder"
        )
    return path


def tokenizer_folder(
    folder: Path, tokenizer: str | os.PathLike[str] | None = None, family: str | None = None
) -> Path | None:
    """The folder of the tokenizer that the user names, by a path or a name on a hub, which comes before the folder's
    own; if they name none, and a folder of the hub's cache has none, of the one that its family shares. None: the
    folder's own.
    """
    if tokenizer is None:
        if not is_on_hub(folder) or _has_tokenizer(folder):
            return None
        tokenizer = describe(folder, family=family).family.tokenizer
    path = named_path(tokenizer, "a tokenizer")
    return path if path.exists() or not is_name(str(tokenizer)) else pull_tokenizer(str(tokenizer))


def _has_tokenizer(folder: Path) -> bool:
    return any(next(folder.glob(name), None) for name in (TOKENIZER, "vocab.json", TEKKEN, *TIKTOKEN))


def weights_hash(folder: str | os.PathLike[str]) -> str:
    """A hash that tells a folder's weights from others: in Daguerre's layout SHA-256 of the weights file, which
    `config.json` has.
    """
    path = Path(folder)
    if is_gguf(path):
        return files_hash(path)
    values = parse_config(path / CONFIG)
    return files_hash(path) if is_published(values) else str(values.get("weights_sha256"))


def _values(folder: Path) -> dict[str, Any]:
    """The content of `config.json`; empty after a save of our own that was interrupted, which `load_own` completes."""
    try:
        return parse_config(folder / CONFIG)
    except CheckpointError:
        if (folder / f"{CONFIG}.tmp").exists():
            return {"weights_sha256": None}
        if not (folder / CONFIG).exists() and (folder / ADAPTER).exists():
            base = read_json(folder / ADAPTER).get("base_model_name_or_path") or "the model that it was trained on"
            raise CheckpointError(f"{folder} is a LoRA adapter: load {base} with this folder as its adapter") from None
        raise
