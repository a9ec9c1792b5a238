"""Models by name: the default one, folders in Daguerre's own layout and in that of publishers, GGUF files, and names on
a hub.

Nothing in a folder is ever executed. `daguerre.models.own_layout` and `daguerre.models.published` read the two layouts.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from daguerre.errors import CheckpointError, InputError, UnsupportedError, shown
from daguerre.extras import pytorch
from daguerre.kinds import WRONG, Kind
from daguerre.models.adapter_files import CONFIG as ADAPTER
from daguerre.models.bits import number_type_of
from daguerre.models.core.config import ModelConfig
from daguerre.models.draft_files import with_drafts
from daguerre.models.head_files import with_heads
from daguerre.models.hub import is_name, pull, pull_tokenizer
from daguerre.models.json_files import read_json
from daguerre.models.load_options import DEFAULT_MODEL, BackendName, Quantization
from daguerre.models.load_options import DTYPES as DTYPES
from daguerre.models.model_weights import ModelWeights
from daguerre.models.own_layout import CONFIG as CONFIG
from daguerre.models.own_layout import OwnSource
from daguerre.models.own_layout import read_extra as read_extra
from daguerre.models.own_layout import save_model as save_model
from daguerre.models.published import PublishedSource, describe, is_published
from daguerre.models.pulling.bring import path_of
from daguerre.models.pulling.wanted import hint, is_wanted
from daguerre.models.readers import HINT, FolderReader, GgufReader, is_on_hub, reader_of
from daguerre.models.scaling import Extension
from daguerre.models.shards import WEIGHTS as WEIGHTS
from daguerre.models.shards import Progress
from daguerre.models.sources import Loaded as Loaded
from daguerre.models.sources import ModelSource
from daguerre.models.tokenizer import Tokenizer
from daguerre.models.tokenizer_files import TEKKEN, TIKTOKEN, TOKENIZER

if TYPE_CHECKING:
    import torch

    from daguerre.models.core.backbone import Backbone

PACKAGED = {DEFAULT_MODEL: "default", "concepts": "concepts-model"}
"""The models of the package: their names, and their folders in `assets`."""


@dataclass(frozen=True, kw_only=True)
class Backbones(Kind):
    """A backbone, or the weights of one."""

    words: ClassVar[str] = "a Backbone"

    def read(self, name: str, value: Any) -> Any:
        right = isinstance(value, ModelWeights) or isinstance(getattr(value, "config", None), ModelConfig)
        return value if right else WRONG


def load_folder(
    folder: str | os.PathLike[str],
    dtype: str | torch.dtype = "float32",
    device: str | torch.device = "cpu",
    *,
    family: str | None = None,
    adapter: str | os.PathLike[str] | None = None,
    drafts: str | os.PathLike[str] | None = None,
    concepts: str | os.PathLike[str] | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    rope_scaling: Extension | None = None,
    progress: Progress | None = None,
    defer: bool = False,
) -> Loaded:
    """Read a folder in Daguerre's layout or in that of a publisher, or a GGUF file: the backbone in `dtype` on
    `device`, ready for inference, and its tokenizer.

    family     the name of a family, where the files do not say it
    adapter    the folder of a LoRA adapter, which is merged
    drafts     the folder of drafts, or "none"; by default those beside the model (`daguerre.models.draft_files`)
    concepts   the folder of concept heads, or "none"; by default those beside the model (`daguerre.models.head_files`)
    tokenizer  the folder of the tokenizer, for a checkpoint that has none
    rope_scaling  how its positions are scaled, and become more
    progress   called with the bytes that were read, and all
    defer      weights stay in their files until they are packed (`daguerre.models.model_weights`)

    CheckpointError, in one line, when a file is missing, truncated or altered, when a tensor is missing, unexpected or
    of another shape, or when the tokenizer is of another vocabulary; UnsupportedError for a model or an adapter that
    cannot be computed.
    """
    adapter_path = None if adapter is None else named_path(adapter, "an adapter")
    tokenizer_path = None if tokenizer is None else named_path(tokenizer, "a tokenizer")
    source = open_source(named_path(folder, "a model"), family=family, tokenizer=tokenizer_path)
    numbers = number_type_of(dtype)
    loaded = source.load(numbers, str(device), adapter=adapter_path, progress=progress, defer=defer)
    if rope_scaling is not None:
        loaded.weights.rescale(rope_scaling)
    loaded = with_drafts(loaded, None if drafts is None else named_path(drafts, "a folder of drafts"))
    heads = None if concepts is None else named_path(concepts, "a folder of concept heads")
    return with_heads(loaded, heads, changed=adapter is not None)


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


def open_source(path: Path, *, family: str | None = None, tokenizer: Path | None = None) -> ModelSource:
    """The model of a folder in Daguerre's own layout or in a publisher's, or of a GGUF file.

    family, tokenizer  see `load_folder`; InputError where the folder is in Daguerre's own layout

    CheckpointError where there is no model.
    """
    reader = reader_of(path)
    if isinstance(reader, GgufReader) or _in_published_layout(reader):
        return PublishedSource(reader, family, tokenizer)
    for option, value in (("family", family), ("tokenizer", tokenizer)):
        if value is not None:
            raise InputError(f"{option} is for published checkpoints, and {path} is Daguerre's own: leave it out")
    return OwnSource(path)


def load_model(
    folder: str | os.PathLike[str], dtype: str | torch.dtype = "float32", device: str | torch.device = "cpu"
) -> tuple[Backbone, Tokenizer]:
    """The backbone and the tokenizer of a folder; see `load_folder`."""
    loaded = load_folder(folder, dtype, device)
    return loaded.backbone, loaded.tokenizer


def joined(device: str, backend: BackendName | None, quantize: Quantization | None) -> str:
    """The device of this process, which has joined the others that share the layers."""
    if backend == "native" or quantize is not None:
        raise UnsupportedError("layers are shared by the torch backend alone: leave out native and quantize")
    from daguerre.models.tensor_parallel import join_others

    return join_others(device)


def usable_device(name: str) -> str:
    """The device of that name, as PyTorch writes it. InputError if it cannot be used here; MissingExtra for one that
    PyTorch computes on, without PyTorch.
    """
    if name == "cpu":
        return name
    torch = pytorch()
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"device {shown(name)} cannot be used ({reason[:100]}): try 'cpu'") from None
    if device.type == "cpu" and device.index:
        raise InputError(f"device {name!r} cannot be used (there is one CPU, whatever its cores): try 'cpu'")
    return str(device)


def model_folder(
    name: str | os.PathLike[str] = DEFAULT_MODEL,
    revision: str | None = None,
    *,
    family: str | None = None,
    weights: bool = True,
    what: str = "a model",
) -> Path:
    """The folder of a model, or its GGUF file: a name of PACKAGED is that of one in the package; a path is a folder or
    a file; a short name (`daguerre.models.pulling.catalogue`) or hf:OWNER/REPO[:TYPE] is a GGUF file or a folder, any
    other name with one slash the folder of a model on a hub, at `revision`. They are downloaded if they are not here
    (`daguerre.models.pulling.bring.path_of`, `daguerre.models.hub.pull`), without `weights` if they are not needed.

    A folder never touches the network. CheckpointError if there is no such folder, if the package does not have the
    model, or if the hub's cannot be had; InputError for a revision of a folder.
    """
    path, packaged = named_path(name, what), isinstance(name, str) and name in PACKAGED
    if path.suffix == ".gguf" and not path.exists():
        raise CheckpointError(f"there is no file {os.fspath(name)}: check the path")
    if isinstance(name, str) and not packaged and not path.exists():
        if is_wanted(name):
            return path_of(name, revision, family=family, weights=weights)
        if is_name(name):
            return pull(name, revision, family=family, weights=weights)
    if revision is not None:
        given = f"revision={shown(revision)}"
        raise InputError(f"{given} is for names on a hub, and {os.fspath(name)!r} is none: leave it out")
    if not packaged:
        if path.is_file():
            if reader_of(path).is_file:
                return path
            raise CheckpointError(
                f"{os.fspath(name)} is a file, and a model is a folder or a GGUF file: give its folder"
            )
        if not path.is_dir():
            purpose = "" if what == "a model" else f" for {what}"
            raise CheckpointError(
                f"there is no folder {os.fspath(name)}{purpose}: check the path; {hint(os.fspath(name))}"
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
    """A hash that tells the weights of a folder or a GGUF file from others; see `ModelSource.weights_hash`."""
    return open_source(Path(folder)).weights_hash()


def _in_published_layout(reader: FolderReader) -> bool:
    """Whether a folder is in a publisher's layout. After a save of our own that was interrupted it may have no config,
    or half of one, which loading completes.
    """
    saving = (reader.path / f"{CONFIG}.tmp").exists()
    try:
        if reader.values or reader.config.exists():
            return is_published(reader.values)
    except CheckpointError:
        if not saving:
            raise
    if saving:
        return False
    if (reader.path / ADAPTER).exists():
        base = read_json(reader.path / ADAPTER).get("base_model_name_or_path") or "the model that it was trained on"
        raise CheckpointError(f"{reader.path} is a LoRA adapter: load {base} with this folder as its adapter")
    return is_published(read_json(reader.config, hint=HINT, required=True))  # which says what is wrong
