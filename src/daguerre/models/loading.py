"""Models by name: the default one, folders in Daguerre's own layout and in that of publishers, and names on a hub.

Nothing in a folder is ever executed. `daguerre.models.own_layout` and `daguerre.models.published` read the two layouts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from daguerre.errors import CheckpointError, InputError
from daguerre.models.core.backbone import Backbone
from daguerre.models.hub import is_name, pull, pull_tokenizer
from daguerre.models.own_layout import CONFIG as CONFIG
from daguerre.models.own_layout import load_own, parse_config
from daguerre.models.own_layout import read_extra as read_extra
from daguerre.models.own_layout import save_model as save_model
from daguerre.models.published import describe, files_hash, is_on_hub, is_published, load_published
from daguerre.models.published_weights import Progress
from daguerre.models.tokenizer import Tokenizer
from daguerre.models.tokenizer_files import TEKKEN, TIKTOKEN, TOKENIZER
from daguerre.models.weights import WEIGHTS as WEIGHTS

DEFAULT_MODEL = "default"


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A model that was loaded from a folder.

    family   the name in `daguerre.models.families.FAMILIES`; None for Daguerre's own layout
    decode   the published defaults of generation, as options of `daguerre.Decode`
    """

    backbone: Backbone
    tokenizer: Tokenizer
    folder: Path
    family: str | None = None
    decode: Mapping[str, Any] = field(default_factory=dict)


def load_folder(
    folder: str | os.PathLike[str],
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    *,
    family: str | None = None,
    adapter: str | os.PathLike[str] | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Loaded:
    """Read a folder in Daguerre's layout or in that of a publisher: the backbone in `dtype` on `device`, ready for
    inference, and its tokenizer.

    family     the name of a family, where the files do not say it
    adapter    the folder of a LoRA adapter, which is merged
    tokenizer  the folder of the tokenizer, for a checkpoint that has none
    progress   called with the bytes that were read, and all

    CheckpointError, in one line, when a file is missing, truncated or altered, when a tensor is missing, unexpected or
    of another shape, or when the tokenizer is of another vocabulary; UnsupportedError for a model that cannot be
    computed, and for an adapter of a model in Daguerre's layout.
    """
    source = Path(folder)
    options = {"family": family, "adapter": adapter, "tokenizer": tokenizer}
    if is_published(_values(source)):
        described, backbone, words = load_published(
            source, dtype, device, family=family, adapter=_path(adapter), tokenizer=_path(tokenizer), progress=progress
        )
        name, decode = described.family.name, described.family.decode
        return Loaded(backbone=backbone, tokenizer=words, folder=source, family=name, decode=decode)
    for option, value in options.items():
        if value is not None:
            raise InputError(f"{option} is for published checkpoints, and {source} is Daguerre's own: leave it out")
    own_backbone, own_words = load_own(source, dtype, device)
    return Loaded(backbone=own_backbone, tokenizer=own_words, folder=source)


def _path(name: str | os.PathLike[str] | None) -> Path | None:
    return None if name is None else Path(name)


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
    except (RuntimeError, AssertionError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"device {name!r} cannot be used ({reason}): try 'cpu'") from None
    return device


def model_folder(
    name: str | os.PathLike[str] = DEFAULT_MODEL, revision: str | None = None, *, family: str | None = None
) -> Path:
    """The folder of a model: "default" is the one in the package; a path is a folder; any other name with one slash is
    that of a model on a hub, at `revision`, which is downloaded if it is not in the cache (`daguerre.models.hub.pull`).

    A folder never touches the network. CheckpointError if the package has no model, or the hub's cannot be had;
    InputError for a revision of a folder.
    """
    path = Path(name)
    if name != DEFAULT_MODEL and isinstance(name, str) and not path.exists() and is_name(name):
        return pull(name, revision, family=family)
    if revision is not None:
        raise InputError(f"revision={revision!r} is for names on a hub, and {os.fspath(name)!r} is none: leave it out")
    if name != DEFAULT_MODEL:
        return path.expanduser()
    path = Path(str(resources.files("daguerre") / "assets" / DEFAULT_MODEL))
    if not (path / CONFIG).is_file():
        raise CheckpointError(
            "the default model is not in this installation: install the daguerre wheel, or train a model and load "
            "its folder"
        )
    return path


def tokenizer_folder(
    folder: Path, tokenizer: str | os.PathLike[str] | None = None, family: str | None = None
) -> Path | None:
    """The folder of the tokenizer that the user names, by a path or a name on a hub; if they name none, and a folder of
    the hub's cache has none, of the one that its family shares. None: the folder's own.
    """
    if tokenizer is None:
        if not is_on_hub(folder) or _has_tokenizer(folder):
            return None
        tokenizer = describe(folder, family=family).family.tokenizer
    path = Path(tokenizer)
    return path if path.exists() or not is_name(str(tokenizer)) else pull_tokenizer(str(tokenizer))


def _has_tokenizer(folder: Path) -> bool:
    return any(next(folder.glob(name), None) for name in (TOKENIZER, "vocab.json", TEKKEN, *TIKTOKEN))


def weights_hash(folder: str | os.PathLike[str]) -> str:
    """A hash that tells a folder's weights from others: in Daguerre's layout SHA-256 of the weights file, which
    `config.json` has.
    """
    values = parse_config(Path(folder) / CONFIG)
    return files_hash(Path(folder)) if is_published(values) else str(values.get("weights_sha256"))


def _values(folder: Path) -> dict[str, Any]:
    """The content of `config.json`; empty where it cannot be read, which is said later."""
    with suppress(CheckpointError):
        return parse_config(folder / CONFIG)
    return {}
