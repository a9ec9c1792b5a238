"""The weights of a published checkpoint: found in its files, compared with what the model needs, and copied into it.

Files are safetensors or GGUF, so nothing can be executed. They are mapped into memory one at a time, and tensors are
copied one at a time into parameters that are there already, on their device and in their type: the most memory on the
host beyond the weights is that of the largest file, which is mapped, and of some rows of a quantized tensor.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from daguerre.errors import CheckpointError
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.build import make_shapes
from daguerre.models.core.config import ModelConfig
from daguerre.models.families.base import Family, Piece
from daguerre.models.gguf.facts import gguf_arch
from daguerre.models.gguf.file import GgufFile
from daguerre.models.gguf.header import KINDS as GGUF_KINDS
from daguerre.models.gguf.header import is_gguf, read_header
from daguerre.models.gguf.pieces import in_gguf
from daguerre.models.weights import INDEX, WEIGHTS, check_layers, open_shard, read_index

KINDS = ("F32", "F16", "BF16")
"""Types of stored numbers that are read, as safetensors names them."""
READ = frozenset((*KINDS, *GGUF_KINDS))
"""Those, and ggml's, of which a GGUF file has no others."""
LISTED = 20
"""How many names of a kind an error lists."""
ROWS = 4096
"""Rows that are compared at a time."""
Progress = Callable[[int, int], None]
"""Called with the number of bytes that were read, and of all."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored tensor: its file, shape and type, as safetensors or ggml names it, and its bytes."""

    file: Path
    shape: tuple[int, ...]
    kind: str
    num_bytes: int

    @classmethod
    def plain(cls, file: Path, shape: Sequence[int], kind: str) -> Stored:
        """A tensor of a safetensors file."""
        return cls(file, tuple(shape), kind, math.prod(shape) * (4 if kind == "F32" else 2))


def find_tensors(folder: Path) -> dict[str, Stored]:
    """Every tensor of a published folder, from the headers of its files. CheckpointError, in one line, where a file is
    missing or damaged, an index is wrong, or two files have the same tensor.
    """
    if is_gguf(folder):
        entries = read_header(folder, texts=False).entries
        return {name: Stored(folder, entry.shape, entry.kind, entry.num_bytes) for name, entry in entries.items()}
    listed = read_index(folder / INDEX)[0] if (folder / INDEX).exists() else {}
    files = sorted({folder / name for name in listed.values()}) or [folder / WEIGHTS]
    found: dict[str, Stored] = {}
    for file in files:
        if not file.is_file():
            raise CheckpointError(_missing_file(folder, file, bool(listed)))
        with open_shard(file) as content:
            for name in content.keys():  # noqa: SIM118 - not a mapping
                if name in found:
                    raise CheckpointError(
                        f"{name!r} is in {found[name].file.name} and in {file}: copy the folder again"
                    )
                view = content.get_slice(name)
                found[name] = Stored.plain(file, view.get_shape(), view.get_dtype())
    wrong = [name for name, file in listed.items() if name not in found or found[name].file.name != file]
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


def in_files(family: Family, folder: Path) -> Family:
    """The family with its tensors under the names that they have in a folder or a GGUF file."""
    return in_gguf(family, gguf_arch(folder)) if is_gguf(folder) else family


def fit(family: Family, config: ModelConfig, stored: Mapping[str, Stored], folder: Path) -> list[Piece]:
    """The pieces of a model that are stored. CheckpointError that names every tensor that is missing, not expected, or
    of another shape or type.
    """
    check_layers(config, len(stored), folder)
    parts = make_shapes(config).state_dict()
    pieces = without_prefix(family, family.pieces(config), stored)
    here = [piece for piece in pieces if piece.name in stored]
    missing = [piece.name for piece in pieces if piece.name not in stored and not piece.copy]
    known = {piece.name for piece in pieces}
    extra = [name for name in stored if name not in known and not _is_ignored(family, name)]
    shapes = [text for piece in here if (text := _wrong_shape(piece, stored[piece.name].shape, parts))]
    kinds = [f"{p.name} ({stored[p.name].kind})" for p in here if stored[p.name].kind not in READ]
    problems = [
        f"{len(names)} {what}: {some(names)}"
        for what, names in (
            ("missing", missing),
            ("not expected", extra),
            ("of another shape", shapes),
            (f"of a type other than {', '.join(KINDS)}", kinds),
        )
        if names
    ]
    if problems:
        raise CheckpointError(
            f"the tensors in {folder} are not those of its config ({family.name}): {'; '.join(problems)}; copy it "
            "again, or use a checkpoint that is not quantized"
        )
    return here


