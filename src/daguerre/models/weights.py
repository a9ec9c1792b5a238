"""The weights of a model folder: one safetensors file, or several and an index, read and written one at a time.

The index has the form that model hubs use, {"metadata": {...}, "weight_map": {tensor: file}}; its metadata also has the
hash of each file. A file's name contains a part of its hash, so a new set never overwrites an existing one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from daguerre.errors import CheckpointError
from daguerre.files import synced_write
from daguerre.models.bits import number_type
from daguerre.models.shards import INDEX, WEIGHTS, SafetensorsFile, Stored, read_index

if TYPE_CHECKING:
    import torch
    from torch import Tensor

SHARD_BYTES = 4 << 30
"""Weights larger than this are split into several files."""


def write_weights(
    folder: Path, tensors: Mapping[str, Tensor], dtype: torch.dtype, shard_bytes: int
) -> tuple[str, bytes]:
    """Name and content of the file that the caller must write: WEIGHTS, or INDEX, whose shards are written here."""
    sizes = {name: tensor.numel() * dtype.itemsize for name, tensor in tensors.items()}
    shards = split(sizes, shard_bytes)
    if len(shards) == 1:
        return WEIGHTS, formatted(tensors, shards[0], dtype)
    weight_map, hashes, total = dict[str, str](), dict[str, str](), 0
    for number, names in enumerate(shards, 1):
        content = formatted(tensors, names, dtype)
        digest = hashlib.sha256(content).hexdigest()
        file_name = f"model-{number:05}-of-{len(shards):05}-{digest[:8]}.safetensors"
        with synced_write(folder / file_name) as file:
            file.write(content)
        hashes[file_name] = digest
        weight_map |= dict.fromkeys(names, file_name)
        total += sum(sizes[name] for name in names)
    index = {"metadata": {"total_size": total, "sha256": hashes}, "weight_map": weight_map}
    return INDEX, (json.dumps(index, indent=2) + "\n").encode()


def remove_other_weights(folder: Path, kept: str) -> None:
    """Remove the weights of earlier saves: all but the file `kept`, which is WEIGHTS or INDEX, and its shards."""
    needed = {kept} if kept == WEIGHTS else {kept, *read_index(folder / kept)[0].values()}
    for path in [folder / WEIGHTS, folder / INDEX, *folder.glob("model-?????-of-?????-????????.safetensors")]:
        if path.name not in needed:
            with suppress(OSError):
                path.unlink()


def sha256_of(path: Path) -> str:
    """The hash of a file. OSError if it cannot be read."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def stored_in(path: Path) -> dict[str, Stored]:
    """Every tensor of WEIGHTS or INDEX of a folder. CheckpointError for a file that is damaged."""
    out: dict[str, Stored] = {}
    for file in _files(path):
        for name, stored in SafetensorsFile(file).tensors().items():
            if name in out:
                raise CheckpointError(f"{file} has {name!r}, which another file has, too: copy the folder again")
            out[name] = stored
    return out


def _files(path: Path) -> Iterator[Path]:
    """The files that hold the tensors; shards of an index are first compared with their hashes."""
    if path.name != INDEX:
        yield path
        return
    weight_map, hashes = read_index(path)
    for name in sorted({*weight_map.values()}):
        file = path.with_name(name)
        try:
            altered = name in hashes and sha256_of(file) != hashes[name]
        except OSError as error:
            raise CheckpointError(f"cannot read {file} ({error.strerror}), which {path.name} lists: copy it") from None
        if altered:
            raise CheckpointError(f"{file} is truncated or altered: its hash is not in {path.name}; copy it again")
        yield file


def split(sizes: Mapping[str, int], shard_bytes: int) -> list[list[str]]:
    """The names of tensors of so many bytes in groups of at most `shard_bytes`, or of a single larger tensor."""
    shards, size = [list[str]()], 0
    for name, num in sizes.items():
        if shards[-1] and size + num > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += num
    return shards


def formatted(tensors: Mapping[str, Tensor], names: list[str], dtype: torch.dtype) -> bytes:
    """The content of a safetensors file of these tensors in `dtype`."""
    from safetensors.torch import save as format_safetensors

    stored = {name: tensors[name].detach().to(device="cpu", dtype=dtype).contiguous() for name in names}
    content: bytes = format_safetensors(stored, metadata={"format": "pt"})
    return content


def formatted_arrays(arrays: Mapping[str, np.ndarray]) -> bytes:
    """The content of a safetensors file of arrays of float32, or of the bits of bfloat16."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    parts, at = list[bytes](), 0
    for name, array in sorted(arrays.items()):
        parts.append(np.ascontiguousarray(array).tobytes())
        kind = "BF16" if number_type(array) == "bfloat16" else "F32"
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": [at, at := at + len(parts[-1])]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *parts])
