"""The weights of a published checkpoint: found in its files, compared with what the model needs, and copied into it.

Files are safetensors or GGUF, so nothing can be executed. They are mapped into memory one at a time, and tensors are
copied one at a time into parameters that are there already, on their device and in their type: the most memory on the
host beyond the weights is that of the largest file, which is mapped, and of some rows of a quantized tensor.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from daguerre.errors import CheckpointError
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.build import make_shapes
from daguerre.models.core.config import ModelConfig
from daguerre.models.families.base import Family, Piece
from daguerre.models.gguf.file import GgufFile
from daguerre.models.gguf.header import KINDS as GGUF_KINDS
from daguerre.models.shards import KINDS, Stored, check_layers, some

READ = frozenset((*KINDS, *GGUF_KINDS))
"""Those, and ggml's, of which a GGUF file has no others."""
ROWS = 4096
"""Rows that are compared at a time."""
Progress = Callable[[int, int], None]
"""Called with the number of bytes that were read, and of all."""


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
        for file in sorted({stored[piece.name].file for piece in chosen}, key=lambda file: file.path):
            with file.open() as content:
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
    in_rows = isinstance(content, GgufFile)
    if in_rows and piece.change is None:
        for start, rows in content.row_blocks(piece.name):
            yield (slice(start, start + len(rows)),), tensor_of(rows)
        return
    tensor = tensor_of(content.array(piece.name)) if in_rows else content.get_tensor(piece.name)
    yield (), tensor if piece.change is None else piece.change(tensor)


def tensor_of(numbers: np.ndarray) -> Tensor:
    """The numbers of a GGUF file, of which int16 are the bits of bfloat16."""
    tensor = torch.from_numpy(numbers)
    return tensor.view(torch.bfloat16) if tensor.dtype == torch.int16 else tensor


def _compare(piece: Piece, ours: Tensor, tensor: Tensor) -> None:
    """CheckpointError if a copy differs from what it is a copy of."""
    for start in range(0, len(ours), ROWS):
        rows = slice(start, start + ROWS)
        if not torch.equal(ours[rows], tensor[rows].to(ours)):
            raise CheckpointError(
                f"{piece.name} is stored and differs from what config.json says it repeats: set tie_word_embeddings to "
                "false in config.json if the model has a projection of its own"
            )
