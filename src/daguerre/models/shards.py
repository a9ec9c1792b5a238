"""The safetensors files of a folder, and what is in them: nothing in them can be executed."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from daguerre.errors import CheckpointError, shown
from daguerre.models.bits import STORED, NumberType, converted
from daguerre.models.block_rows import BlockRows
from daguerre.models.core.config import ModelConfig
from daguerre.models.gguf.file import GgufFile, read_bytes
from daguerre.models.json_files import read_json

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
LONGEST_NAME = 255
"""Bytes of the name of a file."""
KINDS = ("F32", "F16", "BF16")
"""Types of stored numbers that are read, as safetensors names them."""
Progress = Callable[[int, int], None]
"""Called with the number of bytes that were read, and of all."""
LISTED = 20
"""How many names of a kind an error lists."""


@dataclass(frozen=True, slots=True)
class SafetensorsFile:
    """A safetensors file."""

    path: Path

    def tensors(self) -> dict[str, Stored]:
        """What the file holds, by name. CheckpointError if it is damaged."""
        with open_shard(self.path, "numpy"):  # which compares the header with the file
            return {
                name: Stored(self, tuple(about["shape"]), about["dtype"], end - begin, start + begin)
                for start, name, about, (begin, end) in self._index()
            }

    def _index(self) -> Iterator[tuple[int, str, dict[str, Any], tuple[int, int]]]:
        """Where tensors begin, and of each its name, what the header says of it, and its bytes from there."""
        (size,) = struct.unpack("<Q", read_bytes(self.path, 0, 8).tobytes())
        header = json.loads(read_bytes(self.path, 8, size).tobytes())
        for name, about in header.items():
            if name != "__metadata__":
                yield 8 + size, name, about, tuple(about["data_offsets"])

    def array(self, stored: Stored) -> np.ndarray:
        """A tensor's numbers as they are stored; of bfloat16 the bits as uint16."""
        held = read_bytes(self.path, stored.offset, stored.num_bytes)
        return held.view(STORED[stored.kind]).reshape(stored.shape)


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored tensor: its file, shape and type, as safetensors or ggml names it, and its bytes; where these begin in a
    safetensors file; and its name in a GGUF file.
    """

    file: SafetensorsFile | GgufFile
    shape: tuple[int, ...]
    kind: str
    num_bytes: int
    offset: int = 0
    name: str = ""

    @property
    def paths(self) -> Sequence[Path]:
        """The file, or all parts of the one that it is of."""
        return self.file.parts if isinstance(self.file, GgufFile) else [self.file.path]

    def array(self) -> np.ndarray:
        """The numbers as they are stored, of bfloat16 the bits as uint16; of quantized ones as float32."""
        if isinstance(self.file, GgufFile):
            return self.file.array(self.name)
        return self.file.array(self)

    def rows(self) -> BlockRows:
        """The rows of a tensor of a GGUF file, in blocks."""
        assert isinstance(self.file, GgufFile)
        return BlockRows.of(self.file.blocks(self.name), self.kind, self.shape)

    def read(self, numbers: NumberType) -> np.ndarray:
        """The numbers in a type."""
        if isinstance(self.file, GgufFile):
            return self.file.read(self.name, numbers)
        return converted(self.file.array(self), numbers)


def open_shard(file: Path, framework: str = "pt") -> Any:
    """A safetensors file to read from, as a context. CheckpointError if it is damaged."""
    try:
        return safe_open(file, framework=framework)
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
