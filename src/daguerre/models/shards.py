"""The safetensors files of a folder, and what is in them: nothing in them can be executed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from daguerre.errors import CheckpointError, shown
from daguerre.models.core.config import ModelConfig
from daguerre.models.gguf.file import GgufFile
from daguerre.models.json_files import read_json

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
LONGEST_NAME = 255
"""Bytes of the name of a file."""
KINDS = ("F32", "F16", "BF16")
"""Types of stored numbers that are read, as safetensors names them."""
LISTED = 20
"""How many names of a kind an error lists."""


@dataclass(frozen=True, slots=True)
class SafetensorsFile:
    """A safetensors file."""

    path: Path

    def open(self) -> Any:
        """The file as a context, to read tensors from. CheckpointError if it is damaged."""
        return open_shard(self.path)

    def tensors(self) -> dict[str, Stored]:
        """What the file holds, by name."""
        found = dict[str, Stored]()
        with open_shard(self.path) as content:
            for name in content.keys():  # noqa: SIM118 - not a mapping
                view = content.get_slice(name)
                shape, dtype = tuple(view.get_shape()), view.get_dtype()
                found[name] = Stored(self, shape, dtype, math.prod(shape) * (4 if dtype == "F32" else 2))
        return found


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored tensor: its file, shape and type, as safetensors or ggml names it, and its bytes."""

    file: SafetensorsFile | GgufFile
    shape: tuple[int, ...]
    kind: str
    num_bytes: int


def open_shard(file: Path) -> Any:
    """A safetensors file to read from, as a context. CheckpointError if it is damaged."""
    try:
        return safe_open(file, framework="pt")
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read ({error}): copy it again") from None


def read_index(path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Which file has each tensor, and the hash of each file; there are none in a published index."""
    try:
        index = read_json(path, hint="copy the whole folder again", required=True)
        weight_map = {str(name): str(file) for name, file in index["weight_map"].items()}
        hashes = {str(name): str(digest) for name, digest in _hashes_in(index).items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} is not an index of weights ({error}): copy it again") from None
    for name in weight_map.values():
        if Path(name).name != name or len(name.encode("utf-8", "replace")) > LONGEST_NAME or "\0" in name:
            raise CheckpointError(
                f"{path} lists {shown(name)}, which is not a file in this folder: copy the folder again"
            )
    return weight_map, hashes


def _hashes_in(index: Mapping[str, Any]) -> Mapping[str, Any]:
    """The hashes of files in the metadata of an index, which both may be missing."""
    hashes: Mapping[str, Any] = (index.get("metadata") or {}).get("sha256") or {}
    return hashes


def find_tensors(folder: Path) -> dict[str, Stored]:
    """Every tensor of a published folder, from the headers of its files. CheckpointError, in one line, where a file is
    missing or damaged, an index is wrong, or two files have the same tensor.
    """
    listed = read_index(folder / INDEX)[0] if (folder / INDEX).exists() else {}
    files = sorted({folder / name for name in listed.values()}) or [folder / WEIGHTS]
    found: dict[str, Stored] = {}
    for file in files:
        if not file.is_file():
            raise CheckpointError(_missing_file(folder, file, bool(listed)))
        held = SafetensorsFile(file).tensors()
        if twice := next((name for name in held if name in found), None):
            raise CheckpointError(f"{twice!r} is in {found[twice].file.path.name} and in {file}: copy the folder again")
        found |= held
    wrong = [name for name, file in listed.items() if name not in found or found[name].file.path.name != file]
    if wrong:
        raise CheckpointError(f"{folder / INDEX} is wrong about {some(wrong)}: copy the folder again")
    return found


def _missing_file(folder: Path, file: Path, listed: bool) -> str:
    if listed:
        return f"{file} is missing, which {INDEX} lists: copy the folder again"
    pickled = next(iter(sorted(folder.glob("*.bin")) + sorted(folder.glob("*.pt*"))), None)
    if pickled is None:
        return f"{folder} has no {WEIGHTS} and no {INDEX}: copy the whole folder, or check the path"
    return (
        f"{pickled} may run code when it is read, so it is not: have transformers load the folder where that does no "
        "harm, and write it again with save_pretrained, which makes safetensors"
    )


def some(names: list[str]) -> str:
    """The first of these names, and how many more there are."""
    more = len(names) - LISTED
    return ", ".join(names[:LISTED]) + (f" and {more} more" if more > 0 else "")


def check_layers(config: ModelConfig, num_tensors: int, where: Path) -> None:
    """CheckpointError for more layers than there are tensors, before any of them is made."""
    if config.num_layers > num_tensors:
        raise CheckpointError(
            f"the config says {config.num_layers:,} layers (num_layers) and {where} has {num_tensors:,} tensors in "
            "all: copy it again"
        )