def without_prefix(family: Family, pieces: list[Piece], stored: Iterable[str]) -> list[Piece]:
    """The pieces under the names that are stored: without the prefix where no name has it."""
    prefix = family.prefix
    if not prefix or any(name.startswith(prefix) for name in stored):
        return pieces
    return [replace(piece, name=piece.name.removeprefix(prefix)) for piece in pieces]


def _is_ignored(family: Family, name: str) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in family.ignored)


def _wrong_shape(piece: Piece, shape: tuple[int, ...], parts: Mapping[str, Tensor]) -> str | None:
    """What is wrong with the shape of a stored tensor; None if it fits."""
    needed = tuple(parts[piece.target][piece.index].shape)
    try:
        has = torch.empty(shape, device="meta")
        has = has if piece.change is None else piece.change(has)
    except (RuntimeError, IndexError, ValueError):
        return f"{piece.name} {shape}"
    return None if tuple(has.shape) == needed else f"{piece.name} {tuple(has.shape)}, not {needed}"


def some(names: list[str]) -> str:
    """The first of these names, and how many more there are."""
    more = len(names) - LISTED
    return ", ".join(names[:LISTED]) + (f" and {more} more" if more > 0 else "")


def empty_backbone(config: ModelConfig, dtype: torch.dtype, device: torch.device | str) -> Backbone:
    """A backbone for inference whose weights are there, with any content."""
    backbone = make_shapes(config).to(dtype).to_empty(device=device).eval().requires_grad_(False)
    backbone.never = torch.tensor(config.unpredictable_ids, dtype=torch.int64, device=device)
    return backbone


def copy_weights(
    backbone: Backbone, pieces: list[Piece], stored: Mapping[str, Stored], progress: Progress | None = None
) -> None:
    """Copy stored tensors into a backbone. CheckpointError where a copy of a tensor is not equal to it."""
    parts, done = backbone.state_dict(), 0
    total = sum(stored[piece.name].num_bytes for piece in pieces)
    for copies in (False, True):
        chosen = [piece for piece in pieces if piece.copy is copies]
        for file in sorted({stored[piece.name].file for piece in chosen}):
            with open_shard(file) as content:
                for piece in (piece for piece in chosen if stored[piece.name].file == file):
                    for rows, tensor in _parts(content, piece):
                        ours = parts[piece.target][piece.index][rows]
                        _compare(piece, ours, tensor) if copies else ours.copy_(tensor)
                        del tensor
                    done += stored[piece.name].num_bytes
                    if progress is not None:
                        progress(done, total)


def _parts(content: Any, piece: Piece) -> Iterator[tuple[tuple[slice, ...], Tensor]]:
    """A tensor as our model has it, in parts, and which rows each is; () is all of it. Of a GGUF file they are a few
    rows, so that no matrix is in float32 as a whole.
    """
    if piece.change is not None:
        yield (), piece.change(content.get_tensor(piece.name))
    elif isinstance(content, GgufFile):
        for start, tensor in content.row_blocks(piece.name):
            yield (slice(start, start + len(tensor)),), tensor
    else:
        yield (), content.get_tensor(piece.name)


def _compare(piece: Piece, ours: Tensor, tensor: Tensor) -> None:
    """CheckpointError if a copy differs from what it is a copy of."""
    for start in range(0, len(ours), ROWS):
        rows = slice(start, start + ROWS)
        if not torch.equal(ours[rows], tensor[rows].to(ours)):
            raise CheckpointError(
                f"{piece.name} is stored and differs from what config.json says it repeats: set tie_word_embeddings to "
                "false in config.json if the model has a projection of its own"
            )
